"""Modules that move between the CPU and the device with their parameters, and language models that tie theirs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from ampcheck.jax_device.storage import moving
from tests.jax.test_training import Transformer, data

STEPS = 10
X, Y = (tensor[:8] for tensor in (data("transformer")[0], data("transformer")[1].view(-1, 12)))


class Tied(Transformer):
    """GPT-2 in small: the head's weight is the embedding."""

    def __init__(self) -> None:
        super().__init__()
        nn.init.normal_(self.embedding.weight, std=0.2)
        self.head.weight = self.embedding.weight


class Encoded(nn.Module):
    """T5 in small: encoder, decoder and head have the weight of `shared`."""

    def __init__(self) -> None:
        super().__init__()
        self.shared = nn.Embedding(16, 32)
        nn.init.normal_(self.shared.weight, std=0.2)
        self.encoder, self.decoder = nn.Embedding(16, 32), nn.Embedding(16, 32)
        self.layers = nn.Transformer(32, 4, 1, 1, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 16, bias=False)
        for part in (self.encoder, self.decoder, self.head):
            part.weight = self.shared.weight

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(self.encoder(tokens), self.decoder(tokens.roll(1, 1)))).flatten(0, 1)


MODELS: dict[str, Callable[[], nn.Module]] = {"two": Tied, "four": Encoded}


def shared(model: nn.Module) -> list[torch.Tensor]:
    """The weight that is tied, under each of its names."""
    names = ("embedding", "head") if isinstance(model, Tied) else ("shared", "encoder", "decoder", "head")
    return [getattr(model, name).weight for name in names]


def trained(kind: str, device: str, dtype: torch.dtype | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """The losses of ten steps and the tied weight then; the model moves after its optimizer was made."""
    torch.manual_seed(0)
    model = MODELS[kind]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scaler = torch.amp.GradScaler(device, enabled=dtype is not None, init_scale=256.0)
    model.to(device)
    x, y, losses = X.to(device), Y.to(device).flatten(), []
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = F.cross_entropy(model(x), y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.detach().cpu())
    assert all(weight is shared(model)[0] for weight in shared(model)), "the weights are untied"
    assert losses[-1] < losses[0] - 0.3, f"it learned nothing: {losses}"
    return torch.stack(losses), shared(model)[-1].detach().cpu()


@pytest.mark.parametrize("kind", list(MODELS))
def test_tied_model_in_float32(kind: str) -> None:
    for got, want in zip(trained(kind, "jax"), trained(kind, "cpu"), strict=True):
        torch.testing.assert_close(got, want, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", list(MODELS))
def test_tied_model_in_a_region(kind: str) -> None:
    """As near to float32 as the CPU's own region is, within a factor, and never further than the dtype's rounding."""
    exact, own, got = (trained(kind, *how) for how in (("cpu",), ("cpu", torch.bfloat16), ("jax", torch.bfloat16)))
    for loss, want in zip(got[0], own[0], strict=True):
        assert abs(loss - want) <= torch.finfo(torch.bfloat16).eps * (1 + want)
    spread = [(each[1] - exact[1]).abs().mean() for each in (own, got)]
    assert spread[1] <= 2 * spread[0]


def test_an_untied_model_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "_apply", vars(nn.Module._apply)["__wrapped__"])
    with pytest.raises(AssertionError, match="untied"):
        trained("two", "jax")


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
        assert torch.isfinite(model(X.to("jax"))).all()


def test_a_lazy_conjugate_is_left_to_pytorch() -> None:
    """It becomes another parameter, and the one there was is whole."""
    module = nn.Module()
    kept = module.weight = nn.Parameter(torch.ones(2, dtype=torch.complex64).conj())
    module.to("jax")
    assert module.weight.device.type == "jax"
    assert kept.device.type == "cpu"
    assert kept.tolist() == [1, 1]


def test_meta_and_fake_modules_are_as_before() -> None:
    model = nn.Linear(2, 2, device="meta")
    weight = model.weight
    assert model.to_empty(device="jax").weight is not weight  # as on CUDA
    assert weight.device.type == "meta"
    with FakeTensorMode():
        assert not moving._crosses(torch.empty(2), torch.empty(2, device="jax"))


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
    moving.change_device_type.cache_clear()
    monkeypatch.setattr(moving, "_CHANGE", "no_such_function")
    model = Tied()
    weight = model.head.weight
    try:
        with pytest.raises(RuntimeError, match=r"cannot move a parameter .*set_swap_module_params_on_conversion\(True"):
            model.to("jax")
        torch.__future__.set_swap_module_params_on_conversion(True)
        assert model.to("jax").embedding.weight is weight
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        moving.change_device_type.cache_clear()
