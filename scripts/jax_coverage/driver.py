"""Runs workers side by side, so that an op that ends its process or hangs costs that one op."""

from __future__ import annotations

import queue
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ampcheck.runner.worker import Worker
from scripts.jax_coverage.records import Row, Sample

COMMAND = (sys.executable, "-m", "scripts.jax_coverage.worker")
_RENEWED = 100  # ops a worker measures before another takes its place: compiled programs take memory
_STARTING_S = 180.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`samples`: how many of an op's are run. `seconds`: for one op. `processes`: side by side."""

    samples: int = 6
    seconds: float = 90.0
    processes: int = 2
    command: Sequence[str] = COMMAND


def sweep(jobs: Sequence[tuple[str, str]], settings: Settings, done: Callable[[Row], None]) -> None:
    """Measure (way, op) pairs; `done` is given each row, one at a time. Raises RuntimeError if a worker cannot start.

    Each process takes the next pair, of one way first, so that none waits while work is left.
    """
    waiting: queue.SimpleQueue[tuple[str, str]] = queue.SimpleQueue()
    for job in jobs:
        waiting.put(job)
    stopping, lock = threading.Event(), threading.Lock()
    failures: list[BaseException] = []

    def run() -> None:
        try:
            _share(waiting, settings, stopping, lambda row: _locked(lock, done, row))
        except BaseException as error:  # raised again by the caller's thread
            failures.append(error)
            stopping.set()

    threads = [threading.Thread(target=run) for _ in range(settings.processes)]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            thread.join()
    except KeyboardInterrupt:
        stopping.set()
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]


def _locked(lock: threading.Lock, done: Callable[[Row], None], row: Row) -> None:
    with lock:
        done(row)


def _share(
    waiting: queue.SimpleQueue[tuple[str, str]],
    settings: Settings,
    stopping: threading.Event,
    done: Callable[[Row], None],
) -> None:
    """Take pairs and have this thread's worker measure them."""
    worker: Worker | None = None
    current, count = "", 0
    try:
        while not stopping.is_set():
            try:
                way, op = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is not None and (way != current or count >= _RENEWED):
                worker.stop()
                worker = None
            if worker is None:
                worker, current, count = _started(way, settings), way, 0
            count += 1
            row, alive = measured(worker, way, op, settings.seconds, stopping)
            if not alive:
                worker = None
            if row is not None:
                done(row)
    finally:
        if worker is not None:
            worker.stop()


def _started(way: str, settings: Settings) -> Worker:
    worker = Worker([*settings.command, way, str(settings.samples)])
    try:
        said = worker.hear(_STARTING_S)
    except TimeoutError:
        said = None
    if said is None:
        worker.stop()
        raise RuntimeError(f"a worker that measures {way} did not start: {worker.last_line()}")
    return worker


def measured(worker: Worker, way: str, op: str, seconds: float, stopping: threading.Event) -> tuple[Row | None, bool]:
    """Return the op's row and whether the worker lives on. None for the row where it was stopped in the middle."""
    row, left = Row(op, way), seconds
    worker.tell(op)
    while True:
        try:
            said = worker.hear(min(left, 1.0))
        except TimeoutError:
            left -= 1.0
            if stopping.is_set():
                worker.stop()
                return None, False
            if left > 0:
                continue
            worker.stop()
            row.samples.append(Sample(_next(row), f"timeout: the op's samples took over {seconds:g} s"))
            return row, False
        if said is None:
            code = worker.status()
            worker.stop()
            row.samples.append(Sample(_next(row), f"crash: the process ended with {code}: {worker.last_line()[:200]}"))
            return row, False
        if said.get("done"):
            return row, True
        if "sample" in said:
            row.samples.append(Sample(*said["sample"]))
        else:
            row.refused += 1


def _next(row: Row) -> int:
    return max((s.index for s in row.samples), default=-1) + 1
