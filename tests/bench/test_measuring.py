"""Measuring: rounds, calibration, clocks that do not wait, the processes that do it, the machine and its ceilings."""

import dataclasses
import getpass
import json
import math
import os
import platform
import re
import signal
import sys
import time
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from ampcheck.bench import session
from ampcheck.bench.core import machine
from ampcheck.bench.core.model import BenchPlan, Rounds
from ampcheck.bench.core.timing import Clock, CpuClock, Timed, calibrate, interleave
from ampcheck.bench.run import ceilings, measure
from ampcheck.bench.run import group as running
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.group import QUICK, RESERVE, Bench, Expected, Mode, expect
from ampcheck.bench.run.runfile import read
from ampcheck.bench.run.summary import summarize
from ampcheck.cli import main
from ampcheck.devices.cpu import Cpu
from tests.cli_support import LIMIT, PROGRAMS, interrupted


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 1), (0.05, 1), (0.005, 2), (1e-5, 1000), (1e-9, 20_000)])
def test_a_sample_has_as_many_calls_as_its_length_wants(seconds: float, count: int) -> None:
    assert calibrate(Scripted(*[seconds] * 10), int, 0.01) == count


def test_what_goes_before_is_outside_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    wall, _, _ = interleave(CpuClock(Cpu()), {"a": Timed(lambda: work(2), before=lambda: work(100))}, 3, seed=0)
    assert wall["a"] == [2, 2, 2]


# ---- variants that take too long for their rounds


class Telling(CpuClock):
    """A clock on which the calls of some variants take some seconds, and those of others nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(Cpu())
        self.seconds, self.variant, self.said = seconds, "", list[tuple[str, str]]()

    def say(self, variant: str, what: str) -> None:
        self.variant = variant
        self.said.append((variant, what))

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        self.last = call()
        return self.seconds.get(self.variant, 1e-5), 0.0


def timed(seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch, patience: float = 6.0) -> tuple[Rounds, Telling]:
    """Measure a product of 64² on the CPU where the calls of some variants take some seconds."""
    monkeypatch.setattr(measure, "warm_up", lambda timer, call, times=3: timer.sample(call, 1)[0])
    measurer = measure.Measurer(BenchPlan("cpu", [], 0, 5, 1e-4, 1, [], patience))
    measurer.timer = timer = Telling(seconds)
    return measurer.measure("mm-64", "eager", timer.say), timer


ALL = {"fp32", "fp32-aa", "bf16", "fp16", "bf16-native", "fp16-native"}


def test_a_variant_that_is_too_slow_is_given_up_with_bound_and_precision_check(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = timed({"bf16": 1.0, "fp16": 0.25}, monkeypatch)
    assert set(found.samples) == ALL - {"bf16"}
    assert found.failed == {
        "bf16": "neither of two calls took less than 1 s; 6 s, which a variant may take, are not enough for 5 rounds"
    }
    assert (found.facts["bf16"]["at_least"], found.facts["bf16"]["precision_check"]) == (1.0, "mm in bf16")
    assert "at_least" not in found.facts["fp16"]
    found, _ = timed({"bf16": 1.0}, monkeypatch, patience=math.inf)
    assert set(found.samples) == ALL


def test_a_variant_that_is_far_too_slow_is_not_even_shown_to_be_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found, timer = timed({"bf16": 4.0}, monkeypatch)
    assert found.facts["bf16"] == {"first": 4.0, "at_least": 4.0}
    assert ("bf16", "check_precision") not in timer.said
    assert set(found.samples) == ALL - {"bf16"}
    found, timer = timed({"fp32": 1.0}, monkeypatch)  # nothing is measured beside it
    assert (found.samples, set(found.failed), {variant for variant, _ in timer.said}) == ({}, {"fp32"}, {"fp32"})


# ---- a device that computes after it has returned


class Asynchronous(Cpu):
    """A device whose calls return at once; reading a result waits for it."""

    SECONDS = 0.2
    """Of a call's work: longer than a busy machine keeps this thread from its next line."""

    def __init__(self, waits: bool) -> None:
        self._waits, self._done = waits, 0.0

    def compute(self) -> torch.Tensor:
        self._done = time.perf_counter() + self.SECONDS
        return torch.ones(1)

    def synchronize(self) -> None:
        if self._waits:
            self.host(torch.ones(1))

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(max(self._done - time.perf_counter(), 0.0))
        return tensor


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "returns"])
def test_a_synchronize_that_does_nothing_makes_every_result_invalid(waits: bool) -> None:
    device = Asynchronous(waits)
    timer = Clock(device)
    found = Rounds("w", "cpu", "eager", 0, facts={"a": {}, "b": {}})
    variants = {name: Timed(device.compute) for name in "ab"}
    found.samples, _, late = interleave(timer, variants, 3, 0)
    measure.blocked(late, found)
    if waits:
        assert found.facts == {"a": {}, "b": {}}
        assert min(map(min, found.samples.values())) >= 0.9 * device.SECONDS
    else:
        assert all("work was still running when the clock stopped" in found.facts[v]["invalid"] for v in "ab")


@pytest.mark.parametrize(
    ("first", "second", "sample", "late"),
    [
        (1e-4, 1e-6, 1e-6, False),  # a tiny call: reading has its own costs
        (5e-4, 1e-6, 1e-6, True),
        (0.15, 0.01, 1.0, False),  # less than a fifth of the sample
        (0.35, 0.1, 1.0, True),
        (3.0, 3.0, 0.01, False),  # reading is slow, the second time as well
    ],
)
def test_what_is_late(first: float, second: float, sample: float, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    timer = Clock(Cpu())
    monkeypatch.setattr(timer.device, "host", lambda tensor: read.append(tensor.numel()))
    timer.last = {"out": torch.ones(1), "more": (torch.zeros(2),)}
    times = iter([0.0, first, first + second])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    assert bool(timer.late(sample)) is late
    assert read == [1, 2, 1, 2], "every output is read twice"


# ---- the processes that measure: plans, one that dies or hangs, what has to end, and that each group is kept at once

NOTHING = Expected({}, {})
TASKS = {"cpu": [("mm-16", "eager"), ("add", "eager"), ("mm-64", "eager")]}


def measured(
    monkeypatch: pytest.MonkeyPatch, action: str, mode: Mode, expected: Expected = NOTHING
) -> tuple[list[Rounds], list[str]]:
    worker = PROGRAMS["measuring-worker"].replace("ACTION", action)
    monkeypatch.setattr(running, "COMMAND", (sys.executable, "-c", worker))
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

HUNG = "a call had not ended after 1 s; its precision was not checked, so no ratio is given"


@pytest.mark.parametrize(
    ("variant", "what", "reason", "bound"),
    [
        ("bf16", "call", HUNG, 1),
        *(
            pytest.param(*other, marks=pytest.mark.nightly)
            for other in (
                ("bf16", "compile", "it took more than 2 s to be called for the first time, which compiles it", None),
                ("bf16", "prepare", "it took more than 2 s to be made ready", None),
                ("bf16", "check_precision", "it took more than 2 s to have its precision checked", None),
                ("fp32", "call", HUNG, 1),  # without its first variant a group is not measured
            )
        ),
    ],
)
def test_a_variant_that_hangs_costs_itself_and_only_a_call_bounds_it(
    monkeypatch: pytest.MonkeyPatch, variant: str, what: str, reason: str, bound: int | None
) -> None:
    action = PROGRAMS["measuring-hangs"].strip().replace("HANGING", repr(variant)).replace("WHAT", repr(what))
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


@pytest.mark.nightly
def test_ctrl_c_keeps_what_was_measured(tmp_path: Path) -> None:
    measured_some = lambda: any('"rounds"' in file.read_text() for file in tmp_path.glob("bench/*.jsonl"))  # noqa: E731
    options = ("bench", "--quick", "--device=cpu", "--compiler=eager", "--filter=mm-*", f"--reports={tmp_path}")
    code, out = interrupted(tmp_path, *options, when=measured_some)
    assert code == 130
    (file,) = tmp_path.glob("bench/*.jsonl")
    found = read(file)
    assert found.footer["interrupted"] is True
    assert found.groups
    assert next(iter(found.groups.values())).workload in out


# ---- the machine in a file's header, the table of peaks, and what is measured where it has none

X86 = PROGRAMS["measuring-x86"]
VARIANT = PROGRAMS["measuring-variant"]


def test_processors() -> None:
    assert machine.processor(X86) == ("AMD EPYC 9R45", ["avx2", "avx512f", "avx512_bf16"])
    model, isa = machine.processor(VARIANT)
    assert model == "ARM implementer 0x41 part 0xd4f variant 0x0"
    assert (isa, machine.processor("")) == (["neon", "neon_fp16", "bf16", "sve"], ("", []))


def test_files_are_read_where_a_system_has_them(tmp_path: Path) -> None:
    elsewhere = machine.describe(tmp_path, tmp_path)
    assert elsewhere["model"]
    assert not {"governor", "isa"} & set(elsewhere)
    governor = tmp_path / "devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    (tmp_path / "cpuinfo").write_text(X86)
    found = machine.describe(tmp_path, tmp_path)
    assert (found["governor"], found["model"]) == ("powersave", "AMD EPYC 9R45")


def test_nothing_private_is_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    flags = "--xla_dump_to=/home/somebody/dump --xla_cpu_use_onednn=true --xla_force_host_platform_device_count=8 junk"
    monkeypatch.setenv("XLA_FLAGS", flags)
    found = machine.describe()
    assert found["xla_flags"] == ["--xla_cpu_use_onednn=true", "--xla_force_host_platform_device_count=8"]
    text = json.dumps(found)
    assert "somebody" not in text
    assert platform.node() not in text
    words = {value for value in found.values() if isinstance(value, str)}
    assert not {getpass.getuser(), os.getcwd()} & words


def test_identity_is_of_the_hardware() -> None:
    some = {"model": "AMD EPYC", "architecture": "x86_64", "cores": 2, "isa": ["avx2", "avx512f"], "load": 0.1}
    name = machine.identity(some)
    assert "load 1.5 on 2 cores" in machine.busy({**some, "load": 1.5})
    assert machine.identity({**some, "load": 9, "threads": 1, "isa": ["avx512f", "avx2"]}) == name
    for other in ({"model": "Xeon"}, {"cores": 4}, {"isa": ["avx2"]}, {"architecture": "variant64"}):
        assert machine.identity({**some, **other}) != name


# ---- peaks


DEVICES = tomllib.loads(Path(__file__).with_name("tables.toml").read_text(encoding="utf-8"))["measuring"]["devices"]


@pytest.mark.parametrize("name", DEVICES)
def test_known_devices(name: str) -> None:
    found, (device, *bf16) = ceilings.known(name), DEVICES[name]
    assert (found.device, found.of("bf16"), found.measured) == (device, next(iter(bf16), None), False)


@pytest.mark.parametrize(
    ("device", "rates"),
    [
        ("NVIDIA H200", {"fp32": 67e12, "tf32": 495e12, "bf16": 989e12, "fp16-native": 989e12, "fp32-default": 495e12}),
        ("TPU v6e", {"fp32-default": 918e12, "fp32": None, "with": None}),  # nobody publishes float32's
    ],
)
def test_a_precision_s_peak(device: str, rates: dict[str, float | None]) -> None:
    assert {name: ceilings.known(device).of(name) for name in rates} == rates


class Scripted:
    """A clock that gives the times it was told."""

    def __init__(self, *times: float) -> None:
        self.times = iter(times)

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        call()
        return next(self.times), 0.0


def test_the_best_of_all_loads_is_the_ceiling() -> None:
    loads = [("fp32", 8.0, int), ("fp32", 64.0, int), ("bandwidth", 6.0, int)]
    times = [9, 4, 2, 4, 9, 8, 8, 8, 9, 3, 2, 3]  # the first of each four warms up
    found = ceilings.measure(Scripted(*times), loads, "here", seconds=0)
    assert (found.of("fp32"), found.bandwidth, found.measured) == (8.0, 3.0, True)
    assert found.of("bf16") is None


def test_a_load_that_would_take_too_long_is_left_out() -> None:
    """As with bf16 on a processor without it: a small product is fast enough, the next one a hundred times slower."""
    called: list[float] = []
    loads = [("bf16", size, partial(called.append, size)) for size in (8.0, 64.0)]
    quick = ceilings.measure(Scripted(1e-3, *[1e-4] * 100_000), loads, "here", seconds=1e-2)
    assert 64.0 in called
    called.clear()
    slow = ceilings.measure(Scripted(*[0.5] * 100_000), loads, "here", seconds=1e-2)
    assert set(called) == {8.0}
    assert quick.flops == {"bf16": pytest.approx(64e4)}
    assert slow.flops == {"bf16": pytest.approx(16)}
