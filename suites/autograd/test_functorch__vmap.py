"""Rule functorch, mapped functions and functional calls: `ampcheck.spec.rules` says what it promises.

What vmap does to the policy of one op is a matter of rule eligibility.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from torch.func import functional_call, grad, stack_module_state, vmap
from torch.nn import functional

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("functorch")


def _host(amp: Amp, tensors: Any) -> torch.Tensor:
    return torch.stack([amp.device.host(tensor.detach()) for tensor in tensors])


@pytest.mark.parametrize("place", ["around", "inside", "decorated"])
@pytest.mark.parametrize("way", ["first", "second", "nested", "chunked", "out"])
@scenario()
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

    call = product if place == "around" else within if place == "inside" else amp.region(cache_enabled=False)(product)
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
    if place == "around":
        with amp.region(cache_enabled=False):
            out = function(a, b)
    else:
        out = function(a, b)
    amp.expect("state and depth afterwards", (amp.state(), amp.depth()), before)
    amp.expect("state and dtypes inside", set(map(str, seen)), {str(((True, amp.dtype, False), amp.dtype))})
    amp.expect("dtype outside", out.dtype, amp.dtype)


@pytest.mark.parametrize("layer", ["product", "convolution", "softmax", "loss"])
@scenario(values=True)
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
    amp.expect("dtype", mapped.dtype, torch.float32)
    amp.close("gradients", mapped, _host(amp, looped), 8 * torch.finfo(amp.dtype).eps)


class _Net(torch.nn.Module):
    """Two layers without a bias, whose sum vmap is known to widen (pytorch#192617), and a norm's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(3, 4, bias=False)
        self.last = torch.nn.Linear(4, 2, bias=False)
        self.scale = torch.nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.last(torch.tanh(self.first(x)) * self.scale)
        return out


def _net(amp: Amp, seed: int) -> _Net:
    torch.manual_seed(seed)
    return _Net().to(amp.type)


@scenario(values=True)
def test_ensemble(amp: Amp) -> None:
    """A stack of models mapped over gives what each model gives, in the region's dtype (stack_module_state)."""
    nets = [_net(amp, seed) for seed in range(3)]
    x = amp.rand(5, 3)
    parameters, buffers = stack_module_state(nets)
    with amp.region():
        mapped = vmap(lambda p, b, x: functional_call(nets[0], (p, b), (x,)), in_dims=(0, 0, None))(
            parameters, buffers, x
        )
        looped = [net(x) for net in nets]
    amp.expect("dtypes", (mapped.dtype, looped[0].dtype), (amp.dtype, amp.dtype))
    amp.close("outputs", mapped, _host(amp, looped), 8 * torch.finfo(amp.dtype).eps)
    mapped.float().sum().backward()
    for name, stacked in parameters.items():
        amp.expect(f"dtype of the gradient of {name}", getattr(stacked.grad, "dtype", None), torch.float32)


@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@scenario(values=True)
def test_other_parameters(amp: Amp, kept: bool) -> None:
    """functional_call computes with the parameters it is given, though the module's own casts are kept (torch.func)."""
    net, x = _net(amp, 0), amp.rand(5, 3)
    doubled = {name: (2 * p).detach().requires_grad_() for name, p in net.named_parameters()}
    other = _net(amp, 0)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(2)
    with amp.region(cache_enabled=kept):
        before = net(x)
        given = functional_call(net, doubled, (x,))
        after = net(x)
        want = other(x)
    amp.expect("dtype", given.dtype, amp.dtype)
    amp.expect("what comes out with other parameters", amp.values(given), amp.values(want))
    amp.expect("what comes out before and after", amp.values(after), amp.values(before))
    given.float().sum().backward()
    amp.expect("whether the module's own have gradients", any(p.grad is not None for p in net.parameters()), False)
    amp.expect("dtypes of gradients", {getattr(p.grad, "dtype", None) for p in doubled.values()}, {torch.float32})


@scenario(values=True)
def test_gradient_of_a_functional_call(amp: Amp) -> None:
    """The gradient with respect to a module's parameters is what backward gives them (torch.func.functional_call)."""
    net, x = _net(amp, 0), amp.rand(5, 3)
    parameters = {name: p.detach() for name, p in net.named_parameters()}
    with amp.region():
        out = net(x)
        found = grad(lambda p: functional_call(net, p, (x,)).float().square().sum())(parameters)
    out.float().square().sum().backward()
    for name, parameter in net.named_parameters():
        if parameter.grad is None:
            raise RuntimeError("the scenario computed no gradient")
        amp.close(f"gradient of {name}", found[name], amp.device.host(parameter.grad), 4 * torch.finfo(amp.dtype).eps)


@pytest.mark.parametrize("randomness", ["different", "same"])
@scenario(values=True)
def test_randomness(amp: Amp, randomness: str) -> None:
    """Dropout of a mapped product drops per slice, or the same everywhere, in the region's dtype (torch.vmap)."""
    x = amp.rand(1, 16, 16).expand(4, 16, 16)
    weight = amp.rand(16, 16) + 1
    amp.device.seed()
    with amp.region():
        out = vmap(lambda x: functional.dropout(torch.mm(x, weight), 0.5), randomness=randomness)(x)
    amp.expect("dtype", out.dtype, amp.dtype)
    kinds = {str(amp.values(part == 0)) for part in out}
    amp.expect("how many patterns there are", len(kinds), 4 if randomness == "different" else 1)


@scenario(values=True)
def test_randomness_refused(amp: Amp) -> None:
    """Without a word on randomness a mapped draw is refused, and the region goes on (torch.vmap)."""
    x = amp.rand(2, 3, 3)
    with amp.region():
        amp.raises("a mapped dropout", RuntimeError, "randomness", lambda: vmap(functional.dropout)(x))
        amp.expect("state afterwards", amp.state(), (True, amp.dtype, True))
        amp.expect("dtype of a mapped product", vmap(torch.mm)(x, x).dtype, amp.dtype)


@pytest.mark.parametrize("norm", ["none", "layer_norm", "batch_norm", "group_norm"])
@scenario(values=True)
def test_batched_gradients(amp: Amp, norm: str) -> None:
    """A batch of gradients of a region's result, taken after it, is what a loop over them is (pytorch#184890)."""
    norms: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "none": torch.tanh,
        "layer_norm": lambda x: functional.layer_norm(x, (4,), scale, shift),
        "batch_norm": lambda x: functional.batch_norm(x, None, None, scale, shift, training=True),
        "group_norm": lambda x: functional.group_norm(x, 2, scale, shift),
    }
    scale, shift = amp.rand(4, requires_grad=True), amp.rand(4, requires_grad=True)
    x, weight, last = amp.rand(5, 3), amp.rand(3, 4, requires_grad=True), amp.rand(4, 1)
    with amp.region():
        out = torch.mm(norms[norm](torch.mm(x, weight)), last)[:, 0]
    rows = torch.eye(5, dtype=out.dtype).to(amp.type)
    looped = [torch.autograd.grad(out, weight, row, retain_graph=True)[0] for row in rows]
    (mapped,) = torch.autograd.grad(out, weight, rows, is_grads_batched=True)
    amp.expect("dtype", mapped.dtype, torch.float32)
    amp.close("gradients", mapped, _host(amp, looped), 16 * torch.finfo(amp.dtype).eps)


@pytest.mark.parametrize("how", ["looped", "mapped", "forward"])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
@scenario(values=True)
def test_jacobian(amp: Amp, how: str) -> None:
    """The Jacobian of a region's function is float32, and that of its casts (torch.autograd.functional.jacobian)."""
    weight, x = amp.rand(3, 3), amp.rand(3, 3)
    strategy = "forward-mode" if how == "forward" else "reverse-mode"
    jacobian = partial(torch.autograd.functional.jacobian, vectorize=how != "looped", strategy=strategy)
    with amp.region():
        got = jacobian(lambda x: torch.mm(x, weight).float(), x)
    amp.expect("dtype", got.dtype, torch.float32)
    low = weight.to(amp.dtype)
    want = jacobian(lambda x: torch.mm(x.to(amp.dtype), low).float(), x)
    amp.close("Jacobian", got, amp.device.host(want))


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
    amp.expect("dtype", got.dtype, amp.dtype)
    amp.expect("values", amp.values(got), amp.values(want))


@pytest.mark.parametrize("first", ["mapped", "plain"])
@scenario(values=True)
def test_weight_mapped_over(amp: Amp, first: str) -> None:
    """A weight mapped over, or closed over, is cast for itself: no kept cast stands for another (torch.vmap)."""
    weights, x = amp.rand(3, 4, 4, requires_grad=True), amp.rand(4, 4)
    single = amp.rand(4, 4, requires_grad=True)
    with amp.region():
        plain = torch.mm(x, single) if first == "plain" else None
        mapped = vmap(lambda w: torch.mm(torch.mm(x, w), single))(weights)
        looped = [torch.mm(torch.mm(x, w), single) for w in weights]
        again = torch.mm(x, single)
    amp.expect("dtypes", (mapped.dtype, again.dtype, type(again)), (amp.dtype, amp.dtype, torch.Tensor))
    amp.close("products", mapped, _host(amp, looped), 4 * torch.finfo(amp.dtype).eps)
    if plain is not None:
        amp.expect("a product before and after", amp.values(plain), amp.values(again))
    (mapped.float().sum() + again.float().sum()).backward()
    for name, leaf in (("the weights mapped over", weights), ("the one closed over", single)):
        amp.expect(f"dtype of the gradient of {name}", getattr(leaf.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_attention_of_two_dtypes(amp: Amp) -> None:
    """vmap of grad sees the casts of an attention whose values are low already, as a loop does (pytorch#187265)."""
    scale, query, key = amp.rand(1), amp.rand(2, 1, 4, 8), amp.rand(2, 1, 4, 8)
    value = amp.rand(2, 1, 4, 8, dtype=amp.dtype)

    def loss(scale: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(query * scale, key, value).float().sum()

    with amp.region():
        mapped = vmap(grad(loss), in_dims=(None, 0, 0, 0))(scale, query, key, value)
        looped = [grad(loss)(scale, *sample) for sample in zip(query, key, value, strict=True)]
    amp.expect("dtype", mapped.dtype, torch.float32)
    amp.close("gradients", mapped, _host(amp, looped), 8 * torch.finfo(amp.dtype).eps)


@pytest.mark.parametrize("around", ["on", "off"])
@scenario(values=True)
def test_model_mapped_over_samples(amp: Amp, around: str) -> None:
    """A model mapped over samples gives what it gives the batch, in a region or low all along (pytorch#105442)."""
    net, xs = _net(amp, 0), amp.rand(5, 3)
    if around == "off":
        net, xs = net.to(amp.dtype), xs.to(amp.dtype)
    parameters = {name: parameter.detach() for name, parameter in net.named_parameters()}
    with amp.region(enabled=around == "on"), torch.no_grad():
        mapped = vmap(lambda x: functional_call(net, parameters, (x,)))(xs)
        batched = net(xs)
    amp.expect("dtypes", (mapped.dtype, batched.dtype), (amp.dtype, amp.dtype))
    amp.close("results", mapped, amp.device.host(batched), 4 * torch.finfo(amp.dtype).eps)
