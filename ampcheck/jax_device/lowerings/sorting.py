"""Sorting and what is found by it. nan is greater than everything, as PyTorch orders."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower


@lower("sort")
def sort(self: Array, dim: int = -1, descending: bool = False) -> tuple[Array, Array]:
    """Return the elements of each line along `dim` in order, and their places; equal ones keep theirs."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    dim %= self.ndim
    places = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim)
    # Descending is ascending of the flipped line, flipped back: equal elements then keep their order, nan comes first.
    given = (jnp.flip(self, dim), jnp.flip(places, dim)) if descending else (self, places)
    if self.dtype == jnp.bool_:
        given = (given[0].astype(jnp.uint8), given[1])  # XLA sorts no truth values
    values, indices = jax.lax.sort(given, dimension=dim, num_keys=1, is_stable=True)
    if descending:
        values, indices = jnp.flip(values, dim), jnp.flip(indices, dim)
    return values.astype(self.dtype), indices


@lower("sort.stable")
def sort_stable(
    self: Array, *, stable: bool | None = None, dim: int = -1, descending: bool = False
) -> tuple[Array, Array]:
    """Sort as `sort` does, which is always stable."""
    values, indices = sort(self, dim, descending)
    return values, indices


@lower("topk")
def topk(self: Array, k: int, dim: int = -1, largest: bool = True, sorted: bool = True) -> tuple[Array, Array]:
    """Return the first `k` of the sorted line, greatest or least first; of equal ones the first."""
    values, indices = sort(self, dim, largest)
    if not self.ndim:
        return values, indices
    return jax.lax.slice_in_dim(values, 0, k, axis=dim), jax.lax.slice_in_dim(indices, 0, k, axis=dim)


def _at(self: Array, indices: Array, dim: int, keepdim: bool) -> tuple[Array, Array]:
    """Return the elements at one place of each line, `indices` having one element along `dim`."""
    values = jnp.take_along_axis(self, indices, dim)
    return (values, indices) if keepdim else (jnp.squeeze(values, dim), jnp.squeeze(indices, dim))


@lower("kthvalue")
def kthvalue(self: Array, k: int, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return the k-th least element of each line, counted from 1, and its place."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    _, places = sort(self, dim)
    return _at(self, jax.lax.slice_in_dim(places, k - 1, k, axis=dim), dim, keepdim)


def _is_nan(values: Array) -> Array:
    return jnp.isnan(values) if jnp.issubdtype(values.dtype, jnp.floating) else jnp.zeros(values.shape, jnp.bool_)


def _middle(self: Array, dim: int, keepdim: bool, ignore_nan: bool) -> tuple[Array, Array]:
    """Return the lower of the middle elements. A nan, the first, stands for its whole line unless nan is ignored."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    _, places = sort(self, dim)
    holes = _is_nan(self)
    count = jnp.sum(holes, dim, keepdims=True)
    length = self.shape[dim]
    middle = (
        jnp.maximum(length - count - 1, 0) // 2
        if ignore_nan
        else jnp.where(count > 0, length - count, (length - 1) // 2)
    )
    return _at(self, jnp.take_along_axis(places, middle, dim), dim, keepdim)


def _middle_of_all(self: Array, ignore_nan: bool) -> Array:
    if not self.size:
        return jnp.asarray(
            jnp.nan if jnp.issubdtype(self.dtype, jnp.floating) else jnp.iinfo(self.dtype).min, self.dtype
        )
    return _middle(self.reshape(-1), 0, False, ignore_nan)[0]


def _register_median(name: str, ignore_nan: bool) -> None:
    @lower(name)
    def of_all(self: Array) -> Array:
        return _middle_of_all(self, ignore_nan)

    @lower(f"{name}.dim")
    def along(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        return _middle(self, dim, keepdim, ignore_nan)


_register_median("median", False)
_register_median("nanmedian", True)


@lower("mode")
def mode(self: Array, dim: int = -1, keepdim: bool = False) -> tuple[Array, Array]:
    """Return the commonest element of each line, the least of several, and its last place."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    if not self.size:
        shape = tuple(
            1 if d == dim % self.ndim else n for d, n in enumerate(self.shape) if keepdim or d != dim % self.ndim
        )
        return jnp.zeros(shape, self.dtype), jnp.zeros(shape, jnp.int64)
    values, places = sort(self, dim)
    dim %= self.ndim
    order = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim)
    starts = jnp.concatenate(
        [jnp.ones_like(jax.lax.slice_in_dim(order, 0, 1, axis=dim), jnp.bool_), _differs(values, dim)], dim
    )
    # How long the run of equal elements is that ends here: the first longest one has the least commonest element.
    run = order - jax.lax.cummax(jnp.where(starts, order, 0), axis=dim)
    return _at(self, jnp.take_along_axis(places, jnp.argmax(run, dim, keepdims=True), dim), dim, keepdim)


def _differs(values: Array, dim: int) -> Array:
    """Return whether each element but the first differs from the one before it."""
    length = values.shape[dim]
    return jax.lax.slice_in_dim(values, 1, length, axis=dim) != jax.lax.slice_in_dim(values, 0, length - 1, axis=dim)
