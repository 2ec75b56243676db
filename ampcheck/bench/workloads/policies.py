"""Ops that autocast computes in float32, ops whose inputs it brings to one dtype, ops that it leaves alone, and prelu.

None of them has products, so what they cost is the bytes they move. Those that are computed in float32 come twice:
with float32 inputs, where a region should cost nothing, and with bfloat16 ones (`-half`), as they come out of a
product, where it costs a cast and twice the bytes. prelu alone is computed in lower precision without a product.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch.nn import functional as F

from ampcheck.bench.core.model import OpWorkload, Spec, Workload

_FAMILIES = {"upcast": "float32", "promote": "promote", "fallthrough": "untouched", "downcast": "pointwise"}
QUICK = ("layer-norm", "softmax", "add")
_ROWS, _COLUMNS = 1024, 512
_X = Spec((_ROWS, _COLUMNS))
_LABELS = Spec((_ROWS,), torch.int64, high=_COLUMNS)


def _op(name: str, policy: str, call: Callable[..., torch.Tensor], *inputs: Spec) -> OpWorkload:
    family, quick = _FAMILIES[policy], name in QUICK
    return OpWorkload(name=name, family=family, policy=policy, inputs=inputs, call=call, quick=quick)


def _both(name: str, call: Callable[..., torch.Tensor], *inputs: Spec) -> tuple[OpWorkload, OpWorkload]:
    """Make an op with float32 inputs, and with bfloat16 ones."""
    halves = tuple(replace(spec, dtype=torch.bfloat16) if spec.dtype == torch.float32 else spec for spec in inputs)
    return _op(name, "upcast", call, *inputs), _op(f"{name}-half", "upcast", call, *halves)


def _layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (_COLUMNS,), weight, bias)


def _cat(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.cat(tensors)


def _stack(*tensors: torch.Tensor) -> torch.Tensor:
    return torch.stack(tensors)


def _view(x: torch.Tensor) -> torch.Tensor:
    return x.view(_COLUMNS, _ROWS)


_MIXED = (_X, replace(_X, dtype=torch.bfloat16))

WORKLOADS: tuple[Workload, ...] = (
    *_both("layer-norm", _layer_norm, _X, Spec((_COLUMNS,)), Spec((_COLUMNS,))),
    *_both("softmax", partial(torch.softmax, dim=-1), _X),
    *_both("mse-loss", F.mse_loss, _X, _X),
    *_both("cross-entropy", F.cross_entropy, _X, _LABELS),
    *_both("bce-with-logits", F.binary_cross_entropy_with_logits, _X, _X),
    *_both("exp", torch.exp, _X),
    *_both("norm", torch.norm, _X),
    *_both("cumsum", partial(torch.cumsum, dim=-1), _X),
    _op("cat", "promote", _cat, *_MIXED),
    _op("stack", "promote", _stack, *_MIXED),
    _op("addcmul", "promote", torch.addcmul, _X, *_MIXED),
    _op("add", "fallthrough", torch.add, _X, _X),
    _op("relu", "fallthrough", torch.relu, _X),
    _op("prelu", "downcast", F.prelu, Spec((256, 64, 28)), Spec((64,))),
    replace(_op("view", "fallthrough", _view, _X), view=True),
)
