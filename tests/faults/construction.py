"""Regions made with the wrong defaults, of what should be refused, or without a warning."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.regions import TYPES, autocast, region

_INIT, _ENTER = autocast.__init__, autocast.__enter__


def enter_with_dtype_in_force(self: Any) -> Any:
    """The dtype is decided on entry and not at construction."""
    if not getattr(self, "given", True):
        self.fast_dtype = torch.get_autocast_dtype(self.device)
    return _ENTER(self)


def init_notes_dtype(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    _INIT(self, device_type, dtype, *args, **kwargs)
    self.given = dtype is not None


def init_disabled(
    self: Any, device_type: Any, dtype: Any = None, enabled: bool = False, cache_enabled: Any = None
) -> None:
    _INIT(self, device_type, dtype, enabled, cache_enabled)


def default(of: Callable[[Any], torch.dtype]) -> Callable[..., None]:
    def init(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
        _INIT(self, device_type, dtype or of(device_type), *args, **kwargs)

    return init


init_default_float16 = default(lambda device_type: torch.float16)
init_default_bfloat16 = default(lambda device_type: torch.bfloat16)
# whatever set_autocast_dtype said
init_fixed_default = default(lambda device_type: torch.bfloat16 if device_type == "cpu" else torch.float16)


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


def init_needs_names(
    self: Any, device_type: Any, *, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    """The options are taken by name only."""
    _INIT(self, device_type, dtype, enabled, cache_enabled)


def init_only_low(self: Any, device_type: Any, dtype: Any = None, *args: Any, **kwargs: Any) -> None:
    """A region of float32 is disabled without a word, also where any dtype is taken."""
    _INIT(self, device_type, dtype, *args, **kwargs)
    if dtype is torch.float32:
        self._enabled = False


DEFAULTS = (
    region("disabled-by-default", "defaults", "given nothing else: got (False, ", init=init_disabled),
    region("options-by-name-only", "defaults", "positional", init=init_needs_names),
    region("cpu-default-float16", "defaults", "dtype of the region: got torch.float16", init=init_default_float16),
    region(
        "cuda-default-bfloat16",
        "defaults",
        "dtype of the region: got torch.bfloat16",
        device="virtual:cuda",
        init=init_default_bfloat16,
    ),
    region(
        "default-ignores-dtype-in-force", "defaults", "set_autocast_dtype: got torch.bfloat16", init=init_fixed_default
    ),
    region("default-turns-cache-on", "defaults", "cache_enabled, not given", "got True", init=init_cache_on),
    region(
        "dtype-decided-on-entry",
        "defaults",
        "dtype of a product: got torch.",
        init=init_notes_dtype,
        enter=enter_with_dtype_in_force,
    ),
)

ERRORS = (
    region("takes-torch-device", "errors", "raised nothing", "ValueError", init=init_takes_devices),
    region("takes-unknown-device-type", "errors", "raised nothing", "nosuchdevice", init=init_takes_anything),
    region("refuses-in-vague-words", "errors", "invalid argument", "device_type", init=init_vague),
    region("unsupported-dtype-silent", "errors", "warned of nothing", "torch.float32", init=init_silent),
    region("unsupported-dtype-vague", "errors", "something is not supported", "torch.float32", init=init_warns_vaguely),
    region("unsupported-dtype-enabled", "errors", "enabled in the region: got True", init=init_enables_unsupported),
    region("unsupported-dtype-raises", "errors", "RuntimeError", "torch.float32", init=init_raises_for_unsupported),
    region(
        "cuda-float32-disabled",
        "errors",
        "state in the region: got (False, torch.float32",
        device="virtual:cuda",
        init=init_only_low,
    ),
)

FAULTS = (*DEFAULTS, *ERRORS)
