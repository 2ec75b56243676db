"""What the suites do on a GPU, of which a machine without one shows nothing, and on a virtual one."""

import ctypes
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import judge_raise, plan
from ampcheck.devices import base, virtual
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.devices.preflight import examine
from ampcheck.devices.registry import known
from ampcheck.devices.virtual import graphs
from ampcheck.errors import Unsupported
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
