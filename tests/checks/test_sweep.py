"""A sweep notices outputs and gradients that a right call does not give: casts, values, shapes and strides."""

from __future__ import annotations

import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from torch.library import Library

from ampcheck.checks.sweep import SweepCheck
from ampcheck.devices.registry import known
from ampcheck.spec.case import CELLS, Case

Fault = Callable[[torch.Tensor], torch.Tensor]

FAULTS: dict[str, tuple[Fault, str]] = {
    "value": (lambda x: x * 1.25, "differs from the same op on explicitly cast inputs"),
    "shape": (lambda x: x.unsqueeze(0), "has shape (1, "),
    "strides": (lambda x: x.mT.clone(memory_format=torch.contiguous_format).mT, "has strides"),
    "cast": (lambda x: x.to(torch.float32), "is fp32; expected"),
}
"""Each changes what a kernel of autocast returns; beside it, what a difference says."""


@contextmanager
def wrong_mm(key: str, device: str, fault: Fault) -> Iterator[None]:
    """Put a kernel of autocast for mm in place that casts as it should and returns something else."""

    def mm(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        low = torch.get_autocast_dtype(device)
        cast = [x.to(low) if x.is_floating_point() and x.dtype != torch.float64 else x for x in (a, b)]
        with torch.autocast(device, enabled=False):
            return fault(torch.mm(*cast))

    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # replacing a kernel warns
        library.impl("mm", mm, key, allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def cell(device: str, token: str, amp: str, compiler: str = "") -> Case:
    return Case("jit" if compiler else "eager", "downcast", "mm", CELLS, "grad", amp, device, token, compiler)


@pytest.mark.parametrize("name", FAULTS)
def test_a_wrong_output_is_noticed(name: str) -> None:
    fault, told = FAULTS[name]
    with wrong_mm("AutocastCPU", "cpu", fault):
        found = SweepCheck().run(cell("cpu", "cpu", "bf16"), known()["cpu"])
    assert any(told in text for text in found)


@pytest.mark.parametrize("name", ["shape", "strides", "cast"])
def test_a_wrong_fake_output_is_noticed(name: str) -> None:
    fault, told = FAULTS[name]
    with wrong_mm("AutocastMPS", "mps", fault):
        case = Case("eager", "downcast", "mm", CELLS, "no_grad", "fp16", "virtual:mps", "vmp")
        found = SweepCheck().run(case, known()["virtual:mps"])
    assert any(told in text for text in found)


@pytest.mark.parametrize("compiler", ["traced", "aot", "export"])
@pytest.mark.parametrize("name", ["value", "shape", "strides"])
def test_a_fault_in_eager_mode_and_in_the_program_is_noticed(name: str, compiler: str) -> None:
    with wrong_mm("AutocastCPU", "cpu", FAULTS[name][0]):
        found = SweepCheck().run(cell("cpu", "cpu", "bf16", compiler), known()["cpu"])
    assert any("explicitly cast inputs, without a region" in text for text in found)


def test_right_kernels_pass() -> None:
    with wrong_mm("AutocastCPU", "cpu", lambda x: x):
        assert SweepCheck().run(cell("cpu", "cpu", "bf16"), known()["cpu"]) == []


def test_strides_that_a_compiler_gives_without_a_region_are_right() -> None:
    # TorchScript makes mm and add of addmm, whose result lies in memory as the bias does.
    case = Case("jit", "downcast", "addmm", CELLS, "plain", "bf16", "cpu", "cpu", "traced")
    assert SweepCheck().run(case, known()["cpu"]) == []


@pytest.mark.parametrize("compiler", ["", "export"])
def test_the_program_of_a_cell_runs_alone(compiler: str, tmp_path: Path) -> None:
    file = tmp_path / "program.py"
    file.write_text(SweepCheck().write(cell("cpu", "cpu", "bf16", compiler), known()["cpu"], "", (), ran=True))
    done = subprocess.run([sys.executable, file], capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "ok " in done.stdout
    assert "FAIL" not in done.stdout
