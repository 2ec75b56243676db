"""Modules and Python functions of torch that go past autocast, or change what they are given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any

import torch
from torch import nn

from ampcheck.compilers import eager
from tests.faults.fault import Fault
from tests.faults.regions import replaced

Change = Callable[[Callable[..., Any]], Callable[..., Any]]


def low(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function with autocast switched off inside."""
    return wraps(function)(torch.autocast("cpu", enabled=False)(function))


def after(change: Callable[[torch.Tensor], torch.Tensor]) -> Change:
    """Return a decorator that changes the first result."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            out = function(*args, **kwargs)
            return change(out) if isinstance(out, torch.Tensor) else (change(out[0]), *out[1:])

        return wrong

    return decorate


def before(change: Callable[[nn.Module, torch.Tensor], torch.Tensor]) -> Change:
    """Return a decorator of a method of modules that changes its first argument."""

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrong(self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            return function(self, change(self, x), *args, **kwargs)

        return wrong

    return decorate


def to_low_for_good(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    """Turn the module's parameters into the region's dtype."""
    if torch.is_autocast_enabled("cpu"):
        module.to(torch.get_autocast_dtype("cpu"))
    return x


widened, lowered, casting_parameters = after(torch.Tensor.float), after(low), before(to_low_for_good)
narrowed = before(lambda module, x: low(x) if x.is_floating_point() else x)


def module(name: str, where: type[nn.Module], change: Callable[..., Any], cases: str, *says: str) -> Fault:
    """A fault of a module's `forward`; `cases`: which cases to run."""

    def inject() -> AbstractContextManager[object]:
        return replaced(where, forward=change(where.forward))

    return Fault(name, "modules", inject, says, only=cases)


def functional(name: str, rule: str, op: str, function: str) -> Fault:
    """A fault of a function of torch.nn.functional, seen by the cases that spell the op that way."""

    def inject() -> AbstractContextManager[object]:
        stack = ExitStack()
        wrong = outside(getattr(nn.functional, function))
        stack.enter_context(replaced(nn.functional, **{function: wrong}))
        eager.cache_clear()  # functions that were looked up before are not replaced
        stack.callback(eager.cache_clear)
        return stack

    return Fault(name, rule, inject, (f"aten::{op}",), op=op)


FAULTS = (
    functional("functional-linear-outside", "downcast", "linear", "linear"),
    functional("functional-loss-outside", "upcast", "smooth_l1_loss", "smooth_l1_loss"),
    module("linear-outside", nn.Linear, outside, "Linear-", "linear", "fp32"),
    module("linear-casts-parameters", nn.Linear, casting_parameters, "Linear- or gradients", "gradient"),
    module("linear-widened", nn.Linear, widened, "Linear-", "Linear: got torch.float32"),
    module("conv-outside", nn.Conv2d, outside, "Conv2d-", "conv2d", "fp32"),
    module("layer-norm-outside", nn.LayerNorm, outside, "EncoderLayer-", "EncoderLayer"),
    module("layer-norm-narrowed", nn.LayerNorm, narrowed, "LayerNorm", "LayerNorm", "got torch.bfloat16"),
    module("lstm-outside", nn.LSTM, outside, "LSTM_projection-", "LSTM_projection is fp32"),
    module("gru-outside", nn.GRU, outside, "GRU-", "GRU", "linear"),
    module("attention-outside", nn.MultiheadAttention, outside, "MultiheadAttention-", "linear", "fp32"),
    module("encoder-layer-outside", nn.TransformerEncoderLayer, outside, "EncoderLayer-", "EncoderLayer", "linear"),
    module("sequential-outside", nn.Sequential, outside, "Sequential-", "Sequential", "fp32"),
    module("batch-norm-narrowed", nn.BatchNorm2d, narrowed, "BatchNorm2d", "BatchNorm2d"),
    module("loss-narrowed", nn.MSELoss, narrowed, "same_as_its_function", "MSELoss"),
    module("embedding-lowered", nn.Embedding, lowered, "same_as_its_function", "Embedding"),
)
