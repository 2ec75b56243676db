"""Interleaved rounds: in each, every variant is timed once, in random order, so that what disturbs one disturbs all."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ampcheck.bench.core.clocks import Clock

_WARM = 3
_MOST = 20_000


@dataclass(slots=True)
class Timed:
    """Something to time: a call, and what to do before each sample (outside of the clock)."""

    call: Callable[[], Any]
    before: Callable[[], None] | None = None
    count: int = 1


def warm_up(clock: Clock, call: Callable[[], Any], times: int = _WARM) -> float:
    """Call until nothing is compiled any more. Returns the seconds of the first call."""
    started = time.perf_counter()
    clock.wait(call())
    first = time.perf_counter() - started
    for _ in range(times - 1):
        clock.wait(call())
    return first


def calibrate(clock: Clock, call: Callable[[], Any], target: float) -> int:
    """Find the number of calls in a row that take about `target` seconds; at least one."""
    count = 1
    while True:
        seconds = clock.sample(call, count)[0]
        wanted = min(max(math.ceil(target / max(seconds, 1e-9)), 1), _MOST)
        if wanted <= 2 * count or seconds * count >= target / 2:
            return max(wanted, 1)
        count = min(wanted, 10 * count)


def interleave(
    clock: Clock,
    variants: Mapping[str, Timed],
    rounds: int,
    seed: int,
    check: Callable[[str, float], None] | None = None,
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Time every variant once a round.

    Args:
        check: called after each sample with the variant's name and the sample's seconds; `clock.last` is its output.

    Returns wall seconds of one call, and CPU seconds, by variant in the order of the rounds.
    """
    order, shuffled = list(variants), random.Random(seed)
    wall: dict[str, list[float]] = {name: [] for name in order}
    cpu: dict[str, list[float]] = {name: [] for name in order}
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            variant = variants[name]
            if variant.before is not None:
                variant.before()
            clock.sample(variant.call, 1)  # the variant before left its own data in the caches
            seconds, busy = clock.sample(variant.call, variant.count)
            if check is not None:
                check(name, seconds * variant.count)
            wall[name].append(seconds)
            cpu[name].append(busy)
    return wall, cpu
