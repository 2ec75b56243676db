"""Faults of regions and of what is around them, for `tests/checks/test_scenario.py`: each by its name, as a context."""

from __future__ import annotations

import asyncio
import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch

AUTOCAST = torch.amp.autocast_mode.autocast
INIT, ENTER, EXIT, CALL = AUTOCAST.__init__, AUTOCAST.__enter__, AUTOCAST.__exit__, AUTOCAST.__call__


def exit_that(do: Callable[[Any, tuple[Any, ...], Any], None]) -> dict[str, Any]:
    """An __exit__ that does something after the right one; `do` gets the region, the exception and the state inside."""

    def leave(self: Any, *error: Any) -> Any:
        inside = (
            torch.is_autocast_enabled(self.device),
            torch.get_autocast_dtype(self.device),
            torch.is_autocast_cache_enabled(),
        )
        out = EXIT(self, *error)
        do(self, error, inside)
        return out

    return {"__exit__": leave}


def enter_that(do: Callable[[Any, Any], None], value: Any = None) -> dict[str, Any]:
    def enter(self: Any) -> Any:
        before = (torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device))
        out = ENTER(self)
        do(self, before)
        return out if value is None else value

    return {"__enter__": enter}


def only_on_error(do: Callable[[Any, Any], None]) -> dict[str, Any]:
    return exit_that(lambda region, error, inside: do(region, inside) if error and error[0] is not None else None)


def keeps_enabled(region: Any, inside: Any) -> None:
    torch.set_autocast_enabled(region.device, inside[0])


def swallowing(self: Any, *error: Any) -> bool:
    EXIT(self, *error)
    return True


def deciding_late(self: Any, device_type: Any, dtype: Any = None, *rest: Any, **options: Any) -> None:
    INIT(self, device_type, dtype, *rest, **options)
    self.late = dtype is None
    self.late_cache = options.get("cache_enabled") is None and len(rest) < 2


def entering_late(self: Any) -> Any:
    if self.late:
        self.fast_dtype = torch.get_autocast_dtype(self.device)
    if self.late_cache:
        self._cache_enabled = torch.is_autocast_cache_enabled()
    return ENTER(self)


def changing_at_construction(self: Any, *arguments: Any, **options: Any) -> None:
    INIT(self, *arguments, **options)
    torch.set_autocast_dtype(self.device, self.fast_dtype)
    torch.set_autocast_enabled(self.device, self._enabled)


def swapped(self: Any, device_type: Any, dtype: Any = None, cache_enabled: Any = None, enabled: Any = True) -> None:
    INIT(self, device_type, dtype, enabled, cache_enabled if cache_enabled is not None else True)
    if isinstance(device_type, str):
        self._cache_enabled = not self._cache_enabled


def taking_anything(self: Any, device_type: Any, *rest: Any, **options: Any) -> None:
    INIT(self, device_type if isinstance(device_type, str) else "cpu", *rest, **options)


def not_a_wrapper(self: Any, function: Any) -> Any:
    return lambda *arguments, **options: (CALL(self, function)(*arguments, **options), None)[1]


def undecorated(self: Any, function: Any) -> Any:
    return function


def open_ended(self: Any, function: Any) -> Any:
    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        self.__enter__()
        return function(*arguments, **options)

    return call


def ending_late(self: Any, function: Any) -> Any:
    """Leaves the region twice."""

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            out = function(*arguments, **options)
        torch.set_autocast_dtype(self.device, torch.float64)
        torch.autocast_increment_nesting()
        return out

    return call


def casting(self: Any, function: Any) -> Any:
    """A decorator that casts what goes in and comes out, as custom_fwd does."""

    def cast(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return value.to(self.fast_dtype)
        return type(value)(map(cast, value)) if type(value) is tuple else value

    @functools.wraps(function)
    def call(*arguments: Any, **options: Any) -> Any:
        with self:
            return cast(function(*map(cast, arguments), **options))

    return call


RUN = threading.Thread.run


def inheriting(self: threading.Thread) -> None:
    """A thread that starts enabled, in another dtype, without the cache and one level deep."""
    torch.set_autocast_enabled("cpu", True)
    torch.set_autocast_dtype("cpu", torch.float64)
    torch.set_autocast_cache_enabled(False)
    torch.autocast_increment_nesting()
    RUN(self)


def is_enabled_reversed(*arguments: Any) -> bool:
    return not torch._C._is_any_autocast_enabled()


MM, BACKWARD = torch.mm, torch.Tensor.backward


def backward_outside_only(self: torch.Tensor) -> None:
    if torch.is_autocast_enabled(self.device.type):
        raise RuntimeError("backward in a region")
    BACKWARD(self)


def never_cast(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return MM(a.float(), b.float())


@contextmanager
def patched(target: Any, **wrong: Any) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in wrong.items():
            stack.enter_context(patch.object(target, name, value))
        yield


def methods(**wrong: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(AUTOCAST, **wrong)


def on_torch(**wrong: Any) -> Callable[[], AbstractContextManager[None]]:
    return lambda: patched(torch, **wrong)


FAULTS: dict[str, Callable[[], AbstractContextManager[None]]] = {
    "exit keeps enabled": methods(**exit_that(lambda r, e, inside: torch.set_autocast_enabled(r.device, inside[0]))),
    "exit keeps dtype": methods(**exit_that(lambda r, e, inside: torch.set_autocast_dtype(r.device, inside[1]))),
    "exit keeps cache_enabled": methods(**exit_that(lambda r, e, inside: torch.set_autocast_cache_enabled(inside[2]))),
    "exit keeps the depth": methods(**exit_that(lambda r, e, inside: torch.autocast_increment_nesting() and None)),
    "exit drops what is kept": methods(**exit_that(lambda r, e, inside: torch.clear_autocast_cache())),
    "exit turns other types off": methods(
        **exit_that(lambda r, e, i: [torch.set_autocast_enabled(t, False) for t in ("cpu", "xpu")] and None)
    ),
    "exit on an error keeps enabled": methods(**only_on_error(keeps_enabled)),
    "exit swallows": methods(__exit__=swallowing),
    "exit of what was not entered": methods(__exit__=lambda self, *e: torch.set_autocast_enabled(self.device, False)),
    "enter sets no dtype": methods(**enter_that(lambda r, before: torch.set_autocast_dtype(r.device, before[1]))),
    "enter does not enable": methods(**enter_that(lambda r, before: torch.set_autocast_enabled(r.device, before[0]))),
    "enter sets no cache_enabled": methods(**enter_that(lambda r, b: torch.set_autocast_cache_enabled(True))),
    "enter sets other types": methods(
        **enter_that(lambda r, b: [torch.set_autocast_enabled(t, r._enabled) for t in ("cpu", "xpu")] and None)
    ),
    "enter returns something else": methods(**enter_that(lambda r, before: None, value=object())),
    "options decided at entry": methods(__init__=deciding_late, __enter__=entering_late),
    "construction changes the state": methods(__init__=changing_at_construction),
    "arguments in another order": methods(__init__=swapped),
    "any device type is taken": methods(__init__=taking_anything),
    "decorator does nothing": methods(__call__=undecorated),
    "decorator loses name and result": methods(__call__=not_a_wrapper),
    "decorator never leaves": methods(__call__=open_ended),
    "decorator leaves too late": methods(__call__=ending_late),
    "decorator casts": methods(__call__=casting),
    "nothing is dropped": on_torch(clear_autocast_cache=lambda: None),
    "nothing is cast": on_torch(mm=never_cast),
    "backward raises in a region": lambda: patched(torch.Tensor, backward=backward_outside_only),
    "the state is misreported": on_torch(is_autocast_enabled=is_enabled_reversed),
    "threads inherit": lambda: patched(threading.Thread, run=inheriting),
    "to_thread stays": lambda: patched(asyncio, to_thread=lambda call: asyncio.sleep(0, call())),
}
