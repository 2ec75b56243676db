"""Elementwise arithmetic, with PyTorch's promotion."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ampcheck.jax_device.lowering import lower


@lower("add.Tensor", "add.Scalar", promotes=True)
def add(self: Any, other: Any, alpha: Any = None) -> Any:
    """self + alpha * other."""
    return jnp.add(self, other if alpha is None else jnp.multiply(other, alpha))


@lower("sub.Tensor", "sub.Scalar", promotes=True)
def sub(self: Any, other: Any, alpha: Any = None) -> Any:
    """self - alpha * other."""
    return jnp.subtract(self, other if alpha is None else jnp.multiply(other, alpha))


@lower("mul.Tensor", "mul.Scalar", promotes=True)
def mul(self: Any, other: Any) -> Any:
    """self * other."""
    return jnp.multiply(self, other)


@lower("mm")
def mm(self: Any, mat2: Any) -> Any:
    """The matrix product, accumulated as the device does."""
    return jnp.matmul(self, mat2)
