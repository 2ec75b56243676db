"""A sweep notices outputs and gradients that a right call does not give: casts, values, shapes and strides."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace

import pytest
import torch

from ampcheck.checks.sweep import SweepCheck
from ampcheck.devices.registry import known
from ampcheck.spec.case import CELLS, Case
from tests.faults.kernels import in_low, kernel, result

Fault = Callable[[torch.Tensor], torch.Tensor]

FAULTS: dict[str, tuple[Fault, str]] = {
    "value": (lambda x: x * 1.25, "differs from the same op on explicitly cast inputs"),
    "shape": (lambda x: x.unsqueeze(0), "has shape (1, "),
    "strides": (lambda x: x.mT.clone(memory_format=torch.contiguous_format).mT, "has strides"),
    "cast": (lambda x: x.to(torch.float32), "is fp32; expected"),
}
"""Each changes what a kernel of autocast returns; beside it, what a difference says."""


def wrong_mm(device: str, fault: Fault) -> AbstractContextManager[object]:
    """Put a kernel of autocast for mm in place that casts as it should and returns something else."""
    return kernel("mm", result(in_low, lambda call, x: fault(x)))(device)


def cell(device: str, token: str, amp: str, compiler: str = "") -> Case:
    return Case("jit" if compiler else "eager", "downcast", "mm", CELLS, "grad", amp, device, token, compiler)


@pytest.mark.parametrize(
    ("device", "name"),
    [*(("cpu", name) for name in FAULTS), *(("virtual:mps", name) for name in FAULTS if name != "value")],
)
def test_a_wrong_output_is_noticed(device: str, name: str) -> None:
    fault, told = FAULTS[name]
    case = cell(device, known()[device].token, known()[device].default_amp)
    case = replace(case, inputs="grad" if known()[device].has_values else "no_grad")
    with wrong_mm(device, fault):
        found = SweepCheck().run(case, known()[device])
    assert any(told in text for text in found)


@pytest.mark.parametrize("compiler", ["traced", "aot", "export"])
@pytest.mark.parametrize("name", ["value", "shape", "strides"])
def test_a_fault_in_eager_mode_and_in_the_program_is_noticed(name: str, compiler: str) -> None:
    with wrong_mm("cpu", FAULTS[name][0]):
        found = SweepCheck().run(cell("cpu", "cpu", "bf16", compiler), known()["cpu"])
    assert any("explicitly cast inputs, without a region" in text for text in found)


def test_right_kernels_pass() -> None:
    with wrong_mm("cpu", lambda x: x):
        assert SweepCheck().run(cell("cpu", "cpu", "bf16"), known()["cpu"]) == []


def test_strides_that_a_compiler_gives_without_a_region_are_right() -> None:
    # TorchScript makes mm and add of addmm, whose result lies in memory as the bias does.
    case = Case("jit", "downcast", "addmm", CELLS, "plain", "bf16", "cpu", "cpu", "traced")
    assert SweepCheck().run(case, known()["cpu"]) == []


def test_the_parts_of_an_op_receive_what_they_do_without_a_region() -> None:
    # TorchScript casts float32 alone, so the mm that it makes of addmm gets two lower precisions.
    case = Case("jit", "downcast", "addmm", CELLS, "plain", "fp16", "virtual:cuda", "vcu", "script")
    found = [text for text in SweepCheck().run(case, known()["virtual:cuda"]) if text.startswith("the parts of")]
    assert "('mm', ['fp16', 'bf16'])" in found[0]
    assert all("[low+other, " in text for text in found)
