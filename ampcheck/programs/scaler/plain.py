"""The functions that programs of a GradScaler call. A reproduction prints their source, so they need torch alone."""

from __future__ import annotations

from typing import Protocol, TypeVar

import torch


class HasState(Protocol):
    """A scaler, by its state."""

    def state_dict(self) -> dict[str, float]: ...

    def load_state_dict(self, state_dict: dict[str, float], /) -> None: ...


S = TypeVar("S", bound=HasState)


def reload(other: S, scaler: S) -> S:
    """Return a scaler with other options into which the state of one was loaded."""
    other.load_state_dict(scaler.state_dict())
    return other


def corrupt_grad(param: torch.nn.Parameter, value: float) -> None:
    """Write a value into the first element of a gradient, where there is one."""
    if param.grad is not None:
        (param.grad._values() if param.grad.is_sparse else param.grad).view(-1)[0] = value


def clip(optimizer: torch.optim.Optimizer) -> None:
    """Clip the norm of an optimizer's gradients that are not sparse."""
    params = [param for group in optimizer.param_groups for param in group["params"]]
    dense = [param for param in params if param.grad is not None and not param.grad.is_sparse]
    torch.nn.utils.clip_grad_norm_(dense, 1.0)
