"""Streams and events. JAX orders the work on a device by itself, so there is one stream, and one waits for all."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import Any

from ampcheck.jax_device.storage.memory import synchronize


class Stream:
    """The one stream of the device."""

    stream_id = 0
    device_index = 0

    def __init__(self, device: Any = None, priority: int = 0, **_: Any) -> None:
        pass

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

    def record_event(self, event: Event | None = None) -> Event:
        """`event`, or a new one, recorded."""
        made = Event() if event is None else event
        made.record(self)
        return made

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Stream)

    def __hash__(self) -> int:
        return 0


class Event:
    """A moment in the stream. Recording it waits for the work before it, because JAX keeps no times of its own."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self._timed = enable_timing
        self._at: float | None = None

    def record(self, stream: Any = None) -> None:
        """Wait for all work, and remember when it was done."""
        synchronize()
        self._at = time.perf_counter()

    def synchronize(self) -> None:
        """Nothing is left to wait for: `record` waited."""

    def wait(self, stream: Any = None) -> None:
        """Nothing is left to wait for: `record` waited."""

    def query(self) -> bool:
        """Whether the work before it is done: it is, once recorded."""
        return True

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds from this event to `end_event`. Raises RuntimeError where one was not recorded or not timed."""
        if not (self._timed and end_event._timed) or self._at is None or end_event._at is None:
            raise RuntimeError("elapsed_time wants two recorded events made with enable_timing=True")
        return (end_event._at - self._at) * 1000.0


_stream = Stream()


def current_stream(device: Any = None) -> Stream:
    """The one stream."""
    return _stream


@contextlib.contextmanager
def stream(given: Stream | None) -> Iterator[None]:
    """Context manager: the stream is the current one inside; there is one."""
    yield
