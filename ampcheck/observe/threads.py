"""Threads for scenarios and programs: only one of them runs at a time, so what they find does not depend on luck."""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack
from typing import TypeVar

T = TypeVar("T")
Within = Callable[[], AbstractContextManager[object]]
"""Makes the context each new thread is entered into, such as a device's `activate`."""


def interleave(workers: Sequence[Callable[[], Iterator[None]]], within: Within) -> None:
    """Run generator functions, each in a new thread, in turns: each goes on to its next `yield`, then the next.

    Raises the first exception one of them raised, once all have ended.
    """
    errors: list[BaseException] = []

    def run(steps: Callable[[], Iterator[None]]) -> Iterator[bool]:
        with within():
            for _ in steps():
                yield True

    with ExitStack() as stack:
        waiting = [(stack.enter_context(ThreadPoolExecutor(1)), run(steps)) for steps in workers]
        while waiting:
            for turn in [*waiting]:
                step = turn[0].submit(next, turn[1], False)
                errors += [error] if (error := step.exception()) else []
                if error or not step.result():
                    waiting.remove(turn)
    if errors:
        raise errors[0]


def in_thread(call: Callable[[], T], within: Within) -> T:
    """Return the value of a call made in a new thread; an exception it raises is raised here."""

    def run() -> T:
        with within():
            return call()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(run).result()
