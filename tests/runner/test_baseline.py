"""Baselines: written from runs, read back, and what of a run they excuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.runner.deviations import KnownDeviations, after_deviations, as_baseline, load
from ampcheck.runner.record import RED, Result, Run
from ampcheck.runner.summarize import RunRecorder
from tests.report.made_runs import make

MESSAGE = "output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05\nthe kernel saw fp32"
CRASH = "the process ended with signal SIGSEGV; it was in bad (x.py:3)"


def result(name: str, status: str = "fail", message: str = MESSAGE) -> Result:
    return make(name, status, message=message)


def judged(path: Path, *results: Result) -> list[Result]:
    """Results as a run with that baseline has them."""
    deviations = KnownDeviations([known()["cpu"]], baseline=path)
    found = []
    for one in results:
        status, _, entries = after_deviations(one.status, [], deviations.baseline(one.key), one.message)
        found.append(replace(one, status=status, deviation=", ".join(entry.id for entry in entries)))
    return found


def written(folder: Path, *results: Result) -> Path:
    path = folder / "baseline.toml"
    run = Run(Path("made.jsonl"), {"started": "2026"}, {r.key: r for r in results}, {"seconds": 1.0})
    path.write_text(as_baseline(run), encoding="utf-8")
    return path


PLAIN = """# from an earlier version, 2 red cases
eager/promote/a-bf16-bf16-cpu: crash
  - the process ended with signal SIGSEGV; it was in bad (x.py:3)

eager/promote/b-bf16-bf16-cpu: fail
  - output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05
  - the kernel saw fp32
"""


def test_a_baseline_is_a_deviations_file_and_may_be_a_plain_list(tmp_path: Path) -> None:
    path = written(tmp_path, result("b"), result("a", "crash", CRASH), result("c", "pass", ""))
    assert path.read_text().startswith("# from made.jsonl, 2 red cases\n\n[[deviation]]\nkind = ")
    plain = tmp_path / "plain.txt"
    plain.write_text(PLAIN)
    assert load(path) == load(plain, what="baseline")
    assert {entry.kind for entry in load(path)} == {"baseline"}
    with pytest.raises(UsageError, match="is not valid TOML"):
        load(plain)


@pytest.mark.parametrize("status", RED)
def test_what_fails_as_before_is_a_known_deviation(status: str, tmp_path: Path) -> None:
    path = written(tmp_path, result("a", status))
    (found,) = judged(path, result("a", status))
    if status == "missing":  # a case that did not run was not seen to fail
        assert (load(path), found.status) == ([], "missing")
    else:
        assert (found.status, found.deviation) == ("deviation", f"baseline-{status}")


@pytest.mark.parametrize(
    ("before", "after", "excused"),
    [
        ("bad (x.py:3)", "worse (y.py:4)", True),
        ("SEGV; it was in bad (x.py:3)", "ABRT", False),
        ("is 0.375 away", "is 0.4 away", True),
        ("is 0.375 away", "is 3 away", True),
        ("1.2e-05", "7e-06", True),
        ("saw fp32", "saw fp32 ", True),
        ("output 0", "output 1", False),
        ("saw fp32", "saw fp16", False),
        ("\nthe kernel saw fp32", "", False),
        ("fp32", "fp32\nand something else", False),
    ],
)
def test_a_measured_value_and_the_place_of_a_crash_may_differ(
    before: str, after: str, excused: bool, tmp_path: Path
) -> None:
    status, message = ("fail", MESSAGE) if before in MESSAGE else ("crash", CRASH)
    assert message.replace(before, after) != message
    path = written(tmp_path, result("a", status, message))
    (found,) = judged(path, result("a", status, message.replace(before, after)))
    assert found.status == ("deviation" if excused else status)
    assert [one.status for one in judged(path, result("a", "broken"), result("b"))] == ["broken", "fail"]


def test_a_run_with_a_baseline_says_what_became_of_it(tmp_path: Path) -> None:
    path = written(tmp_path, *(result(name) for name in ("same", "other", "mended", "absent")))
    recorder = RunRecorder(None)
    recorder.baselines = KnownDeviations([known()["cpu"]], baseline=path).baselines()
    these = (result("same"), result("other", message="else"), result("mended", "pass", ""), result("new"))
    for found in judged(path, *these):
        recorder.take(found)
    assert recorder.red() == 2
    said = recorder.closing()
    for words in (
        "failing as it says: eager/promote/same-bf16-bf16-cpu",
        "failing in another way than the baseline says: eager/promote/other-bf16-bf16-cpu",
        "not red any more, to be taken out of it: eager/promote/mended-bf16-bf16-cpu",
        "not in this run: eager/promote/absent-bf16-bf16-cpu",
    ):
        assert f"baseline {path}: 1 case is {words}\n" in said
