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


def lowered(function: Callable[..., Any]) -> Callable[..., Any]:
    """The method with its result cast to the region's dtype."""

    @wraps(function)
    def wrong(*args: Any, **kwargs: Any) -> Any:
        out = function(*args, **kwargs)
        return out.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else out

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
