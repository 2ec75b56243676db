"""The seed in a run file is the one that the random programs are drawn from."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

from ampcheck.programs.regions.draw import programs
from ampcheck.programs.search import Search
from ampcheck.runner.record import FIXED_SEED, read, seed_of_programs
from tests.cli_support import ROOT, pytest_here, run, run_pytest


def _today() -> int:
    return int(f"{datetime.now(UTC):%Y%m%d}")


def test_which_seed_a_run_has() -> None:
    assert seed_of_programs(False) == seed_of_programs(False, 7) == FIXED_SEED
    assert seed_of_programs(True, "12") == seed_of_programs(True, 12) == 12
    assert seed_of_programs(True, "night") == seed_of_programs(True, "night") != seed_of_programs(True, "day")
    assert seed_of_programs(True) in (_today(), _today() - 1)


def drawn(search: Search) -> list[str]:
    """The programs that a search draws, none of them run."""
    found: list[str] = []
    assert search.first_difference(found.append, programs(["cpu"]), examples=20, nightly=20) is None
    return found


def test_a_seed_decides_what_is_drawn() -> None:
    usual = drawn(Search())
    assert len(usual) > 10
    assert usual == drawn(Search(given=7))  # only a nightly run takes one
    assert usual == drawn(Search(nightly=True, given=FIXED_SEED))
    assert usual != drawn(Search(nightly=True, given=7))


def test_a_run_file_has_the_seed(tmp_path: Path) -> None:
    """Given, fixed, or, in the test of a supervised run, the day's."""
    command = (str(ROOT / "suites" / "eager" / "test_defaults.py"), "--device=cpu", "--run-file=run.jsonl")
    given, fixed = tmp_path / "given", tmp_path / "fixed"
    given.mkdir()
    done = run_pytest(given, *command, "--nightly", "--hypothesis-seed=7")
    assert done.returncode == 0, done.stdout + done.stderr
    assert read(given / "run.jsonl").header["seed"] == 7
    fixed.mkdir()
    assert pytest_here(fixed, *command)[0] == 0
    assert read(fixed / "run.jsonl").header["seed"] == FIXED_SEED


@pytest.mark.nightly
def test_a_supervised_run_has_the_seed(tmp_path: Path) -> None:
    before = _today()
    done = run(tmp_path, "run", "--device=cpu", "--rule=defaults", "--nightly", "--run-file=run.jsonl")
    assert done.returncode == 0, done.stdout + done.stderr
    header = json.loads((tmp_path / "run.jsonl").read_text().splitlines()[0])
    assert header["nightly"] is True
    assert before <= header["seed"] <= _today()
