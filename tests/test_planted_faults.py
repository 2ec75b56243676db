"""The suites catch every fault planted in torch, and say what is wrong; without it they are green."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from ampcheck.runner.results import RED, Run, read
from tests.faults import FAULTS, Fault
from tests.faults.caches import cache

_PLUGINS = ("benchmark", "cacheprovider", "faulthandler", "unraisableexception", "threadexception", "xdist")
_NUMBERS = count()


class Suite:
    """Runs slices of the suites in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._green: dict[tuple[str, ...], Run] = {}

    def run(self, arguments: tuple[str, ...]) -> Run:
        """The result of a slice now."""
        path = self.folder / f"{next(_NUMBERS)}.jsonl"
        without = [word for plugin in _PLUGINS for word in ("-p", f"no:{plugin}")]
        code = pytest.main([*arguments, *without, "-q", "--capture=no", "--no-header", "--tb=no", f"--run-file={path}"])
        assert code in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED), f"{' '.join(arguments)} ended with {code!r}"
        return read(path)

    def unharmed(self, arguments: tuple[str, ...]) -> Run:
        """The result of a slice without a fault, run once."""
        if arguments not in self._green:
            self._green[arguments] = self.run(arguments)
        return self._green[arguments]


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Suite:
    return Suite(tmp_path_factory.mktemp("faults"))


def _red(run: Run) -> dict[str, str]:
    return {result.key: f"{result.status}: {result.message}" for result in run.results.values() if result.status in RED}


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_is_caught(fault: Fault, suite: Suite) -> None:
    unharmed = suite.unharmed(fault.slice)
    assert unharmed.results, f"{fault.slice} selects no case"
    assert not _red(unharmed), "the slice is red without the fault"
    with fault.plant():
        run = suite.run(fault.slice)
    failed = [result for result in run.results.values() if result.status == "fail" and result.rule == fault.rule]
    assert failed, f"no case of {fault.slice} caught the fault; red: {_red(run)}"
    said = [result for result in failed if all(words in result.message for words in fault.says)]
    assert said, f"no red case says {fault.says}; they say: {failed[0].message}"
    assert not fault.scenario or any(result.op == fault.scenario for result in said), f"not {fault.scenario}"
    assert all(result.torch and result.pytest for result in failed), "a red case lacks its reproduction"


def test_nothing_is_left_behind(suite: Suite) -> None:
    """A slice of each file with a fault is green after all of them."""
    slices = {fault.rule: fault.slice for fault in FAULTS}
    for arguments in slices.values():
        assert not _red(suite.run(arguments)), f"{arguments} is red after the faults"


def test_the_own_cache_is_right(suite: Suite) -> None:
    """The cache that the faults of `caches` change does what is promised as long as none of them does."""
    arguments = next(fault.slice for fault in FAULTS if fault.name == "cache-by-shape")
    with cache():
        run = suite.run(arguments)
    # Where PyTorch's own cache deviates this one may be right, which makes the deviation stale.
    assert {key: text for key, text in _red(run).items() if not text.startswith("fixed")} == {}
