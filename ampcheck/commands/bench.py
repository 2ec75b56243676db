"""`ampcheck bench`: float32 beside the lower precisions, timed in turns, shown to be what they say."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.commands.common import add_device
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.bench.model import Group, Rounds
    from ampcheck.bench.peaks import Peaks
    from ampcheck.bench.run import Event, Task
    from ampcheck.bench.runfile import Writer
    from ampcheck.commands.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("bench", help="time float32 and the lower precisions side by side")
    add_device(parser, "a device, by default every one with values; tpu-v5e and its like are estimates")
    option = parser.add_argument
    option("--quick", action="store_true", help="one process and five rounds of a few workloads")
    option("--filter", action="append", default=[], metavar="PATTERN", help="workloads of these names; again for more")
    option(
        "--executor", action="append", default=[], metavar="NAME", help="eager, graph, compile or jit; again for more"
    )
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--reports", type=Path, default=Path("reports"), metavar="FOLDER", help="where files go; default: reports")
    option("--run-file", type=Path, metavar="FILE", help="the file; by default REPORTS/bench/TIME.jsonl")
    option("--list", action="store_true", help="show the groups and measure none")
    parser.set_defaults(run=run)
    actions = parser.add_subparsers(metavar="ACTION")
    from ampcheck.commands import bench_actions

    bench_actions.add(actions)


def run(args: argparse.Namespace) -> int:
    """Measure, and write the file and the table.

    Returns 0 where everything that was measured counts, 1 where something does not or nothing was measured, 130 after
    Ctrl-C. Raises UsageError where an option names something unknown, or a file cannot be written.
    """
    from ampcheck.bench import ceilings, table
    from ampcheck.bench.run import FULL, QUICK, Bench
    from ampcheck.bench.summary import summarize

    if args.threads < 1:
        raise UsageError(f"--threads is {args.threads}; at least one is needed")
    tasks, estimated = choose(args)
    if args.list:
        for device, found in {**tasks, **estimated}.items():
            for workload, executor in found:
                print(f"{device}/{executor}/{workload}")
        return 0
    mode = QUICK if args.quick else FULL
    if args.run_file and args.run_file.exists():
        raise UsageError(
            f"the run file {args.run_file} cannot be written: it exists, and run files are never overwritten"
        )
    progress = _Progress()
    limits: dict[str, Peaks] = {}
    for device in tasks:
        progress.text(f"what {device} can do at most")
        if peaks := ceilings.find(device, args.device_module, args.threads, 0.5 if args.quick else 2.0):
            limits[device] = peaks
    writer = _writer(args, {**_header(args, mode.name, [*tasks, *estimated]), **ceilings.header(limits)})
    measured: list[Rounds] = []

    def take(rounds: Rounds) -> None:
        writer.rounds(rounds)
        measured.append(rounds)

    signal.signal(signal.SIGTERM, signal.default_int_handler)  # what was measured is kept then, too
    interrupted = False
    estimates: list[Group] = []
    try:
        Bench(tasks, mode, threads=args.threads, modules=args.device_module, take=take, tell=progress.show).run()
        _estimate(estimated, estimates, progress)
    except KeyboardInterrupt:
        interrupted = True
    progress.end()
    groups = [*summarize(measured, peaks=ceilings.gate(limits)), *estimates]
    ceilings.share(groups, limits)
    writer.close(groups, {"interrupted": interrupted, "seconds": round(progress.seconds, 1)})
    print(table.table(groups) if groups else "nothing was measured")
    print(f"benchmark file: {writer.path}")
    if interrupted:
        return 130
    verdicts = [arm.verdict for group in groups for arm in group.arms]
    counted = any(verdict not in ("invalid", "not measured") for verdict in verdicts)
    return 0 if counted and "invalid" not in verdicts else 1


def choose(args: argparse.Namespace) -> tuple[dict[str, list[Task]], dict[str, list[Task]]]:
    """The groups that the options choose, by device: to measure, and to estimate."""
    from ampcheck.bench.arms import executors, select
    from ampcheck.bench.model import EXECUTORS
    from ampcheck.devices import registry

    for name in args.executor:
        if name not in EXECUTORS:
            raise UsageError(f"there is no executor {name!r}; there are {', '.join(EXECUTORS)}")
    names = [name for name in args.device if not name.startswith(_ESTIMATED)]
    estimates = [name for name in args.device if name.startswith(_ESTIMATED)]
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
            (workload.name, executor)
            for workload in select(args.filter, args.quick, heavy)
            for executor in executors(workload, device.name)
            if (executor in args.executor if args.executor else not (args.quick and executor in ("compile", "graph")))
        ]
        if chosen:
            tasks[device.name] = chosen
    estimated = {name: [(w.name, "jit") for w in select(args.filter, args.quick, True)] for name in estimates}
    if not tasks and not estimated:
        raise UsageError("no group was selected")
    return tasks, estimated


def _compiler(name: str) -> None:
    """Raise UsageError where there is no such TPU, or no compiler for it."""
    from ampcheck.bench import tpu_chips

    tpu_chips.chip(name)
    if reason := tpu_chips.available():
        raise UsageError(f"device {name!r} cannot be estimated here: {reason}")


def _file(args: argparse.Namespace, now: datetime) -> Path:
    path: Path = args.run_file or args.reports / "bench" / f"{now:%Y%m%dT%H%M%SZ}-{os.getpid()}.jsonl"
    return path


def _writer(args: argparse.Namespace, header: dict[str, Any]) -> Writer:
    from ampcheck.bench.runfile import Writer

    return Writer(_file(args, datetime.now(UTC)), header)


def _header(args: argparse.Namespace, mode: str, devices: list[str]) -> dict[str, Any]:
    from ampcheck.bench import machine
    from ampcheck.devices.registry import known
    from ampcheck.runlog import versions

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
        "devices": {name: described[name].describe() if name in described else {} for name in devices},
    }


def _estimate(chosen: dict[str, list[Task]], groups: list[Group], progress: _Progress) -> None:
    """Add the estimates of each workload to `groups` as they come."""
    from ampcheck.bench.workloads import catalogue

    if not chosen:
        return
    from ampcheck.bench import tpu

    every = catalogue()
    for name, tasks in chosen.items():
        for workload, _ in tasks:
            groups += tpu.groups([every[workload]], name, progress.text)


class _Progress:
    """Writes to stderr which group runs and how long the rest will take."""

    def __init__(self) -> None:
        from ampcheck.bench.run import Left

        self._left = Left()
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
        left = self._left.seconds(event)
        rest = "" if left is None else f", about {left:.0f} s left"
        self.text(f"{event.done + 1} of {event.total}: {event.group}{rest}")

    def text(self, text: str) -> None:
        """Show a line, over the one before on a terminal."""
        print(f"\r\033[K{text}" if self._over else text, end="" if self._over else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._over:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
