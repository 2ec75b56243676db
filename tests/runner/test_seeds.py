"""The seed in a run file is the one that the random programs are drawn from."""

from datetime import UTC, datetime
from pathlib import Path

from ampcheck.runner.record import FIXED_SEED, read, seed_of_programs
from tests.cli_support import ROOT, pytest_here, run_pytest


def _today() -> int:
    return int(f"{datetime.now(UTC):%Y%m%d}")


def test_which_seed_a_run_has() -> None:
    assert seed_of_programs(False) == seed_of_programs(False, 7) == FIXED_SEED
    assert seed_of_programs(True, "12") == seed_of_programs(True, 12) == 12
    assert seed_of_programs(True, "night") == seed_of_programs(True, "night") != seed_of_programs(True, "day")
    assert seed_of_programs(True) in (_today(), _today() - 1)


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
