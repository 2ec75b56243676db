"""Backends as others write them are judged rightly with the faults they have; tests/faults injects some into others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.runner.record import Result, read
from tests.cli_support import LIMIT

ROOT = Path(__file__).resolve().parents[2]
FOLDER = Path(__file__).parent


def lines(results: list[dict[str, str]]) -> str:
    """Results, one a line."""
    return "\n".join(f"{r['status']}: {r.get('id', '')}: {r.get('message', '')}" for r in results)


def run(folder: Path, backend: str, *selection: str) -> dict[str, Result]:
    """The results of `ampcheck run` on a backend of the folder, of suite eager."""
    paths = {"PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}", "PYTHONPYCACHEPREFIX": str(folder / "cache")}
    env = {**os.environ, **paths, "OMP_NUM_THREADS": "1"}
    target = folder / "run.jsonl"
    command = [sys.executable, "-m", "ampcheck", "run", f"--device={backend}", f"--device-module={backend}"]
    options = ["--suite=eager", f"--run-file={target}", *selection]
    done = subprocess.run(
        [*command, *options], cwd=folder, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert target.exists(), done.stdout + done.stderr
    return read(target).results


def test_a_backend_without_bfloat16_is_told(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ampcheck", "run", "--device=halfonly", "--device-module=halfonly", "--op=mm"]
    done = subprocess.run(
        [*command, "--rule=downcast"], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.returncode == 2
    (sentence,) = done.stderr.strip().splitlines()
    for words in ("'halfonly'", "copy of bf16", "RuntimeError: halfonly has no bfloat16", "halfonly.py:11"):
        assert words in sentence


@pytest.mark.nightly
def test_warnings_of_a_backend_decide_nothing(tmp_path: Path) -> None:
    results = run(tmp_path, "noisy", "--op=mm", "--op=exp", "--op=tanh", "--rule=downcast", "--rule=upcast")
    assert len(results) > 50
    assert lines([result.filled() for result in results.values() if result.status != "pass"]) == ""


@pytest.mark.nightly
def test_a_backend_that_crashes_and_hangs_loses_those_cases(tmp_path: Path) -> None:
    results = run(tmp_path, "fragile", "--op=tanh", "--op=neg", "--rule=fallthrough", "-k=not database", "--timeout=30")
    wrong = {key: result.status for key, result in results.items() if result.status != "pass"}
    low = "eager/fallthrough/{}-fp16-fp16-fragile"
    assert wrong == {low.format("tanh"): "crash", low.format("neg"): "timeout"}
    assert "SIGSEGV" in results[low.format("tanh")].message


@pytest.mark.nightly
def test_a_half_finished_backend_is_told_what_it_lacks(tmp_path: Path) -> None:
    ops = ("mm", "addmm", "tanh", "exp", "silu", "log", "bmm", "add.Tensor")
    rules = ("downcast", "upcast", "fallthrough")
    selection = (*(f"--op={op}" for op in ops), *(f"--rule={rule}" for rule in rules), "-k=not database")
    results = run(tmp_path, "halfdone", *selection)
    by_op = {op: [result for result in results.values() if result.op == op] for op in ops}
    statuses = {op: {result.status for result in by_op[op]} for op in ops}
    assert statuses["silu"] == {"unsupported"}
    assert statuses["log"] == {"unsupported"}
    assert all("Could not run 'aten::silu" in result.message for result in by_op["silu"])
    assert statuses["exp"] == {"broken"}
    assert all("has no attribute 'realise'" in result.message for result in by_op["exp"])
    for op in ("mm", "addmm", "tanh"):
        assert statuses[op] == {"broken", "pass"}
        broken = [result for result in by_op[op] if result.status == "broken"]
        assert all("halfdone: no lower precision in aten::" in result.message for result in broken)
    assert statuses["bmm"] == statuses["add.Tensor"] == {"pass"}


# ---- a weight cache for tensors without storages


@pytest.mark.parametrize(("told", "product"), [(True, 6.0), (False, 2.0)])
def test_a_kept_cast_follows_the_memory_it_is_told_of(told: bool, product: float) -> None:
    """With `memory=` a cast is dropped when `weight.data = …` moves a weight, and without it stays, as documented."""
    code = f"""
import opaque, torch
if not {told}:
    opaque.BACKEND.register()
weight, x = torch.nn.Parameter(torch.ones(2, 2, device="opaque")), torch.ones(1, 2, device="opaque")
with torch.autocast("opaque", dtype=torch.bfloat16):
    torch.mm(x, weight), torch.mm(x, weight)
    assert len(opaque.BACKEND.autocast.cache) == 1
    weight.data = torch.full((2, 2), 3.0, device="opaque")
    print(torch.mm(x, weight).cpu()[0, 0].item())
"""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    assert done.stdout.strip() == str(product), done.stderr
