"""CUDA emulated on a CPU: plain tensors of device cuda:0 behave as on a GPU, whatever is done with them."""

import copy
import io
import pickle
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import ForwardCheck
from ampcheck.devices.registry import absent, groups, known, select
from ampcheck.errors import UsageError
from tests.cli_support import PROGRAMS, python

DEVICE = known()["emulated:cuda"]
if reason := DEVICE.unavailable():
    pytest.skip(reason, allow_module_level=True)


@pytest.fixture
def cuda() -> Iterator[torch.device]:
    """The device, entered."""
    with DEVICE.activate():
        yield torch.device("cuda", 0)


def saved(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor written to a file and read again."""
    file = io.BytesIO()
    torch.save(tensor, file)
    file.seek(0)
    loaded: torch.Tensor = torch.load(file)
    return loaded


COPIES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "there and back": lambda x: x.cpu().cuda(),
    "clone": torch.clone,
    "deep copy": copy.deepcopy,
    "pickle": lambda x: pickle.loads(pickle.dumps(x)),
    "file": saved,
    "storage": lambda x: torch.empty(0, device="cuda").set_(x.untyped_storage(), 0, x.shape, x.stride()),
}


@pytest.mark.parametrize("how", COPIES)
def test_a_copy_is_on_the_device_with_its_values(how: str, cuda: torch.device) -> None:
    given = torch.arange(6.0, device="cuda").view(2, 3)
    made = COPIES[how](given)
    assert (made.device, made.cpu().tolist()) == (cuda, given.cpu().tolist())


def test_views_resizes_and_writes_are_of_one_memory(cuda: torch.device) -> None:
    base = torch.zeros(2, 3, device="cuda")
    row = base[1]
    row.add_(1)
    assert base.cpu().tolist() == [[0, 0, 0], [1, 1, 1]]
    assert row._base is base
    out = torch.empty(0, device="cuda")
    torch.add(base, 1, out=out)
    assert out.shape == base.shape
    assert torch.ones(2, 2, device="cuda", dtype=torch.complex64).conj().mm(torch.eye(2).cuda() + 0j).is_cuda
    with torch.inference_mode():
        assert not base.view(6).is_inference()


def test_a_mixture_of_devices_is_refused(cuda: torch.device) -> None:
    with pytest.raises(RuntimeError, match="at least two devices, cuda:0 and cpu"):
        torch.ones(3) + torch.ones(3, device="cuda")
    assert (torch.ones(3, device="cuda") + torch.tensor(1.0)).cpu().tolist() == [2, 2, 2]


def test_a_step_under_autocast_with_a_scaler(cuda: torch.device) -> None:
    """Regions, the engine in a thread of the device, the scaler and the optimizer are as on CUDA."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.LayerNorm(16)).cuda()
    scaler, optimizer = torch.amp.GradScaler("cuda", init_scale=2.0**4), torch.optim.AdamW(model.parameters(), lr=0.1)
    dtypes, threads = set(), set()
    model[0].register_forward_hook(lambda module, args, out: dtypes.add(out.dtype))
    next(model.parameters()).register_hook(lambda gradient: threads.add(threading.get_ident()))
    losses = []
    for _ in range(4):
        with torch.autocast("cuda"):
            out = model(torch.ones(2, 3, 4, 4, device="cuda"))
        loss = (out - torch.arange(16.0, device="cuda")).square().mean()
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(loss.item())
    assert (dtypes, out.dtype, scaler.is_enabled()) == ({torch.float16}, torch.float32, True)
    assert threading.get_ident() not in threads
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_layers_have_the_values_and_gradients_of_the_cpu(kind: type[nn.RNNBase], cuda: torch.device) -> None:
    """CUDA has fused cells, which are written for the emulation."""
    host = kind(3, 5, num_layers=2)
    here = copy.deepcopy(host).cuda()
    x = torch.randn(4, 2, 3)
    got, want = here(x.cuda())[0], host(x)[0]
    got.square().sum().backward()
    want.square().sum().backward()
    torch.testing.assert_close(got.cpu(), want)
    for one, other in zip(here.parameters(), host.parameters(), strict=True):
        torch.testing.assert_close(one.grad.cpu(), other.grad)


def test_torch_cuda_answers_while_it_is_entered() -> None:
    assert not torch.cuda.is_available()
    with DEVICE.activate():
        found = torch.accelerator.current_accelerator()
        assert (torch.cuda.is_available(), torch.cuda.current_device(), str(found)) == (True, 0, "cuda")
        before = torch.cuda.memory_allocated()
        kept = torch.empty(1000, device="cuda")
        assert torch.cuda.memory_allocated() - before == 4000
        torch.cuda.reset_peak_memory_stats()
        kept + 1
        assert torch.cuda.max_memory_allocated() - before == 8000
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        end.record()
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            assert end.query()
        assert 0 <= begin.elapsed_time(end) < 1000
    assert not torch.cuda.is_available()
    assert torch.accelerator.current_accelerator() is None


def test_it_shares_no_process_with_a_privateuse1_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has one accelerator in a process, and a backward pass on another one asserts."""
    (tmp_path / "their_device.py").write_text(PROGRAMS["emulated-theirs"])
    monkeypatch.syspath_prepend(tmp_path)
    modules = ["their_device"]
    apart = [["cpu", "virtual:mps"], ["emulated:cuda"], ["their"]]  # a preflight starts threads that a fork lacks
    assert groups(["cpu", "emulated:cuda", "their", "virtual:mps"], modules) == apart
    with pytest.raises(UsageError, match=r"'emulated:cuda' and 'their' cannot be tested in one run: PyTorch has one"):
        select(["emulated:cuda", "their"], modules)
    assert [device.name for device in select(["cpu", "emulated:cuda"])] == ["cpu", "emulated:cuda"]
    assert "emulated:cuda" not in {device.name for device in select([], modules)}
    assert "is in this process, and PyTorch has one accelerator" in absent(modules)["emulated:cuda"]
    assert "emulated:cuda" not in absent(modules, ["emulated:cuda"])


def test_what_is_printed_runs_on_the_device(tmp_path: Path) -> None:
    case, *_ = op_cases(DEVICE, "downcast", only="mm")
    (tmp_path / "program.py").write_text(ForwardCheck().program(case, DEVICE), encoding="utf-8")
    said = python(tmp_path / "program.py").splitlines()
    assert said
    assert all(line.startswith("ok  ") for line in said)
