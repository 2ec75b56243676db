"""Runs workers side by side, so that an op that ends its process or hangs costs that one op."""

from __future__ import annotations

import contextlib
import json
import queue
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import IO, Any

from ampcheck.tools.jax_coverage.records import Row, Sample

COMMAND = (sys.executable, "-m", "ampcheck.tools.jax_coverage.worker")
_RENEWED = 100  # ops a worker measures before another takes its place: compiled programs take memory
_STARTING_S = 180.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`samples`: how many of an op's are run. `seconds`: for one op. `processes`: side by side."""

    samples: int = 6
    seconds: float = 90.0
    processes: int = 2
    command: Sequence[str] = COMMAND


class Worker:
    """One worker process and the lines it says."""

    def __init__(self, way: str, settings: Settings) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed with the worker
        self.process = subprocess.Popen(
            [*settings.command, way, str(settings.samples)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.measured = 0

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def ask(self, op: str) -> None:
        """Tell the worker to measure an op."""
        assert self.process.stdin is not None
        self.process.stdin.write(op + "\n")
        self.process.stdin.flush()
        self.measured += 1

    def hear(self, seconds: float) -> dict[str, Any] | None:
        """The next thing the worker says, None where its process ended. Raises TimeoutError."""
        try:
            line = self._lines.get(timeout=seconds)
        except queue.Empty:
            raise TimeoutError from None
        return json.loads(line) if line is not None else None

    def stop(self) -> str:
        """End the process; the last line it wrote to standard error."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self._reader.join()
        for stream in (self.process.stdin, self.process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").split("\n")
        self._errors.close()
        return next((line.strip() for line in reversed(lines) if line.strip()), "")


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
    """What one thread does: take pairs and have its worker measure them."""
    worker: Worker | None = None
    current = ""
    try:
        while not stopping.is_set():
            try:
                way, op = waiting.get_nowait()
            except queue.Empty:
                return
            if worker is not None and (way != current or worker.measured >= _RENEWED):
                worker.stop()
                worker = None
            if worker is None:
                worker, current = _started(way, settings), way
            row, alive = measured(worker, way, op, settings.seconds, stopping)
            if not alive:
                worker = None
            if row is not None:
                done(row)
    finally:
        if worker is not None:
            worker.stop()


def _started(way: str, settings: Settings) -> Worker:
    worker = Worker(way, settings)
    try:
        said = worker.hear(_STARTING_S)
    except TimeoutError:
        said = None
    if said is None:
        raise RuntimeError(f"a worker that measures {way} did not start: {worker.stop()}")
    return worker


def measured(worker: Worker, way: str, op: str, seconds: float, stopping: threading.Event) -> tuple[Row | None, bool]:
    """The op's row and whether the worker lives on. None for the row where it was stopped in the middle."""
    row, left = Row(op, way), seconds
    worker.ask(op)
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
            code = worker.process.wait()
            row.samples.append(Sample(_next(row), f"crash: the process ended with {code}: {worker.stop()[:200]}"))
            return row, False
        if said.get("done"):
            return row, True
        if "sample" in said:
            row.samples.append(Sample(*said["sample"]))
        else:
            row.refused += 1


def _next(row: Row) -> int:
    return max((s.index for s in row.samples), default=-1) + 1
