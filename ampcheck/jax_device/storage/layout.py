"""Reading and writing a strided tensor on the array that holds its storage: pure functions of arrays, traced by JAX."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import torch


class Layout(NamedTuple):
    """Where a tensor's elements lie in its storage, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Layout:
        """Return where the elements of a tensor lie."""
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


@dataclass(frozen=True)
class Columns:
    """A matrix, or a batch of them, that is stored by columns: `rows` is its transpose, which is stored by rows."""

    rows: jax.Array

    @property
    def dtype(self) -> np.dtype:
        """Return the elements' dtype."""
        return self.rows.dtype

    @property
    def ndim(self) -> int:
        """Return how many dimensions it has."""
        return self.rows.ndim

    def settled(self) -> jax.Array:
        """Return the matrix as an array."""
        return jnp.swapaxes(self.rows, -1, -2)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor of that size."""
    out, step = [], 1
    for length in reversed(size):
        out.append(step)
        step *= max(length, 1)
    return tuple(reversed(out))


def order(layout: Layout, elements: int) -> tuple[int, ...] | None:
    """Return the dimensions from slowest to fastest if the tensor is its whole storage, permuted; else None."""
    if layout.offset or math.prod(layout.size) != elements:
        return None
    # A dimension of one element has any stride, so it comes last among equals and is not checked below.
    dims = sorted(range(len(layout.size)), key=lambda d: (-layout.stride[d], layout.size[d] == 1, d))
    step = 1
    for d in reversed(dims):
        if layout.size[d] != 1 and layout.stride[d] != step:
            return None
        step *= layout.size[d]
    return tuple(dims)


def _slices(layout: Layout, shape: tuple[int, ...]) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Start and stop of each dimension where the tensor is a block of an array of that shape, else None."""
    if len(shape) != len(layout.size) or layout.stride != contiguous(shape) or 0 in layout.size:
        return None
    starts, rest = [], layout.offset
    for step in layout.stride:
        starts.append(rest // step)
        rest %= step
    stops = [a + n for a, n in zip(starts, layout.size, strict=True)]
    if any(stop > length for stop, length in zip(stops, shape, strict=True)):
        return None
    return tuple(starts), tuple(stops)


def _indices(layout: Layout) -> jax.Array:
    """Return each element's place in the flat storage."""
    out = jnp.asarray(layout.offset, np.int64)
    for d, (length, step) in enumerate(zip(layout.size, layout.stride, strict=True)):
        places = jnp.arange(length, dtype=np.int64) * step
        out = out + places.reshape([-1 if i == d else 1 for i in range(len(layout.size))])
    return out


def expanded(layout: Layout) -> Layout:
    """Return the layout without what is repeated: a dimension of stride 0 has one element."""
    size = tuple(1 if n and not step else n for n, step in zip(layout.size, layout.stride, strict=True))
    return layout._replace(size=size)


def read(array: jax.Array, layout: Layout) -> jax.Array:
    """Return the tensor's values, in its own shape, from the array of its storage."""
    if 0 in layout.size:
        return jnp.zeros(layout.size, array.dtype)
    if 0 in layout.stride and (narrow := expanded(layout)) != layout:
        return jnp.broadcast_to(read(array, narrow), layout.size)
    if (dims := order(layout, array.size)) is not None:
        physical = array.reshape([layout.size[d] for d in dims])
        return (
            physical.transpose([dims.index(d) for d in range(len(dims))]) if dims != tuple(sorted(dims)) else physical
        )
    if (block := _slices(layout, array.shape)) is not None:
        return jax.lax.slice(array, *block)
    return array.reshape(-1)[_indices(layout)]


def by_columns(layout: Layout) -> Layout | None:
    """Return the layout of the matrices' transposes where the matrices lie in their storage by columns, else None."""
    if len(layout.size) < 2 or layout.stride[-2] != 1 or layout.stride[-1] < max(layout.size[-2], 2):
        return None
    *size, rows, columns = layout.size
    *stride, _, step = layout.stride
    return Layout((*size, columns, rows), (*stride, step, 1), layout.offset)


def settled(values: jax.Array, conj: bool, neg: bool) -> jax.Array:
    """Return the values of a tensor with PyTorch's lazy conjugate and negative bits."""
    values = jnp.negative(values) if neg else values
    return jnp.conj(values) if conj else values


def write(array: jax.Array, layout: Layout, values: jax.Array) -> jax.Array:
    """Return the storage's array, in its shape, with the tensor's elements replaced by `values` of its shape."""
    if 0 in layout.size:
        return array
    if (dims := order(layout, array.size)) is not None:
        return values.transpose(dims).reshape(array.shape)
    if (block := _slices(layout, array.shape)) is not None:
        return jax.lax.dynamic_update_slice(array, values, block[0])
    return array.reshape(-1).at[_indices(layout)].set(values).reshape(array.shape)


def physical(values: jax.Array, stride: tuple[int, ...]) -> jax.Array:
    """Return `values` with its dimensions in the order in which a dense tensor of these strides stores them."""
    if not values.size:
        return values
    dims = order(Layout(values.shape, stride, 0), values.size)
    assert dims is not None, f"strides {stride} leave holes in a tensor of {values.shape}"
    return values.transpose(dims)
