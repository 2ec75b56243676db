"""Workers: their plans, what becomes of one that dies or hangs, and that each measured group is kept at once."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from ampcheck.bench import run as running
from ampcheck.bench.model import Rounds
from ampcheck.bench.run import Bench, Event, Left, Mode, environment
from ampcheck.bench.runfile import read
from ampcheck.bench.summary import summarize
from tests.cli_support import interrupted, run

TASKS = {"cpu": [("mm-16", "eager"), ("add", "eager"), ("mm-64", "eager")]}

# A worker that does not measure: it says what it was told, and ends as the workload's name says.
_WORKER = """
import json, os, signal, sys, time
plan = json.load(sys.stdin)
for workload, executor in plan["tasks"]:
    print(json.dumps({"begin": [workload, executor]}), flush=True)
    if workload == "add":
        ACTION
    print(json.dumps({"rounds": dict(workload=workload, device=plan["device"], executor=executor,
        process=plan["process"], samples={"fp32": [1.0] * plan["rounds"]})}), flush=True)
"""


def measured(monkeypatch: pytest.MonkeyPatch, action: str, mode: Mode) -> tuple[list[Rounds], list[Event]]:
    monkeypatch.setattr(running, "COMMAND", (sys.executable, "-c", _WORKER.replace("ACTION", action)))
    found: list[Rounds] = []
    events: list[Event] = []
    Bench(TASKS, mode, threads=1, take=found.append, tell=events.append).run()
    return found, events


def test_every_process_measures_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    found, events = measured(monkeypatch, "pass", Mode("test", 2, 3, 0.01))
    assert sorted((one.process, one.workload) for one in found) == [
        (process, name) for process in (0, 1) for name in ("add", "mm-16", "mm-64")
    ]
    assert [len(one.samples["fp32"]) for one in found] == [3] * 6
    assert [event.done for event in events if event.group] == list(range(6))
    assert {event.total for event in events} == {6}


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process ended by signal 11"),
        ("sys.exit('no such kernel')", "the process ended with exit code 1: no such kernel"),
        ("time.sleep(3600)", "took more than 5 s"),
    ],
)
def test_a_group_that_ends_its_process_costs_that_group(
    monkeypatch: pytest.MonkeyPatch, action: str, reason: str
) -> None:
    found, _ = measured(monkeypatch, action, Mode("test", 1, 3, 0.01, limit=5))
    by_name = {one.workload: one for one in found}
    assert by_name["add"].failed == {"fp32": reason}
    assert by_name["mm-16"].samples
    assert by_name["mm-64"].samples
    (group,) = (group for group in summarize(found) if group.workload == "add")
    assert [(arm.verdict, arm.reason) for arm in group.arms] == [("not measured", reason)]


def test_threads_are_pinned_everywhere() -> None:
    assert environment(1)["OMP_NUM_THREADS"] == "1"
    assert "--xla_cpu_multi_thread_eigen=false" in environment(1)["XLA_FLAGS"]
    assert "xla_cpu_multi_thread" not in environment(2)["XLA_FLAGS"].replace(os.environ.get("XLA_FLAGS", ""), "")


def test_time_left_follows_from_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter([100.0, 110.0, 110.0])
    monkeypatch.setattr(running.time, "monotonic", lambda: next(now))
    left = Left()
    assert left.seconds(Event(0, 4, "x")) is None
    assert left.seconds(Event(1, 4, "x")) == 30


# ---- the command


def test_a_quick_run_has_a_file_a_table_and_proofs(tmp_path: Path) -> None:
    done = run(
        tmp_path, "bench", "--quick", "--device=cpu", "--filter=mm-64", "--executor=eager", f"--reports={tmp_path}"
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (path,) = (tmp_path / "bench").glob("*.jsonl")
    found = read(path)
    assert found.header["mode"] == "quick"
    assert found.header["threads"] == 1
    (group,) = found.groups.values()
    arms = {arm.name: arm for arm in group.arms}
    assert list(arms)[:3] == ["fp32", "fp32-again", "bf16"]
    assert "mm in bf16" in arms["bf16"].proof
    assert 1e-4 < (arms["bf16"].error or 0) < 1e-2
    assert (arms["fp32"].error or 1) < 1e-6
    assert all(name in done.stdout for name in ("mm-64", "bf16-native", str(path)))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--device=abacus"], "there is no device named 'abacus'"),
        (["--device=virtual:cuda"], "has no arithmetic, so that there is nothing to time"),
        (["--filter=mmm-64"], "mmm-64"),
        (["--executor=trace"], "there is no executor 'trace'; there are eager, graph, compile, jit"),
        (["--threads=0"], "--threads is 0; at least one is needed"),
        (["--device=tpu-v99"], "tpu-v99"),
    ],
)
def test_bad_input_is_one_sentence(tmp_path: Path, options: list[str], words: str) -> None:
    done = run(tmp_path, "bench", "--quick", f"--reports={tmp_path}", *options)
    assert done.returncode == 2, done.stdout
    assert words in done.stderr
    assert done.stderr.count("\n") == 1
    assert not (tmp_path / "bench").exists()


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    def measured_some() -> bool:
        return any('"rounds"' in file.read_text() for file in tmp_path.glob("bench/*.jsonl"))

    options = ("bench", "--device=cpu", "--executor=eager", "--filter=mm-*", f"--reports={tmp_path}")
    code, out = interrupted(tmp_path, *options, when=measured_some)
    assert code == 130
    (file,) = tmp_path.glob("bench/*.jsonl")
    found = read(file)
    assert found.footer is not None
    assert found.footer["interrupted"] is True
    assert found.groups
    assert next(iter(found.groups.values())).workload in out


def test_a_file_cut_off_still_has_its_groups(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl"
    rounds = {"workload": "mm-16", "device": "cpu", "executor": "eager", "process": 0}
    samples = {"fp32": [1.0] * 9, "fp32-again": [1.0] * 9, "bf16": [0.5] * 9}
    header = {"kind": "header", "schema": "bench-1", "started": "2026-01-01T00:00:00Z"}
    whole = json.dumps({"kind": "rounds", **rounds, "samples": samples})
    path.write_text(json.dumps(header) + "\n" + whole + "\n" + whole[:40], encoding="utf-8")
    found = read(path)
    assert found.note == "line 3 is cut off"
    arm = found.groups["cpu/eager/mm-16"].arm("bf16")
    assert arm is not None
    assert (arm.speed, arm.verdict) == (2.0, "faster")
