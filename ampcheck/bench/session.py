"""One `ampcheck bench`: chooses the groups, measures or estimates them, and writes the file."""

import math
import os
import signal
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from ampcheck.bench.core import machine
from ampcheck.bench.core.model import COMPILERS, ESTIMATED, Group, Rounds, key_of
from ampcheck.bench.estimates import estimate
from ampcheck.bench.run import ceilings
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.group import FULL, LEFT_OUT, QUICK, RESERVE, Bench, Expected, Mode, Task, expect
from ampcheck.bench.run.runfile import BenchWriter, rounds_of
from ampcheck.bench.run.summary import invalid_variants, summarize
from ampcheck.bench.run.variants import compilers, select
from ampcheck.bench.workloads import catalogue
from ampcheck.devices import registry
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError, unknown
from ampcheck.runner.record import counted, output_file, versions

_CEILING_S = {QUICK.name: (0.5, 20.0), FULL.name: (2.0, 120.0)}
"""Seconds that a device's ceilings are measured for, and at most wait for."""


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """The options of a run; empty ones choose all there is. `run_file`: None for a name made of the time.

    `resume`: an earlier file, whose groups are taken over as far as they were measured. `extent`: None for the mode
    that `quick` says.
    """

    devices: Sequence[str] = ()
    modules: Sequence[str] = ()
    filters: Sequence[str] = ()
    compilers: Sequence[str] = ()
    quick: bool = False
    threads: int = 1
    reports: Path = Path("reports")
    run_file: Path | None = None
    resume: Path | None = None
    extent: Mode | None = None

    @property
    def mode(self) -> Mode:
        """The extent of the run."""
        return self.extent or (QUICK if self.quick else FULL)


@dataclass(frozen=True, slots=True)
class Chosen:
    """The groups of a run by device: those to measure, and those of TPUs that are not here, to estimate."""

    measured: dict[str, list[Task]]
    estimated: dict[str, list[Task]]

    @property
    def keys(self) -> list[str]:
        """The key of each group."""
        every = {**self.measured, **self.estimated}
        return [key_of(name, compiler, workload) for name, tasks in every.items() for workload, compiler in tasks]


@dataclass(slots=True)
class BenchOutcome:
    """The end of a run: its file, its groups, and the keys of those that did not fit into the time.

    `platforms`: by device, e.g. "cpu" or "tpu".
    """

    path: Path
    groups: list[Group] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    interrupted: bool = False
    platforms: dict[str, str] = field(default_factory=dict)

    @property
    def counts(self) -> bool:
        """Return whether something was measured, and everything counts that was, but for known gaps."""
        measured = any(variant.verdict != "not measured" for group in self.groups for variant in group.variants)
        return measured and not invalid_variants(self.groups, self.platforms)[0]


def choose(options: BenchOptions) -> Chosen:
    """Return the groups that the options choose. Raises UsageError where one names something unknown."""
    if options.threads < 1:
        raise UsageError(f"--threads is {options.threads}; at least one is needed")
    for name in options.compilers:
        if name not in COMPILERS:
            raise unknown("compiler", name, COMPILERS)
    names = [name for name in options.devices if not name.startswith(ESTIMATED)]
    estimates = [name for name in options.devices if name.startswith(ESTIMATED)]
    for name in estimates:
        if reason := estimate.available(name):
            raise UsageError(f"device {name!r} cannot be estimated here: {reason}")
    devices = [] if estimates and not names else registry.select(names, options.modules)
    if unreal := [device.name for device in devices if device.name in names and not device.has_values]:
        raise UsageError(f"device {unreal[0]!r} has no arithmetic, so that there is nothing to time")
    slow = ("compile", "graph") if options.quick else ()  # compiling takes most of three minutes
    wanted = options.compilers or [name for name in COMPILERS if name not in slow]
    measured: dict[str, list[Task]] = {}
    for device in devices:
        if not device.has_values:
            continue
        chosen = [
            (workload.name, compiler)
            for workload in select(options.filters, options.quick, _is_large(device))
            for compiler in compilers(workload, device.name)
            if compiler in wanted
        ]
        if chosen:
            measured[device.name] = chosen
    programs = select(options.filters, options.quick, True)
    chosen_of = {name: [(w.name, "jit") for w in programs if estimate.priced(w, name)] for name in estimates}
    estimated = {name: tasks for name, tasks in chosen_of.items() if tasks}
    if none := [name for name in estimates if name in estimate.GPUS and name not in estimated]:
        raise UsageError(f"{none[0]} has estimates of {', '.join(estimate.PRICED)} alone; choose one with --filter")
    if not measured and not estimated:
        raise UsageError("no group was selected")
    return Chosen(measured, estimated)


def _is_large(device: Device) -> bool:
    """Return whether a device is made for heavy workloads."""
    return device.describe().get("platform", device.type) not in ("cpu", "emulated")


def fitting(workloads: Sequence[str], name: str, modules: Sequence[str]) -> list[str]:
    """Return those of some workloads that are not too heavy for a device."""
    (device,) = registry.select([name], modules)
    with device.activate():
        large = _is_large(device)
    return [one for one in workloads if large or not catalogue()[one].heavy]


def measured_before(path: Path) -> list[Rounds]:
    """Return what an earlier file measured, without groups that it left out or did not get to."""
    return [one for one in rounds_of(path) if not any(why.startswith(LEFT_OUT) for why in one.failed.values())]


def measure(
    options: BenchOptions, chosen: Chosen, tell: Callable[[str], None], warn: Callable[[str], None]
) -> BenchOutcome:
    """Measure and estimate the groups, and write the file. SIGTERM ends it as Ctrl-C does: what was measured is kept.

    `tell` is given a line of progress, `warn` a sentence on what may spoil the figures. Raises UsageError where the
    file cannot be written.
    """
    began = time.monotonic()
    path = options.run_file
    if path is not None and path.exists():  # before minutes are spent, not when the file is opened
        raise UsageError(f"the run file {path} cannot be written: it exists, and run files are never overwritten")
    new = options.reports / "bench" / f"{datetime.now(UTC):%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    path = output_file(path or new, "run file", folders=True)
    mode = options.mode
    limits: dict[str, Peaks] = {}
    starts: dict[str, float] = {}
    spent, most = _CEILING_S.get(mode.name, _CEILING_S[QUICK.name])
    earlier = [one for one in measured_before(options.resume) if one.key in chosen.keys] if options.resume else []
    for device in chosen.measured:
        tell(f"what {device} can do at most")
        asked = time.monotonic()
        if peaks := ceilings.find(device, options.modules, options.threads, spent, most):
            limits[device] = peaks
        starts[device] = max(time.monotonic() - asked - spent, 0.0)
    known = registry.known(options.modules)
    described = {n: known[n].describe() if n in known else {} for n in (*chosen.measured, *chosen.estimated)}
    for name, about in described.items():
        if int(about.get("programs", 0)) > 1:
            warn(f"{about['programs']} programs use the GPU of {name}, this one among them: expect wide intervals")
    header = {**_header(options, warn), "devices": described, "groups": chosen.keys, **ceilings.header(limits)}
    writer = BenchWriter(path, header)
    expected = Expected({}, {})
    if math.isfinite(mode.budget) and chosen.measured:
        expected = expect(chosen.measured, mode, starts, limits)
        count, seconds = sum(map(len, chosen.measured.values())), expected.seconds(chosen.measured)
        said = f"{counted(count, 'group')}, about {seconds:.0f} s by a short calibration"
        if time.monotonic() - began + seconds > mode.budget - RESERVE:
            said += f"; those that do not fit into {mode.budget:.0f} s in all are left out"
        tell(said)
    rounds: list[Rounds] = []

    def take(measured: Rounds) -> None:
        writer.rounds(measured)
        rounds.append(measured)

    for one in earlier:
        take(one)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    outcome = BenchOutcome(writer.path)
    outcome.platforms = {name: about.get("platform", name) for name, about in described.items()}
    before = {(one.process, one.key) for one in earlier}
    bench = Bench(chosen.measured, mode, take, options.threads, options.modules, tell, expected, began, before)
    estimates: list[Group] = []
    try:
        bench.run()
        outcome.left_out = bench.left_out + _estimate(chosen.estimated, estimates, tell, began + mode.budget - RESERVE)
    except KeyboardInterrupt:
        outcome.interrupted = True
    outcome.groups = [*summarize(rounds, peaks=ceilings.gate(limits)), *estimates]
    ceilings.share(outcome.groups, limits)
    footer = {"interrupted": outcome.interrupted, "seconds": round(time.monotonic() - began, 1)}
    writer.close(outcome.groups, footer)
    return outcome


def _header(options: BenchOptions, warn: Callable[[str], None]) -> dict[str, object]:
    found = machine.describe()
    if warning := machine.busy(found):
        warn(warning)
    return {
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": ["ampcheck", *sys.argv[1:]],
        "mode": options.mode.name,
        "threads": options.threads,
        "versions": versions(),
        "machine": found,
        "identity": machine.identity(found),
    }


def _estimate(
    chosen: dict[str, list[Task]], groups: list[Group], tell: Callable[[str], None], until: float
) -> list[str]:
    """Add the estimates of each workload to `groups` as they come. Returns what was not done `until` then, by key."""
    left_out: list[str] = []
    every = catalogue()
    for name, tasks in chosen.items():
        for workload, _ in tasks:
            found = estimate.groups([every[workload]], name, tell, until=until)
            if time.monotonic() < until:
                groups += found
            else:
                left_out += [group.key for group in found]
    return left_out
