"""Regions that set, keep or restore the wrong state: methods of `torch.autocast` replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault

autocast = torch.amp.autocast_mode.autocast
_ENTER, _EXIT = autocast.__enter__, autocast.__exit__
Method = Callable[..., Any]
TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")


def replaced(where: Any, **wrong: Method) -> ExitStack:
    """Attributes of a class or a module replaced while entered."""
    stack = ExitStack()
    for name, body in wrong.items():
        stack.enter_context(patch.object(where, name, body))
    return stack


def region(name: str, rule: str, *says: str, device: str = "cpu", only: str = "", **methods: Method) -> Fault:
    """A fault that replaces methods of `torch.autocast`: `init`, `enter`, `exit` or `call`."""
    wrong = {f"__{method}__": body for method, body in methods.items()}
    amp = "fp16" if rule in ("context", "nesting", "exceptions") else ""  # half the cases tell as much
    return Fault(name, rule, lambda: replaced(autocast, **wrong), says, device=device, only=only, amp=amp)


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


def exit_disables_other_types(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    for name in TYPES:
        if name != self.device:
            torch.set_autocast_enabled(name, False)
    return out


def exit_twice_the_level(self: Any, *exc: Any) -> Any:
    """Ends two levels at once where there are two."""
    if torch.autocast_decrement_nesting() < 1:
        torch.autocast_increment_nesting()
    out = _EXIT(self, *exc)
    if torch.autocast_increment_nesting() > 0:
        torch.autocast_decrement_nesting()
    return out


def enter_twice_disabled(self: Any) -> Any:
    """An object that is entered again does nothing."""
    out = _ENTER(self)
    if getattr(self, "entered", False):
        torch.set_autocast_enabled(self.device, False)
    self.entered = True
    return out


def exit_of_disabled_keeps_dtype(self: Any, *exc: Any) -> Any:
    return _EXIT(self, *exc) if self._enabled else exit_keeps_dtype(self, *exc)


CONTEXT = (
    region("exit-keeps-enabled", "context", "state after the region", "got (True, ", exit=exit_keeps_enabled),
    region("exit-keeps-dtype", "context", "state after the region", "torch.float16", exit=exit_keeps_dtype),
    region("exit-keeps-cache-setting", "context", "state after the region", "False)", exit=exit_keeps_cache_setting),
    region("exit-turns-cache-on", "context", "state after the region", "True)", exit=exit_to_cache_on),
    region("enter-without-dtype", "context", "dtype a product runs in", "torch.float16", enter=enter_without_dtype),
    region(
        "enter-without-enabling",
        "context",
        "state inside the region: got (False, ",
        device="virtual:cuda",
        enter=enter_without_enabling,
    ),
    region(
        "enter-without-cache-setting", "context", "state inside the region", "False)", enter=enter_without_cache_setting
    ),
    region("enter-returns-nothing", "context", "__enter__", enter=enter_returns_nothing),
    region("enter-ignores-enabled", "context", "state inside the region: got (True, ", enter=enter_ignores_enabled),
    region(
        "enter-enables-other-types", "context", "other device types", "'cuda', True", enter=enter_enables_other_types
    ),
    region("second-entry-disabled", "context", "time 1: got (False, ", enter=enter_twice_disabled),
)

NESTING = (
    region("disabled-region-keeps-dtype", "nesting", "back outside: got torch.", exit=exit_of_disabled_keeps_dtype),
    region("exit-always-disables", "nesting", "back at depth 1: got torch.float32", exit=exit_always_disables),
    region("exit-to-default-dtype", "nesting", "back at depth", "torch.bfloat16", exit=exit_to_default_dtype),
    region("inner-cannot-disable", "nesting", "disabled: got torch.bfloat16", enter=enter_cannot_disable),
    region("inner-cannot-enable-again", "nesting", "enabled again: got torch.float32", enter=enter_cannot_enable_again),
    region(
        "inner-keeps-outer-dtype",
        "nesting",
        "depth 2: got torch.",
        device="virtual:cuda",
        enter=enter_keeps_outer_dtype,
    ),
    region("third-level-keeps-dtype", "nesting", "back at depth 2", exit=exit_by_count),
    region("inner-touches-other-types", "nesting", "state of xpu", "got (False, ", exit=exit_touches_other_types),
    region("inner-disables-other-types", "nesting", "other", "got (False, ", exit=exit_disables_other_types),
    region("exit-leaves-a-level", "state", "depth", "got 3; expected 1", exit=exit_leaves_a_level),
    region("exit-ends-two-levels", "state", "depth", exit=exit_twice_the_level),
)

EXCEPTIONS = (
    region("exception-leaves-region-open", "exceptions", "got (True, ", exit=exit_only_without_exception),
    region("exception-keeps-dtype", "exceptions", "torch.float16", exit=exit_keeps_dtype_on_exception),
    region("exception-leaves-a-level", "exceptions", "depth", exit=exit_drops_level_only_without_exception),
    region("exception-swallowed", "exceptions", "what came out", "got 'nothing'", exit=exit_swallows),
    region("exception-changed", "exceptions", "same exception", exit=exit_changes_exception),
)

PROGRAMS = (
    region("program-second-entry", "programs", "inside the region is off", only="known", enter=enter_twice_disabled),
    region("program-keeps-dtype", "programs", "fp16", only="known", exit=exit_keeps_dtype),
    region("program-exception-open", "programs", "on", only="known", exit=exit_only_without_exception),
    region("program-leaves-a-level", "programs", "depth 2; expected on", only="known", exit=exit_leaves_a_level),
)

FAULTS = (*CONTEXT, *NESTING, *EXCEPTIONS, *PROGRAMS)
