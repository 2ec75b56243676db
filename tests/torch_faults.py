"""Faults to plant in torch: each makes autocast, or the functions around it, do something wrong.

A fault takes pytest's MonkeyPatch, which puts torch back.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch

Plant = Callable[[pytest.MonkeyPatch], None]


def no_clearing(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "clear_autocast_cache", lambda: None)


def always_outermost(patch: pytest.MonkeyPatch) -> None:
    real = torch.autocast_decrement_nesting
    patch.setattr(torch, "autocast_decrement_nesting", lambda: real() * 0)


def always_kept(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch, "set_autocast_cache_enabled", lambda enabled: None)


def never_kept(patch: pytest.MonkeyPatch) -> None:
    real = torch.set_autocast_cache_enabled
    patch.setattr(torch, "set_autocast_cache_enabled", lambda enabled: real(False))


def returns(name: str, value: object) -> Plant:
    """A function of torch that takes anything and always returns the same."""
    return lambda patch: patch.setattr(f"torch.{name}", lambda *args, **kwargs: value)


def wrapped(name: str, change: Callable[..., object]) -> Plant:
    """A function of torch replaced by `change(real, *args, **kwargs)`."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        owner: Any = torch
        *path, last = name.split(".")
        for part in path:
            owner = getattr(owner, part)
        real = getattr(owner, last)
        patch.setattr(owner, last, lambda *args, **kwargs: change(real, *args, **kwargs))

    return plant


def without_autocast(real: Callable[..., object], *args: object, **kwargs: object) -> object:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        return real(*args, **kwargs)


def in_low(real: Callable[..., object], *args: object, **kwargs: object) -> object:
    return real(*(a.to(torch.bfloat16) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def all_types(real: Callable[..., bool], *args: object) -> bool:
    return any(real(name) for name in ("cpu", "cuda", "xpu"))


def silent(patch: pytest.MonkeyPatch) -> None:
    quiet = SimpleNamespace(warn=lambda *args, **kwargs: None)
    patch.setattr(torch.amp.autocast_mode, "warnings", quiet)


def off_by_default(patch: pytest.MonkeyPatch) -> None:
    real = torch.autocast.__init__

    def init(
        self: torch.autocast, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
    ) -> None:
        real(self, device_type, dtype, enabled and dtype is not None, True if cache_enabled is None else cache_enabled)

    patch.setattr(torch.autocast, "__init__", init)


def dtype_on_entry(patch: pytest.MonkeyPatch) -> None:
    real = torch.autocast.__enter__

    def enter(self: torch.autocast) -> object:
        self.fast_dtype = torch.get_autocast_dtype(self.device)
        return real(self)

    patch.setattr(torch.autocast, "__enter__", enter)


def quiet_spelling(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cpu.amp, "autocast", partial(torch.autocast, "cpu"))


def inverted(patch: pytest.MonkeyPatch) -> None:
    real = torch.cpu.amp.autocast
    patch.setattr(torch.cpu.amp, "autocast", lambda enabled=True, **kwargs: real(enabled=not enabled, **kwargs))


def quiet_custom(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(torch.cuda.amp, "custom_fwd", partial(torch.amp.custom_fwd, device_type="cuda"))


def detached(real: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    return real(*args, **kwargs).detach()


def doubled_in_regions(real: Callable[..., torch.Tensor], *args: object) -> torch.Tensor:
    return real(*args) * (2 if torch.is_autocast_enabled("cpu") else 1)


def of_text(real: Callable[..., object], device_type: object, *args: object, **kwargs: object) -> object:
    return real(str(device_type), *args, **kwargs)


def twice(real: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    real(*args, **kwargs)
    return real(*args, **kwargs) * 2
