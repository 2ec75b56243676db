"""Clocks for each kind of device, and interleaved rounds: each variant once a round, in random order."""

import math
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.observe.recorder import tensors

LATE = 0.2
"""The share of a sample by which a first reading may take longer than a second one."""
FLOOR = 2e-4
"""Seconds by which it may in any case: allocating, and waking a thread."""


class Clock:
    """Wall time of calls on a device; the device has ended its work when the clock stops.

    This one suits every device: it waits by the device's `synchronize`. `last` is what the last call returned.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.last: Any = None

    def sample(self, call: Callable[[], object], count: int) -> tuple[float, float]:
        """Seconds of wall time and of this process's CPU time that one call takes, the mean of `count` in a row."""
        self.wait(None)
        cpu, started = time.process_time(), time.perf_counter()
        for _ in range(count):
            self.last = None  # the memory of one result serves the next, as in torch.utils.benchmark
            self.last = call()
            self.wait(self.last)
        return (time.perf_counter() - started) / count, (time.process_time() - cpu) / count

    def wait(self, outputs: Any) -> None:
        """Return when the work is done that the outputs come from."""
        self.device.synchronize()

    def late(self, sample: float) -> str:
        """Say why the clock stopped before the work of the last sample was done, "" where it did not.

        `sample`: its seconds, for all calls together. To be asked as soon as the clock has stopped: the first reading
        of the outputs waits for what is still running, the second one shows what reading alone takes.
        """
        outputs = [tensor for tensor in tensors(self.last) if tensor.device.type == self.device.type]
        times = [time.perf_counter()]
        for _ in range(2):
            for tensor in outputs:
                self.device.host(tensor)
            times.append(time.perf_counter())
        first, second = times[1] - times[0], times[2] - times[1]
        if first - second <= max(LATE * sample, FLOOR):
            return ""
        return f"work was still running when the clock stopped: {first - second:.2g} s of it after {sample:.2g} s"


class CpuClock(Clock):
    """For a device that has done its work when a call returns."""

    def wait(self, outputs: Any) -> None:
        """There is nothing to wait for."""


class JaxClock(Clock):
    """For the jax device: each call's outputs are waited for, as JAX returns before it has computed."""

    def wait(self, outputs: Any) -> None:
        """Block until the arrays are computed."""
        from ampcheck.jax_device.storage.arrays import Bytes, held  # noqa: PLC0415  # jax only where it is measured

        if outputs is None:
            self.device.synchronize()
            return
        for tensor in [outputs] if isinstance(outputs, torch.Tensor) else tensors(outputs):
            array = held(tensor)
            (array.array if isinstance(array, Bytes) else array).block_until_ready()


class CudaClock(Clock):
    """For CUDA: one event before the calls of a sample and one behind them, as events jitter by microseconds.

    `host`: the host's clock instead, for the overhead of calls that give the GPU little or nothing.
    """

    def __init__(self, device: Device, host: bool = False) -> None:
        super().__init__(device)
        self._host = host
        self._end: Any = None

    def sample(self, call: Callable[[], object], count: int) -> tuple[float, float]:
        begin, self._end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        self.device.synchronize()
        cpu, started = time.process_time(), time.perf_counter()
        begin.record()
        for _ in range(count):
            self.last = None
            self.last = call()
        self._end.record()
        launched = time.perf_counter() - started
        self.device.synchronize()
        seconds = launched if self._host else begin.elapsed_time(self._end) / 1e3
        return seconds / count, (time.process_time() - cpu) / count

    def late(self, sample: float) -> str:
        """Ask whether the event behind the last calls has come; reading a large result would take longer than it."""
        return "" if self._end.query() else f"work was still running when the clock stopped after {sample:.2g} s"


def clock(device: Device, overhead: bool = False) -> Clock:
    """Return the clock for a device. `overhead`: for workloads that measure what the host does."""
    if device.type == "cuda":
        return CudaClock(device, host=overhead)
    kinds: dict[str, type[Clock]] = {"cpu": CpuClock, "jax": JaxClock}
    return kinds.get(device.type, Clock)(device)


_WARM = 3
_MOST = 20_000


@dataclass(slots=True)
class Timed:
    """Something to time: a call that makes `calls` of the workload, and what to do before each sample (unclocked)."""

    call: Callable[[], object]
    before: Callable[[], None] | None = None
    count: int = 1
    calls: int = 1


def warm_up(clock: Clock, call: Callable[[], object], times: int = _WARM) -> float:
    """Call until nothing is compiled any more. Returns the seconds of the first call."""
    started = time.perf_counter()
    clock.wait(call())
    first = time.perf_counter() - started
    for _ in range(times - 1):
        clock.wait(call())
    return first


def calibrate(clock: Clock, call: Callable[[], object], target: float) -> int:
    """Find the number of calls in a row that take about `target` seconds; at least one."""
    count = 1
    while True:
        seconds = clock.sample(call, count)[0]
        wanted = min(max(math.ceil(target / max(seconds, 1e-9)), 1), _MOST)
        if wanted <= 2 * count or seconds * count >= target / 2:
            return max(wanted, 1)
        count = min(wanted, 10 * count)


def interleave(
    clock: Clock, variants: Mapping[str, Timed], rounds: int, seed: int
) -> tuple[dict[str, list[float]], dict[str, list[float]], dict[str, list[str]]]:
    """Time every variant once a round.

    Returns by variant, in the order of the rounds, wall seconds of one call of the workload, CPU seconds, and why the
    clock had stopped too early, "" where it had not.
    """
    order, shuffled = list(variants), random.Random(seed)
    wall: dict[str, list[float]] = {name: [] for name in order}
    cpu: dict[str, list[float]] = {name: [] for name in order}
    late: dict[str, list[str]] = {name: [] for name in order}
    for _ in range(rounds):
        shuffled.shuffle(order)
        for name in order:
            variant = variants[name]
            if variant.before is not None:
                variant.before()
            clock.sample(variant.call, 1)  # the variant before left its own data in the caches
            seconds, busy = clock.sample(variant.call, variant.count)
            late[name].append(clock.late(seconds * variant.count))
            wall[name].append(seconds / variant.calls)
            cpu[name].append(busy / variant.calls)
    return wall, cpu, late
