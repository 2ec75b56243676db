"""Rule cache, compiled: a compiled function sees new values and new gradient modes of a weight whose cast is cached.

Where a case names no source, it is `cached_cast` of aten/src/ATen/autocast_mode.cpp.
"""

from __future__ import annotations

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("cache")

_GUARDED = ("dynamo", "aot", "inductor", "jaxcompile")


@scenario(compiler=_GUARDED, values=True)
def test_new_values_of_a_weight(amp: Amp, compiler: str) -> None:
    """A compiled function sees a weight's new values in the next region, and in this one where its cast is cleared."""
    x, weight = amp.rand(2, 2), amp.rand(2, 2, requires_grad=True)
    compiled = amp.compiled(compiler, torch.mm, x, weight)
    for turn in range(3):
        with amp.region():
            got = compiled(x, weight)
            with torch.no_grad():
                weight.mul_(2)
            torch.clear_autocast_cache()
            again = compiled(x, weight)
        amp.assert_close(f"the product doubled in turn {turn}", again.float(), amp.host(got.detach().float()) * 2, 0.02)


@scenario(compiler=_GUARDED, values=True)
def test_without_gradients_first(amp: Amp, compiler: str) -> None:
    """A weight cast without gradients in a region has a gradient in the same region afterwards (pytorch#158232)."""
    x, weight = amp.rand(2, 2), amp.rand(2, 2, requires_grad=True)
    compiled = amp.compiled(compiler, torch.mm, x, weight)
    with amp.region():
        with torch.no_grad():
            amp.assert_equal("whether it requires grad without gradients", compiled(x, weight).requires_grad, False)
        out = compiled(x, weight)
        amp.assert_equal("whether it requires grad with them", out.requires_grad, True)
    out.float().sum().backward()
    amp.assert_equal("dtype of the gradient", getattr(weight.grad, "dtype", None), torch.float32)


@scenario(compiler=["dynamo", "aot", "inductor", "export", "strict", "jaxcompile"], cache=[True, False], values=True)
def test_gradient_of_two_uses(amp: Amp, compiler: str, cache: bool) -> None:
    """A weight used twice in a compiled function has eager mode's gradient, whether or not the cache is on."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=low, cache_enabled=cache):
            return torch.mm(torch.mm(x, weight), weight).float()

    x = amp.rand(3, 3)
    one, two = (amp.rand(3, 3) for _ in range(2))
    with torch.no_grad():
        two.copy_(one)
    one.requires_grad_()
    two.requires_grad_()
    compiled = amp.compiled(compiler, program, x, two)
    program(x, one).sum().backward()
    compiled(x, two).sum().backward()
    assert one.grad is not None
    amp.assert_equal("whether there is a gradient", two.grad is not None, True)
    if two.grad is not None:
        amp.assert_close("gradient", two.grad, one.grad, 0.02)
