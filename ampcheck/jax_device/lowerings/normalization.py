"""Normalisations and their backward passes."""

import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array
from torch import Tensor

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import assign, computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.accumulate import pullback, wanted, widened


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
    grad_out: Array, input: Array, normalized_shape: Sequence[int], mean: Array, rstd: Array, *affine: Tree
) -> tuple[Array | None, ...]:
    weight, bias, output_mask = affine
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
    grad_out: Array, input: Array, shape: Sequence[int], rstd: Array, weight: Array | None, mask: Sequence[bool]
) -> tuple[Array | None, ...]:
    first = input.ndim - len(shape)
    axes = tuple(range(first, input.ndim))
    rstd = rstd.reshape(*input.shape[:first], *((1,) * len(axes)))
    normal = input * rstd
    grad = grad_out if weight is None else grad_out * weight
    by_input = rstd * (grad - normal * jnp.mean(grad * normal, axis=axes, keepdims=True))
    by_weight = None if weight is None else jnp.sum(grad_out * normal, axis=tuple(range(first)))
    return wanted(mask, by_input, by_weight)


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


@lower("_weight_norm_interface")
@widened
def weight_norm(v: Array, g: Array, dim: int = 0) -> tuple[Array, Array]:
    """Compute g * v / |v|, norms over all dimensions but `dim`; also return the norms."""
    rest = tuple(d for d in range(v.ndim) if d != dim % v.ndim)
    norms = jnp.sqrt(jnp.sum(jnp.square(v), axis=rest, keepdims=True))
    return v * (g / norms), norms


@lower("_weight_norm_interface_backward")
@widened
def weight_norm_backward(
    grad_w: Array, saved_v: Array, saved_g: Array, saved_norms: Array, dim: int
) -> tuple[Array | None, ...]:
    return pullback(lambda v, g: weight_norm(v, g, dim)[0], grad_w, saved_v, saved_g)


def _channels(input: Array, per_channel: Array) -> Array:
    return per_channel.reshape(1, -1, *((1,) * (input.ndim - 2)))


def _axes(input: Array) -> tuple[int, ...]:
    return (0, *range(2, input.ndim))


def _normalised(input: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> Array:
    factor = rstd if weight is None else rstd * weight
    out = (input - _channels(input, mean)) * _channels(input, factor)
    return out if bias is None else out + _channels(input, bias)


@lower("_native_batch_norm_legit_functional")
@widened
def batch_norm(
    input: Array, weight: Array | None, bias: Array | None, running_mean: Array, running_var: Array, *options: float
) -> tuple[Array, ...]:
    """Return (N, C, …) normalised per channel, the statistics it took, and the running statistics after it.

    Without training it takes the running statistics, which stay. `options`: training, momentum, eps.
    """
    training, momentum, eps = options
    if not training:
        rstd = jax.lax.rsqrt(running_var + eps)
        return _normalised(input, weight, bias, running_mean, rstd), running_mean, rstd, running_mean, running_var
    mean = jnp.mean(input, axis=_axes(input))
    variance = jnp.mean(jnp.square(input - _channels(input, mean)), axis=_axes(input))
    rstd = jax.lax.rsqrt(variance + eps)
    seen = math.prod(input.shape[d] for d in _axes(input))
    unbiased = variance * (seen / max(seen - 1, 1))
    kept = [momentum * n + (1 - momentum) * r for n, r in ((mean, running_mean), (unbiased, running_var))]
    return _normalised(input, weight, bias, mean, rstd), mean, rstd, *kept


@lower("_native_batch_norm_legit.no_stats")
@widened
def batch_norm_without_running(input: Array, weight: Array | None, bias: Array | None, *options: float) -> Tree:
    unused = jnp.zeros(())
    return batch_norm(input, weight, bias, unused, unused, True, *options[1:])[:3]


@lower("_native_batch_norm_legit_no_training")
@widened
def batch_norm_inference(input: Array, *given: Tree) -> tuple[Array, ...]:
    return batch_norm(input, *given[:4], False, *given[4:])[:3]


@kernel("native_batch_norm")
def native_batch_norm(
    input: Tensor, weight: Tensor | None, bias: Tensor | None, mean: Tensor | None, var: Tensor | None, *options: float
) -> Tree:
    """Run the forward pass; it writes the running statistics, which its schema does not say."""
    if mean is None or var is None:
        return computed("_native_batch_norm_legit.no_stats")(input, weight, bias, *options)
    found = computed("_native_batch_norm_legit_functional")(input, weight, bias, mean, var, *options)
    if options[0]:  # training
        assign([mean, var], found[3:])
    return tuple(found[:3])
