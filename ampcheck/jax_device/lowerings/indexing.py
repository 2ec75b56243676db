"""Reading and writing elements by index tensors and masks. Sums of lower precision are accumulated in float32.

An index out of bounds cannot be an error in a compiled program: what is read there is nan (the least number of integer
dtypes), and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeGuard

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import wide

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Places = tuple[Array | Ints | slice, ...]
"""An index for each dimension, as jnp takes it."""
MASKS = (jnp.bool_, jnp.uint8)


def is_mask(index: Array | None) -> TypeGuard[Array]:
    """Return whether the index selects where it is true, rather than counting."""
    return index is not None and index.dtype in MASKS


def _spread(indices: Sequence[Array | None], places: Callable[[Array], Places]) -> Places:
    """Return the indices for jnp: a mask as the places where it is true, a missing one as the whole dimension."""
    out: list[Array | Ints | slice] = []
    for index in indices:
        if index is None:
            out.append(slice(None))
        elif is_mask(index):
            out.extend(places(index) if index.ndim else (index != 0,))
        else:
            out.append(index)
    return tuple(out)


@jax.jit
def _read(self: Array, indices: tuple[Array | None, ...]) -> Array:
    return self[tuple(slice(None) if index is None else index for index in indices)]


@lower("index.Tensor", concrete=True)
def index(self: Array, indices: Sequence[Array | None]) -> Array:
    """Return the elements at the broadcast places. With a mask the shape depends on its values."""
    if any(is_mask(i) for i in indices):
        # By NumPy: of a mask whose values jit knows, JAX would make a traced one.
        out: Array = self[_spread(indices, lambda mask: np.nonzero(np.asarray(mask)))]
        return out
    out = _read(self, tuple(indices))
    return out


@lower("_unsafe_index.Tensor")
def unsafe_index(self: Array, indices: Sequence[Array | None]) -> Array:
    """Return `index` without masks."""
    out: Array = _read(self, tuple(indices))
    return out


def _count(self: Array, indices: Sequence[Array | None], values: Array) -> int:
    """Return how many places a mask among the indices is to give: as many as what meets them, or at most all."""
    masks = [i for i in indices if is_mask(i)]
    lengths = [i.shape[-1] for i in indices if i is not None and not is_mask(i) and i.ndim]
    given = [d for d, i in enumerate(indices) if i is not None]
    # NumPy's rule: indices side by side put their dimensions in their place, others put them in front.
    adjacent = given[-1] - given[0] + 1 == len(given)
    used = sum(1 if not is_mask(i) else i.ndim for i in indices if i is not None)
    rest = self.ndim - used if not adjacent else self.ndim - used - given[0]
    if values.ndim > rest:
        lengths.append(values.shape[values.ndim - rest - 1])
    return int(next((n for n in lengths if n != 1), max(m.size for m in masks)))


@lower("index_put", "_unsafe_index_put", "_index_put_impl")
def index_put(
    self: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False, unsafe: bool = False
) -> Array:
    """Return `self` with the values written, or added, at the broadcast places; where a mask is true, in order."""
    masks = [i for i in indices if is_mask(i)]
    if len(masks) == 1 == len(indices) and values.size == 1 and not accumulate:
        # One value for all places needs no places, whose number a program cannot know.
        mask = (masks[0] != 0).reshape(masks[0].shape + (1,) * (self.ndim - masks[0].ndim))
        return jnp.where(mask, values.reshape(()), self)
    count = _count(self, indices, values) if masks else 0
    beyond = max(self.shape, default=1)  # an index outside of every dimension, which `mode="drop"` leaves out

    def places(mask: Array) -> Places:
        return jnp.nonzero(mask != 0, size=count, fill_value=beyond)

    target = _spread(indices, places)
    if not accumulate:
        return self.at[target].set(values, mode="drop")
    if self.dtype == jnp.bool_:
        return self.at[target].max(values, mode="drop")
    return wide(self).at[target].add(wide(values), mode="drop")


def _along(self: Array, dim: int, index: Array) -> Places:
    return (*(slice(None),) * (dim % self.ndim), index.reshape(-1))


@lower("index_fill.int_Scalar", "index_fill.int_Tensor")
def index_fill(self: Array, dim: int, index: Array, value: Number) -> Array:
    """Return `self` with `value` at the places in `index`."""
    flat = self if self.ndim else self.reshape(1)
    value = jnp.asarray(value).astype(self.dtype)
    return flat.at[_along(flat, dim, index)].set(value, mode="drop").reshape(self.shape)


@lower("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(self: Array, mask: Array, value: Number) -> Array:
    """Return `value` where the mask is true."""
    return jnp.where(mask, jnp.asarray(value).astype(self.dtype), self)


@lower("masked_select", concrete=True)
def masked_select(self: Array, mask: Array) -> Array:
    """Return the elements where the broadcast mask is true, in order."""
    shape = jnp.broadcast_shapes(self.shape, mask.shape)
    return jnp.broadcast_to(self, shape)[jnp.broadcast_to(mask, shape)].reshape(-1)


@lower("masked_scatter_backward")
def masked_scatter_backward(grad_output: Array, mask: Array, sizes: Sequence[int]) -> Array:
    """Return the gradient of `masked_scatter` by a source of these sizes: the gradients under the mask, then zeros."""
    shape = jnp.broadcast_shapes(grad_output.shape, mask.shape)
    mask = jnp.broadcast_to(mask, shape).reshape(-1)
    out = jnp.zeros(tuple(sizes), grad_output.dtype)
    place = jnp.where(mask, jnp.cumsum(mask.astype(jnp.int64)) - 1, out.size)
    taken = jnp.broadcast_to(grad_output, shape).reshape(-1)
    return out.reshape(-1).at[place].set(taken, mode="drop").reshape(out.shape)


@lower("put")
def put(self: Array, index: Array, source: Array, accumulate: bool = False) -> Array:
    """Return `self` with the elements of `source` written, or added, at places counted over all of it."""
    index, source = index.reshape(-1), source.reshape(-1)
    if not accumulate:
        return self.reshape(-1).at[index].set(source, mode="drop").reshape(self.shape)
    if self.dtype == jnp.bool_:
        return self.reshape(-1).at[index].max(source, mode="drop").reshape(self.shape)
    return wide(self).reshape(-1).at[index].add(wide(source), mode="drop").reshape(self.shape)


@lower("nonzero", concrete=True)
def nonzero(self: Array) -> Array:
    """Return the places, a row each, of what is not zero."""
    if not self.ndim:
        return jnp.zeros((int(self != 0), 0), jnp.int64)
    return jnp.stack(jnp.nonzero(self != 0), 1).astype(jnp.int64)


@lower("nonzero_static")
def nonzero_static(self: Array, *, size: int, fill_value: int = -1) -> Array:
    """Return the first `size` places of what is not zero, a row each, then rows of `fill_value`."""
    if not self.ndim or not self.size:
        return jnp.full((size, self.ndim), fill_value, jnp.int64)
    return jnp.stack(jnp.nonzero(self != 0, size=size, fill_value=fill_value), 1).astype(jnp.int64)


@lower("repeat_interleave.Tensor", concrete=True)
def repeat_interleave(repeats: Array, *, output_size: int | None = None) -> Array:
    """Return the places 0, 1, …, each as often as `repeats` says."""
    places = jnp.arange(repeats.shape[0], dtype=repeats.dtype)
    return jnp.repeat(places, repeats, total_repeat_length=output_size)
