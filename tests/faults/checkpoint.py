"""Checkpoints that compute again in another state, change what they kept, or leave the state changed."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import checkpoint as module

from tests.faults.fault import Fault, Inject

_KWARGS = module._get_autocast_kwargs
Kwargs = dict[str, Any] | None


def _replaying(**changed: Any) -> AbstractContextManager[object]:
    """The state of the recomputation differs from that of the forward in `changed`."""

    def kwargs(device_type: str = "cuda") -> tuple[Kwargs, dict[str, Any]]:
        device, host = _KWARGS(device_type)
        return device and {**device, **changed}, {**host, **changed}

    return patch.object(module, "_get_autocast_kwargs", kwargs)


def _default_dtype() -> AbstractContextManager[object]:
    """The recomputation has the default dtype, as it had before pytorch#71169."""

    def kwargs(device_type: str = "cuda") -> tuple[Kwargs, dict[str, Any]]:
        device, host = _KWARGS(device_type)
        return device and {**device, "dtype": None}, {**host, "dtype": torch.bfloat16}

    return patch.object(module, "_get_autocast_kwargs", kwargs)


def _other_dtype() -> AbstractContextManager[object]:
    def kwargs(device_type: str = "cuda") -> tuple[Kwargs, dict[str, Any]]:
        device, host = _KWARGS(device_type)
        low = torch.float16 if host["dtype"] == torch.bfloat16 else torch.bfloat16
        return device and {**device, "dtype": low}, {**host, "dtype": low}

    return patch.object(module, "_get_autocast_kwargs", kwargs)


def _stateless() -> AbstractContextManager[object]:
    """The recomputation runs in whatever state the backward pass finds."""

    def region(device_type: str, **options: Any) -> AbstractContextManager[object]:
        return contextlib.nullcontext()

    return patch.object(torch.amp, "autocast", region)


def _without_random_state() -> AbstractContextManager[object]:
    """Generate new random numbers in place of the same ones."""

    @contextlib.contextmanager
    def fork(*args: Any, **options: Any) -> Any:
        yield

    stack = contextlib.ExitStack()
    stack.enter_context(patch.object(torch.random, "fork_rng", fork))
    stack.enter_context(patch.object(torch, "set_rng_state", lambda state: None))
    return stack


def _leaving(change: Callable[[], None]) -> AbstractContextManager[object]:
    """A checkpoint that changes the state when it is made."""
    made = module._infer_device_type

    def infer(*args: Any) -> str:
        change()
        found: str = made(*args)
        return found

    return patch.object(module, "_infer_device_type", infer)


def _checking_nothing() -> AbstractContextManager[object]:
    """The recomputed tensors may have any dtype."""
    checks = module._allowed_determinism_checks_to_fns
    return patch.dict(checks, {"default": lambda tensor: None})


def _policy_swapped() -> AbstractContextManager[object]:
    """Return the saved output of another product."""
    real = module._CachedTorchDispatchMode.__torch_dispatch__

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = real(self, func, types, args, kwargs)
        return out + 1 if func is torch.ops.aten.mm.default else out

    return patch.object(module._CachedTorchDispatchMode, "__torch_dispatch__", dispatch)


def _set_off() -> None:
    torch.set_autocast_enabled("cpu", False)


def _set_uncached() -> None:
    torch.set_autocast_cache_enabled(False)


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the scenarios whose names hold `only` catch."""
    return Fault(name, "checkpoint", inject, (says,), "autograd", only=only)


FAULTS = (
    fault("replay-off", lambda: _replaying(enabled=False), "ran again: got ((False", "computed_again"),
    fault("replay-on", lambda: _replaying(enabled=True), "ran again: got ((True", "computed_again"),
    fault("replay-cached", lambda: _replaying(cache_enabled=True), "True), torch", "computed_again"),
    fault("replay-in-default-dtype", _default_dtype, "ran again", "computed_again"),
    fault("replay-in-other-dtype", _other_dtype, "ran again", "computed_again"),
    fault("replay-in-no-state", _stateless, "ran again", "backward_elsewhere"),
    fault("replay-in-no-state-of-a-thread", _stateless, "ran again", "another_thread"),
    fault("replay-in-no-state-by-hand", _stateless, "ran again", "set_by_hand"),
    fault("replay-draws-anew", _without_random_state, "gradient", "dropout"),
    fault("checkpoint-leaves-off", lambda: _leaving(_set_off), "state", "computed_again"),
    fault("checkpoint-leaves-uncached", lambda: _leaving(_set_uncached), "state", "computed_again"),
    fault("replay-unchecked", _checking_nothing, "expected CheckpointError", "other_dtype_when"),
    fault("kept-op-changed", _policy_swapped, "has the bits it has without: got False", "policy"),
)

# What the other variant finds in a hook ends the process on this device (docs/jax_device.md).
JAX = tuple(
    fault.on_jax("reentrant")
    for fault in FAULTS
    if fault.name not in ("replay-draws-anew", "checkpoint-leaves-off", "replay-unchecked", "kept-op-changed")
)
"""Those that the jax device must notice, too."""
