"""Faults planted in backends as others write them are judged rightly, on one with opaque storages and on one with a
partial list.

A process has one backend of its own, so each is gone through in a process (`tests/backends/planting.py`), once.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ampcheck.results import RED
from tests.backends.backend_faults import BACKENDS, FAULTS, Fault
from tests.cli_support import LIMIT

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests/backends"
PAIRS = [(backend, fault) for backend in BACKENDS for fault in FAULTS if backend in fault.backends]

Results = dict[str, list[dict[str, str]]]


class Planted:
    """What became of the faults of each backend, found out at the first question."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._found: dict[str, Results] = {}

    def of(self, backend: str) -> Results:
        if backend not in self._found:
            self._found[backend] = self._run(backend)
        return self._found[backend]

    def _run(self, backend: str) -> Results:
        env = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{FOLDER}", "OMP_NUM_THREADS": "1"}
        target = self._folder / f"{backend}.json"
        command = [sys.executable, str(FOLDER / "planting.py"), backend, str(target)]
        done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=LIMIT, check=False)
        assert target.exists(), done.stdout + done.stderr
        told: dict[str, Any] = json.loads(target.read_text(encoding="utf-8"))
        assert told["found"], done.stdout + done.stderr
        results: Results = told["found"]
        return results


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return Planted(tmp_path_factory.mktemp("faults"))


def lines(results: list[dict[str, str]]) -> str:
    """Results, one a line."""
    return "\n".join(f"{r['status']}: {r.get('id', '')}: {r.get('message', '')}" for r in results)


def test_there_are_enough() -> None:
    assert len(FAULTS) > 100
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)


@pytest.mark.parametrize(("backend", "fault"), PAIRS, ids=[f"{backend}-{fault.name}" for backend, fault in PAIRS])
def test_a_fault_is_judged(backend: str, fault: Fault, planted: Planted) -> None:
    results = planted.of(backend)[fault.name]
    assert results, f"{fault.cases} selects no case"
    if fault.statuses == ("pass",):
        assert {result["status"] for result in results} == {"pass"}, lines(results)
        return
    red = [result for result in results if result["status"] in RED or result["status"] == "refused"]
    assert red, f"nothing is red\n{lines(results)}"
    assert {result["status"] for result in red} <= set(fault.statuses), lines(red)
    told = [result for result in red if all(words in result.get("message", "") for words in fault.says)]
    assert told, f"nothing says {fault.says}:\n{lines(red)}"


@pytest.mark.parametrize(("when", "least"), [("right", 900), ("right again", 280)])
@pytest.mark.parametrize("backend", BACKENDS)
def test_the_right_kernels_pass(backend: str, when: str, least: int, planted: Planted) -> None:
    """Before the first fault and after the last one."""
    results = planted.of(backend)[when]
    assert sum(result["status"] == "pass" for result in results) > least
    assert lines([result for result in results if result["status"] in RED]) == ""
