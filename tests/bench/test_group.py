"""Workers: their plans, what becomes of one that dies or hangs, and that each measured group is kept at once."""

import dataclasses
import re
import signal
import sys
from pathlib import Path

import pytest

from ampcheck.bench import session
from ampcheck.bench.core.model import Rounds
from ampcheck.bench.run import ceilings
from ampcheck.bench.run import group as running
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.group import QUICK, RESERVE, Bench, Expected, Mode, expect
from ampcheck.bench.run.runfile import read
from ampcheck.bench.run.summary import summarize
from ampcheck.cli import main
from tests.cli_support import LIMIT, interrupted

NOTHING = Expected({}, {})
TASKS = {"cpu": [("mm-16", "eager"), ("add", "eager"), ("mm-64", "eager")]}

# A worker that does not measure: it says what it was told, and ends as the workload's name says.
_WORKER = """
import json, os, signal, sys, time
from ampcheck.runner.worker import Channel
channel = Channel()
plan = json.load(sys.stdin)
for workload, compiler in plan["tasks"]:
    channel.send({"begin": [workload, compiler]})
    if workload == "add":
        ACTION
    channel.send({"rounds": dict(workload=workload, device=plan["device"], compiler=compiler,
        process=plan["process"], samples={"fp32": [1.0] * plan["rounds"]})})
"""


def measured(
    monkeypatch: pytest.MonkeyPatch, action: str, mode: Mode, expected: Expected = NOTHING
) -> tuple[list[Rounds], list[str]]:
    monkeypatch.setattr(running, "COMMAND", (sys.executable, "-c", _WORKER.replace("ACTION", action)))
    found: list[Rounds] = []
    said: list[str] = []
    bench = Bench(TASKS, mode, found.append, tell=said.append, expected=expected)
    bench.run()
    reason = f"left out, as the run had to end within {mode.budget:.0f} s"
    without = {f"cpu/eager/{one.workload}" for one in found if reason in one.failed.values()}
    assert without == set(bench.left_out)
    return found, said


def test_every_process_measures_every_group(monkeypatch: pytest.MonkeyPatch) -> None:
    found, said = measured(monkeypatch, "pass", Mode("test", 2, 3, 0.01))
    names = ("add", "mm-16", "mm-64")
    assert sorted((one.process, one.workload) for one in found) == [(n, name) for n in (0, 1) for name in names]
    assert {len(one.samples["fp32"]) for one in found} == {3}
    assert [text.partition(":")[0] for text in said] == [f"{n} of 6" for n in range(1, 7)]
    assert ["s left" in text for text in said] == [False] + [True] * 5


@pytest.mark.parametrize(
    ("action", "reason"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "the process ended with signal SIGSEGV; it was in <module>"),
        ("sys.exit('no such kernel')", "the process ended with exit code 1: no such kernel"),
        ("time.sleep(3600)", "took more than 2 s"),
    ],
)
def test_a_group_that_ends_its_process_costs_itself(monkeypatch: pytest.MonkeyPatch, action: str, reason: str) -> None:
    found, _ = measured(monkeypatch, action, Mode("test", 1, 3, 0.01, limit=2))
    add, *others = sorted(found, key=lambda one: one.workload)
    assert add.failed["fp32"].startswith(reason)
    assert [one.workload for one in others if one.samples] == ["mm-16", "mm-64"]
    assert [variant.verdict for variant in summarize([add])[0].variants] == ["not measured"]


# ---- variants that take too long

_HANGS = """
        say = lambda what, variant: channel.send({"variant": [variant, what]})
        given_up = plan["given_up"]
        for variant in ("fp32", "bf16", "fp16"):
            if variant not in given_up:
                say("prepare", variant)
                say(WHAT, variant) if variant == HANGING else None
                time.sleep(3600) if variant == HANGING else None
        failed = {variant: one["reason"] for variant, one in given_up.items()}
        facts = {variant: {"at_least": one.get("at_least")} for variant, one in given_up.items()}
        channel.send({"rounds": dict(workload=workload, device=plan["device"], compiler=compiler,
            process=plan["process"], samples={"fp32": [1.0] * plan["rounds"]}, failed=failed, facts=facts)})
        continue
"""

HUNG = "a call had not ended after 1 s; its precision was not checked, so no ratio is given"


@pytest.mark.parametrize(
    ("variant", "what", "reason", "bound"),
    [
        ("bf16", "call", HUNG, 1),
        ("bf16", "compile", "it took more than 2 s to be called for the first time, which compiles it", None),
        ("bf16", "prepare", "it took more than 2 s to be made ready", None),
        ("bf16", "check_precision", "it took more than 2 s to have its precision checked", None),
        ("fp32", "call", HUNG, 1),  # without its first variant a group is not measured
    ],
)
def test_a_variant_that_hangs_costs_itself_and_only_a_call_bounds_it(
    monkeypatch: pytest.MonkeyPatch, variant: str, what: str, reason: str, bound: int | None
) -> None:
    action = _HANGS.strip().replace("HANGING", repr(variant)).replace("WHAT", repr(what))
    found, _ = measured(monkeypatch, action, Mode("test", 1, 5, 0.01, limit=2, patience=1))
    add, *others = sorted(found, key=lambda one: one.workload)
    assert (add.failed, add.facts) == ({variant: reason}, {variant: {"at_least": bound}})
    assert add.samples == ({} if variant == "fp32" else {"fp32": [1.0] * 5})
    assert [one.workload for one in others if one.samples] == ["mm-16", "mm-64"]


# ---- a run that has to end


def costs(**seconds: float) -> Expected:
    return Expected({"cpu": 0.0}, {f"cpu/eager/{name.replace('_', '-')}": value for name, value in seconds.items()})


def test_what_does_not_fit_is_left_out_and_the_cheapest_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = Mode("test", 1, 5, 0.01, budget=RESERVE + LIMIT)
    found, said = measured(monkeypatch, "pass", mode, costs(mm_16=1e-9, add=1e9, mm_64=1e-6))
    assert [(one.workload, bool(one.samples)) for one in found] == [("mm-16", True), ("mm-64", True), ("add", False)]
    assert [text.partition(",")[0] for text in said] == ["1 of 3: cpu/eager/mm-16", "2 of 3: cpu/eager/mm-64"]
    assert all(re.search(r", about \d+ s left$", text) for text in said)
    found, _ = measured(monkeypatch, "pass", mode, costs(mm_16=1e-6, add=1e-7, mm_64=1e-9))
    assert [(one.workload, bool(one.samples)) for one in found] == [("mm-64", True), ("add", True), ("mm-16", True)]


def test_a_run_ends_when_its_time_is_over_whatever_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    mode = Mode("test", 1, 5, 0.01, limit=LIMIT, budget=RESERVE + 3)
    found, _ = measured(monkeypatch, "time.sleep(3600)", mode, costs(mm_16=1e-9, add=1e-8, mm_64=1e-7))
    assert [(one.workload, bool(one.samples)) for one in found][-2:] == [("add", False), ("mm-64", False)]


def test_what_a_run_takes_is_expected_from_a_calibration() -> None:
    tasks = {"cpu": [("mm-64", "eager"), ("mm-1024", "eager"), ("region-enter", "eager")], "jax": [("mm-64", "jit")]}
    fast = Peaks("cpu", {"fp32": 1e11, "bf16": 4e11, "fp16": 1e10}, None, "here", True)
    slow = Peaks("cpu", {"fp32": 1e11, "bf16": 1e9, "fp16": 1e9}, None, "here", True)
    starts = {"cpu": 2.0, "jax": 6.0}
    one, other = (expect(tasks, QUICK, starts, {"cpu": peaks}) for peaks in (fast, slow))
    assert set(one.groups) == {"cpu/eager/mm-64", "cpu/eager/mm-1024", "cpu/eager/region-enter", "jax/jit/mm-64"}
    assert one.seconds(tasks) == pytest.approx(8 + sum(one.groups.values()))
    assert other.groups["cpu/eager/mm-1024"] > 10 * one.groups["cpu/eager/mm-1024"]
    assert other.groups["cpu/eager/mm-1024"] < 5 * 2 * QUICK.patience, "a variant is given up"
    assert one.groups["jax/jit/mm-64"] > 3 * one.groups["cpu/eager/mm-64"], "each variant is compiled"
    assert expect(tasks, QUICK, {}, {}).seconds(tasks) > 0, "of an unknown device"


def test_a_quick_run_without_time_says_what_it_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(session, "QUICK", dataclasses.replace(QUICK, budget=RESERVE))
    monkeypatch.setattr(ceilings, "find", lambda *arguments: None)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    assert (QUICK.budget, QUICK.rounds) == (180, 5), "three minutes, and the rounds that a verdict needs"
    code = main.main(["bench", "--quick", "--device=cpu", "--filter=mm-64", "--filter=add", f"--reports={tmp_path}"])
    said = capsys.readouterr()
    assert code == 1
    assert "2 groups, about" in said.err
    assert "those that do not fit into 20 s in all are left out" in said.err
    assert "nothing was measured" in said.out
    (line,) = (line for line in said.out.splitlines() if line.startswith("left out"))
    assert line.startswith("left out, as --quick ends within 20 s: ")
    assert all(f"cpu/eager/{name}" in line for name in ("mm-64", "add"))
    (file,) = tmp_path.glob("bench/*.jsonl")
    run = read(file)
    assert {group.variants[0].verdict for group in run.groups.values()} == {"not measured"}
    assert run.header["groups"] == ["cpu/eager/mm-64", "cpu/eager/add"]


# ---- the command


def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    def measured_some() -> bool:
        return any('"rounds"' in file.read_text() for file in tmp_path.glob("bench/*.jsonl"))

    options = ("bench", "--quick", "--device=cpu", "--compiler=eager", "--filter=mm-*", f"--reports={tmp_path}")
    code, out = interrupted(tmp_path, *options, when=measured_some)
    assert code == 130
    (file,) = tmp_path.glob("bench/*.jsonl")
    found = read(file)
    assert found.footer is not None
    assert found.footer["interrupted"] is True
    assert found.groups
    assert next(iter(found.groups.values())).workload in out
