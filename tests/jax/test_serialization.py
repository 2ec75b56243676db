"""Copies, pickles, checkpoints, modules that move, and libraries that users bring: safetensors and Accelerate."""

import copy
import io
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from ampcheck.jax_device.interop import libraries
from ampcheck.jax_device.storage import moving
from tests.jax.agreement import library, saved


def shares(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors lie on one storage."""
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def linked(device: str) -> dict[str, Tensor]:
    """A tensor, two views of it and one on a storage of its own."""
    base = torch.arange(6.0, device=device).reshape(2, 3)
    return {"base": base, "transposed": base.t(), "row": base[1], "other": torch.ones(3, device=device).bfloat16()}


def assert_linked(found: dict[str, Tensor], device: str) -> None:
    """What `linked` made, with the same views of the same storages."""
    for name, want in linked("cpu").items():
        got = found[name]
        assert got.device.type == device
        assert (got.stride(), got.storage_offset()) == (want.stride(), want.storage_offset())
        torch.testing.assert_close(got.cpu(), want, rtol=0, atol=0)
    assert shares(found["base"], found["transposed"])
    assert shares(found["base"], found["row"])
    assert not shares(found["base"], found["other"])
    found["row"].fill_(7)
    assert found["transposed"].cpu()[:, 1].tolist() == [7, 7, 7]


def test_deepcopy() -> None:
    made = linked("jax")
    assert_linked(copy.deepcopy(made), "jax")
    assert_linked(made, "jax")  # what was written to the copy is not in the original
    leaf = torch.ones(2, device="jax", requires_grad=True)
    leaf.grad = torch.full((2,), 3.0, device="jax")
    twin = copy.deepcopy(leaf)
    assert twin.requires_grad
    assert twin.grad is not None
    assert twin.grad.tolist() == [3, 3]
    assert not shares(twin, leaf)
    with pytest.raises(RuntimeError, match="Only Tensors created explicitly by the user"):
        copy.deepcopy(leaf * 2)


def test_save_and_load() -> None:
    for source in ("jax", "cpu"):
        for target in ("jax", "cpu", torch.device("jax"), {"jax:0": "cpu", "cpu": "jax"}):
            for options in ({}, {"_use_new_zipfile_serialization": False}):
                found = torch.load(saved(linked(source), **options), map_location=target, weights_only=True)
                other = "cpu" if source == "jax" else "jax"
                assert_linked(found, other if isinstance(target, dict) else torch.device(target).type)
    assert_linked(torch.load(saved(linked("jax")), weights_only=True), "jax")
    assert torch.load(saved(linked("jax")), map_location="meta", weights_only=True)["base"].device.type == "meta"


def test_every_dtype() -> None:
    low = torch.float8_e4m3fn, torch.uint16, torch.float16, torch.bfloat16
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float64, torch.complex64, *low):
        want = torch.tensor([0, 1, 2, 3]).to(dtype)
        for back in (torch.load(saved(want.to("jax")), weights_only=True), copy.deepcopy(want.to("jax"))):
            assert back.dtype is dtype
            assert torch.equal(back.cpu().view(torch.uint8), want.view(torch.uint8))


def test_two_dtypes_of_one_storage() -> None:
    base = torch.arange(4.0, device="jax")
    whole = base.view(torch.int32)
    twin, seen = copy.deepcopy((base, whole))
    assert shares(twin, seen)
    twin[0] = 1.0
    assert (seen[0].item(), base[0].item()) == (0x3F800000, 0)
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        saved((base, whole))


SCRIPTED = {"script": torch.jit.script, "trace": lambda module: torch.jit.trace(module, torch.ones(1, 3, device="jax"))}


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript is deprecated
@pytest.mark.parametrize("kind", SCRIPTED)
def test_scripted_modules_are_written_from_the_cpu(kind: str, tmp_path: Path) -> None:
    module = SCRIPTED[kind](torch.nn.Linear(3, 2, device="jax"))
    path = tmp_path / "module.pt"
    for write in (
        lambda: module.save(path),
        lambda: torch.jit.save(module, path),
        lambda: torch.jit.save(module, io.BytesIO()),
        module.save_to_buffer,
    ):
        with pytest.raises(RuntimeError, match=r"TorchScript cannot write tensors of the jax device: save module\.cpu"):
            write()
    assert not path.exists()
    weight = module.weight.detach().cpu()
    torch.jit.save(module.cpu(), path)
    with pytest.raises(RuntimeError, match=r"map_location='cpu'\)\.to\('jax'\)"):
        torch.jit.load(path, map_location="jax")
    found = torch.jit.load(path, map_location="cpu").to("jax")
    assert found.weight.device.type == "jax"
    assert torch.equal(found.weight.cpu(), weight)
    assert found(torch.ones(1, 3, device="jax")).shape == (1, 2)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_loaded_module_moves_with_its_parameters() -> None:
    """They are the same objects afterwards, as an optimizer wants; they are no `nn.Parameter`s."""
    file = io.BytesIO()
    torch.jit.save(torch.jit.script(torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))), file)
    file.seek(0)
    module = torch.jit.load(file)
    before = list(module.parameters())
    optimizer = torch.optim.SGD(before, lr=0.1)
    module.to("jax")
    assert all(p is q for p, q in zip(module.parameters(), before, strict=True))
    module(torch.arange(6.0, device="jax").reshape(2, 3)).square().sum().backward()
    optimizer.step()
    assert {t.device.type for t in (*module.parameters(), *module.buffers())} == {"jax"}
    assert before[2].grad is not None


class Tied(nn.Module):
    """A module whose head has the weight of its embedding."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(16, 32), nn.Linear(32, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        out: Tensor = self.head(self.embedding(tokens))
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
    assert (module.weight.device.type, kept.device.type, kept.tolist()) == ("jax", "cpu", [1, 1])


def test_meta_modules_are_as_before() -> None:
    model = nn.Linear(2, 2, device="meta")
    weight = model.weight
    assert model.to_empty(device="jax").weight is not weight  # as on CUDA
    assert weight.device.type == "meta"


@pytest.mark.parametrize("convert", [nn.Module.half, nn.Module.double, partial(nn.Module.to_empty, device="cpu")])
def test_modules_of_the_cpu_are_as_before(
    convert: Callable[[nn.Module], nn.Module], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = Tied()
    before = list(model.parameters())
    assert all(a is b for a, b in zip(convert(model).parameters(), before, strict=True))
    monkeypatch.setattr(torch.__future__, "_overwrite_module_params_on_conversion", True)
    assert not any(a is b for a in convert(model).parameters() for b in before)


def test_a_build_without_the_function(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(moving, "change_device_type", lambda: None)
    model = Tied()
    weight = model.head.weight
    with pytest.raises(RuntimeError, match=r"cannot move a parameter .*set_swap_module_params_on_conversion\(True"):
        model.to("jax")
    monkeypatch.setattr(torch.__future__, "_swap_module_params_on_conversion", True)
    assert model.to("jax").embedding.weight is weight


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file with stored of the device, which safetensors wrote."""
    path = tmp_path / "x.safetensors"
    library("safetensors.torch").save_file(stored(), path)
    return path


def stored() -> dict[str, Tensor]:
    return {"a": torch.arange(6.0, device="jax").reshape(2, 3), "b": torch.ones(3, device="jax").bfloat16()}


@pytest.mark.parametrize("device", ["jax", "jax:0", "cpu", 0])
def test_safetensors_loads_to_the_device(device: str | int, file: Path) -> None:
    found = library("safetensors.torch").load_file(file, device=device)
    for name, tensor in stored().items():
        assert found[name].device.type == torch.device(device).type
        assert found[name].dtype is tensor.dtype
        assert torch.equal(found[name].cpu(), tensor.cpu())


def test_safetensors_opens_a_file_for_the_device(file: Path) -> None:
    with library("safetensors").safe_open(file, framework="pt", device="jax") as opened:
        assert (opened.get_tensor("a").device.type, opened.get_slice("a")[1:].tolist()) == ("jax", [[3, 4, 5]])
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
    monkeypatch.setattr(libraries, "find_spec", lambda name: asked.append(name))
    monkeypatch.setattr(libraries, "import_module", lambda name: pytest.fail(f"{name} was imported"))
    libraries._safetensors()
    assert asked == ["safetensors"]


@pytest.fixture
def accelerate() -> Iterator[Any]:
    """The package, whose state is fresh before and after."""
    package = library("accelerate")
    package.state.AcceleratorState._reset_state(True)
    yield package
    package.state.AcceleratorState._reset_state(True)


def test_accelerate_trains_on_the_device_that_it_is_given(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "jax")
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
    assert (set(seen), model[0].weight.device.type) == ({torch.bfloat16}, "jax")
    assert not torch.equal(model[0].weight.cpu(), before)


def test_accelerate_refuses_float16(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "jax")
    with pytest.raises(ValueError, match=r"fp16 mixed precision requires a device in .* \(not 'jax'\)"):
        accelerate.Accelerator(mixed_precision="fp16")


def test_accelerate_tells_that_the_device_goes_unused(accelerate: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACCELERATE_TORCH_DEVICE", raising=False)
    with pytest.warns(UserWarning, match='does not know the jax device, which stays unused.*TORCH_DEVICE"] = "jax"'):
        assert accelerate.PartialState().device.type == "cpu"
    accelerate.state.AcceleratorState._reset_state(True)
    assert accelerate.PartialState(cpu=True).device.type == "cpu"  # without a word, as it was asked for


def test_the_trainer_of_transformers_trains_in_bfloat16(
    accelerate: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By two environment variables, with nothing of the program changed."""
    transformers = library("transformers")
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", "jax")
    monkeypatch.setenv("ACCELERATE_MIXED_PRECISION", "bf16")
    options = {"n_layer": 1, "n_head": 2, "n_embd": 16, "vocab_size": 32, "n_positions": 16}
    model = transformers.GPT2LMHeadModel(transformers.GPT2Config(**options))
    seen: list[Any] = []
    model.transformer.h[0].mlp.c_fc.register_forward_hook(lambda _, __, out: seen.append((out.device.type, out.dtype)))
    arguments = transformers.TrainingArguments(
        str(tmp_path), report_to=[], max_steps=2, save_strategy="no", disable_tqdm=True, dataloader_pin_memory=False
    )
    data = [{"input_ids": torch.arange(8), "labels": torch.arange(8)} for _ in range(16)]
    transformers.Trainer(model=model, args=arguments, train_dataset=data).train()
    assert (seen, {p.device.type for p in model.parameters()}) == ([("jax", torch.bfloat16)] * 2, {"jax"})
