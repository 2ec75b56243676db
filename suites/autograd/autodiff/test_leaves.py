"""Rule autodiff: a leaf gets a gradient of its dtype, whatever happens between forward and backward.

Source, where a case names no other: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast. Parts: leaves; weights
that a parametrization computes from others
(https://docs.pytorch.org/docs/2.13/generated/torch.nn.utils.parametrize.register_parametrization.html); recurrent
networks.
"""

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from ampcheck.checks.training import assert_same_gradients, backward, copies_of, copy_of
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")

LEAVES: dict[str, Callable[[Amp], torch.dtype]] = {
    "wide": lambda amp: torch.float32,
    "low": lambda amp: amp.dtype,
    "other": lambda amp: amp.other,
    "double": lambda amp: torch.float64,
}


@scenario(leaf=LEAVES, values=True)
def test_dtype_of_the_leaf(amp: Amp, leaf: str) -> None:
    """A gradient has the dtype of its leaf, whatever dtype the op ran in (notes/autograd.html, torch.Tensor.grad)."""
    dtype = LEAVES[leaf](amp)
    w, x = amp.rand(3, 3, dtype=dtype, requires_grad=True), amp.rand(3, 3, dtype=dtype)
    reference = copy_of(w)
    runs_in = dtype if dtype == torch.float64 else amp.dtype
    with amp.region():
        out = torch.mm(x, w)
    out.float().pow(2).sum().backward()
    torch.mm(x.to(runs_in), reference.to(runs_in)).float().pow(2).sum().backward()
    amp.assert_equal("dtype of the product", out.dtype, runs_in)
    amp.assert_identical("gradient", w.grad, reference.grad)


@scenario(values=True)
def test_low_leaf_in_float32_op(amp: Amp) -> None:
    """A low leaf that an op on float32's list uses gets its gradient through the cast up, in its own dtype."""
    w = amp.rand(4, dtype=amp.dtype, requires_grad=True)
    target = amp.rand(4, dtype=amp.dtype)
    reference = copy_of(w)
    with amp.region():
        loss = F.mse_loss(w, target)
    loss.backward()
    want = F.mse_loss(reference.float(), target.float())
    want.backward()
    amp.assert_identical("loss", loss, want)
    amp.assert_identical("gradient", w.grad, reference.grad)


@scenario(values=True)
def test_many_small_steps(amp: Amp) -> None:
    """A thousand backward passes of a gradient of 1 make 1000, which no lower precision counts to (amp_examples.html).

    Each has its own region; rule cache checks that uses inside of one are summed in its dtype.
    """
    w, x = torch.ones(1, 1, device=amp.type, requires_grad=True), torch.ones(1, 1, device=amp.type)
    with amp.region():
        out = torch.mm(x, w)
    for _ in range(3000):
        out.backward(retain_graph=True)
    amp.assert_equal("sum of the gradients", amp.values(w.grad), [[3000.0]])


@scenario(change=["in_place", "data", "optimizer", "loaded"], values=True)
def test_changed_after_forward(amp: Amp, change: str) -> None:
    """Backward uses the cast that forward used, so a weight that changed meanwhile changes no gradient.

    With explicit casts the same holds, as autograd saves what the op got.
    """
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = copies_of(x, w)
    weight = torch.nn.Parameter(w)
    layer = torch.nn.ParameterList([weight])
    with amp.region():
        out = torch.mm(x, weight)
    want = torch.mm(x2.to(amp.dtype), w2.to(amp.dtype))
    changes: dict[str, Callable[[], Any]] = {
        "in_place": lambda: weight.detach().mul_(100),
        "data": lambda: setattr(weight, "data", weight.data * 100),
        "optimizer": lambda: (weight.sum() * 100).backward() or torch.optim.SGD([weight], lr=1.0).step(),
        "loaded": lambda: layer.load_state_dict({"0": weight.detach() * 100}),
    }
    changes[change]()
    weight.grad = None
    backward(out, want)
    amp.assert_identical("gradient of the input", x.grad, x2.grad)
    amp.assert_identical("gradient of the weight", weight.grad, w2.grad)


@scenario(values=True)
def test_changed_where_it_is_saved_itself(amp: Amp) -> None:
    """An op that needs no cast saves the weight itself, and backward refuses one that was changed (autograd.html)."""
    w = amp.rand(3, 3, requires_grad=True)
    with amp.region():
        out = w.pow(2)
    with torch.no_grad():
        w.mul_(2)
    amp.assert_raises("backward", RuntimeError, "modified by an inplace operation", lambda: out.sum().backward())


@scenario(values=True)
def test_sparse_gradient(amp: Amp) -> None:
    """A sparse embedding's gradient stays sparse and float32, with the values of explicit casts (nn.Embedding)."""
    table, w = amp.rand(5, 3, requires_grad=True), amp.rand(3, 3)
    reference, index = copy_of(table), torch.tensor([0, 3, 3], device=amp.type)
    with amp.region():
        out = torch.mm(F.embedding(index, table, sparse=True), w)
    want = torch.mm(F.embedding(index, reference, sparse=True).to(amp.dtype), w.to(amp.dtype))
    backward(out, want)
    amp.assert_equal("layout of the gradient", table.grad.layout, torch.sparse_coo)
    amp.assert_identical("gradient", table.grad.to_dense(), reference.grad.to_dense())


@scenario(values=True)
def test_complex_leaf(amp: Amp) -> None:
    """A complex leaf keeps its dtype in products, and so does its gradient (amp.html#autocast-eligibility)."""
    w, x = torch.complex(amp.rand(3, 3), amp.rand(3, 3)).requires_grad_(), amp.rand(3, 3)
    reference = copy_of(w)
    with amp.region():
        out = torch.mm(x.to(w.dtype), w)
        loss = out.abs().sum()
    loss.backward()
    torch.mm(x.to(w.dtype), reference).abs().sum().backward()
    amp.assert_equal("dtype of the product", out.dtype, torch.complex64)
    for part, of in (("real", torch.real), ("imaginary", torch.imag)):
        got, want = (None if leaf.grad is None else of(leaf.grad).clone() for leaf in (w, reference))
        amp.assert_identical(f"{part} part of the gradient", got, want)


@scenario(values=True)
def test_frozen_and_thawed(amp: Amp) -> None:
    """requires_grad_() decides from the next op on whether a weight gets a gradient, in one region (its page)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        torch.mm(x, w)
        w.requires_grad_(False)
        amp.assert_equal("does a result require grad, frozen", torch.mm(x, w).requires_grad, False)
        w.requires_grad_()
        out = torch.mm(x, w)
    amp.assert_equal("does a result require grad, thawed", out.requires_grad, True)
    out.sum().backward()
    amp.assert_equal("dtype of the gradient", getattr(w.grad, "dtype", None), torch.float32)


CONSTRUCTED: dict[str, Callable[..., torch.Tensor]] = {
    "ones": lambda **options: torch.ones(3, 3, **options),
    "zeros": lambda **options: torch.zeros(3, 3, **options),
    "full": lambda **options: torch.full((3, 3), 0.3, **options),
    "eye": lambda **options: torch.eye(3, **options),
    "tensor": lambda **options: torch.tensor([[0.1, 0.2, 0.3]] * 3, **options),
    "rand": lambda **options: torch.rand(3, 3, **options),
    "randn": lambda **options: torch.randn(3, 3, **options),
    "empty": lambda **options: torch.empty(3, 3, **options),
}


@scenario(kind=CONSTRUCTED, values=True)
def test_constructed_in_a_region(amp: Amp, kind: str) -> None:
    """A leaf that a region makes with requires_grad=True is float32 and gets a float32 gradient (pytorch/xla#8983)."""
    x = amp.rand(3, 3)
    reference = torch.ones(3, 3, dtype=amp.dtype, requires_grad=True)
    with amp.region():
        w = CONSTRUCTED[kind](device=amp.type, requires_grad=True)
        out = torch.mm(x, w)
    amp.assert_equal("dtype of the leaf and of the product", (w.dtype, out.dtype), (torch.float32, amp.dtype))
    amp.assert_equal("whether it requires grad and is a leaf", (w.requires_grad, w.is_leaf), (True, True))
    torch.mm(amp.host(x).to(amp.dtype), reference).float().sum().backward()
    out.float().sum().backward()
    amp.assert_close("gradient", w.grad, reference.grad.float(), torch.finfo(amp.dtype).eps)


# ---- weights that a parametrization computes
class _Symmetric(nn.Module):
    """A parametrization without a matrix product."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).t()

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu()


class _Mixed(nn.Module):
    """A parametrization with a matrix product, which gives a weight in the dtype of the region."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.eye(4) * 1.3)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(weight, self.factor)


def _with_parametrization(kind: Callable[[], torch.nn.Module], layer: torch.nn.Module | None = None) -> torch.nn.Module:
    return parametrize.register_parametrization(layer or torch.nn.Linear(4, 4), "weight", kind())


KINDS: dict[str, Callable[[], torch.nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(torch.nn.Linear(4, 4)),
    "symmetric": lambda: _with_parametrization(_Symmetric),
    "two": lambda: _with_parametrization(_Symmetric, parametrizations.weight_norm(torch.nn.Linear(4, 4))),
    "plain": lambda: torch.nn.Linear(4, 4),
}


def _layer(amp: Amp, make: Callable[[], torch.nn.Module]) -> Any:
    return amp.module(make).requires_grad_()


def _assert_same_gradients(amp: Amp, layer: torch.nn.Module, reference: torch.nn.Module) -> None:
    names = [name for name, _ in layer.named_parameters()]
    assert_same_gradients(amp, names, list(layer.parameters()), list(reference.parameters()))


@scenario(kind=KINDS, values=True)
def test_parametrized(amp: Amp, kind: str) -> None:
    """A computed weight is cast like any other, and its leaves get the float32 gradients of explicit casts."""
    layer, x = _layer(amp, KINDS[kind]), amp.rand(2, 4)
    reference = deepcopy(layer)
    with amp.region():
        out = layer(x)
    want = F.linear(x.to(amp.dtype), reference.weight.to(amp.dtype), reference.bias.to(amp.dtype))
    backward(out, want)
    amp.assert_identical("result", out, want)
    _assert_same_gradients(amp, layer, reference)


@scenario(kind=KINDS, values=True)
def test_weight_in_and_outside(amp: Amp, kind: str) -> None:
    """A weight computed without a product is the same, in float32, inside a region and outside of it."""
    layer = _layer(amp, KINDS[kind])
    with amp.region():
        inside = layer.weight
    amp.assert_identical("computed weight", inside, layer.weight)


@scenario(values=True)
def test_computed_by_a_product(amp: Amp) -> None:
    """A weight computed by a product has the region's dtype there, and its leaves the gradients of explicit casts."""
    layer, x = _layer(amp, lambda: _with_parametrization(_Mixed)), amp.rand(2, 4)
    reference = deepcopy(layer)
    with amp.region():
        out = layer(x)
        amp.assert_equal("dtype of the computed weight", layer.weight.dtype, amp.dtype)
    amp.assert_equal("dtype of the computed weight after it", layer.weight.dtype, torch.float32)
    held = reference.parametrizations.weight
    weight = torch.mm(held.original.to(amp.dtype), held[0].factor.to(amp.dtype))
    want = F.linear(x.to(amp.dtype), weight, reference.bias.to(amp.dtype))
    backward(out, want)
    _assert_same_gradients(amp, layer, reference)


@scenario(order=["around", "inside"], values=True)
def test_computed_once(amp: Amp, order: str) -> None:
    """parametrize.cached() computes a weight once, also for several uses in a region, and its gradient is right."""
    layer, x = _layer(amp, KINDS["weight_norm"]), amp.rand(2, 4)
    reference = deepcopy(layer)
    once, region = parametrize.cached(), amp.region(cache_enabled=False)
    with once if order == "around" else region, region if order == "around" else once:
        first = layer.weight
        loss = layer(x).float().pow(2).sum() + layer(x * 2).float().sum()
        amp.assert_equal("whether it was computed once", layer.weight is first, True)
    loss.backward()
    low, weight = amp.dtype, reference.weight
    one, two = (F.linear(each.to(low), weight.to(low), reference.bias.to(low)) for each in (x, x * 2))
    (one.float().pow(2).sum() + two.float().sum()).backward()
    _assert_same_gradients(amp, layer, reference)


@scenario(values=True)
def test_spectral_norm(amp: Amp) -> None:
    """spectral_norm keeps float32 vectors and divides by the largest singular value, to the region's precision."""
    layer, x = _layer(amp, lambda: parametrizations.spectral_norm(torch.nn.Linear(4, 4))), amp.rand(2, 4)
    for _ in range(50):
        with amp.region():
            out = layer(x)
    out.float().pow(2).sum().backward()
    amp.assert_equal("dtypes of the vectors", {b.dtype for b in layer.buffers()}, {torch.float32})
    amp.assert_equal("dtypes of the gradients", {leaf.grad.dtype for leaf in layer.parameters()}, {torch.float32})
    with torch.no_grad():
        host = amp.host(layer.eval().weight)
    near = abs(torch.linalg.matrix_norm(host, 2).item() - 1) < 8 * torch.finfo(amp.dtype).eps
    amp.assert_equal("whether the largest singular value is 1", near, True)


@scenario(values=True)
def test_registered_in_a_region(amp: Amp) -> None:
    """A parametrization that is registered in a region makes the same float32 leaves as outside (parametrize)."""
    layer = _layer(amp, KINDS["plain"])
    other = deepcopy(layer)
    with amp.region():
        parametrizations.weight_norm(layer)
    parametrizations.weight_norm(other)
    for (name, got), (_, want) in zip(layer.named_parameters(), other.named_parameters(), strict=True):
        amp.assert_identical(name, got, want)


@scenario(values=True)
def test_swapped_for_a_call(amp: Amp) -> None:
    """functional_call in a region uses and differentiates the tensors it is given (torch.func.functional_call)."""
    layer, x = _layer(amp, KINDS["plain"]), amp.rand(2, 4)
    given = {name: (leaf.detach() * 2).requires_grad_() for name, leaf in layer.named_parameters()}
    reference = {name: copy_of(leaf) for name, leaf in given.items()}
    with amp.region():
        layer(x)
        out = torch.func.functional_call(layer, given, (x,))
    low = {name: leaf.to(amp.dtype) for name, leaf in reference.items()}
    want = F.linear(x.to(amp.dtype), low["weight"], low["bias"])
    backward(out, want)
    for name, leaf in given.items():
        amp.assert_identical(f"gradient of {name}", leaf.grad, reference[name].grad)
        amp.assert_equal(f"gradient of the layer's own {name}", getattr(layer, name).grad, None)


# ---- recurrent networks
LAYOUTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "layers": {"num_layers": 2},
    "both_ways": {"bidirectional": True},
    "no_bias": {"bias": False},
    "batch_first": {"batch_first": True},
    "packed": {},
}


def _output_and_state(net: nn.Module, x: torch.Tensor, layout: str) -> torch.Tensor:
    """Return the output and the last state of a network, as one tensor."""
    given: Any = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 1])) if layout == "packed" else x
    out, state = net(given)
    last = state[-1] if isinstance(state, tuple) else state
    return torch.cat([(out.data if layout == "packed" else out).float().flatten(), last.float().flatten()])


def _gradients_in_region(amp: Amp, call: Callable[[], torch.Tensor], leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    try:
        with amp.region():
            out = call()
    except RuntimeError as error:
        if "could not create a primitive" in str(error):
            amp.unsupported("this processor has no LSTM in float16 (reports-recurrent-net-in-half)")
        raise
    return _weighted_gradients(out, leaves)


def _weighted_gradients(out: torch.Tensor, leaves: list[torch.Tensor]) -> list[torch.Tensor]:
    many = torch.arange(1, out.numel() + 1, device=out.device, dtype=torch.float32)
    return list(torch.autograd.grad((out * many / out.numel()).sum(), leaves))


@scenario(kind=["RNN", "GRU", "LSTM"], layout=LAYOUTS, values=True)
def test_recurrent(amp: Amp, kind: str, layout: str) -> None:
    """Gradients of a recurrent network are float32, near those of float32 (test_autocast_rnn of PyTorch).

    The float32 network on the CPU, without a region, says what they are near to.
    """
    net = amp.module(lambda: getattr(nn, kind)(4, 3, **LAYOUTS[layout])).requires_grad_()
    wide = getattr(nn, kind)(4, 3, **LAYOUTS[layout])
    wide.load_state_dict({name: amp.host(held.detach()) for name, held in net.state_dict().items()})
    x = amp.rand(3, 2, 4, requires_grad=True)
    x_wide = amp.host(x.detach()).requires_grad_()
    got = _gradients_in_region(amp, lambda: _output_and_state(net, x, layout), [x, *net.parameters()])
    want = _weighted_gradients(_output_and_state(wide, x_wide, layout), [x_wide, *wide.parameters()])
    names = ["the input", *(name for name, _ in wide.named_parameters())]
    for name, gradient, wanted in zip(names, got, want, strict=True):
        amp.assert_close(f"gradient of {name}", gradient, wanted, 8 * torch.finfo(amp.dtype).eps)
