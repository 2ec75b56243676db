"""Threads that take turns, and threads whose value or exception comes back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from ampcheck.observe.threads import in_thread, interleave


def test_threads_run_in_turns() -> None:
    order: list[str] = []

    def worker(name: str, steps: int) -> Iterator[None]:
        for step in range(steps):
            order.append(f"{name}{step}")
            yield

    interleave([lambda: worker("a", 3), lambda: worker("b", 1), lambda: worker("c", 2)], contextlib.nullcontext)
    assert order == ["a0", "b0", "c0", "a1", "c1", "a2"]


def test_an_exception_in_a_thread_is_raised_here() -> None:
    def fail() -> None:
        raise KeyError("planned")

    with pytest.raises(KeyError, match="planned"):
        in_thread(fail, contextlib.nullcontext)
    assert in_thread(lambda: 3, contextlib.nullcontext) == 3
