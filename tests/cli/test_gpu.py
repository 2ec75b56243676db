"""`ampcheck gpu`: what is done is not done again, what was cut off goes on, and the summary names what is left."""

import argparse
import json
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench import session
from ampcheck.bench.core.model import Rounds
from ampcheck.bench.run.group import LEFT_OUT
from ampcheck.bench.run.runfile import BenchWriter
from ampcheck.cli import gpu
from ampcheck.cli.main import main
from ampcheck.devices.registry import known
from ampcheck.runner.record import Result, RunWriter, read
from tests.cli_support import interrupted, refused

DEVICE = known()["emulated:cuda"]
emulated = pytest.mark.skipif(DEVICE.unavailable() is not None, reason=str(DEVICE.unavailable()))
FEW = ("--device=emulated:cuda", "--phase=suites", "--out=here")


@emulated
@pytest.mark.nightly
def test_the_suites_go_on_after_a_kill_and_after_their_time(here: Path) -> None:
    out = here / "here"
    work = out / "work"

    def some(number: int) -> int:
        paths = list(work.glob(f"suites-{number}.jsonl"))
        return len(read(paths[0]).results) if paths and paths[0].stat().st_size else 0

    interrupted(here, "gpu", *FEW, when=lambda: some(1) > 100, by=signal.SIGKILL)
    first = some(1)
    began = time.monotonic()
    assert main(["gpu", *FEW, "--limit=60"]) == 1
    assert time.monotonic() - began < 120
    assert some(2) > first > 100
    kept = read(out / "suites.jsonl")
    assert (len(kept.results), kept.footer) == (some(2), None)
    text, well = gpu.summary(out)
    assert f"{kept.header['cases'] - some(2)} cases did not run (" in text
    assert not well


def test_what_is_complete_is_not_run_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done = tmp_path / "suites-2.jsonl"
    done.write_text('{"kind":"header","schema":2,"cases":0}\n{"kind":"footer","seconds":1.0,"counts":{}}\n')
    (tmp_path / "suites-1.jsonl").write_text('{"kind":"header"', encoding="utf-8")  # killed at once
    monkeypatch.setattr(gpu.suites, "run", lambda args: pytest.fail("it runs again"))
    gpu._suites(argparse.Namespace(out=tmp_path), tmp_path, "suites")


@pytest.fixture
def earlier(tmp_path: Path) -> Path:
    """A benchmark file that was cut off: one group was measured, one left out."""
    writer = BenchWriter(tmp_path / "earlier.jsonl", {"groups": []})
    writer.rounds(Rounds("mm-16", "cpu", "eager", 0, {"fp32": [1.0] * 5, "fp32-aa": [1.0] * 5}))
    writer.rounds(Rounds("add", "cpu", "eager", 0, failed={"fp32": f"{LEFT_OUT}, as the run had to end"}))
    writer.close([], {})
    return writer.path


def test_benchmarks_go_on_from_earlier_ones(earlier: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert [one.key for one in session.measured_before(earlier)] == ["cpu/eager/mm-16"]
    begun: list[Any] = []
    monkeypatch.setattr("ampcheck.bench.run.group.Bench._process", lambda self, plan, end: begun.extend(plan.tasks))
    monkeypatch.setattr("ampcheck.bench.run.ceilings.find", lambda *arguments: None)
    monkeypatch.setattr(signal, "signal", lambda *arguments: None)
    options = session.BenchOptions(
        ["cpu"],
        filters=["mm-16", "add"],
        compilers=["eager"],
        quick=True,
        run_file=tmp_path / "b.jsonl",
        resume=earlier,
    )
    outcome = session.measure(options, session.choose(options), lambda text: None, lambda text: None)
    assert (begun, [group.key for group in outcome.groups]) == ([("add", "eager")], ["cpu/eager/mm-16"])


def test_the_time_of_a_phase_ends_it_and_ctrl_c_ends_all() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # which a job in the background does not have
    began = time.monotonic()
    with gpu._within(0.2):
        time.sleep(30)
    assert time.monotonic() - began < 20
    with pytest.raises(KeyboardInterrupt), gpu._within(60):
        signal.raise_signal(signal.SIGINT)


@emulated
def test_a_folder_that_is_not_there_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu.suites, "run", lambda args: 0)
    out = tmp_path / "new" / "here"
    assert main(["gpu", "--device=emulated:cuda", "--phase=preflight", f"--out={out}"]) == 1  # the rest is not begun
    assert "precisions" in json.loads((out / "preflight.json").read_text(encoding="utf-8"))


def test_what_did_not_run_is_named_by_rule(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path / "suites.jsonl", {"cases": 5, "rules": {"eager/upcast": 4, "jit/parity": 1}})
    writer.add(Result("a", "eager", "upcast", "pass", 0.1, "exp", "bf16", "cpu"))
    writer.close({})
    text, well = gpu.summary(tmp_path)
    assert "4 cases did not run (eager/upcast 3, jit/parity 1); the same command goes on" in text
    assert not well


def test_nothing_is_done_without_the_device(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "abacus" in refused(capsys, "gpu", "--device=abacus", f"--out={tmp_path}")
    text, well = gpu.summary(tmp_path)
    assert (text.splitlines(), well) == (["smoke: not begun", "suites: not begun", "bench: not begun"], False)
