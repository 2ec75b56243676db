"""The estimate of a run's time from given numbers, and the number of its processes."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import pytest

from ampcheck.cli.progress import RunProgress, earlier, forecast, remaining, usual_seconds, weights
from ampcheck.runner.record import Result, Run
from ampcheck.runner.run import RunPlan
from ampcheck.runner.summarize import RunRecorder
from tests.report.made_runs import make, write


def result(name: str, seconds: float, status: str = "pass") -> Result:
    return make(name, status, rule="downcast", seconds=seconds)


def key(name: str) -> str:
    return result(name, 0).key


def cases(*names: str) -> dict[str, dict[str, str]]:
    """The fields of cases that are known before they run."""
    return {key(name): {"device": "cpu"} for name in names}


def made(seconds: dict[str, float], wall: float, processes: int = 1) -> Run:
    """A complete run of cases that took so long each."""
    results = {key(name): result(name, took) for name, took in seconds.items()}
    return Run(Path("made.jsonl"), {"processes": processes}, results, {"seconds": wall})


def written(path: Path, names: str, age: int, *, whole: bool = True) -> Path:
    """A run file with a case for each letter, last changed `age` seconds after another one of age 0."""
    write(path, [result(name, 1.0) for name in names], footer=whole, processes=1)
    os.utime(path, (1e9 + age, 1e9 + age))
    return path


def test_the_time_of_an_earlier_run_is_divided_in_proportion() -> None:
    run = made({"a": 1.0, "b": 3.0, "c": 4.0}, wall=80.0)
    assert forecast(run, cases(*"abc"), 1) == pytest.approx(80)
    assert forecast(run, cases(*"ab"), 1) == pytest.approx(40, rel=0.01)
    assert forecast(run, cases("c"), 4) == pytest.approx(10, rel=0.01)
    assert forecast(made({"a": 1.0}, wall=80.0, processes=2), cases("a"), 1) == pytest.approx(160)


def test_a_case_that_the_earlier_run_lacks_counts_as_the_mean_of_its_rule_on_its_device() -> None:
    run = made({"a": 1.0, "b": 3.0}, wall=8.0)
    found = weights(cases("b", "new"), run)
    assert (found[key("b")], found[key("new")]) == (pytest.approx(3, abs=0.01), pytest.approx(2, abs=0.01))
    for device in ("cpu", "mine"):  # of which nothing is known
        for compiler in ("", "inductor"):
            case = {key("new"): {"device": device, "compiler": compiler}}
            usual = usual_seconds().get(("cpu", "eager/downcast", compiler), fmean(usual_seconds().values()))
            assert 0 < weights(case, None)[key("new")] - usual < 0.01


@pytest.mark.parametrize("slower", [0.5, 1.0, 2.0])
def test_a_forecast_begins_with_the_usual_pace_and_learns_the_machines(slower: float) -> None:
    """900 seconds of cases in two processes, which a machine runs at half, once or twice the usual pace."""
    told = [remaining(slower * done / 2, done, 900, 2) for done in (1, 300, 800)]
    right = [slower * (900 - done) / 2 for done in (1, 300, 800)]
    assert told[0] == pytest.approx(450, rel=0.02)
    assert told[1] == pytest.approx(right[1], rel=0.25)
    assert told[2] == pytest.approx(right[2], rel=0.12)
    assert remaining(9.0, 0, 900, 2) is None


def test_cases_that_took_no_time_divide_nothing_by_zero() -> None:
    run = made({"a": 0.0, "b": 0.0}, wall=6.0)
    assert forecast(run, cases(*"ab"), 2) == pytest.approx(3)


def test_the_newest_complete_run_with_the_cases_is_the_one_to_go_by(tmp_path: Path) -> None:
    collected = cases(*"abcdefghij")
    assert earlier(tmp_path, collected) is None
    assert earlier(tmp_path / "absent", collected) is None
    written(tmp_path / "old.jsonl", "abcdefghij", 1)
    expected = written(tmp_path / "new.jsonl", "abcdefghixyz", 2)
    written(tmp_path / "half.jsonl", "abcde", 3)
    written(tmp_path / "interrupted.jsonl", "abcdefghij", 4, whole=False)
    (tmp_path / "damaged.jsonl").write_text("no run file")
    found = earlier(tmp_path, collected)
    assert found.path == expected


def begun(names: Sequence[str], processes: int = 1) -> RunRecorder:
    """A run that has collected a case for each letter."""
    recorder = RunRecorder(None)
    recorder.lines = ["torch 1"]
    recorder.begin({"processes": processes}, cases(*names))
    return recorder


@pytest.mark.parametrize(
    ("names", "processes", "before", "said"),
    [
        ("ab", 2, "ab", r"2 cases in 2 processes; about 1 s, going by before\.jsonl"),
        ("a", 1, "", "1 case in 1 process"),  # too few for what is usual to matter
        ([f"case{n}" for n in range(100_000)], 2, "", r"100000 cases in 2 processes; usually about \d+ (s|min)"),
    ],
    ids=["earlier", "short", "long"],
)
def test_a_run_says_at_its_start_how_long_it_will_take(
    names: Sequence[str], processes: int, before: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    if before:
        written(tmp_path / "before.jsonl", before, 0)
    RunProgress(begun(names, processes), tmp_path).show()
    assert re.fullmatch(f"torch 1\n{said}\n", capsys.readouterr().out)


def test_what_is_left(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    outcome = begun("abcd")
    progress = RunProgress(outcome, tmp_path)
    progress.show()
    outcome.take(result("a", 1.0))
    outcome.take(result("a", 1.0, "error"))  # its teardown broke: the same case again
    now += 45
    progress.show()
    assert capsys.readouterr().err == "1 of 4 cases, 1 red, 45 s, about 2 min left\n"
    for name in "bcd":
        outcome.take(result(name, 1.0))
    now += 50
    progress.show()
    assert capsys.readouterr().err == "4 of 4 cases, 1 red, 95 s\n"


def test_few_cases_are_not_divided() -> None:
    def processes(least: int, cases: int) -> int:
        return RunPlan(0, 8, least=least).processes(cases)

    assert ([processes(200, cases) for cases in (0, 199, 400, 10_000)], processes(0, 3)) == ([1, 1, 2, 8], 8)
