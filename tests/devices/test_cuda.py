"""What the suites do on a GPU, of which a machine without one shows nothing, and on the devices in its place."""

import copy
import ctypes
import io
import os
import pickle
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import judge_raise, plan
from ampcheck.devices import base, virtual
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.devices.preflight import examine
from ampcheck.devices.registry import absent, groups, known, select
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Unsupported, UsageError
from ampcheck.observe.torch_private import DeviceType, get_cudnn_enabled
from ampcheck.runner.deviations import KnownDeviations, load
from ampcheck.runner.record import read
from ampcheck.runner.run import fitting
from tests.cli_support import MODULE, run

GIB = 2**30


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cuda]:
    """A GPU with cuDNN, as far as torch says."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda emulated=True: emulated)
    monkeypatch.setattr(torch.backends.cudnn, "is_available", lambda: True)
    base.promised.cache_clear()
    yield Cuda()
    base.promised.cache_clear()


def test_a_chip_that_only_emulates_bf16_is_tested_in_fp16(gpu: Cuda) -> None:
    assert gpu.amp_dtypes == ("fp16",)
    assert {case.amp for case in op_cases(gpu, "downcast")} == {"fp16"}


def test_a_kernel_that_lacks_a_dtype_is_unsupported() -> None:
    case = next(case for case in op_cases(Cpu(), "downcast") if case.op == "mm" and case.inputs == "fp32")
    with pytest.raises(Unsupported, match="not implemented for 'Half'"):
        judge_raise(RuntimeError("\"mm_cuda\" not implemented for 'Half'"), Cuda(), plan(case, Cpu()))


def test_what_is_known_of_the_devices_in_its_place_is_known_of_cuda() -> None:
    devices = known()
    own = {(entry.id, glob) for entry in KnownDeviations([devices["cuda"]]).all() for glob in entry.cases}
    for name in ("virtual:cuda", "emulated:cuda"):
        twin = devices[name]
        limits = {entry.id for entry in load(twin.deviations)} if twin.deviations else set()  # of what stands for it
        entries = [entry for entry in KnownDeviations([twin]).all() if entry.id not in limits]
        globs = {(entry.id, re.sub("-(vcu|emc)$", "-cuda", glob)) for entry in entries for glob in entry.cases}
        tokens = tuple(f"-{device.token}" for device in devices.values() if device.type != "cuda")
        assert {one for one in globs - own if not one[1].endswith(tokens)} == set()
        assert len(globs) > 100


def test_what_is_repeated_is_repeated_with_deterministic_algorithms() -> None:
    with Cuda().repeatable():
        assert torch.is_deterministic_algorithms_warn_only_enabled()
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    assert not torch.are_deterministic_algorithms_enabled()


LOST = """
LOST = []

class Lost(Dying):
    name = token = "lost"

    def synchronize(self):
        if LOST:
            raise RuntimeError("CUDA error: device-side assert triggered")

def bad(what):
    if what == "addmm":
        LOST.append(what)

DEVICES = (Lost(),)
"""


def test_an_assertion_on_the_device_costs_its_case_and_no_other(tmp_path: Path) -> None:
    (tmp_path / "lost_device.py").write_text(MODULE + LOST)
    options = ("--device=lost", "--device-module=lost_device", "--op=addmm", "--op=mm", "--run-file=run.jsonl")
    done = run(tmp_path, "run", "--suite=eager", "--rule=downcast", *options)
    found = read(tmp_path / "run.jsonl").results
    red = {key: result.message for key, result in found.items() if result.status != "pass"}
    assert list(red) == ["eager/downcast/addmm-fp64-bf16-lost"], done.stdout + done.stderr
    (message,) = red.values()
    assert "the device takes no more work: RuntimeError: CUDA error: device-side assert triggered" in message
    assert len(found) > 20


def test_each_process_needs_memory_of_the_gpu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\necho 81000\necho 6144\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    assert fitting(16, 64 * GIB) == 4
    (tmp_path / "nvidia-smi").write_text("#!/bin/sh\nexit 9\n")
    assert fitting(16, 64 * GIB) == 16


@pytest.mark.parametrize("lost", [True, False])
def test_a_region_casts_on_every_one_of_several_gpus(lost: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    device = known()["virtual:cuda"]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    mm = torch.mm
    if lost:
        monkeypatch.setattr(torch, "mm", lambda a, b: mm(a, b).to("cuda:0"))
    found = {finding.step: finding.happened for _, finding in examine((device,))}
    assert found["every device"] == ("on cuda:1 in fp16 it gives a tensor on cuda:0" if lost else "")
    assert found["region"] == ""


CPU, CUDA, META = (DeviceType.__members__[name].value for name in ("CPU", "CUDA", "Meta"))


@pytest.fixture
def guards() -> Iterator[Any]:
    """The guards of this process by device type, put back behind the test."""
    library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib/libc10.so"))
    found = (ctypes.c_void_p * len(DeviceType.__members__)).in_dll(library, graphs._REGISTRY)
    before = found[CUDA]
    yield found
    found[CUDA] = before


def test_nothing_is_fused_for_a_gpu_and_the_settings_come_back(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bool] = []  # a build without CUDA never fuses for a GPU, whatever it is told
    monkeypatch.setattr(virtual, "can_fuse_on_gpu", lambda: True)
    monkeypatch.setattr(virtual, "set_fuse_on_gpu", asked.append)
    before = get_cudnn_enabled()
    with known()["virtual:cuda"].activate():
        assert asked == [False]
        assert not get_cudnn_enabled()
    assert asked == [False, True]
    assert get_cudnn_enabled() == before


@pytest.mark.parametrize("usable", [False, True])
def test_a_guard_without_a_driver_is_replaced(usable: bool, guards: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU's guard takes the place of the one that a build with CUDA has."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: usable)
    guards[CUDA] = guards[CPU]
    graphs.allow.__wrapped__("cuda")
    assert guards[CUDA] == guards[CPU if usable else META]


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
        assert one.grad is not None
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


THEIRS = """
from ampcheck.devices.cpu import Cpu
class Theirs(Cpu):
    name = token = type = "their"
    key = "AutocastPrivateUse1"
DEVICES = (Theirs(),)
"""


def test_it_shares_no_process_with_a_privateuse1_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyTorch has one accelerator in a process, and a backward pass on another one asserts."""
    (tmp_path / "their_device.py").write_text(THEIRS)
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
