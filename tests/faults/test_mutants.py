"""Each mutant is killed by its own rule, and each scenario and each rule of ops kills a mutant.

The pairs are those of `kills.csv`. Each run tries a part of them, one of every fifth mutant; a nightly one tries all.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from ampcheck.runner.record import RED
from tests.cli_support import ROOT
from tests.faults import BY_NAME, MUTANTS, matrix
from tests.faults.backends import BACKENDS, WARNINGS
from tests.faults.gradients import cache
from tests.faults.matrix import Kill, Selection
from tests.faults.mutant import CPU, JAX, Mutant, Result
from tests.faults.suites import Runners

KILLS = matrix.read()
REPORTS = ROOT / "docs" / "coverage" / "upstream.md"
OWN = {
    (kill.mutant, kill.device): kill
    for kill in reversed(KILLS)
    if kill.mutant in BY_NAME and kill.rule == BY_NAME[kill.mutant].rule
}
"""The quickest kill of each mutant on each device by its own rule."""
LONG = 3.0
"""Seconds from which a case waits for the night."""
PROGRAMS = ("eager", "autograd", "scaler", "jit")
"""The suites whose red cases come with programs that reproduce them."""


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners()
    yield made
    made.close()


def _at_night(kill: Kill) -> bool:
    """Return whether a kill is tried at night alone.

    Each run tries every fifth mutant, by its own rule, and a part of the other kills; none that takes long.
    """
    share = crc32(f"{kill.mutant} {kill.case}".encode())
    if kill.when == "night" or kill.seconds >= LONG or kill.device in (JAX, *BACKENDS):
        return True  # another device's process takes ten seconds
    if kill is OWN.get((kill.mutant, kill.device)):
        return share % 5 > 0
    return share % 16 > 0


def _name(kill: Kill) -> str:
    return f"{kill.mutant}-by-{kill.case.replace('/', '-')}"


@pytest.mark.parametrize(
    "kill", [pytest.param(kill, id=_name(kill), marks=[pytest.mark.nightly] * _at_night(kill)) for kill in KILLS]
)
def test_case_kills(kill: Kill, runners: Runners) -> None:
    without = runners.run(None, kill.device, [kill.case])[kill.case]
    assert without["status"] not in (*RED, "failed", "failed, the run ends"), (
        f"without the mutant it is {without['status']}: {without.get('message')}"
    )
    under = runners.run(BY_NAME[kill.mutant], kill.device, [kill.case])[kill.case]
    assert under["status"] == kill.status, f"{under['status']}: {under.get('message')}"
    if kill.case.partition("/")[0] in PROGRAMS and kill.status != "fixed":
        assert under["message"]
        assert under["torch"], "nothing reproduces it in plain torch"
        assert under["pytest"], "no command runs it"


def test_every_mutant_is_killed_by_its_rule() -> None:
    assert {(mutant.name, device) for mutant in MUTANTS for device in mutant.devices} - set(OWN) == set()
    assert len(BY_NAME) == len(MUTANTS), "two mutants have one name"


def test_reports_are_brought_back() -> None:
    """A mutant that a row of the page on upstream's reports names is killed by a case that the row names."""
    rows = [line.strip("|").split("|") for line in REPORTS.read_text("utf-8").splitlines() if line.count("|") == 5]
    found = [(row[0].strip(), re.findall(r"`([^`]+)`", row[1]), re.findall(r"`([^`]+)`", row[3])) for row in rows]
    killed = {(kill.mutant, kill.case.partition("/")[2]) for kill in KILLS}
    lacking = [
        f"{report}: {mutant}"
        for report, globs, mutants in found
        for mutant in mutants
        if not any(name == mutant and any(fnmatchcase(case, glob) for glob in globs) for name, case in killed)
    ]
    assert lacking == []
    assert sum(bool(mutants) for _, _, mutants in found) >= 127


@pytest.mark.parametrize("device", [CPU, pytest.param(JAX, marks=pytest.mark.nightly)])
def test_every_scenario_kills_a_mutant(device: str, runners: Runners) -> None:
    """But those that no device here can run, which mutants cannot tell from others."""
    cases = runners.of(device).cases()
    killing = {kill.row for kill in KILLS}
    others = {name: case for case, (_, name) in cases.items() if name not in killing}
    results = runners.again(device, list(others.values())) if others else {}
    assert {case for case, result in results.items() if result["status"] != "unsupported"} == set()


@pytest.mark.nightly
def test_nothing_is_left_behind(runners: Runners) -> None:
    """The cases that were green before all mutants of this process are so after them."""
    ran = [case for device, case in runners.ran() if device == CPU]
    rules = {case.rpartition("/")[0] for case in ran}
    after: dict[str, Result] = {}
    for rule in rules:
        after |= runners.again(CPU, [case for case in ran if case.rpartition("/")[0] == rule])
    assert {case: result["message"] for case, result in after.items() if result["status"] in RED} == {}


def test_the_other_cache_is_right(runners: Runners) -> None:
    """The cache that mutants of rule `cache` get wrong does what is promised as long as none of them does."""
    right = Mutant("right", "eager/cache", cache())
    cases = [kill.case for kill in KILLS if kill.mutant.startswith("cache-") and kill.device == CPU]
    results = runners.run(right, CPU, [case for case in cases if case.startswith("eager/cache/")])
    # Where PyTorch's own cache deviates this one may be right, which makes the deviation stale.
    assert {case: r["message"] for case, r in results.items() if r["status"] in {*RED} - {"fixed"}} == {}


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("mutant", WARNINGS, ids=lambda mutant: mutant.name)
def test_warnings_turn_nothing_red(mutant: Mutant, backend: str, runners: Runners) -> None:
    suite, rule = mutant.rule.split("/")
    cases = matrix.rows(mutant, backend, runners)[f"{suite}/{rule}"][:6]
    assert {result["status"] for result in runners.run(mutant, backend, cases).values()} == {"pass"}


@pytest.mark.nightly
@pytest.mark.parametrize("backend", BACKENDS)
def test_right_kernels_of_a_backend_pass(backend: str, runners: Runners) -> None:
    """The main samples of all ops, and what a partial list of policies once turned red."""
    scenarios = ("eager/cache/", "eager/eligibility/every_spelling_of_powers-", "eager/modules/layer-MSELoss-low-")
    cases = [
        case
        for case in runners.of(backend).cases()
        if case.startswith("eager/") and (("-fp32-fp16-" in case and "+" not in case) or case.startswith(scenarios))
    ]
    results = runners.again(backend, cases)
    assert sum(result["status"] == "pass" for result in results.values()) > 300
    assert {case: result["message"] for case, result in results.items() if result["status"] in RED} == {}


# ---- the program that reproduces a red case in plain torch shows the mutant, too, and nothing without it


EVERY_RUN = ("exit-restores-nothing", "cast-at-each-use")
AT_NIGHT = (
    *("mm-as-given", "no-warning-at-all", "set-enabled-takes-anything", "threads-share-the-answer"),
    *("linear-doubled", "linear-in-float32", "new-parameters", "undivided", "bwd-as-the-caller"),
    *("jit-result-in-float64", "jit-trace-doubled"),
)


def _printed(program: str, kill: Kill, mutant: Mutant | None, file: Path, runners: Runners) -> tuple[list[str], bool]:
    """Return the lines that a program prints, and whether it shows a difference or raises."""
    got = runners.of(kill.device, [kill.case]).show(mutant, kill.device, program, file)
    return got["printed"].splitlines(), "FAIL" in got["printed"] or bool(got["raised"])


@pytest.mark.parametrize("name", [*EVERY_RUN, *(pytest.param(name, marks=pytest.mark.nightly) for name in AT_NIGHT)])
def test_program_shows_the_mutant(name: str, runners: Runners, tmp_path: Path) -> None:
    mutant = BY_NAME[name]
    kill = next(kill for kill in KILLS if kill.mutant == name and kill.rule == mutant.rule)
    program = runners.run(mutant, kill.device, [kill.case])[kill.case]["torch"]
    stem = f"program_{name.replace('-', '_')}"
    assert _printed(program, kill, mutant, tmp_path / f"{stem}.py", runners)[1], program
    assert not _printed(program, kill, None, tmp_path / f"{stem}_alone.py", runners)[1]


OF_BACKEND = {
    kill.mutant: kill for kill in KILLS if kill.device == BACKENDS[1] and kill.rule.split("/")[1] in matrix.OPS
}
SHORT = ("wrong-in-regions-alone", "raises-in-regions-alone", "mm-not-cast", "column-major")
"""Mutants whose programs fit a screen; one line of each imports the backend."""


@pytest.mark.parametrize("name", OF_BACKEND)
def test_program_says_what_its_check_says(name: str, runners: Runners, tmp_path: Path) -> None:
    """Under each mutant of a PrivateUse1 backend that a case of an op notices."""
    kill = OF_BACKEND[name]
    result = runners.run(BY_NAME[name], kill.device, [kill.case])[kill.case]
    lines, _ = _printed(result["torch"], kill, BY_NAME[name], tmp_path / "program.py", runners)
    failed = [line.removeprefix("FAIL ") for line in lines if line.startswith("FAIL ")]
    assert (failed, result["status"]) == (result["message"].splitlines(), kill.status)
    assert "ampcheck" not in result["torch"]
    assert name not in SHORT or len(result["torch"].splitlines()) <= 41
    lines, wrong = _printed(result["torch"], kill, None, tmp_path / "alone.py", runners)
    assert lines[0].startswith("ok  ")
    assert not wrong


CASES = {
    "eager/context/left-bf16-cpu": ("cpu", "eager/context/left"),
    "eager/context/left-fp16-cpu": ("cpu", "eager/context/left"),
    "eager/context/entered-bf16-cpu": ("cpu", "eager/context/entered"),
    "eager/downcast/mm-fp32-bf16-cpu": ("cpu", "eager/downcast"),
    "eager/downcast/bmm-fp32-bf16-cpu": ("cpu", "eager/downcast"),
}
TRIED = (
    Mutant("stays", "eager/context", lambda device: nullcontext()),
    Mutant("uncast", "eager/downcast", lambda device: nullcontext(), cases="mm-*"),
)
NOTICES = {"stays": {"eager/context/left-fp16-cpu"}, "uncast": {"eager/downcast/mm-fp32-bf16-cpu"}}


class Scripted:
    """Runners of cases whose results are written down."""

    def __init__(self, interrupted_at: str = "") -> None:
        self.ran: list[tuple[str, str]] = []
        self._interrupted_at = interrupted_at

    def of(self, device: str) -> Any:
        return self

    def cases(self) -> dict[str, tuple[str, str]]:
        return CASES

    def run(self, mutant: Mutant | None, device: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
        if mutant and mutant.name == self._interrupted_at:
            raise KeyboardInterrupt
        if mutant:
            self.ran += [(mutant.name, key) for key in keys]
        return {key: {"status": "fail" if mutant and key in NOTICES[mutant.name] else "pass"} for key in keys}

    def again(self, device: str, keys: Sequence[str]) -> dict[str, dict[str, str]]:
        return self.run(None, device, keys)


def _measured(runners: Scripted, results: Path, **chosen: Any) -> list[Kill]:
    return matrix.measure(Selection(**chosen), TRIED, runners, results, lambda line: None)  # type: ignore[arg-type]


def test_each_row_is_tried_until_a_case_notices(tmp_path: Path) -> None:
    runners = Scripted()
    found = _measured(runners, tmp_path / "results")
    assert [(kill.mutant, kill.case, kill.status) for kill in found] == [
        ("stays", "eager/context/left-fp16-cpu", "fail"),
        ("uncast", "eager/downcast/mm-fp32-bf16-cpu", "fail"),
    ]
    assert ("uncast", "eager/downcast/bmm-fp32-bf16-cpu") not in runners.ran


def test_an_interrupted_measurement_goes_on(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        _measured(Scripted(interrupted_at="uncast"), tmp_path / "results")
    runners = Scripted()
    assert (len(_measured(runners, tmp_path / "results")), {mutant for mutant, _ in runners.ran}) == (2, {"uncast"})
