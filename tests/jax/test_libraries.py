"""Libraries that users bring: safetensors and Accelerate on the jax device."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.jax_device.interop import checkpoints


def library(name: str) -> Any:
    """A package. Skips the test where it cannot be imported."""
    return pytest.importorskip(
        name, reason=f"{name} cannot be imported; `pip install accelerate` runs this test", exc_type=ImportError
    )


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with tensors of the device, which safetensors wrote."""
    path = tmp_path / "x.safetensors"
    library("safetensors.torch").save_file(tensors(), path)
    return path


def tensors() -> dict[str, torch.Tensor]:
    return {"a": torch.arange(6.0, device="jax").reshape(2, 3), "b": torch.ones(3, device="jax").bfloat16()}


@pytest.mark.parametrize("device", ["jax", "jax:0", "cpu", 0])
def test_safetensors_loads_to_the_device(device: str | int, file: Path) -> None:
    found = library("safetensors.torch").load_file(file, device=device)
    for name, tensor in tensors().items():
        assert found[name].device.type == torch.device(device).type
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name].cpu(), tensor.cpu())


def test_safetensors_opens_a_file_for_the_device(file: Path) -> None:
    with library("safetensors").safe_open(file, framework="pt", device="jax") as opened:
        assert opened.get_tensor("a").device.type == "jax"
        assert opened.get_slice("a")[1:].tolist() == [[3, 4, 5]]
    with pytest.raises(RuntimeError, match="invalid device ordinal 1: there is one jax device"):
        library("safetensors").safe_open(file, framework="pt", device="jax:1")


def test_safetensors_models(tmp_path: Path) -> None:
    """Tied weights are written once and stay tied."""
    models = []
    for _ in range(2):
        model = torch.nn.Sequential(*(torch.nn.Linear(2, 2, device="jax") for _ in range(2)))
        model[1].weight = model[0].weight
        models.append(model)
    files = library("safetensors.torch")
    files.save_model(models[0], str(tmp_path / "x.safetensors"))
    assert files.load_model(models[1], tmp_path / "x.safetensors", device="jax") == (set(), [])
    for name, value in models[0].state_dict().items():
        assert torch.equal(models[1].state_dict()[name], value)


def test_without_safetensors_nothing_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    monkeypatch.setattr(checkpoints, "find_spec", lambda name: asked.append(name))
    monkeypatch.setattr(checkpoints, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    checkpoints.install()
    assert asked == ["safetensors"]


@pytest.fixture
def accelerate() -> Iterator[Any]:
    """The package, whose state is fresh before and after."""
    package = library("accelerate")
    package.state.AcceleratorState._reset_state(True)
    yield package
    package.state.AcceleratorState._reset_state(True)


def test_accelerate_trains_on_the_device_that_it_is_given(accelerate: Any) -> None:
    accelerate.PartialState().device = torch.device("jax")
    accelerator = accelerate.Accelerator(mixed_precision="bf16")
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    seen: list[torch.dtype] = []
    model[0].register_forward_hook(lambda _, __, out: seen.append(out.dtype))
    data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.randn(8, 4)), batch_size=4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = model[0].weight.detach().clone()
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for (x,) in data:
        assert x.device.type == "jax"
        optimizer.zero_grad()
        accelerator.backward(model(x).square().mean())
        accelerator.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    assert set(seen) == {torch.bfloat16}
    assert model[0].weight.device.type == "jax"
    assert not torch.equal(model[0].weight.cpu(), before)


def test_accelerate_refuses_float16(accelerate: Any) -> None:
    accelerate.PartialState().device = torch.device("jax")
    with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in .* \(not 'jax'\)"):
        accelerate.Accelerator(mixed_precision="fp16")
