"""What is there once. The shapes depend on the values, so nothing here can be compiled."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.sorting import sort


def _grouped(new: Array, places: Array) -> tuple[Array, Array, Array]:
    """Return, of elements in order, where each group starts, each one's group by its own place, and the sizes."""
    starts = jnp.asarray(np.flatnonzero(np.asarray(new)))
    groups = jnp.cumsum(new.astype(jnp.int64)) - 1
    inverse = jnp.zeros(places.shape, jnp.int64).at[places].set(groups)
    return starts, inverse, jnp.diff(starts, append=places.size)


def _changes(lines: Array) -> Array:
    """Return whether each row but the first differs from the one before; nan differs from nan."""
    differs = jnp.any(lines[1:] != lines[:-1], axis=1)
    return jnp.concatenate([jnp.ones(min(1, lines.shape[0]), jnp.bool_), differs])


def _flat(self: Array, ordered: Array, places: Array) -> tuple[Array, Array, Array]:
    starts, inverse, counts = _grouped(_changes(ordered.reshape(-1, 1)), places)
    return ordered[starts], inverse.reshape(self.shape), counts


def _wanted(found: tuple[Array, Array, Array], return_inverse: bool, return_counts: bool) -> tuple[Array, Array, Array]:
    """Leave inverse and counts empty where nobody wants them."""
    values, inverse, counts = found
    nothing = jnp.zeros(0, jnp.int64)
    return values, inverse if return_inverse else nothing, counts if return_counts else nothing


@lower("_unique2", concrete=True)
def unique(
    self: Array, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    """Return the distinct elements in order, each element's place among them, and how often each occurs."""
    return _wanted(_flat(self, *sort(self.reshape(-1))), return_inverse, return_counts)


@lower("_unique", concrete=True)
def unique_old(self: Array, sorted: bool = True, return_inverse: bool = False) -> tuple[Array, Array]:
    """Return the distinct elements in order, and each element's place among them."""
    values, inverse, _ = unique(self, sorted, return_inverse)
    return values, inverse


def _rows(self: Array, dim: int) -> Array:
    front = jnp.moveaxis(self, dim, 0)
    return front.reshape(front.shape[0], int(np.prod(front.shape[1:])))


def _kept(self: Array, dim: int, rows: Array, order: Array) -> tuple[Array, Array, Array]:
    starts, inverse, counts = _grouped(_changes(rows[order]), order)
    return jnp.take(self, order[starts], dim), inverse, counts


@lower("unique_dim", concrete=True)
def unique_dim(
    self: Array, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    """Return the distinct slices along `dim` in order, each slice's place among them, and how often each occurs."""
    rows = _rows(self, dim)
    order = jnp.lexsort(rows.T[::-1]) if rows.shape[1] else jnp.arange(rows.shape[0])
    return _kept(self, dim, rows, order)


@lower("unique_dim_consecutive", concrete=True)
def unique_dim_consecutive(
    self: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    """Return the slices along `dim` that differ from the one before, each one's place among them, and runs' lengths."""
    return _kept(self, dim, _rows(self, dim), jnp.arange(self.shape[dim]))


@lower("unique_consecutive", concrete=True)
def unique_consecutive(
    self: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Array, Array, Array]:
    """Return the elements, or slices along `dim`, that differ from the one before; inverse and counts if wanted."""
    if dim is not None:
        values, inverse, counts = unique_dim_consecutive(self, dim)
    else:
        values, inverse, counts = _flat(self, self.reshape(-1), jnp.arange(self.size))
    return _wanted((values, inverse, counts), return_inverse, return_counts)
