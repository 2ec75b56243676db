"""Fake quantization: rounding to a grid of integers and back, and where the value lay within the grid."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import wide


def _quantized(
    self: Array, scale: float | Array, zero_point: float | Array, least: int, most: int
) -> tuple[Array, Array]:
    values = wide(self)
    step = jnp.asarray(scale).astype(values.dtype)
    # PyTorch multiplies by the inverse, which rounds otherwise than a division.
    steps = jnp.round(values * (1 / step)) + jnp.asarray(zero_point).astype(values.dtype)
    inside = (steps >= least) & (steps <= most)
    return ((jnp.clip(steps, least, most) - zero_point) * step).astype(self.dtype), inside


@lower("fake_quantize_per_tensor_affine_cachemask")
def per_tensor(self: Array, scale: float, zero_point: int, quant_min: int, quant_max: int) -> tuple[Array, Array]:
    """Quantize by one scale and zero point."""
    return _quantized(self, scale, zero_point, quant_min, quant_max)


@lower("_fake_quantize_per_tensor_affine_cachemask_tensor_qparams")
def per_tensor_given_as_tensors(
    self: Array, scale: Array, zero_point: Array, fake_quant_enabled: Array, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """Return the same, of one-element tensors; the values stay where it is not enabled."""
    out, inside = _quantized(self, scale.reshape(()), zero_point.reshape(()), quant_min, quant_max)
    enabled = fake_quant_enabled.reshape(()) != 0
    return jnp.where(enabled, out, self), inside | ~enabled


@lower("fake_quantize_per_channel_affine_cachemask")
def per_channel(
    self: Array, scale: Array, zero_point: Array, axis: int, quant_min: int, quant_max: int
) -> tuple[Array, Array]:
    """Quantize by a scale and a zero point for each place along `axis`."""
    column = [-1 if i == axis % self.ndim else 1 for i in range(self.ndim)]
    return _quantized(self, scale.reshape(column), zero_point.reshape(column), quant_min, quant_max)
