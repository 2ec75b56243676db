"""Threads that do not start outside of every region, or whose regions act on other threads."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault
from tests.faults.kernels import Call, kernel
from tests.faults.regions import TYPES, Method, autocast, replaced

_RUN, _START = threading.Thread.run, threading.Thread.start
_ENTER, _EXIT = autocast.__enter__, autocast.__exit__


def run_enabled(self: threading.Thread) -> None:
    for name in TYPES:
        torch.set_autocast_enabled(name, True)
    _RUN(self)


def start_noting_state(self: threading.Thread) -> None:
    state = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in TYPES]
    self.state = state  # type: ignore[attr-defined]  # a thread takes any attribute
    _START(self)


def run_with_parents_enabled(self: threading.Thread) -> None:
    for name, enabled, _ in self.state:  # type: ignore[attr-defined]  # a thread takes any attribute
        torch.set_autocast_enabled(name, enabled)
    _RUN(self)


def run_with_parents_dtype(self: threading.Thread) -> None:
    for name, _, dtype in self.state:  # type: ignore[attr-defined]  # a thread takes any attribute
        torch.set_autocast_dtype(name, dtype)
    _RUN(self)


def run_without_cache(self: threading.Thread) -> None:
    torch.set_autocast_cache_enabled(False)
    _RUN(self)


def run_one_level_deep(self: threading.Thread) -> None:
    torch.autocast_increment_nesting()
    _RUN(self)


def thread(name: str, *says: str, **methods: Method) -> Fault:
    """A fault of the state that a thread starts with."""
    return Fault(name, "threads", lambda: replaced(threading.Thread, **methods), says)


def one_state_for_all() -> AbstractContextManager[object]:
    """Let the region that any thread entered or left last decide for all threads."""
    enabled = [False]

    def enter(self: Any) -> Any:
        out = _ENTER(self)
        enabled[0] = self._enabled
        return out

    def leave(self: Any, *exc: Any) -> Any:
        out = _EXIT(self, *exc)
        enabled[0] = torch.is_autocast_enabled(self.device)
        return out

    def body(call: Call) -> Any:
        return call.cast(call.low) if enabled[0] else call.run()

    stack = ExitStack()
    stack.enter_context(replaced(autocast, __enter__=enter, __exit__=leave))
    stack.enter_context(kernel("cpu", "mm", body))
    return stack


def one_dtype_for_all() -> AbstractContextManager[object]:
    """Products run in the dtype that any thread set last."""
    last = [torch.bfloat16]
    set_dtype = torch.set_autocast_dtype

    def note(device_type: str, dtype: torch.dtype) -> None:
        set_dtype(device_type, dtype)
        if device_type == "cpu":
            last[0] = dtype

    stack = ExitStack()
    stack.enter_context(patch.object(torch, "set_autocast_dtype", note))
    stack.enter_context(kernel("cpu", "mm", lambda call: call.cast(last[0])))
    return stack


FAULTS = (
    thread("threads-start-enabled", "got (True, ", run=run_enabled),
    thread("threads-inherit-enabled", "got (True, ", start=start_noting_state, run=run_with_parents_enabled),
    thread("threads-inherit-dtype", "torch.float16", start=start_noting_state, run=run_with_parents_dtype),
    thread("threads-start-without-cache", "False)", run=run_without_cache),
    thread("threads-start-one-level-deep", "depth", run=run_one_level_deep),
    Fault("threads-share-enabled", "threads", one_state_for_all, ("dtype",)),
    Fault("threads-share-dtype", "threads", one_dtype_for_all, ("dtype",)),
)
