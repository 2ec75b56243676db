"""Regions that set, keep or restore the wrong state, or take the wrong arguments: methods of `torch.autocast` replaced."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault

autocast = torch.amp.autocast_mode.autocast
_INIT, _ENTER, _EXIT, _CALL = autocast.__init__, autocast.__enter__, autocast.__exit__, autocast.__call__
Method = Callable[..., Any]
TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")


def region(
    name: str, rule: str, *says: str, device: str = "cpu", options: tuple[str, ...] = (), **methods: Method
) -> Fault:
    """A fault that replaces methods of `torch.autocast`: `init`, `enter`, `exit` or `call`."""

    def plant() -> AbstractContextManager[object]:
        stack = ExitStack()
        for method, wrong in methods.items():
            stack.enter_context(patch.object(autocast, f"__{method}__", wrong))
        return stack

    return Fault(name, rule, plant, says, (f"--device={device}", *options))


# ---- leaving a region


def exit_keeps_enabled(self: Any, *exc: Any) -> Any:
    inside = torch.is_autocast_enabled(self.device)
    out = _EXIT(self, *exc)
    torch.set_autocast_enabled(self.device, inside)
    return out


def exit_keeps_dtype(self: Any, *exc: Any) -> Any:
    inside = torch.get_autocast_dtype(self.device)
    out = _EXIT(self, *exc)
    torch.set_autocast_dtype(self.device, inside)
    return out


def exit_keeps_cache_setting(self: Any, *exc: Any) -> Any:
    inside = torch.is_autocast_cache_enabled()
    out = _EXIT(self, *exc)
    torch.set_autocast_cache_enabled(inside)
    return out


def exit_always_disables(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    torch.set_autocast_enabled(self.device, False)
    return out


def exit_to_default_dtype(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    torch.set_autocast_dtype(self.device, torch.bfloat16 if self.device == "cpu" else torch.float16)
    return out


def exit_to_cache_on(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    torch.set_autocast_cache_enabled(True)
    return out


def exit_leaves_a_level(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    torch.autocast_increment_nesting()
    return out


def exit_only_without_exception(self: Any, *exc: Any) -> Any:
    return _EXIT(self, *exc) if exc[0] is None else False


def exit_keeps_dtype_on_exception(self: Any, *exc: Any) -> Any:
    return _EXIT(self, *exc) if exc[0] is None else exit_keeps_dtype(self, *exc)


def exit_drops_level_only_without_exception(self: Any, *exc: Any) -> Any:
    return _EXIT(self, *exc) if exc[0] is None else exit_leaves_a_level(self, *exc)


def exit_swallows(self: Any, *exc: Any) -> Any:
    _EXIT(self, *exc)
    return exc[0] is not None


def exit_changes_exception(self: Any, *exc: Any) -> Any:
    _EXIT(self, *exc)
    if exc[0] is not None:
        raise RuntimeError("a region failed") from exc[1]
    return False


def exit_touches_other_types(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    for name in TYPES:
        torch.set_autocast_enabled(name, torch.is_autocast_enabled(self.device))
    return out


def exit_by_count(self: Any, *exc: Any) -> Any:
    """From the third level on the outer dtype does not come back."""
    torch.autocast_increment_nesting()
    deep = torch.autocast_decrement_nesting() >= 3
    return exit_keeps_dtype(self, *exc) if deep else _EXIT(self, *exc)


# ---- entering a region


def enter_without_dtype(self: Any) -> Any:
    before = torch.get_autocast_dtype(self.device)
    out = _ENTER(self)
    torch.set_autocast_dtype(self.device, before)
    return out


def enter_without_enabling(self: Any) -> Any:
    before = torch.is_autocast_enabled(self.device)
    out = _ENTER(self)
    torch.set_autocast_enabled(self.device, before)
    return out


def enter_without_cache_setting(self: Any) -> Any:
    before = torch.is_autocast_cache_enabled()
    out = _ENTER(self)
    torch.set_autocast_cache_enabled(before)
    return out


def enter_returns_nothing(self: Any) -> Any:
    _ENTER(self)


def enter_cannot_disable(self: Any) -> Any:
    before = torch.is_autocast_enabled(self.device)
    out = _ENTER(self)
    torch.set_autocast_enabled(self.device, before or self._enabled)
    return out


def enter_cannot_enable_again(self: Any) -> Any:
    """Inside a disabled region a region stays disabled."""
    inside = torch.autocast_increment_nesting() > 1
    torch.autocast_decrement_nesting()
    before = torch.is_autocast_enabled(self.device)
    out = _ENTER(self)
    torch.set_autocast_enabled(self.device, self._enabled and (before or not inside))
    return out


def enter_keeps_outer_dtype(self: Any) -> Any:
    enabled, dtype = torch.is_autocast_enabled(self.device), torch.get_autocast_dtype(self.device)
    out = _ENTER(self)
    if enabled:
        torch.set_autocast_dtype(self.device, dtype)
    return out


def enter_ignores_enabled(self: Any) -> Any:
    out = _ENTER(self)
    torch.set_autocast_enabled(self.device, True)
    return out


def enter_enables_other_types(self: Any) -> Any:
    out = _ENTER(self)
    for name in TYPES:
        torch.set_autocast_enabled(name, self._enabled)
    return out


def enter_with_dtype_in_force(self: Any) -> Any:
    """The dtype is decided on entry and not at construction."""
    if not getattr(self, "given", True):
        self.fast_dtype = torch.get_autocast_dtype(self.device)
    return _ENTER(self)


def init_notes_dtype(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    _INIT(self, device_type, dtype, *args, **kwargs)
    self.given = dtype is not None


# ---- making a region


def init_disabled(
    self: Any, device_type: Any, dtype: Any = None, enabled: bool = False, cache_enabled: Any = None
) -> None:
    _INIT(self, device_type, dtype, enabled, cache_enabled)


def init_default_float16(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    _INIT(self, device_type, dtype or torch.float16, *args, **kwargs)


def init_default_bfloat16(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    _INIT(self, device_type, dtype or torch.bfloat16, *args, **kwargs)


def init_fixed_default(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    """The default is the device type's, whatever set_autocast_dtype said."""
    own = torch.bfloat16 if device_type == "cpu" else torch.float16
    _INIT(self, device_type, dtype or own, *args, **kwargs)


def init_cache_on(
    self: Any, device_type: Any, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    _INIT(self, device_type, dtype, enabled, cache_enabled is not False)


def init_takes_devices(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
    _INIT(self, getattr(device_type, "type", device_type), *args, **kwargs)


def init_takes_anything(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
    """An unknown device type is taken for the CPU."""
    known = not isinstance(device_type, str) or device_type in TYPES
    _INIT(self, device_type if known else "cpu", *args, **kwargs)


def init_vague(self: Any, device_type: Any, *args: Any, **kwargs: Any) -> None:
    """Refuses what it should, in words that name nothing."""
    try:
        _INIT(self, device_type, *args, **kwargs)
    except Exception as error:
        raise type(error)("invalid argument") from None


def init_silent(self: Any, *args: Any, **kwargs: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _INIT(self, *args, **kwargs)


def init_warns_vaguely(self: Any, *args: Any, **kwargs: Any) -> None:
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        _INIT(self, *args, **kwargs)
    if seen:
        warnings.warn("something is not supported", stacklevel=2)


def init_enables_unsupported(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    _INIT(self, device_type, dtype, *args, **kwargs)
    if dtype is not None and dtype.itemsize > 2:
        self._enabled = True


def init_raises_for_unsupported(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    if dtype is not None and dtype.itemsize > 2:
        raise RuntimeError(f"{dtype} is not supported")
    _INIT(self, device_type, dtype, *args, **kwargs)


# ---- decorating


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
    """Calls a function in a region, but is no function: a class keeps it as it is, and `self` is lost."""

    def __init__(self, entered: Any, function: Any) -> None:
        wraps(function)(self)
        self._entered, self._function = entered, function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        with self._entered:
            return self._function(*args, **kwargs)


def call_ignores_disabled(self: Any, function: Any) -> Any:
    self._enabled = True
    return _CALL(self, function)


def call_takes_anything(self: Any, function: Any) -> Any:
    return _CALL(self, function) if callable(function) else function


CONTEXT = (
    region("exit-keeps-enabled", "context", exit=exit_keeps_enabled),
    region("exit-keeps-dtype", "context", exit=exit_keeps_dtype),
    region("exit-keeps-cache-setting", "context", exit=exit_keeps_cache_setting),
    region("exit-turns-cache-on", "context", exit=exit_to_cache_on),
    region("enter-without-dtype", "context", enter=enter_without_dtype),
    region("enter-without-enabling", "context", device="virtual:cuda", enter=enter_without_enabling),
    region("enter-without-cache-setting", "context", enter=enter_without_cache_setting),
    region("enter-returns-nothing", "context", enter=enter_returns_nothing),
    region("enter-ignores-enabled", "context", enter=enter_ignores_enabled),
    region("enter-enables-other-types", "context", enter=enter_enables_other_types),
    region("exit-touches-other-types", "context", exit=exit_touches_other_types),
)

NESTING = (
    region("exit-always-disables", "nesting", exit=exit_always_disables),
    region("exit-to-default-dtype", "nesting", exit=exit_to_default_dtype),
    region("inner-cannot-disable", "nesting", enter=enter_cannot_disable),
    region("inner-cannot-enable-again", "nesting", enter=enter_cannot_enable_again),
    region("inner-keeps-outer-dtype", "nesting", device="virtual:cuda", enter=enter_keeps_outer_dtype),
    region("third-level-keeps-dtype", "nesting", exit=exit_by_count),
    region("inner-touches-other-types", "nesting", exit=exit_touches_other_types),
    region("exit-leaves-a-level", "state", exit=exit_leaves_a_level),
)

EXCEPTIONS = (
    region("exception-leaves-region-open", "exceptions", exit=exit_only_without_exception),
    region("exception-keeps-dtype", "exceptions", exit=exit_keeps_dtype_on_exception),
    region("exception-leaves-a-level", "exceptions", exit=exit_drops_level_only_without_exception),
    region("exception-swallowed", "exceptions", exit=exit_swallows),
    region("exception-changed", "exceptions", exit=exit_changes_exception),
)

DEFAULTS = (
    region("disabled-by-default", "defaults", init=init_disabled),
    region("cpu-default-float16", "defaults", init=init_default_float16),
    region("cuda-default-bfloat16", "defaults", device="virtual:cuda", init=init_default_bfloat16),
    region("default-ignores-dtype-in-force", "defaults", init=init_fixed_default),
    region("default-turns-cache-on", "defaults", init=init_cache_on),
    region("dtype-decided-on-entry", "defaults", init=init_notes_dtype, enter=enter_with_dtype_in_force),
)

ERRORS = (
    region("takes-torch-device", "errors", init=init_takes_devices),
    region("takes-unknown-device-type", "errors", init=init_takes_anything),
    region("refuses-in-vague-words", "errors", init=init_vague),
    region("unsupported-dtype-silent", "errors", init=init_silent),
    region("unsupported-dtype-vague", "errors", init=init_warns_vaguely),
    region("unsupported-dtype-enabled", "errors", init=init_enables_unsupported),
    region("unsupported-dtype-raises", "errors", init=init_raises_for_unsupported),
)

DECORATOR = (
    region("decorator-does-nothing", "decorator", call=call_does_nothing),
    region("decorator-enters-first-call-only", "decorator", call=call_enters_once),
    region("decorator-enters-at-decoration", "decorator", call=call_enters_at_decoration),
    region("decorator-loses-result", "decorator", call=call_loses_result),
    region("decorator-swallows-exceptions", "decorator", call=call_swallows),
    region("decorator-loses-name", "decorator", call=call_loses_name),
    region("decorator-loses-keywords", "decorator", call=call_loses_keywords),
    region("decorator-leaks", "decorator", call=call_leaks),
    region("decorator-leaks-on-exception", "decorator", call=call_leaks_on_exception),
    region("decorator-not-for-methods", "decorator", call=_Unbound),
    region("decorator-ignores-disabled", "decorator", device="virtual:cuda", call=call_ignores_disabled),
    region("decorator-takes-anything", "decorator", call=call_takes_anything),
)


# ---- threads

_RUN = threading.Thread.run
_START = threading.Thread.start


def run_enabled(self: threading.Thread) -> None:
    for name in TYPES:
        torch.set_autocast_enabled(name, True)
    _RUN(self)


def start_noting_state(self: threading.Thread) -> None:
    self.state = [(name, torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in TYPES]  # type: ignore[attr-defined]
    _START(self)


def run_with_parents_enabled(self: threading.Thread) -> None:
    for name, enabled, _ in self.state:  # type: ignore[attr-defined]
        torch.set_autocast_enabled(name, enabled)
    _RUN(self)


def run_with_parents_dtype(self: threading.Thread) -> None:
    for name, _, dtype in self.state:  # type: ignore[attr-defined]
        torch.set_autocast_dtype(name, dtype)
    _RUN(self)


def run_without_cache(self: threading.Thread) -> None:
    torch.set_autocast_cache_enabled(False)
    _RUN(self)


def thread(name: str, *says: str, **methods: Method) -> Fault:
    """A fault of the state that a thread starts with."""

    def plant() -> AbstractContextManager[object]:
        stack = ExitStack()
        for method, wrong in methods.items():
            stack.enter_context(patch.object(threading.Thread, method, wrong))
        return stack

    return Fault(name, "threads", plant, says, ("--device=cpu",))


THREADS = (
    thread("threads-start-enabled", run=run_enabled),
    thread("threads-inherit-enabled", start=start_noting_state, run=run_with_parents_enabled),
    thread("threads-inherit-dtype", start=start_noting_state, run=run_with_parents_dtype),
    thread("threads-start-without-cache", run=run_without_cache),
)

FAULTS = (*CONTEXT, *NESTING, *EXCEPTIONS, *DEFAULTS, *ERRORS, *DECORATOR, *THREADS)
