"""Copies, pickles and checkpoints."""

from __future__ import annotations

import copy
import io
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch


def saved(value: Any, **options: Any) -> io.BytesIO:
    """A file that torch.save wrote, at its beginning."""
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def shares(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors lie on one storage."""
    return one.untyped_storage()._cdata == other.untyped_storage()._cdata


def linked(device: str) -> dict[str, torch.Tensor]:
    """A tensor, two views of it and one on a storage of its own."""
    base = torch.arange(6.0, device=device).reshape(2, 3)
    return {"base": base, "transposed": base.t(), "row": base[1], "other": torch.ones(3, device=device).bfloat16()}


def assert_linked(found: dict[str, torch.Tensor], device: str) -> None:
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


def test_a_cuda_checkpoint() -> None:
    written = saved({"w": torch.ones(4)}, _use_new_zipfile_serialization=False).getvalue()
    assert written.count(b"X\x03\x00\x00\x00cpu") == 1
    cuda = io.BytesIO(written.replace(b"X\x03\x00\x00\x00cpu", b"X\x06\x00\x00\x00cuda:0"))
    found = torch.load(cuda, map_location="jax", weights_only=True)["w"]
    assert found.device.type == "jax"
    assert found.tolist() == [1, 1, 1, 1]


def test_every_dtype() -> None:
    for dtype in (torch.bool, torch.uint8, torch.int64, torch.float16, torch.bfloat16, torch.float64, torch.complex64):
        want = torch.tensor([0, 1, 2, 3]).to(dtype)
        for back in (torch.load(saved(want.to("jax")), weights_only=True), copy.deepcopy(want.to("jax"))):
            assert back.dtype is dtype
            assert torch.equal(back.cpu(), want)
    for dtype in (torch.float8_e4m3fn, torch.uint16):
        want = torch.tensor([0, 1, 2, 3]).to(dtype)
        back = torch.load(saved(want.to("jax")), weights_only=True)
        assert torch.equal(back.cpu().float(), want.float())


def test_two_dtypes_of_one_storage() -> None:
    base = torch.arange(4.0, device="jax")
    whole = base.view(torch.int32)
    twin, seen = copy.deepcopy((base, whole))
    assert shares(twin, seen)
    twin[0] = 1.0
    assert seen[0].item() == 0x3F800000
    assert base[0].item() == 0
    with pytest.raises(RuntimeError, match="view the same data as different types"):
        saved((base, whole))


def test_modules() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4)).to("jax")
    state = {name: value.cpu() for name, value in model.state_dict().items()}
    for twin in (
        copy.deepcopy(model),
        pickle.loads(pickle.dumps(model)),
        torch.load(saved(model), weights_only=False),
    ):
        for name, value in twin.state_dict().items():
            assert value.device.type == "jax"
            assert torch.equal(value.cpu(), state[name])
        assert twin(torch.ones(2, 3, device="jax")).requires_grad
    host = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    host.load_state_dict(torch.load(saved(model.state_dict()), map_location="cpu", weights_only=True))
    assert all(torch.equal(value, state[name]) for name, value in host.state_dict().items())
    tied = torch.nn.Linear(2, 2, bias=False, device="jax")
    both = copy.deepcopy(torch.nn.ModuleList([tied, tied]))
    assert both[0].weight is both[1].weight


SCRIPTED = {
    "script": torch.jit.script,
    "trace": lambda module: torch.jit.trace(module, torch.ones(1, 3, device="jax")),
}


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
