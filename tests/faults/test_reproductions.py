"""The program that reproduces a red case in plain torch shows the mutant, too, and nothing without it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from unittest.mock import patch

import pytest

from tests.faults import BY_NAME
from tests.faults.matrix import read
from tests.faults.suites import Runners
from tests.reproduce.programs import outcome

EVERY_RUN = ("exit-restores-nothing", "cast-at-each-use")
AT_NIGHT = (
    "mm-as-given",
    "no-warning-at-all",
    "set-enabled-takes-anything",
    "threads-share-the-answer",
    "linear-doubled",
    "linear-in-float32",
    "new-parameters",
    "undivided",
    "bwd-not-decorated",
    "jit-result-in-float64",
    "jit-trace-doubled",
)


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    made.close()


def _shown(program: str, file: Path) -> bool:
    """Return whether a program reports a difference or raises, in this process, without access to ampcheck."""
    with patch.dict(sys.modules, {"ampcheck": None, "tests": None}):
        got = outcome(program, file)
    return "FAIL" in got["printed"] or bool(got["raised"])


@pytest.mark.parametrize("name", [*EVERY_RUN, *(pytest.param(name, marks=pytest.mark.nightly) for name in AT_NIGHT)])
def test_program_shows_the_mutant(name: str, runners: Runners, tmp_path: Path) -> None:
    mutant = BY_NAME[name]
    kill = next(kill for kill in read() if kill.mutant == name and kill.rule == mutant.rule)
    program = runners.run(mutant, kill.device, [kill.case])[kill.case]["torch"]
    stem = f"program_{name.replace('-', '_')}"
    with mutant.inject(kill.device):
        assert _shown(program, tmp_path / f"{stem}.py"), program
    assert not _shown(program, tmp_path / f"{stem}_alone.py")
