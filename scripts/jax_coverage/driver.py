"""Measures ops in processes side by side, so that an op that ends its process or hangs costs that one op.

As a process it gets a way, a number of samples and the ops, and answers JSON objects in lines: {"reason":
"…"} or {"refused": true} for each sample, and {"done": true} after each op.
"""

import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from ampcheck.runner.worker import Channel, Worker
from scripts.jax_coverage.page import Row

COMMAND = (sys.executable, "-m", "scripts.jax_coverage.driver")
_RENEWED = 100  # ops a process measures before another takes its place: compiled programs take memory
_STARTING_S = 90.0


@dataclass(frozen=True, slots=True)
class Settings:
    """`samples`: how many of an op's are run. `seconds`: for one op. `processes`: side by side."""

    samples: int = 6
    seconds: float = 90.0
    processes: int = 2
    command: Sequence[str] = COMMAND


def sweep(jobs: Sequence[tuple[str, str]], settings: Settings, done: Callable[[Row], None]) -> None:
    """Measure (way, op) pairs; `done` is given each row, one at a time."""
    lock, stopping = threading.Lock(), threading.Event()
    by_way: dict[str, list[str]] = {}
    for way, op in jobs:
        by_way.setdefault(way, []).append(op)

    def share(way: str, left: list[str]) -> None:
        """Have processes measure ops one after the other, a new one where the last ended or was ended."""
        while left and not stopping.is_set():
            with Worker([*settings.command, way, str(settings.samples), *left]) as worker:
                late, alive = _STARTING_S, True
                while left and alive:
                    row = Row(left.pop(0), way)
                    alive = _measured(worker, row, settings.seconds, late, stopping)
                    late = 0.0
                    if not stopping.is_set():
                        with lock:
                            done(row)

    with ThreadPoolExecutor(settings.processes) as pool:
        parts = [(way, ops[i : i + _RENEWED]) for way, ops in by_way.items() for i in range(0, len(ops), _RENEWED)]
        try:
            for future in [pool.submit(share, *part) for part in parts]:
                future.result()
        except BaseException:
            stopping.set()
            raise


def _measured(worker: Worker, row: Row, seconds: float, late: float, stopping: threading.Event) -> bool:
    """Add to the row what the process says of its op. Returns whether the process goes on to the next one."""
    left, reason = seconds + late, ""
    while not reason and not stopping.is_set():
        try:
            said = worker.hear(1.0)
        except TimeoutError:
            left -= 1.0
            if left <= 0:
                reason = f"timeout: the op's samples took over {seconds:g} s"
            continue
        if said is None:
            reason = f"crash: the process ended with {worker.status()}: {worker.last_line()[:200]}"
        elif "done" in said:
            return True
        elif "reason" in said:
            row.reasons.append(said["reason"])
        else:
            row.refused += 1
    row.reasons.append(reason)
    return False


def main(arguments: list[str]) -> None:
    """Answer for the ops that the arguments name, after the way and the number of samples."""
    channel = Channel()
    from scripts.jax_coverage import measure  # noqa: PLC0415  # imports torch, after the channel is taken

    way, limit, *names = arguments
    implementation = measure.IMPLEMENTATIONS[way]()
    for name in names:
        for reason in measure.measure(measure.ops()[name], implementation, int(limit)):
            channel.send({"refused": True} if reason is None else {"reason": reason})
        channel.send({"done": True})


if __name__ == "__main__":
    main(sys.argv[1:])
