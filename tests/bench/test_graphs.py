"""An op replayed from a CUDA graph: captured once, only where launching it is what takes the time."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from unittest.mock import MagicMock

import pytest
import torch

from ampcheck.bench.core import graphs


class Graph:
    """Take the place of `torch.cuda.CUDAGraph`."""

    replayed = 0

    def replay(self) -> None:
        Graph.replayed += 1


@pytest.fixture(autouse=True)
def _cuda(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a GPU has none of these; what they do is CUDA's, in which order they are called is ours."""
    Graph.replayed = 0
    for name in ("Stream", "current_stream"):
        monkeypatch.setattr(torch.cuda, name, MagicMock())
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    monkeypatch.setattr(torch.cuda, "graph", lambda _: contextlib.nullcontext())


def counting(seconds: float, calls: list[int]) -> Callable[[], int]:
    def call() -> int:
        time.sleep(seconds)
        calls.append(1)
        return len(calls)

    return call


def test_the_graph_is_captured_once_and_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(graphs, "LIMIT", 10.0)  # a busy machine takes its time
    calls: list[int] = []
    replay = graphs.graphed(counting(0, calls))
    assert not calls, "nothing runs before the first call"
    first = replay()
    captured = len(calls)
    assert [replay(), replay()] == [first, first]
    assert (len(calls), Graph.replayed) == (captured, 3)


def test_an_op_that_is_not_bound_by_its_launch_has_no_graph() -> None:
    with pytest.raises(graphs.TooLong, match="graphs are for those below 50 us"):
        graphs.graphed(counting(2 * graphs.LIMIT, []))()
    assert not Graph.replayed
