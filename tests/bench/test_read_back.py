"""Work that goes on after the clock has stopped is found, and slow reading is not taken for it."""

from __future__ import annotations

import re
import threading
from itertools import count

import pytest
import torch

from ampcheck.bench.core import precision_check


class Later:
    """A result that a thread gives some time after it was asked for."""

    def __init__(self, seconds: float) -> None:
        self.done = threading.Event()
        threading.Timer(seconds, self.done.set).start()

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        self.done.wait()
        return tensor.clone()


def test_work_that_goes_on_after_the_clock_is_found() -> None:
    running = Later(0.2)
    reason = precision_check.read_back([torch.ones(3)], running.host, 0.01)
    assert re.match(r"work was still running when the clock stopped: \S+ s of it after 0.01 s", reason)
    ended = Later(0)
    ended.done.wait()
    assert precision_check.read_back([torch.ones(3)], ended.host, 0.5) == ""


@pytest.mark.parametrize(
    ("first", "second", "sample", "late"),
    [
        (1e-4, 1e-6, 1e-6, False),  # a tiny call: reading has its own costs
        (5e-4, 1e-6, 1e-6, True),
        (0.15, 0.01, 1.0, False),  # less than a fifth of the sample
        (0.35, 0.1, 1.0, True),
        (3.0, 3.0, 0.01, False),  # reading is slow, the second time as well
    ],
)
def test_how_late_is_late(first: float, second: float, sample: float, late: bool) -> None:
    times = iter([0.0, first, first + second])
    reason = precision_check.read_back({"out": torch.ones(1)}, torch.clone, sample, lambda: next(times))
    assert bool(reason) is late


def test_every_output_is_read_twice() -> None:
    read, ticks = [], count()
    precision_check.read_back(
        [torch.ones(1), (torch.zeros(2),)], lambda t: read.append(t.numel()) or t, 1.0, lambda: next(ticks)
    )
    assert read == [1, 2, 1, 2]
