"""gather, scatter and their reductions: indices of the shape of what is moved. Sums are accumulated in float32."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import wide


def _grid(index: Array, dim: int) -> tuple[Array, ...]:
    """Return the place of each element of `index`, as `index` says along `dim` and its own in the other dimensions."""
    dim %= index.ndim
    own = [jax.lax.broadcasted_iota(jnp.int64, index.shape, d) for d in range(index.ndim)]
    return (*own[:dim], index, *own[dim + 1 :])


def _line(value: Array) -> Array:
    return value if value.ndim else value.reshape(1)


def _fitted(source: Number, index: Array) -> Array:
    """Return the part of `source` that `index` speaks of; a number stands for all of it."""
    given = jnp.asarray(source)
    if not given.ndim:
        return jnp.broadcast_to(given, index.shape)
    return given[tuple(slice(0, n) for n in index.shape)]


@lower("gather")
def gather(self: Array, dim: int, index: Array, *, sparse_grad: bool = False) -> Array:
    """Return the elements that `index` names along `dim`."""
    if not index.size:
        return jnp.zeros(index.shape, self.dtype)
    return _line(self)[_grid(_line(index), dim)].reshape(index.shape)


def _given(src: Number | None, value: Number | None) -> Number:
    given = src if value is None else value
    assert given is not None  # the schema asks for one of the two
    return given


@lower("scatter.src", "scatter.value")
def scatter(self: Array, dim: int, index: Array, src: Number | None = None, *, value: Number | None = None) -> Array:
    """Return `self` with the elements of `src` written where `index` says along `dim`."""
    given = jnp.asarray(_given(src, value)).astype(self.dtype)
    where = _line(index)
    if not where.size:
        return self
    return _line(self).at[_grid(where, dim)].set(_fitted(given, where), mode="drop").reshape(self.shape)


@lower("scatter_add")
def scatter_add(self: Array, dim: int, index: Array, src: Array) -> Array:
    """Return `self` with the elements of `src` added where `index` says along `dim`."""
    return _combined(self, dim, index, src, "sum", True)


@lower("scatter.reduce", "scatter.value_reduce")
def scatter_with(
    self: Array, dim: int, index: Array, src: Number | None = None, *, reduce: str, value: Number | None = None
) -> Array:
    """Return `self` with the elements of `src` added or multiplied where `index` says along `dim`."""
    name = {"add": "sum", "multiply": "prod"}[reduce]
    return _combined(self, dim, index, _given(src, value), name, True)


@lower("scatter_reduce.two")
def scatter_reduce(self: Array, dim: int, index: Array, src: Array, reduce: str, *, include_self: bool = True) -> Array:
    """Return `self` with the elements of `src` combined where `index` says along `dim`."""
    return _combined(self, dim, index, src, reduce, include_self)


def _combined(self: Array, dim: int, index: Array, src: Number, reduce: str, include_self: bool) -> Array:
    if not index.size:
        return self
    return reduced(self, _grid(_line(index), dim), _fitted(src, _line(index)), reduce, include_self)


@lower("index_reduce")
def index_reduce(
    self: Array, dim: int, index: Array, source: Array, reduce: str, *, include_self: bool = True
) -> Array:
    """Return `self` with the slices of `source` combined at the places in `index` along `dim`."""
    where = (slice(None),) * (dim % max(self.ndim, 1)) + (index.reshape(-1),)
    source = source if self.ndim else source.reshape(-1)
    return reduced(self, where, source, reduce, include_self)


def _neutral(dtype: np.dtype, reduce: str) -> float:
    """Return what changes nothing when combined with."""
    if reduce in ("sum", "mean"):
        return 0
    if reduce == "prod":
        return 1
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.inf if reduce == "amin" else -jnp.inf
    if dtype == jnp.bool_:
        return reduce == "amin"
    bounds = jnp.iinfo(dtype)
    return bounds.max if reduce == "amin" else bounds.min


def reduced(self: Array, where: tuple[Array | slice, ...], source: Array, reduce: str, include_self: bool) -> Array:
    """Return `self` with `source` combined at the places `where`: what was there takes part, or is replaced."""
    values, source = _line(wide(self)), wide(source).astype(wide(self).dtype)
    if not source.size:
        return self
    if not include_self:
        values = values.at[where].set(jnp.asarray(_neutral(values.dtype, reduce), values.dtype), mode="drop")
    at = values.at[where]
    if self.dtype == jnp.bool_ and reduce != "mean":
        # of truth values a sum is "or", a product "and"
        out = at.max(source, mode="drop") if reduce in ("sum", "amax") else at.min(source, mode="drop")
    elif reduce in ("sum", "mean"):
        out = at.add(source, mode="drop")
    elif reduce == "prod":
        out = at.multiply(source, mode="drop")
    else:
        out = (at.max if reduce == "amax" else at.min)(source, mode="drop")
    if reduce == "mean":
        out = _over(out, where, source, include_self)
    return out.reshape(self.shape)


def _over(total: Array, where: tuple[Array | slice, ...], source: Array, include_self: bool) -> Array:
    """Return the totals over how many elements each is of; integers are divided downwards."""
    count = jnp.full(total.shape, int(include_self), jnp.int64).at[where].add(1, mode="drop")
    count = jnp.maximum(count, 1)
    if jnp.issubdtype(total.dtype, jnp.integer):
        return jnp.floor_divide(total, count.astype(total.dtype))
    return total / count.astype(total.dtype)
