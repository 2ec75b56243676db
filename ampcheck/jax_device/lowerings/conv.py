"""Convolution."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import pullback


def _each(value: Sequence[int], dims: int) -> tuple[int, ...]:
    return tuple(value) * dims if len(value) == 1 else tuple(value)


def _turned(weight: Any, groups: int) -> Any:
    """(in, out / groups, …) as (out, in / groups, …), flipped: a transposed convolution's weight as a plain one's."""
    inputs, outputs, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, outputs, *kernel)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * outputs, inputs // groups, *kernel)
    return jnp.flip(swapped, tuple(range(2, weight.ndim)))


@lower("convolution_overrideable", one_dtype=True)
def convolution(
    input: Any,
    weight: Any,
    bias: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> Any:
    """(N, C, …) with 1, 2 or 3 spatial dimensions, in the operands' own precision."""
    dims = input.ndim - 2
    stride, padding, dilation = _each(stride, dims), _each(padding, dims), _each(dilation, dims)
    pads = [(p, p) for p in padding]
    steps, spread = stride, (1,) * dims
    if transposed:
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
        pads = [(r, r + o) for r, o in zip(reach, _each(output_padding, dims), strict=True)]
        steps, spread, weight = spread, stride, _turned(weight, groups)
    out = jax.lax.conv_general_dilated(
        input, weight, steps, pads, lhs_dilation=spread, rhs_dilation=dilation, feature_group_count=groups
    )
    return out if bias is None else out + bias.reshape(1, -1, *((1,) * dims)).astype(out.dtype)


@lower("convolution_backward_overrideable")
def convolution_backward(
    grad_output: Any,
    input: Any,
    weight: Any,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Any:
    """The gradients of input, weight and bias that the mask asks for."""

    def forward(x: Any, w: Any) -> Any:
        return convolution(x, w, None, stride, padding, dilation, transposed, output_padding, groups)

    by_input, by_weight = pullback(forward, grad_output, input, weight)
    by_bias = jnp.sum(grad_output, axis=(0, *range(2, grad_output.ndim)))
    return tuple(g if wanted else None for g, wanted in zip((by_input, by_weight, by_bias), output_mask, strict=True))


@lower("conv_tbc")
def conv_tbc(self: Any, weight: Any, bias: Any, pad: int = 0) -> Any:
    """(time, batch, channels) with a weight of (kernel, in, out)."""
    out = jax.lax.conv_general_dilated(self, weight, (1,), [(pad, pad)], dimension_numbers=("WNC", "WIO", "WNC"))
    return out + bias


@lower("cudnn_convolution")
def cudnn_convolution(self: Any, weight: Any, padding: Any, stride: Any, dilation: Any, groups: int, *_: bool) -> Any:
    """`convolution` without a bias; the flags after `groups` choose among cuDNN's algorithms."""
    return convolution(self, weight, None, stride, padding, dilation, False, (0,), groups)


@lower("cudnn_convolution_transpose")
def cudnn_convolution_transpose(
    self: Any, weight: Any, padding: Any, output_padding: Any, stride: Any, dilation: Any, groups: int, *_: bool
) -> Any:
    """The transposed `convolution` without a bias."""
    return convolution(self, weight, None, stride, padding, dilation, True, output_padding, groups)
