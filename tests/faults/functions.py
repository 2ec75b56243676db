"""State functions that read or set the wrong thing, or refuse too little."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tests.faults.fault import Fault
from tests.faults.regions import TYPES, replaced

_IS = torch.is_autocast_enabled
_SET = torch.set_autocast_enabled
_GET_DTYPE = torch.get_autocast_dtype
_SET_DTYPE = torch.set_autocast_dtype
_IS_CACHE = torch.is_autocast_cache_enabled
_SET_CACHE = torch.set_autocast_cache_enabled
_CLEAR = torch.clear_autocast_cache
_INCREMENT = torch.autocast_increment_nesting
_AVAILABLE = torch.amp.autocast_mode.is_autocast_available


def functions(
    name: str, *says: str, rule: str = "state", device: str = "cpu", where: Any = torch, **wrong: Callable[..., Any]
) -> Fault:
    """Return a fault that replaces functions of `where`."""
    return Fault(name, rule, lambda: replaced(where, **wrong), says, device=device)


def never_enabled(*args: Any) -> bool:
    _IS(*args)
    return False


def enabled_for_cpu_only(*args: Any) -> bool:
    return _IS(*args) and args == ("cpu",)


def enabled_if_any(*args: Any) -> bool:
    _IS(*args)
    return any(_IS(name) for name in TYPES)


def enabled_takes_devices(*args: Any) -> bool:
    return _IS(*(getattr(arg, "type", arg) for arg in args))


def enabled_takes_unknown(*args: Any) -> bool:
    try:
        return _IS(*args)
    except RuntimeError:
        return False


def enabled_vague(*args: Any) -> bool:
    try:
        return _IS(*args)
    except Exception as error:
        raise type(error)("invalid argument") from None


def stale_dtype(device_type: str) -> torch.dtype:
    _GET_DTYPE(device_type)
    return torch.bfloat16 if device_type == "cpu" else torch.float16


def everywhere(set_: Callable[..., None]) -> Callable[..., None]:
    def call(*args: Any) -> None:
        set_(*args)
        for name in TYPES:
            set_(name, args[-1])

    return call


def set_enabled_once(*args: Any) -> None:
    """Never disable autocast."""
    if args[-1] is not False or len(args) != 2:
        _SET(*args)


def set_enabled_takes_numbers(*args: Any) -> None:
    _SET(*args[:-1], bool(args[-1]) if isinstance(args[-1], int) else args[-1])


def set_dtype_low_only(*args: Any) -> None:
    if len(args) == 2 and args[1] in (torch.float32, torch.float64):
        raise RuntimeError(f"{args[1]} is not supported")
    _SET_DTYPE(*args)


def set_dtype_returns(*args: Any) -> Any:
    before = _GET_DTYPE(args[0])
    _SET_DTYPE(*args)
    return before


def _available(name: str, wrong: Callable[..., Any], says: str, device: str = "cpu") -> Fault:
    """Return a fault of is_autocast_available under both its names."""

    def inject() -> AbstractContextManager[object]:
        stack = replaced(torch.amp, is_autocast_available=wrong)
        stack.enter_context(replaced(torch.amp.autocast_mode, is_autocast_available=wrong))
        return stack

    return Fault(name, "defaults", inject, (says,), device=device)


FAULTS = (
    functions("is-enabled-never", "enabled after setting True: got False", is_autocast_enabled=never_enabled),
    functions(
        "is-enabled-on-cpu-only",
        "enabled after setting True: got False",
        device="virtual:cuda",
        is_autocast_enabled=enabled_for_cpu_only,
    ),
    functions("is-enabled-if-any", "while cuda is enabled: got (True, ", is_autocast_enabled=enabled_if_any),
    functions("is-enabled-takes-device", "read_device", "raised nothing", is_autocast_enabled=enabled_takes_devices),
    functions("is-enabled-takes-unknown", "read_unknown", "raised nothing", is_autocast_enabled=enabled_takes_unknown),
    functions("is-enabled-refuses-vaguely", "invalid argument", "must be str", is_autocast_enabled=enabled_vague),
    functions(
        "get-dtype-stale", "dtype after setting torch.float16: got torch.bfloat16", get_autocast_dtype=stale_dtype
    ),
    functions(
        "set-enabled-everywhere",
        "other types after enabling",
        "(True, torch.float16)",
        set_autocast_enabled=everywhere(_SET),
    ),
    functions(
        "set-enabled-never-off",
        "enabled after setting False: got True",
        device="virtual:xpu",
        set_autocast_enabled=set_enabled_once,
    ),
    functions(
        "set-enabled-takes-number", "set_number", "raised nothing", set_autocast_enabled=set_enabled_takes_numbers
    ),
    functions("set-dtype-everywhere", "other types", "this one's dtype", set_autocast_dtype=everywhere(_SET_DTYPE)),
    functions("set-dtype-low-only", "torch.float32 is not supported", set_autocast_dtype=set_dtype_low_only),
    functions(
        "set-dtype-nothing",
        "dtype after setting torch.bfloat16: got torch.float16",
        device="virtual:mps",
        set_autocast_dtype=lambda *args: None,
    ),
    functions(
        "set-dtype-returns-old",
        "set_autocast_dtype: got torch.bfloat16; expected None",
        set_autocast_dtype=set_dtype_returns,
    ),
    functions(
        "set-cache-nothing",
        "cache_enabled after setting False: got True",
        set_autocast_cache_enabled=lambda enabled: None,
    ),
    functions(
        "set-cache-takes-number",
        "reuse_number",
        "raised nothing",
        set_autocast_cache_enabled=lambda enabled: _SET_CACHE(bool(enabled)),
    ),
    functions(
        "is-cache-always-on", "cache_enabled after setting False: got True", is_autocast_cache_enabled=lambda: True
    ),
    functions("depth-one-too-many", "incrementing returns: got 2", autocast_increment_nesting=lambda: _INCREMENT() + 1),
    _available("available-everywhere", lambda device_type: True, "is_autocast_available('meta'): got True"),
    _available(
        "available-on-cpu-only",
        lambda device_type: _AVAILABLE(device_type) and device_type == "cpu",
        "is_autocast_available: got False",
        device="virtual:cuda",
    ),
)
