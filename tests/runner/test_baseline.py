"""Baselines: written from runs, read back, and what of a run they excuse."""

from dataclasses import replace
from pathlib import Path

import pytest

from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.runner.deviations import KnownDeviations, after_deviations, as_baseline, load
from ampcheck.runner.record import RED, Result, Run
from ampcheck.runner.summarize import RunRecorder

MESSAGE = "output 0 of aten::mm is 0.375 away from the float64 result; expected at most 1.2e-05\nthe kernel saw fp32"
CRASH = "the process ended with signal SIGSEGV; it was in bad (x.py:3)"


def result(name: str, status: str = "fail", message: str = MESSAGE, **fields: str) -> Result:
    return Result(
        f"{name}-fp32-bf16-cpu", "eager", "downcast", status, 0.1, name, "bf16", "cpu", message=message, **fields
    )


def run_of(*results: Result) -> Run:
    return Run(Path("made.jsonl"), {"started": "2026"}, {r.key: r for r in results}, {"seconds": 1.0})


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
    path.write_text(as_baseline(run_of(*results)), encoding="utf-8")
    return path


PLAIN = """# from an earlier version, 2 red cases
eager/downcast/a-fp32-bf16-cpu: crash
  - the process ended with signal SIGSEGV; it was in bad (x.py:3)

eager/downcast/b-fp32-bf16-cpu: fail
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
def test_a_measured_value_may_differ_and_nothing_else(before: str, after: str, excused: bool, tmp_path: Path) -> None:
    changed = result("a", message=MESSAGE.replace(before, after))
    assert changed.message != MESSAGE
    path = written(tmp_path, result("a"))
    (found,) = judged(path, changed)
    assert found.status == ("deviation" if excused else "fail")
    assert [one.status for one in judged(path, result("a", "broken"), result("b"))] == ["broken", "fail"]


@pytest.mark.parametrize(
    ("message", "excused"),
    [
        ("the process ended with signal SIGSEGV; it was in worse (y.py:4)", True),
        ("the process ended with signal SIGABRT", False),
    ],
)
def test_a_crash_in_the_same_way_may_be_elsewhere(message: str, excused: bool, tmp_path: Path) -> None:
    (found,) = judged(written(tmp_path, result("a", "crash", CRASH)), result("a", "crash", message))
    assert found.status == ("deviation" if excused else "crash")


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
        "failing as it says: eager/downcast/same-fp32-bf16-cpu",
        "failing in another way than the baseline says: eager/downcast/other-fp32-bf16-cpu",
        "not red any more, to be taken out of it: eager/downcast/mended-fp32-bf16-cpu",
        "not in this run: eager/downcast/absent-fp32-bf16-cpu",
    ):
        assert f"baseline {path}: 1 case is {words}\n" in said


ENTRY = '[[deviation]]\nkind = "baseline"\ncases = ["eager/downcast/a"]\nstatus = "fail"\ndifferences = []\n'


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("eager/downcast/a: pass\n", 'line 1: expected "suite/rule/id: STATUS", with a STATUS of fail, broken'),
        ("# fine\n  - a line of no case\n", "line 2: expected"),
        ("a: fail\n", "'a' is not a case; a case is written suite/rule/id"),
        ("eager/downcast/a: fail\neager/downcast/a: fail\n", "eager/downcast/a occurs in the baseline more than once"),
        (ENTRY + ENTRY, "eager/downcast/a occurs in the baseline more than once"),
        (ENTRY.replace('"fail"', '"pass"'), "status is 'pass'; it is one of fail, broken"),
        (ENTRY.replace("[]", '"x"'), "differences must be a list of texts"),
        (ENTRY + 'reason = "x"\n', "unknown fields for kind baseline: reason"),
    ],
)
def test_a_malformed_file_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "baseline.txt"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        load(path, what="baseline")
    assert sentence in str(raised.value)
