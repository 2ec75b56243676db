"""Runs benchmarks in fresh processes, one after the other, and keeps what each measured."""

import math
import random
import sys
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from ampcheck.bench.core.model import AA, BenchPlan, OverheadWorkload, Rounds, Workload, key_of
from ampcheck.bench.core.prepare import flops
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.measure import environment
from ampcheck.bench.run.variants import COMPILED_AHEAD, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.runner.worker import Worker

COMMAND = (sys.executable, "-m", "ampcheck.bench.run.measure")

Task = tuple[str, str]
"""A workload's name and a compiler."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The extent of a run: processes, rounds in each, and seconds of a sample.

    `patience`: seconds that a variant may take; one that needs more is given up, with what its calls took at least.
    `limit`: seconds that anything else may take, such as compiling a variant. `budget`: seconds that the whole may
    take; groups are left out that do not fit in.
    """

    name: str
    processes: int
    rounds: int
    target: float
    limit: float = 600.0
    patience: float = 60.0
    budget: float = math.inf


QUICK = Mode("quick", 1, 5, 0.01, limit=45.0, patience=6.0, budget=180.0)
FULL = Mode("full", 5, 9, 0.05)

LEFT_OUT = "left out"
"""Begins the reason of a group for which no time was left."""
RESERVE = 20.0
"""Seconds of a budget that are kept for the start of the program, and for what comes after the last group."""


@dataclass(frozen=True, slots=True)
class Expected:
    """The expected time of a run in seconds: the start of a device's process, and each group by its key."""

    starts: Mapping[str, float]
    groups: Mapping[str, float]

    def seconds(self, devices: Iterable[str]) -> float:
        """Return the expected time of the groups of some devices."""
        own = {f"{device}/" for device in devices}
        groups = sum(seconds for key, seconds in self.groups.items() if key[: key.index("/") + 1] in own)
        return groups + sum(seconds for device, seconds in self.starts.items() if f"{device}/" in own)


@dataclass(slots=True)
class Bench:
    """A run of some groups on some devices. `take` gets what each process measured of each group as it comes.

    With `expected`, the cheapest groups are measured first, those that do not fit into `mode.budget` are left out, and
    each device has its part of it. `tell` is told of each group as it begins: how many there are over all processes,
    and the seconds until the end, once something is known of them. `began`: when the run began, by `time.monotonic`.
    `before`: process and key of groups that an earlier run measured. `left_out`: the keys of the groups that were left
    out, after `run`.
    """

    tasks: Mapping[str, Sequence[Task]]
    mode: Mode
    take: Callable[[Rounds], None]
    threads: int = 1
    modules: Sequence[str] = ()
    tell: Callable[[str], None] = lambda text: None
    expected: Expected = field(default_factory=lambda: Expected({}, {}))
    began: float = field(default_factory=time.monotonic)
    before: Collection[tuple[int, str]] = ()
    left_out: list[str] = field(default_factory=list, init=False)
    _done: int = field(default=0, init=False)
    _foreseen: float = field(default=0.0, init=False)
    _started: float = field(default_factory=time.monotonic, init=False)

    @property
    def _until(self) -> float:
        return self.began + self.mode.budget - RESERVE

    def run(self) -> None:
        """Measure everything. KeyboardInterrupt ends the worker and goes on to the caller."""
        for process in range(self.mode.processes):
            later = list(self.tasks)
            for device, tasks in self.tasks.items():
                order = [task for task in tasks if (process, _key(device, task)) not in self.before]
                random.Random(process).shuffle(order)
                # The compilers of a workload one after the other, as float64's result serves them all.
                first = {workload: place for place, (workload, _) in reversed([*enumerate(order)])}
                order.sort(key=lambda task: (self._cost(device, task), first[task[0]]))
                mode, modules = self.mode, list(self.modules)
                plan = BenchPlan(device, modules, process, mode.rounds, mode.target, self.threads, order, mode.patience)
                self._process(plan, self._end(later))
                later.remove(device)

    def _end(self, devices: Sequence[str]) -> float:
        """Return the time when the first of the devices that are left has to end.

        It has as much time as each of the others, and what they are expected not to need of theirs.
        """
        now = time.monotonic()
        rest = max(self._until - now, 0.0)
        return now + max(rest / len(devices), rest - self.expected.seconds(devices[1:]))

    def _process(self, plan: BenchPlan, end: float) -> None:
        left, given_up, mode = list(plan.tasks), dict[str, dict[str, Any]](), self.mode
        self._foreseen += self.expected.starts.get(plan.device, 0.0)
        while left and not self._late(plan.device, left[0], end):
            given = asdict(replace(plan, tasks=left, given_up=given_up))
            with Worker(COMMAND, environment(plan.threads), given) as worker:
                base, variant, doing, over, timed_out = "", "", "", False, False
                try:
                    while not over and (line := worker.hear(self._wait(doing, end))) is not None:
                        ((kind, value),) = line.items()
                        if kind == "begin":
                            base, variant, doing = "", "", ""
                            over = self._late(plan.device, left[0], end)
                            if not over:
                                self.tell(self._progress(_key(plan.device, left[0])))
                        elif kind == "variant":
                            variant, doing = value
                            base = base or variant
                        else:
                            variant, doing, given_up = "", "", {}
                            self._foreseen += self._cost(plan.device, left.pop(0))
                            self._ended(Rounds(**value))
                except TimeoutError:
                    timed_out = True
                if not left or over or (timed_out and time.monotonic() >= end):
                    break
                if timed_out and variant and variant != base and doing != "rounds":
                    given_up = {**given_up, variant: self._given_up(doing)}
                    continue
                # It ended before its plan: the group that it was at is the reason.
                self._foreseen += self._cost(plan.device, left[0])
                ended = f"took more than {mode.limit:.0f} s" if timed_out else worker.reason()
                found = failed(left.pop(0), plan, ended if timed_out else f"the process ended with {ended}")
                if timed_out and variant and variant == base:
                    why = self._given_up(doing)
                    found.failed, found.facts = {variant: why["reason"]}, {variant: {"at_least": why.get("at_least")}}
                self._ended(found)
                given_up = {}
        for task in left:
            self.left_out.append(_key(plan.device, task))
            self._ended(failed(task, plan, f"{LEFT_OUT}, as the run had to end within {self.mode.budget:.0f} s"))

    def _given_up(self, doing: str) -> dict[str, Any]:
        """Return the reason why a variant was given up, and what its calls took at least."""
        mode = self.mode
        if doing == "call":
            reason = (
                f"a call had not ended after {mode.patience:.0f} s; its precision was not checked, so no ratio is given"
            )
            return {"reason": reason, "at_least": mode.patience}
        what = {"prepare": "be made ready", "compile": "be called for the first time, which compiles it"}
        return {"reason": f"it took more than {mode.limit:.0f} s to {what.get(doing, 'have its precision checked')}"}

    def _wait(self, doing: str, end: float) -> float:
        """Return the seconds until the worker has to say something."""
        limit = self.mode.patience if doing == "call" else self.mode.limit
        return min(limit, end - time.monotonic())

    def _late(self, device: str, task: Task, end: float) -> bool:
        return time.monotonic() + min(self._pace(), 2.0) * self._cost(device, task) >= end

    def _cost(self, device: str, task: Task) -> float:
        return self.expected.groups.get(_key(device, task), 0.0)

    def _pace(self) -> float:
        """Return the time that the groups took until now over the time that was expected."""
        return (time.monotonic() - self._started) / self._foreseen if self._foreseen else 1.0

    def _progress(self, group: str) -> str:
        total = self.mode.processes * sum(map(len, self.tasks.values())) - len(self.before)
        now, said = time.monotonic(), f"{self._done + 1} of {total}: {group}"
        if self.expected.groups:
            left = self._pace() * (self.expected.seconds(self.tasks) - self._foreseen)
            return f"{said}, about {max(min(left, self._until - now), 0.0):.0f} s left"
        left = (now - self._started) / max(self._done, 1) * (total - self._done)
        return f"{said}, about {left:.0f} s left" if self._done else said

    def _ended(self, found: Rounds) -> None:
        self._done += 1
        self.take(found)


def failed(task: Task, plan: BenchPlan, reason: str) -> Rounds:
    """Return the rounds of a group whose process ended: without its first variant, the others have no figures."""
    return Rounds(task[0], plan.device, task[1], plan.process, failed={"fp32": reason})


def _key(device: str, task: Task) -> str:
    return key_of(device, task[1], task[0])


_COMPILE = {"op": 0.03, "step": 0.4, "overhead": 0.0}
"""The time to compile a variant by kind of workload, as a part of the time that a process takes to start: both are work
for Python, which a slow machine does slowly."""
_READY = 12
"""Calls that make a variant ready; see `ampcheck.bench.run.measure`."""


def expect(
    tasks: Mapping[str, Sequence[Task]], mode: Mode, starts: Mapping[str, float], peaks: Mapping[str, Peaks]
) -> Expected:
    """Estimate what the groups of a run take, from a short calibration.

    Args:
        starts: by device, the seconds until a process of it has something to measure.
        peaks: by device, the operations a second that it does in each precision, where that is known.
    """
    known = catalogue()
    begun = {device: starts.get(device, 0.0) for device in tasks}
    groups = {
        _key(device, task): _seconds(known[task[0]], task[1], device, mode, begun[device], peaks.get(device))
        for device, some in tasks.items()
        for task in some
    }
    return Expected(begun, groups)


def _seconds(workload: Workload, compiler: str, device: str, mode: Mode, start: float, peaks: Peaks | None) -> float:
    overhead = isinstance(workload, OverheadWorkload)
    names = ["variant"] * 6 if overhead else [variant.name for variant in variants(workload, device)[0]]
    compiled = compiler != "eager" or device not in COMPILED_AHEAD
    total = 0.0
    for name in names:
        rate = peaks.of(name.removesuffix(AA)) if peaks is not None else None
        call = flops(workload) / rate if rate else 0.0
        whole = (_READY + mode.rounds) * call + mode.rounds * max(call, mode.target)
        total += min(whole, 2 * mode.patience) + start * (_COMPILE[workload.kind] if compiled else 0.01)
    return total
