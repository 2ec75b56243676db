"""Modules and Python functions of torch that go past autocast, or change what they are given."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from functools import wraps
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from ampcheck.executors import eager
from tests.faults.fault import Fault


def outside(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with autocast switched off inside."""

    @wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", enabled=False):
            return function(*args, **kwargs)

    return wrong


def widened(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with its result cast to float32."""

    @wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return out.float() if isinstance(out, torch.Tensor) else (out[0].float(), *out[1:])

    return wrong


def casting_parameters(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method, which turns its module's parameters into the region's dtype for good."""

    @wraps(function)
    def wrong(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu"):
            self.to(torch.get_autocast_dtype("cpu"))
        return function(self, *args, **kwargs)

    return wrong


def narrowed(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method on an input cast to the region's dtype."""

    @wraps(function)
    def wrong(self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if torch.is_autocast_enabled("cpu") and x.is_floating_point():
            x = x.to(torch.get_autocast_dtype("cpu"))
        return function(self, x, *args, **kwargs)

    return wrong


def module(name: str, where: Any, change: Callable[..., Any], *says: str, method: str = "forward") -> Fault:
    """A fault of a module's method, or of a function."""

    def plant() -> AbstractContextManager[object]:
        return patch.object(where, method, change(getattr(where, method)))

    return Fault(name, "modules", plant, says, ("--device=cpu",))


def functional(name: str, rule: str, op: str, function: str) -> Fault:
    """A fault of a function of torch.nn.functional, seen by the cases that spell the op that way."""

    def plant() -> AbstractContextManager[object]:
        stack = ExitStack()
        wrong = outside(getattr(nn.functional, function))
        stack.enter_context(patch.object(nn.functional, function, wrong))
        eager.cache_clear()  # functions that were looked up before are not replaced
        stack.callback(eager.cache_clear)
        return stack

    return Fault(name, rule, plant, (f"torch.nn.functional.{function}",), ("--device=cpu", f"--op={op}"))


FAULTS = (
    functional("functional-linear-outside", "downcast", "linear", "linear"),
    functional("functional-loss-outside", "upcast", "smooth_l1_loss", "smooth_l1_loss"),
    module("linear-outside", nn.Linear, outside),
    module("linear-casts-parameters", nn.Linear, casting_parameters),
    module("linear-widened", nn.Linear, widened),
    module("conv-outside", nn.Conv2d, outside),
    module("layer-norm-outside", nn.LayerNorm, outside),
    module("layer-norm-narrowed", nn.LayerNorm, narrowed),
    module("lstm-outside", nn.LSTM, outside),
    module("gru-outside", nn.GRU, outside),
    module("attention-outside", nn.MultiheadAttention, outside),
    module("encoder-layer-outside", nn.TransformerEncoderLayer, outside),
    module("sequential-outside", nn.Sequential, outside),
    module("batch-norm-narrowed", nn.BatchNorm2d, narrowed),
    module("loss-narrowed", nn.MSELoss, narrowed),
    module("embedding-widened", nn.Embedding, widened),
)
