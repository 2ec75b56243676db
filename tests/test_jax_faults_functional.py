"""The suites catch faults of checkpoints and of torch.func on the device jax, in a process of its own for each."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.results import RED, Run, read
from tests.faults import FAULTS
from tests.jax_process import ROOT

NAMES = ("replay-in-other-dtype", "dual-without-tangent", "call-with-own-parameters")
"""Faults that do not speak of the CPU, each of another part of PyTorch."""


def _run(name: str, folder: Path) -> tuple[int, Run]:
    """How the process of a fault ended, and what its cases found."""
    path = folder / "run.jsonl"
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-m", "tests.jax_functional_faults", name, str(path)]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, check=False, timeout=300)
    assert path.exists(), done.stdout + done.stderr
    return done.returncode, read(path)


@pytest.mark.parametrize("name", NAMES)
def test_is_caught_on_jax(name: str, tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == name)
    code, run = _run(name, tmp_path)
    assert code == pytest.ExitCode.TESTS_FAILED
    failed = [result for result in run.results.values() if result.status == "fail" and result.rule == fault.rule]
    assert any(all(words in result.message for words in fault.says) for result in failed), failed


def test_green_without_one(tmp_path: Path) -> None:
    code, run = _run("call-with-own-parameters!", tmp_path)
    assert code == pytest.ExitCode.OK
    assert run.results
    assert not [result for result in run.results.values() if result.status in RED]
