"""Setters that lose or replace a dtype, and ops that take the dtype that is set where their policy says another."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from tests.faults.casts import always_bfloat16, float32_doubles_too, in_low
from tests.faults.fault import Fault, Inject
from tests.faults.kernels import kernel
from tests.faults.regions import autocast, replaced

_INIT, _SET = autocast.__init__, torch.set_autocast_dtype
_LOW = (torch.float16, torch.bfloat16)


def takes_any(self: Any, *args: Any, enabled: bool = True, **options: Any) -> None:
    """A region of an unsupported dtype says so and is enabled all the same."""
    _INIT(self, *args, enabled=enabled, **options)
    self._enabled = enabled


def quiet(self: Any, *args: Any, **options: Any) -> None:
    """A region of an unsupported dtype is disabled and says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _INIT(self, *args, **options)


def own_default(self: Any, device_type: str, dtype: torch.dtype | None = None, **options: Any) -> None:
    """A region without a dtype takes bfloat16, whatever was set."""
    _INIT(self, device_type, torch.bfloat16 if dtype is None else dtype, **options)


def lower_alone(device_type: str, dtype: torch.dtype) -> None:
    """A dtype that is no lower precision is not set."""
    if dtype in _LOW:
        _SET(device_type, dtype)


def nothing(dtype: torch.dtype) -> None:
    """A setter that sets nothing."""


def _on(op: str, body: Callable[..., Any]) -> Inject:
    def inject() -> AbstractContextManager[None]:
        return kernel("cpu", op, body)

    return inject


def _fault(name: str, only: str, says: str, inject: Inject, scenario: str = "setter") -> Fault:
    return Fault(name, "anydtype", inject, (says,), op=scenario, only=only)


READ = "dtype that is set: got torch.bfloat16"
FAULTS = (
    _fault(
        "region-of-any-dtype", "region", "autocast is enabled: got True", lambda: replaced(autocast, __init__=takes_any)
    ),
    _fault(
        "unsupported-is-quiet", "region", "is disabled: got 0; expected 1", lambda: replaced(autocast, __init__=quiet)
    ),
    _fault("set-dtype-not-read", "set_then_region", READ, lambda: replaced(autocast, __init__=own_default)),
    _fault("only-lower-set", "set", READ, lambda: replaced(torch, set_autocast_dtype=lower_alone)),
    _fault(
        "legacy-sets-nothing",
        "setter",
        READ,
        lambda: replaced(torch, set_autocast_cpu_dtype=nothing),
        "setter_of_one_type",
    ),
    _fault("product-in-bfloat16", "product", "what mm gives: got torch.bfloat16", _on("mm", always_bfloat16)),
    _fault(
        "double-is-cast",
        "loss and double",
        "got torch.float32; expected torch.float64",
        _on("huber_loss", float32_doubles_too),
    ),
    _fault("loss-in-what-is-set", "loss", "expected torch.float32", _on("huber_loss", in_low)),
)
