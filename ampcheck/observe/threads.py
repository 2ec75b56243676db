"""Threads for scenarios and programs: only one of them runs at a time, so what they find does not depend on luck."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import TypeVar

T = TypeVar("T")
Within = Callable[[], AbstractContextManager[object]]
"""Makes the context each new thread is entered into, such as a device's `activate`."""


class _Worker:
    """A generator function that runs in a thread of its own, up to its next yield each time it is told to go on."""

    def __init__(self, steps: Callable[[], Iterator[None]], within: Within) -> None:
        self._steps = steps
        self._within = within
        self._go = threading.Semaphore(0)
        self._stopped = threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ended = False
        self.error: BaseException | None = None

    def start(self) -> None:
        """Start the thread; it waits for the first step."""
        self._thread.start()

    def step(self) -> None:
        """Let the thread run to its next yield, or to its end."""
        self._go.release()
        self._stopped.acquire()
        if self.ended:
            self._thread.join()

    def _run(self) -> None:
        self._go.acquire()
        try:
            with self._within():
                for _ in self._steps():
                    self._stopped.release()
                    self._go.acquire()
        except BaseException as error:  # handed to the thread that waits for this one
            self.error = error
        self.ended = True
        self._stopped.release()


def interleave(workers: Sequence[Callable[[], Iterator[None]]], within: Within) -> None:
    """Run generator functions, each in a thread of its own, in turns: each goes on to its next `yield`, then the next.

    Raises the first exception one of them raised, once all have ended.
    """
    threads = [_Worker(steps, within) for steps in workers]
    for thread in threads:
        thread.start()
    waiting = list(threads)
    while waiting:
        for thread in waiting:
            thread.step()
        waiting = [thread for thread in waiting if not thread.ended]
    for thread in threads:
        if thread.error is not None:
            raise thread.error


def in_thread(call: Callable[[], T], within: Within) -> T:
    """The value of a call made in a new thread; an exception it raises is raised here."""
    found: list[T] = []

    def steps() -> Iterator[None]:
        found.append(call())
        yield from ()

    interleave([steps], within)
    return found[0]
