"""Modules that lose a dtype or a value with an option, in evaluation or without gradients."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import torch
from torch import nn
from torch.nn.utils.rnn import PackedSequence

from tests.faults.fault import Fault
from tests.faults.modules import low, narrowed, outside
from tests.faults.regions import replaced

_FAST, _MERGE, _ATTEND = (
    "_native_multi_head_attention",
    nn.MultiheadAttention.merge_masks,
    nn.MultiheadAttention.forward,
)
_GRU, _BAG, _NORM = nn.GRU.forward, nn.EmbeddingBag.forward, nn.BatchNorm2d.forward
DTYPES, FAR = "dtypes of a plain call: got [torch.", "of a plain call: differs by"


def fast_path_widened(*args: Any) -> Any:
    """Attention's fast path gives float32."""
    return tuple(each if each is None else each.float() for each in _native(*args))


_native = getattr(torch, _FAST)


def no_mask(self: Any, *args: Any) -> Any:
    """The fast path goes without a mask."""
    _MERGE(self, *args)
    return None, None


def without_bias(self: Any, *args: Any, **options: Any) -> Any:
    """The projection's bias gets no gradient."""
    bias = self.in_proj_bias
    self.in_proj_bias = nn.Parameter(bias.detach(), requires_grad=False) if bias is not None else None
    try:
        return _ATTEND(self, *args, **options)
    finally:
        self.in_proj_bias = bias


def packed_widened(self: Any, x: Any, state: Any = None) -> Any:
    """A packed sequence comes back in float32."""
    out, last = _GRU(self, x, state)
    return (out._replace(data=out.data.float()) if isinstance(out, PackedSequence) else out), last


def batch_in_evaluation(self: Any, x: torch.Tensor) -> torch.Tensor:
    """The statistics of the batch, in evaluation too."""
    return nn.functional.batch_norm(x, None, None, self.weight, self.bias, True, 0.0, self.eps)


def bag_lowered(self: Any, *args: Any, **options: Any) -> torch.Tensor:
    out: torch.Tensor = low(_BAG(self, *args, **options)) if torch.is_inference_mode_enabled() else _BAG(self, *args)
    return out


def trained_alone(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of attention that gives float32 in training."""

    @wraps(function)
    def wrong(*args: Any, **options: Any) -> Any:
        out, weights = function(*args, **options)
        return (out.float() if options["training"] else out), weights

    return wrong


def _fault(name: str, scenario: str, only: str, says: str, where: Any, **wrong: Any) -> Fault:
    return Fault(name, "variants", lambda: replaced(where, **wrong), (says,), op=scenario, only=only)


_functional = nn.functional
FAULTS = (
    _fault("fast-path-widened", "anywhere", "attention", DTYPES + "float32", torch, **{_FAST: fast_path_widened}),
    _fault("fast-path-unmasked", "anywhere", "attention", FAR, nn.MultiheadAttention, merge_masks=no_mask),
    _fault(
        "bias-without-gradient",
        "attention",
        "train",
        "whether in_proj_bias",
        nn.MultiheadAttention,
        forward=without_bias,
    ),
    _fault(
        "attention-widened-in-training",
        "attention",
        "train",
        DTYPES + "float32",
        _functional,
        multi_head_attention_forward=trained_alone(_functional.multi_head_attention_forward),
    ),
    _fault(
        "layer-norms-narrowed",
        "transformer",
        "train",
        DTYPES + "bfloat16",
        nn.LayerNorm,
        forward=narrowed(nn.LayerNorm.forward),
    ),
    _fault(
        "packed-sequence-widened", "recurrent", "GRU and packed", DTYPES + "float32", nn.GRU, forward=packed_widened
    ),
    _fault(
        "statistics-of-the-batch",
        "normalisation",
        "BatchNorm2d and eval",
        FAR,
        nn.BatchNorm2d,
        forward=batch_in_evaluation,
    ),
    _fault(
        "bag-lowered-in-inference",
        "embedding_bag",
        "inference",
        DTYPES + "bfloat16",
        nn.EmbeddingBag,
        forward=bag_lowered,
    ),
    _fault(
        "cross-entropy-outside",
        "loss",
        "CrossEntropyLoss",
        DTYPES + "bfloat16",
        _functional,
        cross_entropy=outside(_functional.cross_entropy),
    ),
)
