"""Vector norms. The order is part of the program: each has its own formula."""

from __future__ import annotations

import math

import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dispatch.promotion import convert
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.reduction import Dims, axes
from ampcheck.jax_device.lowerings.wide import wide


def vector_norm(values: Array, order: float, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """(sum |x|^order)^(1/order), with the limits for 0, infinity and minus infinity."""
    if order == 2 and not jnp.iscomplexobj(values):
        return jnp.sqrt(jnp.sum(jnp.square(values), reduced, keepdims=keepdim))
    size = jnp.abs(values)
    if order == math.inf:
        return jnp.max(size, reduced, keepdims=keepdim, initial=0)
    if order == -math.inf:
        return jnp.min(size, reduced, keepdims=keepdim, initial=jnp.inf)
    total = powersum(values, order, reduced, keepdim)
    if order == 2:
        return jnp.sqrt(total)
    return total if order in (0, 1) else jnp.power(total, 1 / order)


def powersum(values: Array, order: float, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """The sum of |x|^order; for 0 the number of elements that are not zero."""
    if order == 2:
        squares = jnp.square(values.real) + jnp.square(values.imag) if jnp.iscomplexobj(values) else jnp.square(values)
        return jnp.sum(squares, reduced, keepdims=keepdim)
    size = jnp.abs(values)
    terms = (size != 0).astype(size.dtype) if order == 0 else size if order == 1 else jnp.power(size, order)
    return jnp.sum(terms, reduced, keepdims=keepdim)


@lower("linalg_vector_norm", static=True)
def linalg_vector_norm(
    self: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """The vector norm over `dim`, computed in `dtype` where given."""
    values = wide(self if dtype is None else convert(self, jax_dtype(dtype)))
    return vector_norm(values, ord, axes(self, dim), keepdim)


@lower("linalg__powsum", static=True)
def linalg_powsum(
    self: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """The sum of |x|^ord over `dim`, computed in `dtype` where given."""
    values = wide(self if dtype is None else convert(self, jax_dtype(dtype)))
    return powersum(values, ord, axes(self, dim), keepdim)


@lower("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", static=True)
def norm(
    self: Array, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """The vector norm over `dim`; of order 2 where `p` is None."""
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lower("dist", static=True)
def dist(self: Array, other: Array, p: float = 2) -> Array:
    """The norm of the difference."""
    apart = wide(self) - wide(other)
    return vector_norm(apart, p, tuple(range(apart.ndim)))


@lower("renorm", static=True)
def renorm(self: Array, p: float, dim: int, maxnorm: float) -> Array:
    """Each slice along `dim` scaled down to the norm `maxnorm` where it has a greater one."""
    values = wide(self)
    norms = vector_norm(values, p, tuple(d for d in range(self.ndim) if d != dim % self.ndim), keepdim=True)
    return jnp.where(norms > maxnorm, values * (maxnorm / (norms + 1e-7)).astype(norms.dtype), values)
