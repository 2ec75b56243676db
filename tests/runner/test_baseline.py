"""Baseline files: written from runs, read back, and what of a run they excuse."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcheck.errors import UsageError
from ampcheck.runner.results import RED, Result, Run
from ampcheck.runner.supervisor import baseline
from ampcheck.runner.supervisor.ended import RunOutcome
from tests.cli_support import refused

MESSAGE = "output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05\nthe kernel saw fp32"


def result(name: str, status: str = "fail", message: str = MESSAGE, **fields: str) -> Result:
    return Result(
        f"{name}-fp32-bf16-cpu", "eager", "downcast", status, 0.1, name, "bf16", "cpu", message=message, **fields
    )


def run_of(*results: Result) -> Run:
    return Run(Path("made.jsonl"), {"started": "2026"}, {r.key: r for r in results}, {"seconds": 1.0})


def loaded(folder: Path, *results: Result) -> baseline.Baseline:
    """The baseline of a run with those results, by way of its file."""
    path = folder / "baseline.txt"
    path.write_text(baseline.text([run_of(*results)]), encoding="utf-8")
    return baseline.load(path)


def test_a_baseline_lists_what_is_red() -> None:
    found = baseline.text([run_of(result("b"), result("a", "crash", "the process ended"), result("c", "pass", ""))])
    assert found == (
        "# from made.jsonl, 2 red cases\n"
        "eager/downcast/a-fp32-bf16-cpu: crash\n"
        "  - the process ended\n"
        "eager/downcast/b-fp32-bf16-cpu: fail\n"
        "  - output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05\n"
        "  - the kernel saw fp32\n"
    )


@pytest.mark.parametrize("status", RED)
def test_what_fails_as_before_is_a_known_deviation(status: str, tmp_path: Path) -> None:
    known = loaded(tmp_path, result("a", status))
    judged = known.judged(result("a", status))
    if status == "missing":  # a case that did not run was not seen to fail
        assert known.cases == {}
        assert judged.status == "missing"
    else:
        assert (judged.status, judged.deviation, judged.message) == ("deviation", f"baseline-{status}", MESSAGE)


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("is 0.375 away", "is 0.4 away"),
        ("is 0.375 away", "is 3 away"),
        ("1.2e-05", "7e-06"),
        ("saw fp32", "saw fp32 "),
    ],
)
def test_a_measured_value_may_differ(before: str, after: str, tmp_path: Path) -> None:
    assert MESSAGE.replace(before, after) != MESSAGE
    changed = result("a", message=MESSAGE.replace(before, after))
    assert loaded(tmp_path, result("a")).judged(changed).status == "deviation"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("output 0", "output 1"),
        ("saw fp32", "saw fp16"),
        ("\nthe kernel saw fp32", ""),
        ("fp32", "fp32\nand something else"),
    ],
)
def test_another_failure_stays_red(before: str, after: str, tmp_path: Path) -> None:
    changed = result("a", message=MESSAGE.replace(before, after))
    known = loaded(tmp_path, result("a"))
    assert known.judged(changed) == changed
    assert known.judged(result("a", "broken")).status == "broken"
    assert known.judged(result("b")).status == "fail"


def test_a_crash_in_the_same_way_may_be_elsewhere(tmp_path: Path) -> None:
    how = "the process ended with signal SIGSEGV"
    known = loaded(tmp_path, result("a", "crash", f"{how}; it was in bad (x.py:3)"))
    assert known.judged(result("a", "crash", f"{how}; it was in worse (y.py:4)")).status == "deviation"
    assert known.judged(result("a", "crash", "the process ended with signal SIGABRT")).status == "crash"


def test_a_run_with_a_baseline_says_what_became_of_it(tmp_path: Path) -> None:
    known = loaded(tmp_path, *(result(name) for name in ("same", "other", "mended", "absent")))
    outcome = RunOutcome([], None, None, known)
    for found in (result("same"), result("other", message="else"), result("mended", "pass", ""), result("new")):
        outcome.take(found)
    assert {r.op for r in outcome.red()} == {"other", "new"}
    assert outcome.count_red() == 2
    assert outcome.failed
    head = f"baseline {known.path}: 1 case is "
    assert known.lines(outcome.results) == [
        f"{head}failing as it says: eager/downcast/same-fp32-bf16-cpu",
        f"{head}failing in another way than the baseline says: eager/downcast/other-fp32-bf16-cpu",
        f"{head}not red any more, to be taken out of it: eager/downcast/mended-fp32-bf16-cpu",
        f"{head}not in this run: eager/downcast/absent-fp32-bf16-cpu",
    ]


def test_a_baseline_of_a_run_with_one_has_the_same_cases(tmp_path: Path) -> None:
    first = [result("a"), result("b", "crash", "the process ended")]
    known = loaded(tmp_path, *first)
    again = baseline.text([run_of(*map(known.judged, first))])
    assert again == baseline.text([run_of(*first)])


def test_some_devices_alone() -> None:
    run = run_of(result("a"))
    assert "1 red case\n" in baseline.text([run], ["cpu"])
    with pytest.raises(UsageError, match="no run has a case of device 'cuda'; there are cases of cpu"):
        baseline.text([run], ["cuda"])


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eager/downcast/a: pass\n", 'line 1: expected "suite/rule/id: STATUS", with a STATUS of fail, broken'),
        ("# fine\n  - a line of no case\n", "line 2: expected"),
        ("a: fail\n", "'a' is not a case; a case is written suite/rule/id"),
        ("eager/downcast/a: fail\neager/downcast/a: fail\n", "line 2: eager/downcast/a occurs more than once"),
    ],
)
def test_a_malformed_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        baseline.load(path)
    assert sentence in str(raised.value)


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "raw").write_bytes(b"\xff")
    reports = f"--reports={tmp_path}"
    assert refused(capsys, "run", reports, "--baseline=no.txt") == (
        "the baseline no.txt cannot be read: No such file or directory"
    )
    assert "is not a baseline: invalid start byte" in refused(capsys, "run", reports, f"--baseline={tmp_path / 'raw'}")
    assert "the run file no.jsonl cannot be read" in refused(capsys, "deviations", "baseline", "no.jsonl")
