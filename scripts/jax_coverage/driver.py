"""Runs workers side by side, so that an op that ends its process or hangs costs that one op."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
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
    waiting, lock, stopping = iter(jobs), threading.Lock(), threading.Event()

    def share() -> None:
        """Take pairs and have this thread's worker measure them."""
        worker: Worker | None = None
        current, count = "", 0
        try:
            while not stopping.is_set():
                with lock:
                    job = next(waiting, None)
                if job is None:
                    return
                way, op = job
                if worker is not None and (way != current or count >= _RENEWED):
                    worker.stop()
                    worker = None
                if worker is None:
                    worker, current, count = _started(way, settings), way, 0
                count += 1
                row, alive = measured(worker, way, op, settings.seconds, stopping)
                worker = worker if alive else None
                if row is not None:
                    with lock:
                        done(row)
        except BaseException:
            stopping.set()
            raise
        finally:
            if worker is not None:
                worker.stop()

    with ThreadPoolExecutor(settings.processes) as pool:
        try:
            for future in [pool.submit(share) for _ in range(settings.processes)]:
                future.result()
        except BaseException:
            stopping.set()
            raise


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
