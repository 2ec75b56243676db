"""`ampcheck bench`: float32 beside the lower precisions, timed in turns, their precision checked."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.cli.common import add_device
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.bench.core.model import Group, Rounds
    from ampcheck.bench.core.peaks import Peaks
    from ampcheck.bench.run.group import Event, Mode, Task
    from ampcheck.bench.run.runfile import BenchWriter
    from ampcheck.cli.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time float32 and the lower precisions side by side")
    add_device(parser, "a device, by default every one with values; tpu-v5e and its like are estimates")
    option = parser.add_argument
    option("--quick", action="store_true", help="one process and five rounds of a few workloads, within three minutes")
    option("--filter", action="append", default=[], metavar="PATTERN", help="workloads of these names; again for more")
    option(
        "--compiler",
        "--executor",
        action="append",
        default=[],
        metavar="NAME",
        help="eager, graph, compile or jit; again for more",
    )
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--reports", type=Path, default=Path("reports"), metavar="FOLDER", help="where files go; default: reports")
    option("--run-file", type=Path, metavar="FILE", help="the file; by default REPORTS/bench/TIME.jsonl")
    option("--list", action="store_true", help="show the groups and measure none")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(metavar="ACTION")
    from ampcheck.cli import bench_actions

    bench_actions.add(actions)


def run(args: argparse.Namespace) -> int:
    """Measure, and write the file and the table.

    Returns 0 where everything that was measured counts, 1 where something does not or nothing was measured, 130 after
    Ctrl-C. Raises UsageError where an option names something unknown, or a file cannot be written.
    """
    began = time.monotonic()
    from ampcheck.bench.core import table
    from ampcheck.bench.run import ceilings
    from ampcheck.bench.run.group import FULL, QUICK, RESERVE, Bench, expect
    from ampcheck.bench.run.summary import summarize

    if args.threads < 1:
        raise UsageError(f"--threads is {args.threads}; at least one is needed")
    tasks, estimated = choose(args)
    if args.list:
        for device, found in {**tasks, **estimated}.items():
            for workload, compiler in found:
                print(f"{device}/{compiler}/{workload}")
        return 0
    mode = QUICK if args.quick else FULL
    if args.run_file and args.run_file.exists():
        raise UsageError(
            f"the run file {args.run_file} cannot be written: it exists, and run files are never overwritten"
        )
    progress = _Progress()
    limits: dict[str, Peaks] = {}
    starts: dict[str, float] = {}
    spent, most = (0.5, 20.0) if args.quick else (2.0, 120.0)
    for device in tasks:
        progress.text(f"what {device} can do at most")
        asked = time.monotonic()
        if peaks := ceilings.find(device, args.device_module, args.threads, spent, most):
            limits[device] = peaks
        starts[device] = max(time.monotonic() - asked - spent, 0.0)
    header = {**_header(args, mode.name, {**tasks, **estimated}), **ceilings.header(limits)}
    writer = _writer(args, header)
    expected = expect(tasks, mode, starts, limits) if args.quick else None
    if expected is not None and tasks:
        progress.text(_foretold(expected.seconds(tasks), sum(map(len, tasks.values())), mode, time.monotonic() - began))
    measured: list[Rounds] = []

    def take(rounds: Rounds) -> None:
        writer.rounds(rounds)
        measured.append(rounds)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is kept then, too
    interrupted = False
    left_out: list[str] = []
    bench = Bench(
        tasks,
        mode,
        threads=args.threads,
        modules=args.device_module,
        take=take,
        tell=progress.show,
        expected=expected,
        began=began,
    )
    estimates: list[Group] = []
    try:
        bench.run()
        left_out = bench.left_out + _estimate(estimated, estimates, progress, began + mode.budget - RESERVE)
    except KeyboardInterrupt:
        interrupted = True
    progress.end()
    groups = [*summarize(measured, peaks=ceilings.gate(limits)), *estimates]
    ceilings.share(groups, limits)
    writer.close(groups, {"interrupted": interrupted, "seconds": round(progress.seconds, 1)})
    shown = [group for group in groups if group.key not in left_out]
    print(table.table(shown) if shown else "nothing was measured")
    if left_out:
        print(
            f"left out, as --{mode.name} ends within {mode.budget:.0f} s: {', '.join(left_out)}; "
            "--filter chooses others, and a run without --quick has the time for all"
        )
    print(f"benchmark file: {writer.path}")
    if interrupted:
        return 130
    verdicts = [variant.verdict for group in groups for variant in group.variants]
    counted = any(verdict not in ("invalid", "not measured") for verdict in verdicts)
    return 0 if counted and "invalid" not in verdicts else 1


def choose(args: argparse.Namespace) -> tuple[dict[str, list[Task]], dict[str, list[Task]]]:
    """The groups that the options choose, by device: to measure, and to estimate."""
    from ampcheck.bench.core.model import COMPILERS, ESTIMATED, kind_of
    from ampcheck.bench.run.variants import compilers, select
    from ampcheck.devices import registry

    for name in args.compiler:
        if name not in COMPILERS:
            raise UsageError(f"there is no compiler {name!r}; there are {', '.join(COMPILERS)}")
    names = [name for name in args.device if not name.startswith(ESTIMATED)]
    estimates = [name for name in args.device if name.startswith(ESTIMATED)]
    for name in estimates:
        _compiler(name)
    devices = [] if estimates and not names else registry.select(names, args.device_module)
    if unreal := [device.name for device in devices if device.name in names and not device.has_values]:
        raise UsageError(f"device {unreal[0]!r} has no arithmetic, so that there is nothing to time")
    tasks: dict[str, list[Task]] = {}
    for device in devices:
        if not device.has_values:
            continue
        heavy = device.describe().get("platform", device.type) not in ("cpu",)
        chosen = [
            (workload.name, compiler)
            for workload in select(args.filter, args.quick, heavy)
            for compiler in compilers(workload, device.name)
            if (compiler in args.compiler if args.compiler else not (args.quick and compiler in ("compile", "graph")))
        ]
        if chosen:
            tasks[device.name] = chosen
    programs = [w for w in select(args.filter, args.quick, True) if kind_of(w) != "overhead"] if estimates else []
    estimated = {name: [(w.name, "jit") for w in programs] for name in estimates if programs}
    if not tasks and not estimated:
        raise UsageError("no group was selected")
    return tasks, estimated


def _compiler(name: str) -> None:
    """Raise UsageError where there is no such TPU, or no compiler for it."""
    from ampcheck.bench.tpu import chips

    chips.chip(name)
    if reason := chips.available():
        raise UsageError(f"device {name!r} cannot be estimated here: {reason}")


def _file(args: argparse.Namespace, now: datetime) -> Path:
    path: Path = args.run_file or args.reports / "bench" / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    return path


def _writer(args: argparse.Namespace, header: dict[str, Any]) -> BenchWriter:
    from ampcheck.bench.run.runfile import BenchWriter

    return BenchWriter(_file(args, datetime.now(UTC)), header)


def _foretold(seconds: float, groups: int, mode: Mode, passed: float) -> str:
    """Say how long a quick run will take, before it begins."""
    from ampcheck.bench.run.group import RESERVE

    text = f"{groups} group{'' if groups == 1 else 's'}, about {seconds:.0f} s by a short calibration"
    if passed + seconds > mode.budget - RESERVE:
        text += f"; those that do not fit into {mode.budget:.0f} s in all are left out"
    return text


def _header(args: argparse.Namespace, mode: str, tasks: dict[str, list[Task]]) -> dict[str, Any]:
    from ampcheck.bench.core import machine
    from ampcheck.devices.registry import known
    from ampcheck.runner.runlog import versions

    described = known(args.device_module)
    found = machine.describe()
    if warning := machine.busy(found):
        print(f"ampcheck: {warning}", file=sys.stderr)
    return {
        "started": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "command": ["ampcheck", *sys.argv[1:]],
        "mode": mode,
        "threads": args.threads,
        "versions": versions(),
        "machine": found,
        "identity": machine.identity(found),
        "devices": {name: described[name].describe() if name in described else {} for name in tasks},
        "groups": [f"{name}/{compiler}/{workload}" for name, some in tasks.items() for workload, compiler in some],
    }


def _estimate(chosen: dict[str, list[Task]], groups: list[Group], progress: _Progress, until: float) -> list[str]:
    """Add the estimates of each workload to `groups` as they come. Returns what was not done `until` then, by key."""
    from ampcheck.bench.workloads import catalogue

    left_out: list[str] = []
    if not chosen:
        return left_out
    from ampcheck.bench.tpu import command

    every = catalogue()
    for name, tasks in chosen.items():
        for workload, _ in tasks:
            found = command.groups([every[workload]], name, progress.text, until=until)
            if time.monotonic() < until:
                groups += found
            else:
                left_out += [group.key for group in found]
    return left_out


class _Progress:
    """Writes to stderr which group runs and how long the rest will take."""

    def __init__(self) -> None:
        self._over = sys.stderr.isatty()
        self._began = datetime.now(UTC)

    @property
    def seconds(self) -> float:
        """Since the start."""
        return (datetime.now(UTC) - self._began).total_seconds()

    def show(self, event: Event) -> None:
        """Show how far the run is."""
        if not event.group:
            return
        rest = "" if event.left is None else f", about {event.left:.0f} s left"
        self.text(f"{event.done + 1} of {event.total}: {event.group}{rest}")

    def text(self, text: str) -> None:
        """Show a line, over the one before on a terminal."""
        print(f"\r\033[K{text}" if self._over else text, end="" if self._over else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._over:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
