"""Clocks: what a call really takes on each kind of device, from its start until its results are there."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.observe.recorder import tensors


class Clock:
    """Wall time of calls on a device; the device has ended its work when the clock stops.

    This one suits every device: it waits by the device's `synchronize`. `last` is what the last call returned.
    """

    def __init__(self, device: Device) -> None:
        self.device = device
        self.last: Any = None

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
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


class CpuClock(Clock):
    """For a device that has done its work when a call returns."""

    def wait(self, outputs: Any) -> None:
        """There is nothing to wait for."""


class JaxClock(Clock):
    """For the jax device: each call's outputs are waited for, as JAX returns before it has computed."""

    def wait(self, outputs: Any) -> None:
        """Block until the arrays are computed."""
        from ampcheck.jax_device.storage.arrays import Bytes, held

        if outputs is None:
            self.device.synchronize()
            return
        for tensor in [outputs] if isinstance(outputs, torch.Tensor) else tensors(outputs):
            array = held(tensor)
            (array.array if isinstance(array, Bytes) else array).block_until_ready()


class CudaClock(Clock):
    """For CUDA: a pair of events around each call, read after one synchronization.

    `cold`: the L2 cache is overwritten before each call, so that no call finds the inputs of the one before.
    """

    def __init__(self, device: Device, cold: bool = False) -> None:
        super().__init__(device)
        size = torch.cuda.get_device_properties().L2_cache_size if cold else 0
        self._flush = torch.empty(2 * size, dtype=torch.int8, device="cuda") if size else None

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(count)]
        self.device.synchronize()
        cpu = time.process_time()
        for begin, end in events:
            if self._flush is not None:
                self._flush.zero_()
            begin.record()
            self.last = None
            self.last = call()
            end.record()
        self.device.synchronize()
        milliseconds = sum(begin.elapsed_time(end) for begin, end in events)
        return milliseconds / count / 1e3, (time.process_time() - cpu) / count


def clock(device: Device) -> Clock:
    """The clock for a device."""
    kinds: dict[str, type[Clock]] = {"cpu": CpuClock, "cuda": CudaClock, "jax": JaxClock}
    return kinds.get(device.type, Clock)(device)
