"""Rule functorch, derivatives: `ampcheck.spec.rules` says what it promises.

Each derivative of torch.func stands beside that of the same function with its casts written out, outside of any region.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from ampcheck.runner.suite import Amp, scenario

pytestmark = [
    pytest.mark.rule("functorch"),
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
]
"""What PyTorch warns of in its own forward derivatives: decompositions that it scripts, and graphs that it folds."""

Function = Callable[[torch.Tensor], torch.Tensor]
Derive = Callable[[Function, torch.Tensor, torch.Tensor], Any]

DERIVATIVES: dict[str, Derive] = {
    "grad": lambda f, x, v: torch.func.grad(lambda x: f(x).sum())(x),
    "grad_and_value": lambda f, x, v: torch.func.grad_and_value(lambda x: f(x).sum())(x),
    "vjp": lambda f, x, v: torch.func.vjp(f, x)[1](v),
    "jvp": lambda f, x, v: torch.func.jvp(f, (x,), (v,)),
    "jacrev": lambda f, x, v: torch.func.jacrev(f)(x),
    "jacfwd": lambda f, x, v: torch.func.jacfwd(f)(x),
    "linearize": lambda f, x, v: torch.func.linearize(f, x)[1](v),
    "hessian": lambda f, x, v: torch.func.hessian(lambda x: f(x).sum())(x),
    "grad_of_grad": lambda f, x, v: torch.func.grad(lambda x: (torch.func.grad(lambda x: f(x).sum())(x) * v).sum())(x),
    "vjp_of_jvp": lambda f, x, v: torch.func.vjp(lambda x: torch.func.jvp(f, (x,), (v,))[1], x)[1](v),
    "reverse_of_reverse": lambda f, x, v: torch.func.jacrev(torch.func.jacrev(f))(x),
}
"""Derivatives of a function from [3, 3] to [3, 3] at `x`, along `v` where they have a direction."""


def _leaves(found: Any) -> list[torch.Tensor]:
    return [leaf for leaf in torch.utils._pytree.tree_leaves(found) if isinstance(leaf, torch.Tensor)]


def _alike(amp: Amp, what: str, got: Any, want: Any) -> None:
    """Both are of one structure; the dtypes are equal, and the values up to a rounding of the lower precision."""
    gots, wants = _leaves(got), _leaves(want)
    amp.expect(f"how many tensors {what} has", len(gots), len(wants))
    for place, (one, other) in enumerate(zip(gots, wants, strict=False)):
        amp.close(f"tensor {place} of {what}", one, amp.device.host(other.detach()), 2 * torch.finfo(amp.dtype).eps)


class _Product:
    """A product, a sine in float32 and another product, by autocast and by hand; notes the state it runs in."""

    def __init__(self, amp: Amp) -> None:
        self.amp = amp
        self.weight = amp.rand(3, 3)
        self.seen: list[tuple[object, torch.dtype, torch.dtype]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.mm(x, self.weight)
        last = torch.mm(torch.sin(first.float()), self.weight)
        self.seen.append((self.amp.state(), first.dtype, last.dtype))
        return last.float()

    def by_hand(self, dtype: torch.dtype) -> Function:
        weight = self.weight.to(dtype)
        return lambda x: torch.mm(torch.sin(torch.mm(x.to(dtype), weight).float()).to(dtype), weight).float()

    def with_region(self, x: torch.Tensor) -> torch.Tensor:
        with self.amp.region(cache_enabled=False):
            return self(x)


@pytest.mark.parametrize("place", ["around", "inside", "decorated"])
@pytest.mark.parametrize("derivative", DERIVATIVES)
@scenario(values=True)
def test_derivative(amp: Amp, derivative: str, place: str) -> None:
    """The function runs in the region each time, and the derivative is that of its casts, in the input's dtype."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)
    derive = DERIVATIVES[derivative]
    before = amp.state(), amp.depth()
    if place == "around":
        with amp.region(cache_enabled=False):
            got = derive(product, x, v)
    elif place == "inside":
        got = derive(product.with_region, x, v)
    else:
        got = amp.region(cache_enabled=False)(derive)(product, x, v)
    amp.expect("state and depth afterwards", (amp.state(), amp.depth()), before)
    expected = ((True, amp.dtype, False), amp.dtype, amp.dtype)
    amp.expect("states it ran in, and dtypes of its products", set(product.seen), {expected})
    amp.expect(f"dtypes of {derivative}", {tensor.dtype for tensor in _leaves(got)}, {torch.float32})
    _alike(amp, derivative, got, derive(product.by_hand(amp.dtype), x, v))


@pytest.mark.parametrize("derivative", ["grad", "vjp", "jvp", "jacfwd", "linearize", "hessian"])
@scenario(values=True)
def test_inner_region_off(amp: Amp, derivative: str) -> None:
    """What runs in float32 inside of a region has a float32 derivative: backward ops follow forward ones (amp.html)."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)

    def off(x: torch.Tensor) -> torch.Tensor:
        with amp.region(enabled=False):
            return product(x)

    with amp.region(amp.other):
        got = _leaves(DERIVATIVES[derivative](off, x, v))
        amp.expect("state afterwards", amp.state(), (True, amp.other, True))
    amp.expect("dtypes of products", {dtype for _, dtype, _ in product.seen}, {torch.float32})
    for place, want in enumerate(_leaves(DERIVATIVES[derivative](product.by_hand(torch.float32), x, v))):
        amp.close(f"tensor {place}", got[place], amp.device.host(want))


@pytest.mark.parametrize("derivative", ["jvp", "jacfwd"])
@scenario(values=True)
def test_inner_region_other(amp: Amp, derivative: str) -> None:
    """What runs in one lower precision inside of a region of the other has its derivative in the one (amp.html)."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)
    with amp.region(amp.other):
        got = _leaves(DERIVATIVES[derivative](product.with_region, x, v))
    amp.expect("dtypes of products", {dtype for _, dtype, _ in product.seen}, {amp.dtype})
    for place, want in enumerate(_leaves(DERIVATIVES[derivative](product.by_hand(amp.dtype), x, v))):
        amp.expect(f"values of tensor {place}", amp.values(got[place]), amp.values(want))


@pytest.mark.parametrize("derivative", ["vjp", "linearize"])
@scenario(values=True)
def test_pulled_outside(amp: Amp, derivative: str) -> None:
    """What a region's vjp or linearize returns may be called after the region, or in another one (torch.func.vjp)."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)
    with amp.region():
        pull = torch.func.vjp(product, x)[1] if derivative == "vjp" else torch.func.linearize(product, x)[1]
    want = DERIVATIVES[derivative](product.by_hand(amp.dtype), x, v)
    amp.expect("dtypes of the result", {found.dtype for found in _leaves(pull(v))}, {torch.float32})
    _alike(amp, "the result outside", pull(v), want)
    before = amp.state()
    with amp.region(enabled=False):
        _alike(amp, "the result in a disabled region", pull(v), want)
    amp.expect("state afterwards", amp.state(), before)


@pytest.mark.parametrize("low", [True, False], ids=["low", "wide"])
@pytest.mark.parametrize("derivative", ["grad", "vjp", "jvp", "jacrev", "jacfwd"])
@scenario(values=True)
def test_dtype_follows_the_input(amp: Amp, derivative: str, low: bool) -> None:
    """Derivatives with respect to a tensor have its dtype, tangents of a result that of the result (torch.func)."""
    dtype = amp.dtype if low else torch.float32
    weight, x, v = amp.rand(3, 3), amp.rand(3, 3, dtype=dtype), amp.rand(3, 3)
    with amp.region():
        along = v.to(amp.dtype if derivative == "vjp" else dtype)
        found = _leaves(DERIVATIVES[derivative](lambda x: torch.mm(x, weight), x, along))
    wanted = {"jvp": [amp.dtype] * 2, "jacfwd": [amp.dtype]}.get(derivative, [dtype])
    amp.expect(f"dtypes of {derivative}", [tensor.dtype for tensor in found], wanted)


@scenario(values=True)
def test_dual_numbers(amp: Amp) -> None:
    """A tangent is cast with its tensor, through the ops of each policy (torch.autograd.forward_ad)."""
    x, v, weight, u = (amp.rand(3, 3) for _ in range(4))

    def tangents(product: Callable[[Any, Any], torch.Tensor]) -> list[Any]:
        with forward_ad.dual_level():
            first = product(forward_ad.make_dual(x, v), weight)
            second = product(x, forward_ad.make_dual(weight, u))
            both = product(forward_ad.make_dual(x, v), forward_ad.make_dual(weight, u))
            wide = torch.softmax(both.float(), -1)
            return [forward_ad.unpack_dual(dual) for dual in (first, second, both, wide)]

    with amp.region():
        got = tangents(torch.mm)
        amp.expect("dtype of a product after the level", torch.mm(x, weight).dtype, amp.dtype)
    low = tangents(lambda a, b: torch.mm(a.to(amp.dtype), b.to(amp.dtype)))
    for place, ((primal, tangent), (wanted, along)) in enumerate(zip(got, low, strict=True)):
        amp.expect(f"dtypes of dual number {place}", (primal.dtype, tangent.dtype), (wanted.dtype, along.dtype))
        amp.expect(f"primal of dual number {place}", amp.values(primal), amp.values(wanted))
        amp.expect(f"tangent of dual number {place}", amp.values(tangent), amp.values(along))


@scenario(values=True)
def test_weight_with_a_tangent(amp: Amp) -> None:
    """A weight whose cast is kept has its tangent where it is given one, and none afterwards (forward_ad)."""
    weight, x, u = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3), amp.rand(3, 3)
    with amp.region():
        before = torch.mm(x, weight)
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(torch.mm(x, forward_ad.make_dual(weight, u)))
            plain = forward_ad.unpack_dual(torch.mm(x, weight))
        after = torch.mm(x, weight)
    low = [t.detach().to(amp.dtype) for t in (x, weight, u)]
    amp.expect("whether there is a tangent", dual.tangent is not None, True)
    if dual.tangent is not None:
        amp.expect("tangent", amp.values(dual.tangent), amp.values(torch.mm(low[0], low[2])))
    amp.expect("tangent of a product of the weight itself", plain.tangent, None)
    for what, out in (("before", before), ("in", dual.primal), ("after", after)):
        amp.expect(f"product {what} the level", amp.values(out), amp.values(torch.mm(low[0], low[1])))
    after.float().sum().backward()
    amp.expect("dtype of the weight's gradient", getattr(weight.grad, "dtype", None), torch.float32)


@pytest.mark.parametrize("derivative", ["grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian"])
@scenario(values=True)
def test_weight_of_the_surroundings(amp: Amp, derivative: str) -> None:
    """A weight that a transformed function closes over is used, before, inside and after, as itself (torch.func)."""
    weight, x, v = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3), amp.rand(3, 3)
    derive = DERIVATIVES[derivative]
    for used_before in (True, False):
        weight.grad = None
        with amp.region():
            before = torch.mm(x, weight) if used_before else None
            derive(lambda x: torch.mm(x, weight).float(), x, v)
            out = torch.mm(x, weight)
        amp.expect("class and dtype of a later product", (type(out), out.dtype), (torch.Tensor, amp.dtype))
        out.float().sum().backward()
        want = torch.mm(x.to(amp.dtype).t(), torch.ones_like(out)).float()
        amp.expect("whether the weight has a gradient", weight.grad is not None, True)
        if weight.grad is not None:
            amp.expect("gradient of the weight", amp.values(weight.grad), amp.values(want))
        if before is not None:
            amp.expect("a product before it", amp.values(before), amp.values(out))


@scenario(values=True)
def test_loss_in_float32(amp: Amp) -> None:
    """A loss on the list for float32 runs in float32 inside a derivative, and gradients are float32 (amp.html)."""
    seen: list[torch.dtype] = []
    x, target, weight = amp.rand(3, 3), amp.rand(3, 3), amp.rand(3, 3)

    def loss(weight: torch.Tensor) -> torch.Tensor:
        found = functional.mse_loss(torch.mm(x, weight), target)
        seen.append(found.dtype)
        return found

    with amp.region():
        outside = functional.mse_loss(torch.mm(x, weight), target).dtype
        gradient = torch.func.grad(loss)(weight)
    amp.expect("dtype of the loss", (seen, outside), ([torch.float32], torch.float32))
    amp.expect("dtype of the gradient", gradient.dtype, torch.float32)
    low = torch.mm(x.to(amp.dtype), weight.to(amp.dtype)).float()
    factor = (2 / 9 * (low - target)).to(amp.dtype)
    want = torch.mm(x.to(amp.dtype).t(), factor).float()
    amp.close("gradient", gradient, amp.device.host(want), 2 * torch.finfo(amp.dtype).eps)


@pytest.mark.parametrize("derivative", ["grad", "jvp", "hessian"])
@scenario(values=True)
def test_what_it_raises(amp: Amp, derivative: str) -> None:
    """What a transformed function raises in a region of its own comes out, and the state is as before (torch.func)."""
    x, v = amp.rand(3, 3), amp.rand(3, 3)

    def fails(x: torch.Tensor) -> torch.Tensor:
        with amp.region(amp.other, cache_enabled=False):
            raise KeyError("on purpose")

    with amp.region():
        before = amp.state(), amp.depth()
        amp.raises("a function that fails", KeyError, "on purpose", lambda: DERIVATIVES[derivative](fails, x, v))
        amp.expect("state and depth afterwards", (amp.state(), amp.depth()), before)
        amp.expect("dtype a product runs in", amp.probe(), amp.dtype)


@scenario(values=True)
def test_same_graph_again(amp: Amp) -> None:
    """make_fx keeps no cast while it traces, so a second trace in the same region is the first (functorch.make_fx)."""
    x, weight = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)

    def function(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, weight), weight)

    with amp.region():
        before = amp.state()
        first, second = (make_fx(function)(weight, x) for _ in range(2))
        amp.expect("state afterwards", amp.state(), before)
        want = function(weight, x)
    amp.expect("the second graph", second.code, first.code)
    out = first(weight, x)
    amp.expect("dtypes outside of the region", (out.dtype, want.dtype), (amp.dtype, amp.dtype))
    amp.expect("values", amp.values(out), amp.values(want))
