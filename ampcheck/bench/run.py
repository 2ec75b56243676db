"""Runs benchmarks in fresh processes, one after the other, and keeps what each measured."""

from __future__ import annotations

import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import IO, Any

from ampcheck.bench.model import Rounds
from ampcheck.bench.worker import Plan, failed

COMMAND = (sys.executable, "-m", "ampcheck.bench.worker")

Task = tuple[str, str]
"""A workload's name and an executor."""


@dataclass(frozen=True, slots=True)
class Mode:
    """How much is measured: processes, rounds in each, seconds of a sample, and how long a group may take."""

    name: str
    processes: int
    rounds: int
    target: float
    limit: float = 600.0


QUICK = Mode("quick", 1, 5, 0.01)
FULL = Mode("full", 5, 9, 0.05)


@dataclass(frozen=True, slots=True)
class Event:
    """How far a run is: groups measured and to measure over all processes, and the one that begins, "" at the end."""

    done: int
    total: int
    group: str


class Bench:
    """A run of some groups on some devices. `take` gets what each process measured of each group as it comes."""

    def __init__(
        self,
        tasks: dict[str, list[Task]],
        mode: Mode,
        *,
        threads: int,
        modules: Sequence[str] = (),
        take: Callable[[Rounds], None],
        tell: Callable[[Event], None] = lambda event: None,
    ) -> None:
        self._tasks, self._mode, self._threads, self._modules = tasks, mode, threads, modules
        self._take, self._tell = take, tell
        self._done = 0
        self._total = mode.processes * sum(map(len, tasks.values()))

    def run(self) -> None:
        """Measure everything. KeyboardInterrupt ends the worker and goes on to the caller."""
        for process in range(self._mode.processes):
            for device, tasks in self._tasks.items():
                order = list(tasks)
                random.Random(process).shuffle(order)
                plan = Plan(
                    device,
                    list(self._modules),
                    process,
                    self._mode.rounds,
                    self._mode.target,
                    process == 0,
                    self._threads,
                    order,
                )
                self._process(plan)

    def _process(self, plan: Plan) -> None:
        left = list(plan.tasks)
        while left:
            with _Worker(replace(plan, tasks=left), self._mode.limit) as worker:
                for kind, value in worker.lines():
                    if kind == "begin":
                        self._tell(Event(self._done, self._total, f"{plan.device}/{value[1]}/{value[0]}"))
                    else:
                        left.pop(0)
                        self._ended(Rounds(**value))
                if left:  # it ended before its plan: the group it was at is the reason
                    self._ended(failed(left.pop(0), plan, worker.end()))
        self._tell(Event(self._done, self._total, ""))

    def _ended(self, found: Rounds) -> None:
        self._done += 1
        self._take(found)


class _Worker:
    """A process that measures; leaving the context ends it."""

    def __init__(self, plan: Plan, limit: float) -> None:
        self._limit, self._timed_out = limit, False
        self._said: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by __exit__
        self._process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._said,
            env=environment(plan.threads),
        )
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(asdict(plan)).encode())
        self._process.stdin.close()

    def __enter__(self) -> _Worker:
        return self

    def __exit__(self, *error: object) -> None:
        self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()
        self._said.close()

    def lines(self) -> Iterable[tuple[str, Any]]:
        """The worker's lines, kind and value, until it ends or says nothing for too long."""
        assert self._process.stdout is not None
        pipe = self._process.stdout.fileno()
        held = b""
        while True:
            if not select.select([pipe], [], [], self._limit)[0]:
                self._timed_out = True
                return
            read = os.read(pipe, 1 << 16)
            if not read:
                return
            *whole, held = (held + read).split(b"\n")
            for line in whole:
                yield from json.loads(line).items()

    def end(self) -> str:
        """How it ended, in a sentence."""
        if self._timed_out:
            return f"took more than {self._limit:.0f} s"
        code = self._process.wait()
        self._said.seek(0)
        last = self._said.read().decode(errors="replace").strip().splitlines()[-1:]
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        return f"the process ended {how}" + (f": {last[0]}" if last else "")


def environment(threads: int) -> dict[str, str]:
    """The environment of a worker: as many threads everywhere, and no line of Python's that is not flushed."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags += " --xla_cpu_multi_thread_eigen=false"
    named = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**os.environ, **named, "XLA_FLAGS": flags.strip(), "PYTHONUNBUFFERED": "1"}


class Left:
    """Estimates the time left from the groups that are done."""

    def __init__(self) -> None:
        self._started = time.monotonic()

    def seconds(self, event: Event) -> float | None:
        """Seconds until the end, None before anything is done."""
        passed = time.monotonic() - self._started
        return passed / event.done * (event.total - event.done) if event.done else None
