"""Rule state, compiled: the state functions inside a compiled function answer and act as they do in eager mode.

Source: torch/csrc/autograd/init.cpp; in parentheses are the names of upstream tests.
"""

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("state")

_GUARDED = ("dynamo", "aot", "inductor", "jaxcompile", "jaxjit")


@scenario(compiler=_GUARDED)
def test_enabled_asked_inside(amp: Amp, compiler: str) -> None:
    """`is_autocast_enabled` inside a compiled function answers for its place (test_is_autocast_cpu_enabled)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out: tuple[torch.Tensor, ...] = (x + 1 if torch.is_autocast_enabled(kind) else x - 1,)
        with torch.autocast(kind, dtype=low):
            out += (x.float() if torch.is_autocast_enabled(kind) else x.double(),)
            with torch.autocast(kind, enabled=False):
                out += (x.double() if torch.is_autocast_enabled(kind) else x.float(),)
        return (*out, x.double() if torch.is_autocast_enabled(kind) else x.float())

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("branches taken", [out.dtype for out in compiled(x)], [torch.float32] * 4)


@scenario(compiler=_GUARDED)
def test_surroundings_asked_inside(amp: Amp, compiler: str) -> None:
    """A compiled function that asks for the state around it gets that of each call (test_autocast_constant_fold)."""
    kind = amp.type

    def program(x: torch.Tensor) -> torch.Tensor:
        return x.to(torch.get_autocast_dtype(kind)) if torch.is_autocast_enabled(kind) else x.double()

    x, compiled = amp.compiled_with_matrix(compiler, program)
    for _ in range(2):
        amp.assert_equal("dtype outside", compiled(x).dtype, torch.float64)
        for dtype in (amp.dtype, amp.other):
            with amp.region(dtype):
                amp.assert_equal(f"dtype in a region of {dtype}", compiled(x).dtype, dtype)


@scenario(compiler=_GUARDED)
def test_dtype_asked_inside(amp: Amp, compiler: str) -> None:
    """`get_autocast_dtype` inside a compiled function gives the dtype of the region around it."""
    kind, other = amp.type, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=other):
            inside = x.to(torch.get_autocast_dtype(kind))
        return inside, x.to(torch.get_autocast_dtype(kind))

    x, compiled = amp.compiled_with_matrix(compiler, program)
    amp.assert_equal("dtypes inside and behind", [out.dtype for out in compiled(x)], [other, amp.default])


@scenario(compiler=["dynamo", "aot", "inductor", "jaxcompile", "jaxjit"])
def test_reuse_asked_inside(amp: Amp, compiler: str) -> None:
    """`is_autocast_cache_enabled` inside a compiled function tells the cache setting of the region around it."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, dtype=low, cache_enabled=False):
            off = x.double() if torch.is_autocast_cache_enabled() else x.float()
        return off, x.double() if torch.is_autocast_cache_enabled() else x.float()

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    amp.assert_equal("branches taken", [out.dtype for out in compiled(x)], [torch.float32, torch.float64])
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=["dynamo", "aot", "inductor", "jaxcompile"])
def test_set_inside(amp: Amp, compiler: str) -> None:
    """A setting that a compiled function changes holds from there on, inside it and after it (pytorch#186530)."""
    kind, other = amp.type, amp.other

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        before = torch.mm(x, x)
        torch.set_autocast_enabled(kind, True)
        torch.set_autocast_dtype(kind, other)
        return before, torch.mm(x, x)

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    for call in ("first", "second"):
        got = [y.dtype for y in compiled(x)]
        amp.assert_equal(f"dtypes before and behind, {call} call", got, [torch.float32, other])
        amp.assert_equal(f"state after the {call} call", amp.state(), (True, other, True))
        torch.set_autocast_enabled(kind, False)
        torch.set_autocast_dtype(kind, amp.default)


@scenario(compiler=["dynamo", "aot", "inductor", "jaxcompile", "jaxjit"])
def test_set_between_calls(amp: Amp, compiler: str) -> None:
    """A setting that changes between two calls holds at the second."""
    x = amp.rand(2, 2)
    compiled = amp.compiled(compiler, torch.mm, x, x)
    amp.assert_equal("dtype before", compiled(x, x).dtype, torch.float32)
    torch.set_autocast_enabled(amp.type, True)
    for dtype in (amp.dtype, amp.other, amp.dtype):
        torch.set_autocast_dtype(amp.type, dtype)
        amp.assert_equal(f"dtype after setting {dtype}", compiled(x, x).dtype, dtype)
    torch.set_autocast_enabled(amp.type, False)
    amp.assert_equal("dtype after switching it off", compiled(x, x).dtype, torch.float32)


@scenario(compiler=["dynamo", "aot", "inductor", "jaxcompile"])
def test_compiling_leaves_state(amp: Amp, compiler: str) -> None:
    """Compiling in a region leaves the region's state, its depth included, as it was."""
    x = amp.rand(2, 2)
    for cache in (True, False):
        with amp.region(cache_enabled=cache):
            before = (*amp.state(), amp.depth())
            compiled = amp.compiled(compiler, torch.mm, x, x, dynamic=cache)
            amp.assert_equal(f"dtype, cache_enabled={cache}", compiled(x, x).dtype, amp.dtype)
            amp.assert_equal(f"state after compiling, cache_enabled={cache}", (*amp.state(), amp.depth()), before)
