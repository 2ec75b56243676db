"""Distances between rows. Differences are taken, not products, so that near rows stay apart."""

from __future__ import annotations

import math
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.vector_norm import vector_norm
from ampcheck.jax_device.lowerings.wide import wide


@lower("_cdist_forward")
def cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None = None) -> Array:
    """The norm of each row of x1 minus each row of x2."""
    return vector_norm(wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :], p, (-1,))


@lower("_euclidean_dist")
def euclidean_dist(x1: Array, x2: Array) -> Array:
    """The Euclidean distance of each row of x1 to each row of x2."""
    return cdist_forward(x1, x2, 2.0)


def _slope(apart: Array, p: float, distance: Array) -> Array:
    """The derivative of the norm by its elements: 0 at distance 0 (ATen/native/cpu/DistanceOpsKernel.cpp)."""
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
    """The gradient of `_cdist_forward` by x1."""
    apart = wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :]
    return jnp.sum(wide(grad)[..., None] * _slope(apart, p, wide(cdist)[..., None]), -2)


def _pairs(rows: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.triu_indices(rows, 1)


@lower("_pdist_forward")
def pdist_forward(self: Array, p: float = 2.0) -> Array:
    """The norm of the difference of each pair of rows."""
    first, second = _pairs(self.shape[0])
    return vector_norm(wide(self)[first] - wide(self)[second], p, (-1,))


@lower("_pdist_backward")
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    """The gradient of `_pdist_forward`."""
    first, second = _pairs(self.shape[0])
    apart = wide(self)[first] - wide(self)[second]
    slopes = wide(grad)[:, None] * _slope(apart, p, wide(pdist)[:, None])
    return jnp.zeros_like(wide(self)).at[first].add(slopes).at[second].add(-slopes)
