"""A PrivateUse1 backend written by others, right and with mistakes planted in it, run as its author would."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ampcheck.runner.record import RED, Result, read
from tests.cli_support import ROOT

pytestmark = pytest.mark.nightly

BACKENDS = Path(__file__).parent


def run(folder: Path, fault: str, *selection: str) -> dict[str, Result]:
    """The results of `ampcheck run --device slowpoke` with a mistake planted."""
    env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{BACKENDS}", "SLOWPOKE_FAULT": fault, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ampcheck", "run", "--device=slowpoke", "--device-module=slowpoke", *selection]
    done = subprocess.run(
        [*command, f"--reports={folder}"], cwd=folder, env=env, capture_output=True, text=True, check=False
    )
    files = list((folder / "runs").glob("*.jsonl"))
    assert len(files) == 1, done.stdout + done.stderr
    return read(files[0]).results


def red(results: dict[str, Result]) -> list[Result]:
    return [result for result in results.values() if result.status in RED]


def test_the_backend_is_as_it_promises(tmp_path: Path) -> None:
    rules = ("downcast", "upcast", "optdtype", "append", "promote", "banned", "context", "state", "defaults", "errors")
    results = run(tmp_path, "", *(f"--rule={rule}" for rule in rules))
    assert red(results) == []
    passed = {result.rule for result in results.values() if result.status == "pass"}
    assert passed == set(rules)
    assert sum(result.status == "pass" for result in results.values()) > 2900


def test_a_backend_without_a_weight_cache_is_told(tmp_path: Path) -> None:
    found = red(run(tmp_path, "", "--rule=cache"))
    assert any("casts of a leaf used by three products: got 3; expected 1" in result.message for result in found)


@pytest.mark.parametrize(
    ("fault", "op", "rule", "words"),
    [
        ("linear", "linear", "downcast", "argument 0 of aten::linear was given as fp32 and reached the kernel as fp32"),
        ("doubles", "mm", "downcast", "argument 0 of aten::mm was given as fp64 and reached the kernel as fp16"),
        ("lazy", "sum", "optdtype", "aten::sum ran with dtype=None; expected dtype=fp32"),
    ],
)
def test_a_planted_mistake_is_named(tmp_path: Path, fault: str, op: str, rule: str, words: str) -> None:
    found = red(run(tmp_path, fault, f"--op={op}"))
    assert found
    assert {result.rule for result in found} == {rule}
    assert any(words in result.message for result in found), found[0].message
    assert all("import slowpoke" in result.torch for result in found)
