"""Copies and fills."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower


@lower("_to_copy", "clone")
def copied(self: Array, **_: Any) -> Array:
    """The values; the dtype and the strides are what PyTorch's Meta kernel says."""
    return self


@lower("fill.Scalar", "fill.Tensor")
def fill(self: Array, value: Number) -> Array:
    """Every element is `value`."""
    return jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), self.shape)


@lower("zero")
def zero(self: Array) -> Array:
    """Every element is zero."""
    return jnp.zeros_like(self)


@lower("full")
def full(size: Sequence[int], fill_value: Number, **_: Any) -> Array:
    """A tensor of that size, every element `fill_value`; the dtype is what PyTorch's Meta kernel says."""
    return jnp.broadcast_to(jnp.asarray(fill_value), size)
