"""Rule autodiff: weights that are computed from others. `ampcheck.spec.rules` says what it promises.

What a parametrization computes and keeps: https://docs.pytorch.org/docs/2.13/generated/torch.nn.utils.parametrize.
"""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.nn.utils import parametrizations, parametrize

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")


class _Symmetric(torch.nn.Module):
    """A parametrization without a matrix product."""

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu() + weight.triu(1).t()

    def right_inverse(self, weight: torch.Tensor) -> torch.Tensor:
        return weight.triu()


class _Mixed(torch.nn.Module):
    """One with a product, which gives a weight in the dtype of the region."""

    def __init__(self) -> None:
        super().__init__()
        self.factor = torch.nn.Parameter(torch.eye(4) * 1.3)

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        return torch.mm(weight, self.factor)


def _registered(kind: Callable[[], torch.nn.Module], layer: torch.nn.Module | None = None) -> torch.nn.Module:
    return parametrize.register_parametrization(layer or torch.nn.Linear(4, 4), "weight", kind())


KINDS: dict[str, Callable[[], torch.nn.Module]] = {
    "weight_norm": lambda: parametrizations.weight_norm(torch.nn.Linear(4, 4)),
    "symmetric": lambda: _registered(_Symmetric),
    "two": lambda: _registered(_Symmetric, parametrizations.weight_norm(torch.nn.Linear(4, 4))),
    "plain": lambda: torch.nn.Linear(4, 4),
}


def _layer(amp: Amp, make: Callable[[], torch.nn.Module]) -> Any:
    return amp.module(make).requires_grad_()


def _gradients(layer: torch.nn.Module) -> list[tuple[str, torch.Tensor | None]]:
    return [(name, leaf.grad) for name, leaf in layer.named_parameters()]


@pytest.mark.parametrize("kind", list(KINDS))
@scenario(values=True)
def test_parametrized(amp: Amp, kind: str) -> None:
    """A computed weight is cast like any other, and the leaves behind it get float32 gradients as by hand."""
    layer, x = _layer(amp, KINDS[kind]), amp.rand(2, 4)
    by_hand = deepcopy(layer)
    with amp.region():
        out = layer(x)
    want = F.linear(x.to(amp.dtype), by_hand.weight.to(amp.dtype), by_hand.bias.to(amp.dtype))
    for result in (out, want):
        result.float().pow(2).sum().backward()
    amp.exact("result", out, want)
    for (name, got), (_, wanted) in zip(_gradients(layer), _gradients(by_hand), strict=True):
        amp.exact(f"gradient of {name}", got, wanted)


@pytest.mark.parametrize("kind", list(KINDS))
@scenario(values=True)
def test_weight_in_and_outside(amp: Amp, kind: str) -> None:
    """A weight computed without a product is the same, in float32, inside a region and outside of it."""
    layer = _layer(amp, KINDS[kind])
    with amp.region():
        inside = layer.weight
    amp.exact("computed weight", inside, layer.weight)


@scenario(values=True)
def test_computed_by_a_product(amp: Amp) -> None:
    """A weight computed by a product has the region's dtype there, and its leaves the gradients of casts by hand."""
    layer, x = _layer(amp, lambda: _registered(_Mixed)), amp.rand(2, 4)
    by_hand = deepcopy(layer)
    with amp.region():
        out = layer(x)
        amp.expect("dtype of the computed weight", layer.weight.dtype, amp.dtype)
    amp.expect("dtype of the computed weight after it", layer.weight.dtype, torch.float32)
    held = by_hand.parametrizations.weight
    weight = torch.mm(held.original.to(amp.dtype), held[0].factor.to(amp.dtype))
    want = F.linear(x.to(amp.dtype), weight, by_hand.bias.to(amp.dtype))
    for result in (out, want):
        result.float().pow(2).sum().backward()
    for (name, got), (_, wanted) in zip(_gradients(layer), _gradients(by_hand), strict=True):
        amp.exact(f"gradient of {name}", got, wanted)


@pytest.mark.parametrize("order", ["around", "inside"])
@scenario(values=True)
def test_computed_once(amp: Amp, order: str) -> None:
    """parametrize.cached() computes a weight once, also for several uses in a region, and its gradient is right."""
    layer, x = _layer(amp, KINDS["weight_norm"]), amp.rand(2, 4)
    by_hand = deepcopy(layer)
    once, region = parametrize.cached(), amp.region(cache_enabled=False)
    with once if order == "around" else region, region if order == "around" else once:
        first = layer.weight
        loss = layer(x).float().pow(2).sum() + layer(x * 2).float().sum()
        amp.expect("whether it was computed once", layer.weight is first, True)
    loss.backward()
    low, weight = amp.dtype, by_hand.weight
    one, two = (F.linear(each.to(low), weight.to(low), by_hand.bias.to(low)) for each in (x, x * 2))
    (one.float().pow(2).sum() + two.float().sum()).backward()
    for (name, got), (_, wanted) in zip(_gradients(layer), _gradients(by_hand), strict=True):
        amp.exact(f"gradient of {name}", got, wanted)


@scenario(values=True)
def test_spectral_norm(amp: Amp) -> None:
    """spectral_norm keeps float32 vectors and divides by the largest singular value, to the region's precision."""
    layer, x = _layer(amp, lambda: parametrizations.spectral_norm(torch.nn.Linear(4, 4))), amp.rand(2, 4)
    for _ in range(50):
        with amp.region():
            out = layer(x)
    out.float().pow(2).sum().backward()
    amp.expect("dtypes of the vectors", {b.dtype for b in layer.buffers()}, {torch.float32})
    amp.expect("dtypes of the gradients", {g.dtype for _, g in _gradients(layer) if g is not None}, {torch.float32})
    with torch.no_grad():
        host = amp.device.host(layer.eval().weight)
    largest = torch.linalg.matrix_norm(host, 2)
    amp.expect(
        "whether the largest singular value is 1", abs(largest.item() - 1) < 8 * torch.finfo(amp.dtype).eps, True
    )


@scenario(values=True)
def test_registered_in_a_region(amp: Amp) -> None:
    """A parametrization that is registered in a region makes the same float32 leaves as outside (parametrize)."""
    layer = _layer(amp, KINDS["plain"])
    other = deepcopy(layer)
    with amp.region():
        parametrizations.weight_norm(layer)
    parametrizations.weight_norm(other)
    for (name, got), (_, want) in zip(layer.named_parameters(), other.named_parameters(), strict=True):
        amp.exact(name, got, want)


@scenario(values=True)
def test_swapped_for_a_call(amp: Amp) -> None:
    """functional_call in a region uses and differentiates the tensors it is given (torch.func.functional_call)."""
    layer, x = _layer(amp, KINDS["plain"]), amp.rand(2, 4)
    given = {name: (leaf.detach() * 2).requires_grad_() for name, leaf in layer.named_parameters()}
    by_hand = {name: leaf.detach().clone().requires_grad_() for name, leaf in given.items()}
    with amp.region():
        layer(x)
        out = torch.func.functional_call(layer, given, (x,))
    low = amp.dtype
    want = F.linear(x.to(low), by_hand["weight"].to(low), by_hand["bias"].to(low))
    for result in (out, want):
        result.float().pow(2).sum().backward()
    for name, leaf in given.items():
        amp.exact(f"gradient of {name}", leaf.grad, by_hand[name].grad)
        amp.expect(f"gradient of the layer's own {name}", getattr(layer, name).grad, None)
