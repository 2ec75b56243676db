"""Convolution and its gradients, accumulated as accumulate.py says.

The gradients are convolutions themselves, written out: JAX's transpose of a convolution that gives float32 would have a
float32 and a bfloat16 operand.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.accumulate import asked
from ampcheck.jax_device.lowerings.spatial import each


def _turned(weight: Array, groups: int) -> Array:
    """Return (in, out / groups, …) as (out, in / groups, …), flipped: a transposed weight as a plain convolution's."""
    inputs, outputs, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, outputs, *kernel)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * outputs, inputs // groups, *kernel)
    return jnp.flip(swapped, tuple(range(2, weight.ndim)))


@lower("convolution_overrideable", one_dtype=True)
def convolution(input: Array, weight: Array, bias: Array | None, *options: Tree) -> Array:
    """Convolve (N, C, …) with 1, 2 or 3 spatial dimensions; it is rounded once, on a CPU with the bias.

    `options`: stride, padding, dilation, whether it is transposed, output padding, groups.
    """
    dims, (*window, transposed, output_padding, groups) = input.ndim - 2, options
    stride, padding, dilation = (each(option, dims) for option in window)
    pads = [(p, p) for p in padding]
    steps, spread = stride, (1,) * dims
    if transposed:
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
        pads = [(r, r + o) for r, o in zip(reach, each(output_padding, dims), strict=True)]
        steps, spread, weight = spread, stride, _turned(weight, groups)
    out = jax.lax.conv_general_dilated(
        input,
        weight,
        steps,
        pads,
        lhs_dilation=spread,
        rhs_dilation=dilation,
        feature_group_count=groups,
        preferred_element_type=asked(input.dtype),
    )
    if bias is not None:
        out = out + bias.reshape(1, -1, *((1,) * dims)).astype(out.dtype)
    return out.astype(input.dtype)


def _lacking(grad: Array, input: Array, weight: Array, *window: Sequence[int]) -> list[int]:
    """Return the input's last elements that no window of a plain convolution reached, per spatial dimension."""
    spatial = zip(input.shape[2:], grad.shape[2:], weight.shape[2:], *window, strict=True)
    return [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, k, s, p, d in spatial]


def _by_weight(large: Array, small: Array, kernel: Sequence[int], groups: int, *window: Sequence[int]) -> Array:
    """Return the gradient of a plain convolution's weight by its input `large` and its output's gradient `small`.

    Batch and channels change places: the batch is summed over, `small` slides over `large`. A transposed convolution's
    is the same of its output's gradient and its input.
    """
    stride, _, dilation = window
    spatial = zip(large.shape[2:], small.shape[2:], kernel, *window, strict=True)
    pads = [(p, (k - 1) * d + (o - 1) * s + 1 - n - p) for n, o, k, s, p, d in spatial]
    axes = "DHW"[3 - len(kernel) :]
    return jax.lax.conv_general_dilated(
        large,
        small,
        dilation,
        pads,
        rhs_dilation=stride,
        dimension_numbers=(f"CN{axes}", f"IO{axes}", f"CN{axes}"),
        batch_group_count=groups,
        preferred_element_type=asked(large.dtype),
    ).astype(large.dtype)


@lower("convolution_backward_overrideable")
def convolution_backward(grad_output: Array, input: Array, weight: Array, *options: Tree) -> tuple[Array | None, ...]:
    """Return the gradients of input, weight and bias that the mask asks for."""
    dims, (*given, transposed, _, groups, output_mask) = input.ndim - 2, options
    window = [each(option, dims) for option in given]
    by_input = by_weight = None
    if output_mask[0]:
        extra = (0,) * dims if transposed else _lacking(grad_output, input, weight, *window)
        out = convolution(grad_output, weight, None, *window, not transposed, extra, groups)
        # The gradient by the input is the other kind of convolution, of the gradient with the same weight.
        by_input = out[tuple(slice(0, n) for n in input.shape)]  # more than asked for where output_padding >= stride
    if output_mask[1]:
        large, small = (grad_output, input) if transposed else (input, grad_output)
        by_weight = _by_weight(large, small, weight.shape[2:], groups, *window)
    by_bias = jnp.sum(grad_output, axis=(0, *range(2, grad_output.ndim)))
    return by_input, by_weight, by_bias if output_mask[2] else None


@lower("conv_tbc")
def conv_tbc(self: Array, weight: Array, bias: Array, pad: int = 0) -> Array:
    """Convolve (time, batch, channels) with a weight of (kernel, in, out)."""
    out = jax.lax.conv_general_dilated(
        self,
        weight,
        (1,),
        [(pad, pad)],
        dimension_numbers=("WNC", "WIO", "WNC"),
        preferred_element_type=asked(self.dtype),
    )
    return (out + bias).astype(self.dtype)
