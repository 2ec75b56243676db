"""CUDA graphs: what a short op takes once launching it costs nothing, beside what it takes launched one by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

LIMIT = 50e-6
"""Seconds. An op that takes longer is not bound by its launch, and a graph of it shows nothing new."""

_CALLS = 10


class TooLong(RuntimeError):
    """An op whose launch is not what it waits for."""


def graphed(call: Callable[[], object]) -> Callable[[], object]:
    """Return a call's kernels as a CUDA graph, captured at the first call; it returns the same tensors each time.

    Raises TooLong at the first call where a launched one takes `LIMIT` or longer, RuntimeError where CUDA cannot
    capture it.
    """
    held: list[tuple[Any, Any]] = []

    def replay() -> Any:
        if not held:
            held.append(_capture(call))
        graph, outputs = held[0]
        graph.replay()
        return outputs

    return replay


def _capture(call: Callable[[], object]) -> tuple[Any, Any]:
    """Return a graph of the call and its outputs. What a first call makes, as a library's handle, must exist."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        call()
        side.synchronize()
        started = time.perf_counter()
        for _ in range(_CALLS):
            call()
        side.synchronize()
        seconds = (time.perf_counter() - started) / _CALLS
    torch.cuda.current_stream().wait_stream(side)
    if seconds >= LIMIT:
        raise TooLong(f"a launched call takes {seconds * 1e6:.0f} us; graphs are for those below {LIMIT * 1e6:.0f} us")
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        outputs = call()
    return graph, outputs
