"""Calls of one op or module: products, convolutions, attention, cells, and ops that have no products.

Those without products cost the bytes they move. Those that autocast computes in float32 come twice: with float32
inputs, where a region should cost nothing, and with bfloat16 ones (`-half`), as they come out of a product, where it
costs a cast and twice the bytes. prelu alone is computed in lower precision without a product.
"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, Unpack

import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core.model import OpWorkload, Spec, Workload, WorkloadOptions

Call = Callable[..., torch.Tensor]
Shape = tuple[int, ...]

FP16_ON_CPU = 128
"""The largest matrix that torch multiplies in float16 on a CPU within reason."""

_low = partial(OpWorkload, policy="downcast")
"""Makes an op that autocast computes in lower precision."""

# ---- products, from sizes where the launch is all to sizes where the arithmetic is

_QUICK_SIZES, _HEAVY_SIZES = (64, 512, 1024, 4096), (4096, 8192)


def _product(name: str, call: Call, *shapes: Shape, **more: Unpack[WorkloadOptions]) -> OpWorkload:
    """Make a product of square matrices of these shapes; the output has the last one."""
    more["fp16_on_cpu"] = shapes[-1][-1] <= FP16_ON_CPU
    return _low(name=name, family="matmul", inputs=tuple(map(Spec, shapes)), call=call, **more)


def _mm(size: int) -> OpWorkload:
    quick, heavy, shape = size in _QUICK_SIZES, size in _HEAVY_SIZES, (size, size)
    return _product(f"mm-{size}", torch.mm, shape, shape, base="mm", size=size, quick=quick, heavy=heavy)


def _called(module: nn.Module, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
    """Return the output of a module, or the first of its states."""
    out = module(x, states) if len(states) > 1 else module(x, *states)
    return out[0] if isinstance(out, tuple) else out  # type: ignore[no-any-return]  # modules return what they like


def _linear(name: str, tokens: int, width: int, **more: Unpack[WorkloadOptions]) -> OpWorkload:
    more |= {"base": "linear", "size": width, "fp16_on_cpu": width <= FP16_ON_CPU}
    make, inputs = (lambda: nn.Linear(width, width)), (Spec((tokens, width)),)
    return _low(name=name, family="matmul", inputs=inputs, module=make, call=_called, samples=tokens, **more)


# ---- convolutions in both memory formats, and transposed ones; one dimension has one format only


def _conv(
    name: str,
    function: Call,
    x: Shape,
    weight: Shape,
    *,
    stride: int = 1,
    channels_last: bool = False,
    **more: Unpack[WorkloadOptions],
) -> OpWorkload:
    """Make a convolution without bias; transposed where the function is."""
    more["fp16_on_cpu"] = False
    inputs = (Spec(x, channels_last=channels_last), Spec(weight, channels_last=channels_last))
    call = partial(function, stride=stride, padding=1)
    return _low(name=name, family="conv", inputs=inputs, call=call, samples=x[0], **more)


_2D: tuple[Shape, Shape] = ((8, 64, 28, 28), (64, 64, 3, 3))
_3D: tuple[Shape, Shape] = ((2, 16, 8, 28, 28), (32, 16, 3, 3, 3))
_UP: tuple[Shape, Shape] = ((8, 64, 14, 14), (64, 32, 4, 4))
_WIDE: tuple[Shape, Shape] = ((64, 256, 56, 56), (256, 256, 3, 3))

# ---- attention: plain, causal, and with a mask that hides half of the pairs at random


def _sdpa(name: str, shape: Shape, kind: str = "", **more: Unpack[WorkloadOptions]) -> OpWorkload:
    """Attention of a shape (batch, heads, length, width of a head).

    A causal call needs the pairs on and below the diagonal only and is charged for those, so that a kernel which
    leaves out the others does not seem to exceed the device's peak. A mask is not known beforehand: all pairs count.
    """
    batch, _, length, _ = shape
    mask = (Spec((length, length), torch.bool, high=2),) if kind == "masked" else ()
    needed = (length + 1) / (2 * length) if kind == "causal" else 1
    call = partial(F.scaled_dot_product_attention, is_causal=kind == "causal")
    inputs = (*(Spec(shape),) * 3, *mask)
    return _low(name=name, family="attention", inputs=inputs, call=call, needed=needed, samples=batch, **more)


_SMALL, _LONG = (4, 4, 256, 64), (4, 16, 4096, 64)

# ---- one step of recurrent cells; `nn.LSTM` over a sequence is the training step `lstm-step`


def _cell(name: str, kind: Callable[[int, int], nn.Module], states: int) -> OpWorkload:
    """Make a cell of input and states of one width. Of the states that come out only the first is asked for."""
    make: Any = partial(kind, 256, 256)
    inputs = (Spec((64, 256)),) * (1 + states)
    return _low(name=name, family="recurrent", inputs=inputs, module=make, call=_called, samples=64)


# ---- without products

_FAMILIES = {"upcast": "float32", "promote": "promote", "fallthrough": "untouched", "downcast": "pointwise"}
_ROWS, _COLUMNS = 1024, 512
_X = Spec((_ROWS, _COLUMNS))
_LABELS = Spec((_ROWS,), torch.int64, high=_COLUMNS)


def _op(name: str, policy: str, call: Call, *inputs: Spec) -> OpWorkload:
    quick = name in ("layer-norm", "softmax", "add")
    return OpWorkload(name=name, family=_FAMILIES[policy], policy=policy, inputs=inputs, call=call, quick=quick)


def _both(name: str, call: Call, *inputs: Spec) -> tuple[OpWorkload, OpWorkload]:
    halves = tuple(replace(spec, dtype=torch.bfloat16) if spec.dtype == torch.float32 else spec for spec in inputs)
    return _op(name, "upcast", call, *inputs), _op(f"{name}-half", "upcast", call, *halves)


_MIXED = (_X, replace(_X, dtype=torch.bfloat16))

WORKLOADS: tuple[Workload, ...] = (
    *(_mm(size) for size in (16, 32, 64, 128, 256, 512, 1001, 1024, 2048, *_HEAVY_SIZES)),
    _linear("linear-64", 64, 64),
    _linear("linear", 256, 1024, quick=True),
    _linear("linear-4096", 8192, 4096, heavy=True, quick=True),
    _product("addmm", torch.addmm, (512,), (512, 512), (512, 512)),
    _product("bmm", torch.bmm, (8, 256, 256), (8, 256, 256)),
    _conv("conv1d", F.conv1d, (8, 64, 512), (128, 64, 3)),
    _conv("conv2d", F.conv2d, *_2D, quick=True),
    _conv("conv2d-nhwc", F.conv2d, *_2D, channels_last=True),
    _conv("conv2d-wide", F.conv2d, *_WIDE, heavy=True),
    _conv("conv2d-wide-nhwc", F.conv2d, *_WIDE, channels_last=True, heavy=True, quick=True),
    _conv("conv3d", F.conv3d, *_3D),
    _conv("conv3d-ndhwc", F.conv3d, *_3D, channels_last=True),
    _conv("conv-transpose2d", F.conv_transpose2d, *_UP, stride=2),
    _conv("conv-transpose2d-nhwc", F.conv_transpose2d, *_UP, stride=2, channels_last=True),
    _sdpa("sdpa", _SMALL, quick=True),
    _sdpa("sdpa-causal", _SMALL, "causal"),
    _sdpa("sdpa-masked", _SMALL, "masked"),
    _sdpa("sdpa-long", _LONG, heavy=True, quick=True),
    _sdpa("sdpa-long-causal", _LONG, "causal", heavy=True),
    _cell("lstm-cell", nn.LSTMCell, states=2),
    _cell("gru-cell", nn.GRUCell, states=1),
    *_both("layer-norm", lambda x, *affine: F.layer_norm(x, (_COLUMNS,), *affine), _X, *(Spec((_COLUMNS,)),) * 2),
    *_both("softmax", partial(torch.softmax, dim=-1), _X),
    *_both("mse-loss", F.mse_loss, _X, _X),
    *_both("cross-entropy", F.cross_entropy, _X, _LABELS),
    *_both("bce-with-logits", F.binary_cross_entropy_with_logits, _X, _X),
    *_both("exp", torch.exp, _X),
    *_both("norm", torch.norm, _X),
    *_both("cumsum", partial(torch.cumsum, dim=-1), _X),
    _op("cat", "promote", lambda *tensors: torch.cat(tensors), *_MIXED),
    _op("stack", "promote", lambda *tensors: torch.stack(tensors), *_MIXED),
    _op("addcmul", "promote", torch.addcmul, _X, *_MIXED),
    _op("add", "fallthrough", torch.add, _X, _X),
    _op("relu", "fallthrough", torch.relu, _X),
    _op("prelu", "downcast", F.prelu, Spec((256, 64, 28)), Spec((64,))),
    replace(_op("view", "fallthrough", lambda x: x.view(_COLUMNS, _ROWS), _X), view=True),
)
