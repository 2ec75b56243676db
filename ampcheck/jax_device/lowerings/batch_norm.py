"""Batch norm and its running statistics."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.dispatch.writing import assign
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import widened


def _channels(input: Array, per_channel: Array) -> Array:
    return per_channel.reshape(1, -1, *((1,) * (input.ndim - 2)))


def _axes(input: Array) -> tuple[int, ...]:
    return (0, *range(2, input.ndim))


def _normalised(input: Array, weight: Array | None, bias: Array | None, mean: Array, rstd: Array) -> Array:
    factor = rstd if weight is None else rstd * weight
    out = (input - _channels(input, mean)) * _channels(input, factor)
    return out if bias is None else out + _channels(input, bias)


def _statistics(input: Array, eps: float) -> tuple[Array, Array, Array]:
    """Return mean, variance (biased) and 1 / standard deviation of each channel."""
    mean = jnp.mean(input, axis=_axes(input))
    centred = input - _channels(input, mean)
    variance = jnp.mean(centred * centred, axis=_axes(input))
    return mean, variance, jax.lax.rsqrt(variance + eps)


@lower("_native_batch_norm_legit_functional")
@widened
def batch_norm(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array, Array, Array]:
    """Return (N, C, …) normalised per channel, the statistics it took, and the running statistics after it.

    Without training it takes the running statistics, which stay.
    """
    if not training:
        rstd = jax.lax.rsqrt(running_var + eps)
        return _normalised(input, weight, bias, running_mean, rstd), running_mean, rstd, running_mean, running_var
    mean, variance, rstd = _statistics(input, eps)
    seen = math.prod(input.shape[d] for d in _axes(input))
    unbiased = variance * (seen / max(seen - 1, 1))
    out = _normalised(input, weight, bias, mean, rstd)
    return (
        out,
        mean,
        rstd,
        momentum * mean + (1 - momentum) * running_mean,
        momentum * unbiased + (1 - momentum) * running_var,
    )


@lower("_native_batch_norm_legit.no_stats")
@widened
def batch_norm_without_running(
    input: Array, weight: Array | None, bias: Array | None, training: bool, momentum: float, eps: float
) -> tuple[Array, Array, Array]:
    """Normalise by the batch's own statistics."""
    mean, _, rstd = _statistics(input, eps)
    return _normalised(input, weight, bias, mean, rstd), mean, rstd


@lower("_native_batch_norm_legit_no_training")
@widened
def batch_norm_inference(
    input: Array,
    weight: Array | None,
    bias: Array | None,
    running_mean: Array,
    running_var: Array,
    momentum: float,
    eps: float,
) -> tuple[Array, Array, Array]:
    """Normalise by the running statistics."""
    return batch_norm(input, weight, bias, running_mean, running_var, False, momentum, eps)[:3]


@kernel("native_batch_norm")
def native_batch_norm(
    input: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    running_mean: torch.Tensor | None,
    running_var: torch.Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tree:
    """Run the forward pass; it writes the running statistics, which its schema does not say."""
    if running_mean is None or running_var is None:
        return computed("_native_batch_norm_legit.no_stats")(input, weight, bias, training, momentum, eps)
    taken = computed("_native_batch_norm_legit_functional")
    *out, mean, variance = taken(input, weight, bias, running_mean, running_var, training, momentum, eps)
    if training:
        assign(running_mean, mean)
        assign(running_var, variance)
    return tuple(out)
