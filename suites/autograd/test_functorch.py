"""Rule functorch: a transformed function sees the region it is called in; derivatives have the dtype of their inputs.

The transforms are grad, vjp, jvp, linearize, jacrev, jacfwd, hessian, vmap and functional_call of torch.func, make_fx
and forward-mode differentiation. Each derivative is compared with that of the same function with explicit casts,
outside of any region. What vmap does to the policy of one op: `suites/eager/test_eligibility.py`. Source:
https://docs.pytorch.org/docs/2.13/func.api.html.
"""

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd import forward_ad
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional

from ampcheck.observe.recorder import tensors
from ampcheck.runner.suite import Amp, named, scenario

pytestmark = [
    pytest.mark.rule("functorch"),
    # What PyTorch warns of in its own forward derivatives: decompositions that it scripts, and graphs that it folds.
    pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated"),
    pytest.mark.filterwarnings("ignore:Attempted to insert a get_attr Node"),
]

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


def _expect_close(amp: Amp, what: str, got: Any, want: Any) -> None:
    """Both are of one structure; the dtypes are equal, and the values up to a rounding of the lower precision."""
    gots, wants = list(tensors(got)), list(tensors(want))
    amp.assert_equal(f"how many tensors {what} has", len(gots), len(wants))
    for place, (one, other) in enumerate(zip(gots, wants, strict=False)):
        amp.assert_close(f"tensor {place} of {what}", one, other, 2 * torch.finfo(amp.dtype).eps)


class _Product:
    """A product, a sine in float32 and a product, by autocast and with explicit casts; notes the state it runs in."""

    def __init__(self, amp: Amp) -> None:
        self.amp = amp
        self.weight = amp.rand(3, 3)
        self.seen: list[tuple[object, torch.dtype, torch.dtype]] = []

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        first = torch.mm(x, self.weight)
        last = torch.mm(torch.sin(first.float()), self.weight)
        self.seen.append((self.amp.state(), first.dtype, last.dtype))
        return last.float()

    def reference(self, dtype: torch.dtype) -> Function:
        weight = self.weight.to(dtype)
        return lambda x: torch.mm(torch.sin(torch.mm(x.to(dtype), weight).float()).to(dtype), weight).float()

    def with_region(self, x: torch.Tensor) -> torch.Tensor:
        with self.amp.region(cache_enabled=False):
            return self(x)


@scenario(derivative=DERIVATIVES, place=["around", "inside", "decorated"], values=True)
def test_derivative(amp: Amp, derivative: str, place: str) -> None:
    """The function runs in the region each time, and the derivative is that of its casts, in the input's dtype."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)
    derive, region = DERIVATIVES[derivative], amp.region(cache_enabled=False)
    before = amp.state(), amp.depth()
    with region if place == "around" else nullcontext():
        call = region(derive) if place == "decorated" else derive
        got = call(product.with_region if place == "inside" else product, x, v)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)
    expected = ((True, amp.dtype, False), amp.dtype, amp.dtype)
    amp.assert_equal("states it ran in, and dtypes of its products", set(product.seen), {expected})
    amp.assert_equal(f"dtypes of {derivative}", {tensor.dtype for tensor in tensors(got)}, {torch.float32})
    _expect_close(amp, derivative, got, derive(product.reference(amp.dtype), x, v))


@scenario(derivative=["grad", "vjp", "jvp", "jacfwd", "linearize", "hessian"], values=True)
def test_inner_region_off(amp: Amp, derivative: str) -> None:
    """An op that runs in float32 in a region has a float32 derivative: backward ops follow forward ones (amp.html)."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)

    def off(x: torch.Tensor) -> torch.Tensor:
        with amp.region(enabled=False):
            return product(x)

    with amp.region(amp.other):
        got = list(tensors(DERIVATIVES[derivative](off, x, v)))
        amp.assert_equal("state afterwards", amp.state(), (True, amp.other, True))
    amp.assert_equal("dtypes of products", {dtype for _, dtype, _ in product.seen}, {torch.float32})
    for place, want in enumerate(tensors(DERIVATIVES[derivative](product.reference(torch.float32), x, v))):
        amp.assert_close(f"tensor {place}", got[place], want)


@scenario(derivative=["vjp", "linearize"], values=True)
def test_pulled_outside(amp: Amp, derivative: str) -> None:
    """The function that vjp or linearize returns in a region may be called after it or in another (torch.func.vjp)."""
    product, x, v = _Product(amp), amp.rand(3, 3), amp.rand(3, 3)
    with amp.region():
        pull = torch.func.vjp(product, x)[1] if derivative == "vjp" else torch.func.linearize(product, x)[1]
    want = DERIVATIVES[derivative](product.reference(amp.dtype), x, v)
    amp.assert_equal("dtypes of the result", {found.dtype for found in tensors(pull(v))}, {torch.float32})
    _expect_close(amp, "the result outside", pull(v), want)
    before = amp.state()
    with amp.region(enabled=False):
        _expect_close(amp, "the result in a disabled region", pull(v), want)
    amp.assert_equal("state afterwards", amp.state(), before)


@scenario(values=True)
def test_weight_with_a_tangent(amp: Amp) -> None:
    """A weight whose cast is cached has its tangent where it is given one, and none afterwards (forward_ad)."""
    weight, x, u = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3), amp.rand(3, 3)
    with amp.region():
        before = torch.mm(x, weight)
        with forward_ad.dual_level():
            dual = forward_ad.unpack_dual(torch.mm(x, forward_ad.make_dual(weight, u)))
            plain = forward_ad.unpack_dual(torch.mm(x, weight))
        after = torch.mm(x, weight)
    low = [t.detach().to(amp.dtype) for t in (x, weight, u)]
    amp.assert_equal("tangent", amp.values(dual.tangent), amp.values(torch.mm(low[0], low[2])))
    amp.assert_equal("tangent of a product of the weight itself", plain.tangent, None)
    for what, out in (("before", before), ("in", dual.primal), ("after", after)):
        amp.assert_equal(f"product {what} the level", amp.values(out), amp.values(torch.mm(low[0], low[1])))
    after.float().sum().backward()
    amp.assert_equal("dtype of the weight's gradient", getattr(weight.grad, "dtype", None), torch.float32)


@scenario(derivative=["grad", "vjp", "jvp", "jacrev", "jacfwd", "hessian"], values=True)
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
        amp.assert_equal("class and dtype of a later product", (type(out), out.dtype), (torch.Tensor, amp.dtype))
        out.float().sum().backward()
        want = torch.mm(x.to(amp.dtype).t(), torch.ones_like(out)).float()
        amp.assert_identical("gradient of the weight", weight.grad, want)
        if before is not None:
            amp.assert_equal("a product before it", amp.values(before), amp.values(out))


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
    amp.assert_equal("dtype of the loss", (seen, outside), ([torch.float32], torch.float32))
    amp.assert_equal("dtype of the gradient", gradient.dtype, torch.float32)
    low = torch.mm(x.to(amp.dtype), weight.to(amp.dtype)).float()
    factor = (2 / 9 * (low - target)).to(amp.dtype)
    want = torch.mm(x.to(amp.dtype).t(), factor).float()
    amp.assert_close("gradient", gradient, want, 2 * torch.finfo(amp.dtype).eps)


@scenario(values=True)
def test_same_graph_again(amp: Amp) -> None:
    """make_fx caches no cast while it traces, so a second trace in the same region is the first (functorch.make_fx)."""
    x, weight = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)

    def function(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, weight), weight)

    with amp.region():
        before = amp.state()
        first, second = (make_fx(function)(weight, x) for _ in range(2))
        amp.assert_equal("state afterwards", amp.state(), before)
        want = function(weight, x)
    amp.assert_equal("the second graph", second.code, first.code)
    out = first(weight, x)
    amp.assert_equal("dtypes outside of the region", (out.dtype, want.dtype), (amp.dtype, amp.dtype))
    amp.assert_equal("values", amp.values(out), amp.values(want))


# ---- mapped functions and functional calls
def _stack_on_cpu(amp: Amp, tensors: Any) -> torch.Tensor:
    return torch.stack([amp.host(tensor.detach()) for tensor in tensors])


@scenario(way=["first", "second", "nested", "chunked", "out"], place=["around", "inside", "decorated"])
def test_mapped(amp: Amp, way: str, place: str) -> None:
    """A mapped function sees the region it is called in, or its own, and its product is in that dtype (torch.vmap)."""
    seen: list[object] = []

    def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.mm(a, b)
        seen.append((amp.state(), out.dtype))
        return out

    def within(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        with amp.region(cache_enabled=False):
            return product(a, b)

    call = {"around": product, "inside": within, "decorated": amp.region(cache_enabled=False)(product)}[place]
    mapped: dict[str, tuple[Callable[..., torch.Tensor], tuple[int, ...]]] = {
        "first": (vmap(call), (2, 3, 3)),
        "second": (vmap(call, in_dims=(1, 1)), (3, 2, 3)),
        "nested": (vmap(vmap(call)), (2, 2, 3, 3)),
        "chunked": (vmap(call, chunk_size=1), (2, 3, 3)),
        "out": (vmap(call, out_dims=2), (2, 3, 3)),
    }
    function, shape = mapped[way]
    a, b = amp.rand(*shape), amp.rand(*shape)
    before = amp.state(), amp.depth()
    with amp.region(cache_enabled=False) if place == "around" else nullcontext():
        out = function(a, b)
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)
    amp.assert_equal("state and dtypes inside", set(map(str, seen)), {str(((True, amp.dtype, False), amp.dtype))})
    amp.assert_equal("dtype outside", out.dtype, amp.dtype)


@scenario(layer=["product", "convolution", "softmax", "loss"], values=True)
def test_gradients_per_sample(amp: Amp, layer: str) -> None:
    """vmap of grad gives each sample's gradient, of the weight's dtype, as a loop over them does (torch.func)."""
    calls: dict[str, tuple[Callable[[torch.Tensor, torch.Tensor], torch.Tensor], tuple[int, ...], tuple[int, ...]]] = {
        "product": (lambda w, x: torch.mm(x, w).float().square().sum(), (3, 3), (3, 3)),
        "convolution": (lambda w, x: functional.conv2d(x[None], w).float().square().sum(), (2, 1, 2, 2), (1, 3, 3)),
        "softmax": (lambda w, x: torch.softmax(torch.mm(x, w), -1).float().square().sum(), (3, 3), (3, 3)),
        "loss": (lambda w, x: functional.mse_loss(torch.mm(x, w), x), (3, 3), (3, 3)),
    }
    call, shape, sample = calls[layer]
    weight, xs = amp.rand(*shape), amp.rand(4, *sample)
    with amp.region():
        mapped = vmap(grad(call), in_dims=(None, 0))(weight, xs)
        looped = [grad(call)(weight, x) for x in xs]
    amp.assert_equal("dtype", mapped.dtype, torch.float32)
    amp.assert_close("gradients", mapped, _stack_on_cpu(amp, looped), 8 * torch.finfo(amp.dtype).eps)


class _TwoLayers(torch.nn.Module):
    """Two layers without a bias, whose sum vmap is known to widen (pytorch#192617), and a norm's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4, bias=False)
        self.last = torch.nn.Linear(4, 2, bias=False)
        self.scale = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(torch.tanh(self.first(x)) * self.scale)


def _two_layers(amp: Amp, seed: int) -> _TwoLayers:
    torch.manual_seed(seed)
    return _TwoLayers().to(amp.type)


@scenario(values=True)
def test_ensemble(amp: Amp) -> None:
    """A mapped stack of models gives the result of each model, in the region's dtype (stack_module_state)."""
    nets = [_two_layers(amp, seed) for seed in range(3)]
    x = amp.rand(5, 3)
    parameters, buffers = stack_module_state(nets)
    with amp.region():
        call = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))
        mapped = call(parameters, buffers, x)
        looped = [net(x) for net in nets]
    amp.assert_equal("dtypes", (mapped.dtype, looped[0].dtype), (amp.dtype, amp.dtype))
    amp.assert_close("outputs", mapped, _stack_on_cpu(amp, looped), 8 * torch.finfo(amp.dtype).eps)
    mapped.float().sum().backward()
    for name, stacked in parameters.items():
        amp.assert_equal(f"dtype of the gradient of {name}", getattr(stacked.grad, "dtype", None), torch.float32)


@scenario(kept=named(kept=True, dropped=False), values=True)
def test_other_parameters(amp: Amp, kept: bool) -> None:
    """functional_call computes with the parameters it is given, though the module's own are cached (torch.func)."""
    net, x = _two_layers(amp, 0), amp.rand(5, 3)
    doubled = {name: (2 * p).detach().requires_grad_() for name, p in net.named_parameters()}
    other = _two_layers(amp, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    with amp.region(cache_enabled=kept):
        before = net(x)
        given = functional_call(net, doubled, (x,))
        after = net(x)
        want = other(x)
    amp.assert_equal("dtype", given.dtype, amp.dtype)
    amp.assert_equal("what comes out with other parameters", amp.values(given), amp.values(want))
    amp.assert_equal("what comes out before and after", amp.values(after), amp.values(before))
    given.float().sum().backward()
    own = any(p.grad is not None for p in net.parameters())
    amp.assert_equal("whether the module's own have gradients", own, False)
    amp.assert_equal("dtypes of gradients", {getattr(p.grad, "dtype", None) for p in doubled.values()}, {torch.float32})


@scenario(randomness=["different", "same"], values=True)
def test_randomness(amp: Amp, randomness: str) -> None:
    """Dropout of a mapped product drops per slice, or the same everywhere, in the region's dtype (torch.vmap)."""
    x = amp.rand(1, 16, 16).expand(4, 16, 16)
    weight = amp.rand(16, 16) + 1
    amp.seed()
    with amp.region():
        out = vmap(lambda x: functional.dropout(torch.mm(x, weight), 0.5), randomness=randomness)(x)
    amp.assert_equal("dtype", out.dtype, amp.dtype)
    kinds = {str(amp.values(part == 0)) for part in out}
    amp.assert_equal("how many patterns there are", len(kinds), 4 if randomness == "different" else 1)


@scenario(values=True)
def test_randomness_refused(amp: Amp) -> None:
    """A mapped random op without randomness= is refused, and the region goes on (torch.vmap)."""
    x = amp.rand(2, 3, 3)
    with amp.region():
        amp.assert_raises("a mapped dropout", RuntimeError, "randomness", lambda: vmap(functional.dropout)(x))
        amp.assert_equal("state afterwards", amp.state(), (True, amp.dtype, True))
        amp.assert_equal("dtype of a mapped product", vmap(torch.mm)(x, x).dtype, amp.dtype)


@scenario(how=["looped", "mapped", "forward"], values=True)
def test_jacobian(amp: Amp, how: str) -> None:
    """The Jacobian of a region's function is float32, and that of its casts (torch.autograd.functional.jacobian)."""
    weight, x = amp.rand(3, 3), amp.rand(3, 3)
    strategy = "forward-mode" if how == "forward" else "reverse-mode"
    jacobian = partial(torch.autograd.functional.jacobian, vectorize=how != "looped", strategy=strategy)
    with amp.region():
        got = jacobian(lambda x: torch.mm(x, weight).float(), x)
    amp.assert_equal("dtype", got.dtype, torch.float32)
    low = weight.to(amp.dtype)
    amp.assert_close("Jacobian", got, jacobian(lambda x: torch.mm(x.to(amp.dtype), low).float(), x))


@scenario(values=True)
def test_functionalized(amp: Amp) -> None:
    """A functionalized function, writes and all, gives the dtypes and values it gives (torch.func.functionalize)."""
    x, weight = amp.rand(3, 3), amp.rand(3, 3)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, weight)
        out.add_(1)
        out[0] = 0
        return torch.mm(out, weight)

    with amp.region():
        got, want = torch.func.functionalize(function)(x), function(x)
    amp.assert_equal("dtype", got.dtype, amp.dtype)
    amp.assert_equal("values", amp.values(got), amp.values(want))


@scenario(values=True)
def test_attention_of_two_dtypes(amp: Amp) -> None:
    """vmap of grad sees the casts of an attention whose values are low already, as a loop does (pytorch#187265)."""
    scale, query, key = amp.rand(1), amp.rand(2, 1, 4, 8), amp.rand(2, 1, 4, 8)
    value = amp.rand(2, 1, 4, 8, dtype=amp.dtype)
    attention = functional.scaled_dot_product_attention
    gradient = grad(lambda scale, query, key, value: attention(query * scale, key, value).float().sum())
    with amp.region():
        mapped = vmap(gradient, in_dims=(None, 0, 0, 0))(scale, query, key, value)
        looped = [gradient(scale, *sample) for sample in zip(query, key, value, strict=True)]
    amp.assert_equal("dtype", mapped.dtype, torch.float32)
    amp.assert_close("gradients", mapped, _stack_on_cpu(amp, looped), 8 * torch.finfo(amp.dtype).eps)


@scenario(around=["on", "off"], values=True)
def test_model_mapped_over_samples(amp: Amp, around: str) -> None:
    """A model mapped over samples gives what it gives the batch, in a region or low all along (pytorch#105442)."""
    net, xs = _two_layers(amp, 0), amp.rand(5, 3)
    if around == "off":
        net, xs = net.to(amp.dtype), xs.to(amp.dtype)
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    with amp.region(enabled=around == "on"), torch.no_grad():
        mapped = vmap(lambda x: functional_call(net, parameters, (x,)))(xs)
        batched = net(xs)
    amp.assert_equal("dtypes", (mapped.dtype, batched.dtype), (amp.dtype, amp.dtype))
    amp.assert_close("results", mapped, batched, 4 * torch.finfo(amp.dtype).eps)


# ---- backward passes that are mapped over
Layer = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

LAYERS: dict[str, Layer] = {
    "product": lambda x, scale, shift: torch.mm(x, x.new_ones(4, 4)) * scale,
    "activation": lambda x, scale, shift: torch.tanh(x * scale + shift),
    "softmax": lambda x, scale, shift: torch.softmax(x, -1) * scale,
    "layer_norm": lambda x, scale, shift: functional.layer_norm(x, (4,), scale, shift),
    "batch_norm": lambda x, scale, shift: functional.batch_norm(x, None, None, scale, shift, training=True),
    "instance_norm": lambda x, scale, shift: functional.instance_norm(x[None], None, None, None, None)[0] * scale,
    "group_norm": lambda x, scale, shift: functional.group_norm(x, 2, scale, shift),
}
"""Functions between two products of a region."""


def _gradients_of(amp: Amp, layer: str) -> tuple[Callable[..., Any], torch.Tensor, torch.Tensor]:
    """Return what takes the gradient of five results of a region, a row for each result, and the rows' gradients."""
    scale, shift = amp.rand(4, requires_grad=True), amp.rand(4, requires_grad=True)
    x, weight, last = amp.rand(5, 3), amp.rand(3, 4, requires_grad=True), amp.rand(4, 1)
    with amp.region():
        out = torch.mm(LAYERS[layer](torch.mm(x, weight), scale, shift), last)[:, 0]
    rows = torch.eye(5, dtype=out.dtype).to(amp.type)
    gradients = partial(torch.autograd.grad, out, weight, retain_graph=True)
    return gradients, rows, torch.stack([amp.host(gradients(row)[0]) for row in rows])


@scenario(layer=["activation", "layer_norm", "batch_norm", "group_norm"], values=True)
def test_batched_gradients(amp: Amp, layer: str) -> None:
    """A batch of gradients of a region's result, taken after it, equals a loop over them (pytorch#184890)."""
    gradients, rows, looped = _gradients_of(amp, layer)
    (mapped,) = gradients(rows, is_grads_batched=True)
    amp.assert_equal("dtype", mapped.dtype, torch.float32)
    amp.assert_close("gradients", mapped, looped, 16 * torch.finfo(amp.dtype).eps)


@scenario(layer=LAYERS, values=True)
def test_mapped_backward(amp: Amp, layer: str) -> None:
    """vmap of autograd.grad of a region's result equals a loop over it (torch.func's notes; pytorch#184890)."""
    gradients, rows, looped = _gradients_of(amp, layer)
    try:
        (mapped,) = torch.vmap(gradients)(rows)
    except RuntimeError as error:
        amp.assert_equal(f"what mapping the backward of {layer} raises", str(error).splitlines()[0], None)
        return
    amp.assert_equal("dtype", mapped.dtype, torch.float32)
    amp.assert_close("gradients", mapped, looped, 16 * torch.finfo(amp.dtype).eps)
