"""Regions and modes that do not hold beside each other, and subclasses that autocast takes for others."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from tests.faults.fault import Fault, Inject
from tests.faults.regions import autocast, replaced

_ENTER = autocast.__enter__


def not_entered_where(active: Callable[[], object]) -> AbstractContextManager[object]:
    """A region that is not enabled where something is active."""

    def enter(self: Any) -> Any:
        out = _ENTER(self)
        if active():
            torch.set_autocast_enabled(self.device, False)
        return out

    return replaced(autocast, __enter__=enter)


def then_enabled(mode: type, method: str, enabled: bool) -> AbstractContextManager[object]:
    """A mode whose method sets whether autocast is enabled on the CPU."""
    own = getattr(mode, method)

    def wrong(self: Any, *exc: Any) -> Any:
        out = own(self, *exc)
        torch.set_autocast_enabled("cpu", enabled)
        return out

    return patch.object(mode, method, wrong)


def wrappers_of_double() -> AbstractContextManager[object]:
    """Wrapper subclasses that the dispatcher takes for float64, which is not cast."""
    make = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]

    def wrong(cls: Any, size: Any, *, dtype: Any, **options: Any) -> Any:
        return make(cls, size, dtype=torch.float64, **options)

    return patch.object(torch.Tensor, "_make_wrapper_subclass", staticmethod(wrong))


def wrappers_on_meta() -> AbstractContextManager[object]:
    """Wrapper subclasses that the dispatcher takes for tensors of another device."""
    make = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]

    def wrong(cls: Any, size: Any, *, device: Any, **options: Any) -> Any:
        return make(cls, size, device="meta", **options)

    return patch.object(torch.Tensor, "_make_wrapper_subclass", staticmethod(wrong))


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the cases whose ids hold `only` catch."""
    return Fault(name, "modes", inject, (says,), only=f"on- and {only}")


SEES = "dtypes it sees, dtype=, and dtype of a product inside: got"
FAULTS = (
    fault(
        "no-region-in-a-function-mode",
        lambda: not_entered_where(torch._C._is_torch_function_mode_enabled),
        "dtype of the result",
        "function_mode-before",
    ),
    fault(
        "no-region-in-a-dispatch-mode",
        lambda: not_entered_where(_get_current_dispatch_mode),
        "how many casts it sees: got 0",
        "dispatch_mode-before",
    ),
    fault(
        "function-mode-ends-autocast",
        lambda: then_enabled(TorchFunctionMode, "__enter__", False),
        SEES,
        "function_mode-inside",
    ),
    fault(
        "dispatch-mode-leaves-on",
        lambda: then_enabled(TorchDispatchMode, "__exit__", True),
        "state and depth afterwards",
        "dispatch_mode-before",
    ),
    fault("wrapper-of-double", wrappers_of_double, SEES, "wrapper"),
    fault("wrapper-on-another-device", wrappers_on_meta, "how many casts it sees: got 0", "quantized"),
)
