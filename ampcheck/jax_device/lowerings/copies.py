"""Copies and fills."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from ampcheck.jax_device.lowering import lower


@lower("_to_copy", "clone")
def copied(self: Any, **_: Any) -> Any:
    """The values; the dtype and the strides are what PyTorch's Meta kernel says."""
    return self


@lower("fill.Scalar", "fill.Tensor")
def fill(self: Any, value: Any) -> Any:
    """Every element is `value`."""
    return jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), self.shape)


@lower("zero")
def zero(self: Any) -> Any:
    """Every element is zero."""
    return jnp.zeros_like(self)


@lower("full")
def full(size: Any, fill_value: Any, **_: Any) -> Any:
    """A tensor of that size, every element `fill_value`; the dtype is what PyTorch's Meta kernel says."""
    return jnp.broadcast_to(jnp.asarray(fill_value), size)
