"""Streams and events. JAX orders the work on a device by itself, so there is one stream, and one waits for all."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Iterator
from functools import cache
from typing import Any

import torch

from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.storage.memory import synchronize
from ampcheck.jax_device.torch_private import C
from ampcheck.jax_device.torch_types import replace

_ids = itertools.count(1)


class Stream(torch.Stream):
    """The one stream of the device: `torch.jax.Stream`, and what `torch.Stream("jax")` makes."""

    def __new__(cls, device: Any = None, priority: int = 0, **_: Any) -> Stream:
        index_of(device)
        made: Stream = super().__new__(cls, device="jax:0")
        return made

    def synchronize(self) -> None:
        """Returns when all work is done."""
        synchronize()

    def query(self) -> bool:
        """Whether all work is done: always, after it was waited for, as JAX cannot tell otherwise."""
        synchronize()
        return True

    def wait_stream(self, stream: Any) -> None:
        """Nothing to do: there is one stream."""

    def wait_event(self, event: Any) -> None:
        """Nothing to do: there is one stream."""

    def record_event(self, event: Any = None) -> Any:
        """`event`, or a new one, recorded."""
        made = Event() if event is None else event
        made.record(self)
        return made


class Event(torch.Event):
    """A moment in the stream: `torch.jax.Event`, and what `torch.Event("jax")` makes.

    Recording it waits for the work before it, because JAX keeps no times of its own.
    """

    def __new__(cls, device: Any = None, enable_timing: bool = False, **_: Any) -> Event:
        # torch.jax.Event takes enable_timing first, as torch.cuda.Event does; torch.Event takes a device first.
        if not isinstance(device, bool):
            index_of(device)
        made: Event = super().__new__(cls, device="jax", enable_timing=enable_timing or device is True)
        return made

    def __init__(self, device: Any = None, enable_timing: bool = False, **_: Any) -> None:
        self._timed = enable_timing or device is True
        self._id = 0
        self._at = 0.0

    @property
    def event_id(self) -> int:  # type: ignore[override]
        """A number that no other recording has; 0 before the first one."""
        return self._id

    def record(self, stream: Any = None) -> None:
        """Wait for all work, and remember when it was done."""
        synchronize()
        self._id, self._at = next(_ids), time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for: `record` waited."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is left to wait for: `record` waited."""

    def query(self) -> bool:
        """Whether the work before it is done: it is, once recorded."""
        return True

    def elapsed_time(self, end_event: Any) -> float:
        """Milliseconds from this event to `end_event`. Raises ValueError where one was not recorded or not timed."""
        if not (self._timed and end_event._timed and self._id and end_event._id):
            raise ValueError("elapsed_time wants two recorded events made with enable_timing=True")
        return float(end_event._at - self._at) * 1000.0

    def __repr__(self) -> str:
        return f"torch.jax.Event(enable_timing={self._timed}, event_id={self._id})"


@cache
def current_stream(device: Any = None) -> Stream:
    """The one stream. Errors: as `index_of`."""
    return Stream(device)


@contextlib.contextmanager
def stream(given: Any) -> Iterator[None]:
    """Context manager: the stream is the current one inside; there is one."""
    yield


def install() -> None:
    """Replace `torch.Stream` and `torch.Event`, and what `torch.accelerator` asks of streams and device indices.

    PyTorch's own functions take any index, and its objects of the device raise where they are waited for.
    """
    replace(torch.Stream, Stream, None)
    replace(torch.Event, Event, None)
    for name, function in {
        "_accelerator_getStream": current_stream,
        "_accelerator_setDeviceIndex": index_of,
        "_accelerator_exchangeDevice": index_of,
    }.items():
        if hasattr(C, name):
            setattr(C, name, function)
