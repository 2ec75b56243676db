"""Regions that set, keep or restore the wrong state: methods of `torch.autocast` replaced."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
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


def then(method: Method, action: Callable[[Any], object]) -> Method:
    """Return the method, which calls `action(region)` afterwards."""

    def call(self: Any, *exc: Any) -> Any:
        out = method(self, *exc)
        action(self)
        return out

    return call


def unchanged(method: Method, get: Callable[[Any], Any], put: Callable[[Any, Any], object]) -> Method:
    """Return the method without its effect on a part of the state: it is put back afterwards."""

    def call(self: Any, *exc: Any) -> Any:
        before = get(self)
        return then(method, lambda region: put(region, before))(self, *exc)

    return call


def is_enabled(region: Any) -> bool:
    return torch.is_autocast_enabled(region.device)


def set_enabled(region: Any, enabled: bool) -> None:
    torch.set_autocast_enabled(region.device, enabled)


ENABLED = (is_enabled, set_enabled)
DTYPE = (
    lambda region: torch.get_autocast_dtype(region.device),
    lambda region, dtype: torch.set_autocast_dtype(region.device, dtype),
)
CACHE = (lambda _: torch.is_autocast_cache_enabled(), lambda _, enabled: torch.set_autocast_cache_enabled(enabled))


# ---- leaving a region


exit_keeps_enabled, exit_keeps_dtype, exit_keeps_cache_setting = (
    unchanged(_EXIT, *part) for part in (ENABLED, DTYPE, CACHE)
)
exit_always_disables = then(_EXIT, lambda self: set_enabled(self, False))
exit_to_default_dtype = then(
    _EXIT, lambda self: DTYPE[1](self, torch.bfloat16 if self.device == "cpu" else torch.float16)
)
exit_to_cache_on = then(_EXIT, lambda self: torch.set_autocast_cache_enabled(True))
exit_leaves_a_level = then(_EXIT, lambda self: torch.autocast_increment_nesting())


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


def set_types(enabled: Callable[[Any], bool], but_own: bool = False) -> Callable[[Any], None]:
    """Return an action that enables or disables every device type."""

    def action(region: Any) -> None:
        for name in TYPES:
            if not but_own or name != region.device:
                torch.set_autocast_enabled(name, enabled(region))

    return action


exit_touches_other_types = then(_EXIT, set_types(is_enabled))
exit_disables_other_types = then(_EXIT, set_types(lambda region: False, but_own=True))


def exit_by_count(self: Any, *exc: Any) -> Any:
    """From the third level on the outer dtype does not come back."""
    torch.autocast_increment_nesting()
    deep = torch.autocast_decrement_nesting() >= 3
    return exit_keeps_dtype(self, *exc) if deep else _EXIT(self, *exc)


# ---- entering a region


enter_without_enabling, enter_without_dtype, enter_without_cache_setting = (
    unchanged(_ENTER, *part) for part in (ENABLED, DTYPE, CACHE)
)
enter_cannot_disable = unchanged(_ENTER, is_enabled, lambda self, before: set_enabled(self, before or self._enabled))
enter_ignores_enabled = then(_ENTER, lambda self: set_enabled(self, True))
enter_enables_other_types = then(_ENTER, set_types(lambda region: region._enabled))


def enter_returns_nothing(self: Any) -> Any:
    _ENTER(self)


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


def walked(name: str, says: str, **wrong: Any) -> Fault:
    """A fault of regions that is seen where each step is taken from each state."""
    return replace(region(f"{name}-in-a-transition", "state", "state after", says, **wrong), op="every_transition")


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
    walked("disabled-region-keeps-dtype", "off", exit=exit_of_disabled_keeps_dtype),
    walked("third-level-keeps-dtype", "and a region's end", exit=exit_by_count),
    walked("exception-keeps-dtype", "raise", exit=exit_keeps_dtype_on_exception),
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
