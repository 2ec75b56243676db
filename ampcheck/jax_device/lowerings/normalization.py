"""Normalisations but batch norm, and their backward passes."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import pullback, wanted, widened


def _moments(array: Array, axes: int | Sequence[int], eps: float) -> tuple[Array, Array]:
    mean = jnp.mean(array, axis=axes, keepdims=True)
    variance = jnp.mean(jnp.square(array - mean), axis=axes, keepdims=True)
    return mean, jax.lax.rsqrt(variance + eps)


def _affine(array: Array, weight: Array | None, bias: Array | None) -> Array:
    if weight is not None:
        array = array * weight
    return array if bias is None else array + bias


@lower("native_layer_norm")
@widened
def layer_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, bias: Array | None, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise over the last dimensions; also return the mean and 1 / standard deviation."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    mean, rstd = _moments(input, axes, eps)
    return _affine((input - mean) * rstd, weight, bias), mean, rstd


@lower("native_layer_norm_backward")
@widened
def layer_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    mean: Array,
    rstd: Array,
    weight: Array | None,
    bias: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    """Return the gradients of input, weight and bias that the mask asks for."""
    first = input.ndim - len(normalized_shape)
    axes, outer = tuple(range(first, input.ndim)), tuple(range(first))
    shape = (*input.shape[:first], *((1,) * len(axes)))
    normal = (input - mean.reshape(shape)) * rstd.reshape(shape)
    by_input = _through(grad_out if weight is None else grad_out * weight, normal, rstd.reshape(shape), axes)
    return wanted(
        output_mask,
        by_input,
        None if weight is None else jnp.sum(grad_out * normal, axis=outer),
        None if bias is None else jnp.sum(grad_out, axis=outer),
    )


def _through(grad: Array, normal: Array, rstd: Array, axes: int | Sequence[int]) -> Array:
    """Return the gradient of what was normalised over `axes` from the gradient of the normal values."""
    centre = jnp.mean(grad, axis=axes, keepdims=True)
    along = jnp.mean(grad * normal, axis=axes, keepdims=True)
    return rstd * (grad - centre - normal * along)


@lower("_fused_rms_norm")
@widened
def rms_norm(
    input: Array, normalized_shape: Sequence[int], weight: Array | None, eps: float | None
) -> tuple[Array, Array]:
    """Divide by the root of the mean square over the last dimensions; also return 1 / that root."""
    axes = tuple(range(input.ndim - len(normalized_shape), input.ndim))
    least = float(jnp.finfo(input.dtype).eps) if eps is None else eps
    rstd = jax.lax.rsqrt(jnp.mean(jnp.square(input), axis=axes, keepdims=True) + least)
    return _affine(input * rstd, weight, None), rstd


@lower("_fused_rms_norm_backward")
@widened
def rms_norm_backward(
    grad_out: Array,
    input: Array,
    normalized_shape: Sequence[int],
    rstd: Array,
    weight: Array | None,
    output_mask: Sequence[bool],
) -> tuple[Array | None, ...]:
    """Return the gradients of input and weight that the mask asks for."""
    first = input.ndim - len(normalized_shape)
    axes = tuple(range(first, input.ndim))
    rstd = rstd.reshape(*input.shape[:first], *((1,) * len(axes)))
    normal = input * rstd
    grad = grad_out if weight is None else grad_out * weight
    by_input = rstd * (grad - normal * jnp.mean(grad * normal, axis=axes, keepdims=True))
    by_weight = None if weight is None else jnp.sum(grad_out * normal, axis=tuple(range(first)))
    return wanted(output_mask, by_input, by_weight)


@lower("native_group_norm")
@widened
def group_norm(
    input: Array, weight: Array | None, bias: Array | None, N: int, C: int, HxW: int, group: int, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise over each group of channels; also return the means and 1 / standard deviations, (N, groups)."""
    rows = input.reshape(N, group, C // group * HxW)
    mean, rstd = _moments(rows, 2, eps)
    normal = ((rows - mean) * rstd).reshape(N, C, HxW)
    out = _affine(normal, _column(weight), _column(bias))
    return out.reshape(input.shape), mean[..., 0], rstd[..., 0]


def _column(per_channel: Array | None) -> Array | None:
    return None if per_channel is None else per_channel.reshape(1, -1, 1)


def _norms(v: Array, dim: int) -> Array:
    return jnp.sqrt(jnp.sum(jnp.square(v), axis=tuple(d for d in range(v.ndim) if d != dim), keepdims=True))


@lower("_weight_norm_interface")
@widened
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """Compute g * v / |v|, norms over all dimensions but `dim`; also return the norms."""
    norms = _norms(v, dim % v.ndim)
    return v * (g / norms), norms


@lower("_weight_norm_interface_backward")
@widened
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array | None, ...]:
    """Return the gradients of v and g."""

    def forward(v: Array, g: Array) -> Array:
        return v * (g / _norms(v, dim % v.ndim))

    return pullback(forward, grad_w, saved_v, saved_g)
