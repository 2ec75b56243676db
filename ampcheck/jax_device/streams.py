"""Streams and events. JAX orders the work on a device by itself, so there is one stream, and one waits for all."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import cache

import torch

from ampcheck.jax_device.annotations import Device, Tree
from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.storage.memory import synchronize
from ampcheck.jax_device.torch_private import C
from ampcheck.jax_device.torch_types import replace

_ids = itertools.count(1)


class Stream(torch.Stream):
    """The one stream of the device: `torch.jax.Stream`, and what `torch.Stream("jax")` makes."""

    def __new__(cls, device: Device = None, priority: int = 0, **_: object) -> Stream:
        index_of(device)
        made: Stream = super().__new__(cls, device="jax:0")
        return made

    def synchronize(self) -> None:
        """Wait until all work is done."""
        synchronize()

    def query(self) -> bool:
        """Return whether all work is done: always, after it was waited for, as JAX cannot tell otherwise."""
        synchronize()
        return True

    def wait_stream(self, stream: torch.Stream | None) -> None:
        """Do nothing: there is one stream."""

    def wait_event(self, event: torch.Event) -> None:
        """Do nothing: there is one stream."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record `event`, or a new one, and return it."""
        made = DeviceEvent() if event is None else event
        made.record(self)
        return made


class DeviceEvent(torch.Event):
    """A moment in the stream: `torch.jax.Event`, and what `torch.Event("jax")` makes.

    Recording it waits for the work before it, because JAX keeps no times of its own.
    """

    def __new__(cls, device: Device = None, enable_timing: bool = False, **_: object) -> DeviceEvent:
        # torch.jax.Event takes enable_timing first, as torch.cuda.Event does; torch.Event takes a device first.
        if not isinstance(device, bool):
            index_of(device)
        made: DeviceEvent = super().__new__(cls, device="jax", enable_timing=enable_timing or device is True)
        return made

    def __init__(self, device: Device = None, enable_timing: bool = False, **_: object) -> None:
        self._timed = enable_timing or device is True
        self._id = 0
        self._at = 0.0

    @property
    def event_id(self) -> int:  # type: ignore[override]
        """Return a number that no other recording has; 0 before the first one."""
        return self._id

    def record(self, stream: torch.Stream | None = None) -> None:
        """Wait for all work, and remember when it was done."""
        synchronize()
        self._id, self._at = next(_ids), time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: `record` waited already."""

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: `record` waited already."""

    def query(self) -> bool:
        """Return whether the work before it is done: it is, once recorded."""
        return True

    def elapsed_time(self, end_event: Tree) -> float:
        """Return milliseconds from this event to `end_event`. Raise ValueError if one was not recorded or not timed."""
        if not (self._timed and end_event._timed and self._id and end_event._id):
            raise ValueError("elapsed_time wants two recorded events made with enable_timing=True")
        return float(end_event._at - self._at) * 1000.0

    def __repr__(self) -> str:
        return f"torch.jax.Event(enable_timing={self._timed}, event_id={self._id})"


@cache
def current_stream(device: Device = None) -> Stream:
    """Return the only stream. Errors: as `index_of`."""
    return Stream(device)


@contextlib.contextmanager
def stream(given: torch.Stream | None) -> Iterator[None]:
    """Make the stream the current one inside; there is only one."""
    yield


def install() -> None:
    """Replace `torch.Stream` and `torch.Event`, and what `torch.accelerator` asks of streams and device indices.

    PyTorch's own functions take any index, and its objects of the device raise where they are waited for.
    """
    replace(torch.Stream, Stream, None)
    replace(torch.Event, DeviceEvent, None)
    for name, function in {
        "_accelerator_getStream": current_stream,
        "_accelerator_setDeviceIndex": index_of,
        "_accelerator_exchangeDevice": index_of,
    }.items():
        if hasattr(C, name):
            setattr(C, name, function)
