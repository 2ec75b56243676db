"""Each case is of one kind, whose class describes it and writes a program that says what the case says."""

import json
from pathlib import Path
from unittest.mock import patch

import pytest
import torch

from ampcheck.checks.kinds import check_of
from ampcheck.devices.registry import known
from ampcheck.spec.case import CELLS, Case
from tests.cli_support import python
from tests.reproduce import programs as runner

CPU, CUDA = ("bf16", "cpu", "cpu"), ("fp16", "virtual:cuda", "vcu")
CASES = {
    Case("eager", "downcast", "mm", "", "fp32", *CPU): "ForwardCheck",
    Case("eager", "downcast", "mm", "method", "fp32", *CUDA): "ForwardCheck",
    Case("eager", "optdtype", "sum", "", "fp16", *CUDA): "ForwardCheck",
    Case("eager", "append", "norm.Scalar", "", "fp16", *CUDA): "ForwardCheck",
    Case("eager", "fallthrough", "tensordot", "", "fp32", *CPU): "ForwardCheck",
    Case("eager", "fallthrough", "tanh", "", "bf16", *CPU): "ForwardCheck",
    Case("autograd", "downcast", "mm", "", "fp32-grad", *CPU): "BackwardCheck",
    Case("autograd", "promote", "stack", "", "fp32_bf16at2-grad", *CPU): "BackwardCheck",
    Case("autograd", "upcast", "nll_loss", "", "fp32-grad", *CPU): "BackwardCheck",
    Case("autograd", "append", "norm.Scalar", "", "fp32-grad", *CUDA): "BackwardCheck",
    Case("autograd", "downcast", "mm", "", "fp32_fp16-grad", "fp16", "virtual:mps", "vmp"): "BackwardCheck",
    Case("jit", "downcast", "mm", "", "fp32", *CPU, "export"): "CompiledCheck",
    Case("eager", "downcast", "mm", CELLS, "grad", *CPU): "SweepCheck",
    Case("eager", "downcast", "mm", CELLS, "inference", *CUDA): "SweepCheck",
    Case("eager", "banned", "binary_cross_entropy", CELLS, "plain", *CUDA): "SweepCheck",
    Case("jit", "downcast", "mm", CELLS, "grad", *CPU, "traced"): "SweepCheck",
    Case("jit", "downcast", "mm", CELLS, "grad", *CPU, "export"): "SweepCheck",
    Case("eager", "drift", "mm", "", "all", *CPU): "DriftCheck",
    Case("eager", "fallthrough", "add", "database", "fp32", *CPU): "OpDatabaseCheck",
    Case("eager", "fallthrough", "add", "database", "fp16", *CUDA): "OpDatabaseCheck",
    Case("eager", "context", "exit_restores", "", "", *CPU): "",
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.key)
def test_a_case_is_of_one_kind(case: Case) -> None:
    kind = check_of(case)
    assert (type(kind).__name__ if kind else "") == CASES[case]
    if kind:
        told = kind.describe(case)
        assert case.op in told
        assert told.endswith(".")


def test_what_is_right_runs_as_a_program(tmp_path: Path) -> None:
    """All of them in one process where ampcheck cannot be imported; those of a case that ended its process, too.

    Nothing of the latter is run to write its program.
    """
    made = {}
    for case in CASES:
        if (kind := check_of(case)) is not None:
            device = known()[case.device]
            made[case.key] = {"program": kind.program(case, device)}
            with patch.object(torch.autocast, "__enter__", side_effect=AssertionError("it was run")):
                made[f"{case.key}, not run"] = {"program": kind.program(case, device, ran=False)}
    given, got = tmp_path / "programs.json", tmp_path / "results.json"
    given.write_text(json.dumps(made), encoding="utf-8")
    python("-I", runner.__file__, given, got, folder=tmp_path)
    for name, ran in json.loads(got.read_text(encoding="utf-8")).items():
        refused = "banned" in name and name.endswith("not run")
        assert bool(ran["raised"]) == refused, f"{name}: {ran['raised']}"
        lines = ran["printed"].splitlines()
        assert refused or lines, name
        assert name.endswith("not run") or all(line.startswith("ok   ") for line in lines), f"{name}: {lines}"
