"""Rule nesting, compiled: regions in and around a compiled function nest as they do in eager mode.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; cases name the upstream test or issue they come
from.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO, GUARDED, TRACEABLE

pytestmark = pytest.mark.rule("nesting")


@scenario(compiler=TRACEABLE)
def test_three_deep(amp: Amp, compiler: str) -> None:
    """Regions inside a compiled function nest: another dtype, disabled, and back again."""
    kind, low, other = amp.type, amp.dtype, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, dtype=low):
            first = torch.mm(x, x)
            with torch.autocast(kind, dtype=other):
                second = torch.mm(x, x)
                with torch.autocast(kind, enabled=False):
                    third = torch.mm(x, x)
                fourth = torch.mm(x, x)
            fifth = torch.mm(x, x)
        return first, second, third, fourth, fifth, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program)
    want = [low, other, torch.float32, other, low, torch.float32]
    amp.assert_equal("dtypes on the way in and out", [out.dtype for out in compiled(x)], want)
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(
    compiler=["dynamo", "aot", "inductor", "export", "strict", "jaxcompile"],
    types=("cuda", "xpu", "mps", "mtia", "jax"),
)
def test_two_device_types(amp: Amp, compiler: str) -> None:
    """Regions of two device types in a compiled function each cast their own tensors (upstream test_autocast_sdpa)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            alone = torch.mm(x, x)
            with torch.autocast(kind, dtype=low):
                both = torch.mm(x, x)
        return alone, both

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("dtypes in the CPU's region and in both", [out.dtype for out in compiled(x)], [torch.float32, low])
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=GUARDED)
def test_dtype_from_an_argument(amp: Amp, compiler: str) -> None:
    """A region whose dtype and whether it is enabled are arguments follows them from call to call."""
    kind = amp.type

    def program(x: torch.Tensor, dtype: torch.dtype, enabled: bool) -> torch.Tensor:
        with torch.autocast(kind, dtype=dtype, enabled=enabled):
            return torch.mm(x, x)

    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, program, x, amp.dtype, True)
    for dtype in (amp.dtype, amp.other, amp.dtype):
        amp.assert_equal(f"dtype in a region of {dtype}", compiled(x, dtype, True).dtype, dtype)
        amp.assert_equal("dtype in a disabled region", compiled(x, dtype, False).dtype, torch.float32)


@scenario(compiler=DYNAMO)
def test_compiled_calls_compiled(amp: Amp, compiler: str) -> None:
    """A compiled function in a region of another compiled one runs in that region (pytorch#166267)."""
    kind, low = amp.type, amp.dtype
    x = amp.rand(2, 2)
    inner = amp.compiled(compiler, torch.mm, x, x)
    amp.assert_equal("dtype alone", inner(x, x).dtype, torch.float32)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            y = inner(x, x)
        return y, inner(x, x)

    compiled = amp.compiled(compiler, program, x, fullgraph=False)
    amp.assert_equal("dtypes inside and behind", [out.dtype for out in compiled(x)], [low, torch.float32])
