"""Decorated functions that run outside of the region, lose something, or leave the region open."""

from __future__ import annotations

from functools import wraps
from typing import Any

from tests.faults.regions import autocast, region

_CALL = autocast.__call__


def call_does_nothing(self: Any, function: Any) -> Any:
    return function


def call_enters_once(self: Any, function: Any) -> Any:
    entered = []

    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        if entered:
            return function(*args, **kwargs)
        entered.append(True)
        with self:
            return function(*args, **kwargs)

    return decorated


def call_enters_at_decoration(self: Any, function: Any) -> Any:
    self.__enter__()
    return function


def call_loses_result(self: Any, function: Any) -> Any:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> None:
        with self:
            function(*args, **kwargs)

    return decorated


def call_swallows(self: Any, function: Any) -> Any:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        try:
            with self:
                return function(*args, **kwargs)
        except Exception:
            return None

    return decorated


def call_loses_name(self: Any, function: Any) -> Any:
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with self:
            return function(*args, **kwargs)

    return decorated


def call_loses_keywords(self: Any, function: Any) -> Any:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        with self:
            return function(*args)

    return decorated


def call_leaks(self: Any, function: Any) -> Any:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        self.__enter__()
        return function(*args, **kwargs)

    return decorated


def call_leaks_on_exception(self: Any, function: Any) -> Any:
    @wraps(function)
    def decorated(*args: Any, **kwargs: Any) -> Any:
        self.__enter__()
        out = function(*args, **kwargs)
        self.__exit__(None, None, None)
        return out

    return decorated


class _Unbound:
    """Calls a function in a region, but is not a function: a class keeps it as it is, and `self` is lost."""

    def __init__(self, entered: Any, function: Any) -> None:
        wraps(function)(self)
        self._entered, self._function = entered, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._entered:
            return self._function(*args, **kwargs)


def call_not_bound(self: Any, function: Any) -> Any:
    return _Unbound(self, function)


def call_ignores_disabled(self: Any, function: Any) -> Any:
    self._enabled = True
    return _CALL(self, function)


def call_takes_anything(self: Any, function: Any) -> Any:
    return _CALL(self, function) if callable(function) else function


FAULTS = (
    region("decorator-does-nothing", "decorator", "dtype", "got torch.float32", call=call_does_nothing),
    region("decorator-enters-first-call-only", "decorator", "call 1", "torch.float32", call=call_enters_once),
    region("decorator-enters-at-decoration", "decorator", "state after the decoration", call=call_enters_at_decoration),
    region("decorator-loses-result", "decorator", "got None", call=call_loses_result),
    region("decorator-swallows-exceptions", "decorator", "exception", call=call_swallows),
    region("decorator-loses-name", "decorator", "__name__", "'decorated'", call=call_loses_name),
    region("decorator-loses-keywords", "decorator", "arguments as received", call=call_loses_keywords),
    region("decorator-leaks", "decorator", "state after", "got (True, ", call=call_leaks),
    region("decorator-leaks-on-exception", "decorator", "state after the exception", call=call_leaks_on_exception),
    region("decorator-not-for-methods", "decorator", "missing 1 required positional argument", call=call_not_bound),
    region(
        "decorator-ignores-disabled", "decorator", "torch.float32", device="virtual:cuda", call=call_ignores_disabled
    ),
    region("decorator-takes-anything", "decorator", "raised nothing", "TypeError", call=call_takes_anything),
)
