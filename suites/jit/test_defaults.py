"""Rule defaults, compiled: a region without options in a compiled function takes the defaults at the time of the call.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast; cases name the upstream test or issue they come
from.
"""

import warnings

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import GUARDED, TRACEABLE

pytestmark = pytest.mark.rule("defaults")


@scenario(compiler=TRACEABLE, dtypes="default")
def test_no_options(amp: Amp, compiler: str) -> None:
    """A region given nothing inside a compiled function takes the default dtype (upstream test_autocast_device)."""
    kind = amp.type

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind):
            return torch.mm(x, x)

    x = amp.rand(2, 2)
    amp.assert_equal("dtype", amp.compiled(compiler, program, x)(x).dtype, amp.default)
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=GUARDED)
def test_default_set_between_calls(amp: Amp, compiler: str) -> None:
    """A region given no dtype takes the one that is set when the compiled function is called."""
    kind = amp.type

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind):
            return torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program)
    for dtype in (amp.dtype, amp.other, amp.dtype):
        torch.set_autocast_dtype(kind, dtype)
        amp.assert_equal(f"dtype after setting {dtype}", compiled(x).dtype, dtype)


@scenario(compiler=["dynamo", "aot", "inductor", "export", "jaxcompile"], dtypes="default")
def test_arguments_by_place_and_name(amp: Amp, compiler: str) -> None:
    """A region inside takes its arguments by place and by name, also as torch.amp.autocast (pytorch#140279)."""
    kind, other = amp.type, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, other, True, False):
            first = torch.mm(x, x)
        with torch.autocast(enabled=False, device_type=kind):
            second = torch.mm(x, x)
        with torch.amp.autocast(cache_enabled=True, dtype=other, device_type=kind):
            third = torch.mm(x, x)
        return first, second, third

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("dtypes", [y.dtype for y in compiled(x)], [other, torch.float32, other])


@scenario(compiler=["dynamo", "aot", "inductor", "export"], dtypes="default", types=("cpu", "cuda"))
def test_spelling_of_a_type(amp: Amp, compiler: str) -> None:
    """The deprecated class of a device type is a region of that type inside a compiled function, too (amp.html)."""
    spelled, other = (torch.cuda.amp.autocast if amp.type == "cuda" else torch.cpu.amp.autocast), amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with spelled(dtype=other):
            first = torch.mm(x, x)
            with spelled(False):
                return first, torch.mm(x, x)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        x, compiled = amp.compiled_with_matrix(compiler, program)
        amp.assert_equal("dtypes", [y.dtype for y in compiled(x)], [other, torch.float32])
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))
