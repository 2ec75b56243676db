"""Modules that move between the CPU and the device with their parameters; test_models.py trains those that tie them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import nn

from ampcheck.jax_device.storage import moving


class Tied(nn.Module):
    """A module whose head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.embedding(tokens))
        return out


@pytest.mark.parametrize("made_in", [False, True])
@pytest.mark.parametrize("moved_in", [False, True])
def test_inference_mode(made_in: bool, moved_in: bool) -> None:
    with torch.inference_mode(made_in):
        model = Tied()
    weight = model.head.weight
    for device in ("jax", "cpu", "jax"):
        with torch.inference_mode(moved_in):
            assert model.to(device).embedding.weight is weight
        assert (weight.device.type, weight.is_inference()) == (device, made_in)
    with torch.inference_mode(made_in):
        assert torch.isfinite(model(torch.arange(8, device="jax"))).all()


def test_a_lazy_conjugate_is_left_to_pytorch() -> None:
    """It becomes another parameter, and the one there was is whole."""
    module = nn.Module()
    kept = module.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64).conj())
    module.to("jax")
    assert module.weight.device.type == "jax"
    assert kept.device.type == "cpu"
    assert kept.tolist() == [1, 1]


def test_meta_modules_are_as_before() -> None:
    model = nn.Linear(2, 2, device="meta")
    weight = model.weight
    assert model.to_empty(device="jax").weight is not weight  # as on CUDA
    assert weight.device.type == "meta"


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.double, partial(nn.Module.to_empty, device="cpu")])
def test_modules_of_the_cpu_are_as_before(convert: Callable[[nn.Module], nn.Module]) -> None:
    model = Tied()
    before = list(model.parameters())
    assert all(a is b for a, b in zip(convert(model).parameters(), before, strict=True))
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    try:
        assert not any(a is b for a in convert(model).parameters() for b in before)
    finally:
        torch.__future__.set_overwrite_module_params_on_conversion(False)


def test_a_graph_from_before_is_refused_in_words() -> None:
    """Its gradients belong to the CPU; they can be added to no gradient of the device."""
    model = nn.Linear(2, 2)
    loss = model(torch.ones(1, 2)).sum()
    model.to("jax")
    model(torch.ones(1, 2, device="jax")).sum().backward()
    before = copy.deepcopy(model.weight.grad)
    with pytest.raises(RuntimeError, match="given tensors on jax:0 and cpu"):
        loss.backward()
    assert before is not None
    assert torch.equal(model.weight.grad, before)


def test_a_build_without_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "change_device_type", lambda: None)
    model = Tied()
    weight = model.head.weight
    with pytest.raises(RuntimeError, match=r"cannot move a parameter .*set_swap_module_params_on_conversion\(True"):
        model.to("jax")
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        assert model.to("jax").embedding.weight is weight
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
