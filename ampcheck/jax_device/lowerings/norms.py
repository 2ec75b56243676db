"""Vector norms, and distances between rows: of differences, not of products, so that near rows stay apart."""

from __future__ import annotations

import math

import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.dispatch.promotion import convert
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.reduction import Dims, axes
from ampcheck.jax_device.lowerings.wide import wide


def vector_norm(values: Array, order: float, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """Compute (sum |x|^order)^(1/order), with the limits for 0, infinity and minus infinity."""
    # `abs` would cost a pass, and have a gradient of its own at 0.
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
    """Return the sum of |x|^order; for 0 the number of elements that are not zero."""
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
    """Return the vector norm over `dim`, computed in `dtype` where given."""
    values = wide(self if dtype is None else convert(self, jax_dtype(dtype)))
    return vector_norm(values, ord, axes(self, dim), keepdim)


@lower("linalg__powsum", static=True)
def linalg_powsum(
    self: Array, ord: float = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """Return the sum of |x|^ord over `dim`, computed in `dtype` where given."""
    values = wide(self if dtype is None else convert(self, jax_dtype(dtype)))
    return powersum(values, ord, axes(self, dim), keepdim)


@lower("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", static=True)
def norm(
    self: Array, p: float | None = 2, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> Array:
    """Return the vector norm over `dim`; of order 2 where `p` is None."""
    return linalg_vector_norm(self, 2 if p is None else p, dim, keepdim, dtype=dtype)


@lower("dist", static=True)
def dist(self: Array, other: Array, p: float = 2) -> Array:
    """Return the norm of the difference."""
    apart = wide(self) - wide(other)
    return vector_norm(apart, p, tuple(range(apart.ndim)))


@lower("_cdist_forward")
def cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None = None) -> Array:
    """Return the norm of each row of x1 minus each row of x2."""
    return vector_norm(wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :], p, (-1,))


@lower("_euclidean_dist")
def euclidean_dist(x1: Array, x2: Array) -> Array:
    """Return the Euclidean distance of each row of x1 to each row of x2."""
    return cdist_forward(x1, x2, 2.0)


def _slope(apart: Array, p: float, distance: Array) -> Array:
    """Return the derivative of the norm by its elements: 0 at distance 0 (ATen/native/cpu/DistanceOpsKernel.cpp)."""
    sign = jnp.sign(apart)
    if p == 0:
        return jnp.zeros_like(apart)
    if p == 1:
        return sign
    if p == math.inf:
        return sign * (jnp.abs(apart) == distance)
    safe = jnp.where(distance == 0, jnp.ones_like(distance), distance)
    steep = apart / safe if p == 2 else sign * jnp.power(jnp.abs(apart), p - 1) / jnp.power(safe, p - 1)
    flat = (distance == 0) | ((apart == 0) if p < 1 else False)
    return jnp.where(flat, jnp.zeros_like(steep), steep)


@lower("_cdist_backward")
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    """Return the gradient of `_cdist_forward` by x1."""
    apart = wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :]
    return jnp.sum(wide(grad)[..., None] * _slope(apart, p, wide(cdist)[..., None]), -2)


@lower("_pdist_forward")
def pdist_forward(self: Array, p: float = 2.0) -> Array:
    """Return the norm of the difference of each pair of rows."""
    first, second = np.triu_indices(self.shape[0], 1)
    return vector_norm(wide(self)[first] - wide(self)[second], p, (-1,))


@lower("_pdist_backward")
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    """Return the gradient of `_pdist_forward`."""
    first, second = np.triu_indices(self.shape[0], 1)
    apart = wide(self)[first] - wide(self)[second]
    slopes = wide(grad)[:, None] * _slope(apart, p, wide(pdist)[:, None])
    return jnp.zeros_like(wide(self)).at[first].add(slopes).at[second].add(-slopes)
