"""Settings of float32's precision that reach for more than they say, and regions that reach for the settings."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch

from tests.faults.casts import in_low
from tests.faults.fault import Fault, Inject
from tests.faults.kernels import kernel
from tests.faults.regions import autocast, replaced

_ENTER, _EXIT, _MATMUL = autocast.__enter__, autocast.__exit__, torch.set_float32_matmul_precision
_DETERMINISTIC = torch.use_deterministic_algorithms
_BACKENDS: Any = torch.backends


def enters_deterministic(self: Any) -> Any:
    """A region turns deterministic algorithms off."""
    _DETERMINISTIC(False)
    return _ENTER(self)


def leaves_highest(self: Any, *exc: Any) -> Any:
    """The end of a region sets the default precision of matrix products."""
    _MATMUL("highest")
    return _EXIT(self, *exc)


def disables(precision: str) -> None:
    """The precision of matrix products is taken for a reason to switch autocast off."""
    _MATMUL(precision)
    if precision != "highest":
        torch.set_autocast_enabled("cpu", False)


def convolutions_too(precision: str) -> None:
    """The precision of matrix products is that of convolutions as well."""
    _MATMUL(precision)
    if precision == "medium":
        _BACKENDS.mkldnn.conv.fp32_precision = "bf16"


def sets_nothing(precision: str) -> None:
    """A setter that sets nothing."""


def _only_where_short(op: str, body: Any) -> Inject:
    """A kernel that does `body` where matrix products may be short, else what is right."""

    def chosen(call: Any) -> Any:
        return body(call) if _BACKENDS.mkldnn.matmul.fp32_precision == "bf16" else call.registered()

    def inject() -> AbstractContextManager[None]:
        return kernel("cpu", op, chosen)

    return inject


def _fault(name: str, only: str, says: str, inject: Inject) -> Fault:
    return Fault(name, "precision", inject, (says,), only=only)


FAULTS = (
    _fault(
        "region-forgets-deterministic",
        "deterministic and before_region",
        "settings that a region changed: got ['deterministic']",
        lambda: replaced(autocast, __enter__=enters_deterministic),
    ),
    _fault(
        "region-resets-products",
        "medium and region",
        "settings that leaving the region changed",
        lambda: replaced(autocast, __exit__=leaves_highest),
    ),
    _fault(
        "short-products-disable",
        "medium and inside_region",
        "state of autocast after the setting: got (False",
        lambda: replaced(torch, set_float32_matmul_precision=disables),
    ),
    _fault(
        "products-set-convolutions",
        "medium",
        "other settings that changed: got ['mkldnn_conv']",
        lambda: replaced(torch, set_float32_matmul_precision=convolutions_too),
    ),
    _fault(
        "short-products-unset",
        "high",
        "whether the setting changed: got False",
        lambda: replaced(torch, set_float32_matmul_precision=sets_nothing),
    ),
    _fault(
        "short-products-lower-losses",
        "(medium or mkldnn_one) and loss",
        "dtype of mse_loss: got torch.bfloat16",
        _only_where_short("mse_loss", in_low),
    ),
)
