"""Rule cache, compiled: a compiled function sees new gradient modes of a weight whose cast is cached.

Where a case names no source, it is `cached_cast` of aten/src/ATen/autocast_mode.cpp. `UNKEPT` is a product: calls of
each policy in regions that keep no casts.
"""

from collections.abc import Callable
from contextlib import nullcontext

import pytest
import torch
from torch.nn import functional

from ampcheck.runner.suite import Amp, Product, scenario, where
from ampcheck.spec.case import DYNAMO

pytestmark = pytest.mark.rule("cache")


@scenario(compiler=DYNAMO, values=True)
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
    amp.assert_close("gradient", two.grad, one.grad, 0.02)


CALLS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...]]] = {
    "product": ("mm", torch.mm, ("wide", "wide")),
    "layer": ("linear", functional.linear, ("wide", "wide")),
    "loss": ("mse_loss", functional.mse_loss, ("low", "wide")),
    "exponential": ("exp", lambda x, y: torch.exp(x), ("low", "low")),
    "softmax": ("softmax.int", lambda x, y: torch.softmax(x, -1), ("low", "low")),
    "joined": ("cat", lambda x, y: torch.cat([x, y]), ("low", "wide")),
    "angle": ("atan2", torch.atan2, ("low", "wide")),
    "sine": ("sin", lambda x, y: torch.sin(x), ("low", "low")),
}
"""An overload of each policy on one device or other, the call, and the dtypes it is given."""

UNKEPT = Product(
    {
        "compiler": ("dynamo", "aot", "export", "jaxcompile"),
        "op": tuple(CALLS),
        "place": ("inside", "around", "nested"),
        "grads": ("unasked", "asked", "no_grad"),
    },
    {"an exported program has no region that is around its call": where(compiler="export", place="around")},
)


@scenario(UNKEPT, dtypes="default")
def test_without_keeping(amp: Amp, compiler: str, op: str, place: str, grads: str) -> None:
    """A compiled call casts what it casts eagerly in a region that keeps no casts (torch.autocast, cache_enabled)."""
    overload, call, dtypes = CALLS[op]
    kind, low = amp.type, amp.dtype
    given = [(amp.rand(4, 4) * 4 - 2).to(low if dtype == "low" else torch.float32) for dtype in dtypes]
    given = [x.requires_grad_(grads == "asked" and amp.has_values) for x in given]
    casting = amp.casting(overload, [x.dtype for x in given])
    cast = [x.to(casting.dtype or dtype) for x, dtype in zip(given, casting.dtypes, strict=True)]

    def program(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if place == "around":
            return call(x, y)
        if place == "inside":
            with torch.autocast(kind, dtype=low, cache_enabled=False):
                return call(x, y)
        with torch.autocast(kind, dtype=low), torch.autocast(kind, dtype=low, cache_enabled=False):
            return call(x, y)

    with (
        amp.region(cache_enabled=False) if place == "around" else nullcontext(),
        torch.set_grad_enabled(grads != "no_grad"),
    ):
        got = amp.compiled(compiler, program, *given)(*given)
    want = call(*cast)
    amp.assert_equal(f"dtype of the result of {overload}", got.dtype, want.dtype)
    if amp.has_values and got.dtype == want.dtype:
        amp.assert_close(f"result of {overload}", got, amp.host(want), 8 * torch.finfo(low).eps)
    if grads == "asked" and amp.has_values:
        gradients = [torch.autograd.grad(out.float().square().sum(), given, allow_unused=True) for out in (got, want)]
        for place_of, (one, other) in enumerate(zip(*gradients, strict=True)):
            amp.assert_equal(f"whether argument {place_of} has a gradient", one is not None, other is not None)
            if one is not None and other is not None:
                amp.assert_close(f"gradient of argument {place_of}", one, amp.host(other), 16 * torch.finfo(low).eps)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), ((False, amp.default, True), 0))
