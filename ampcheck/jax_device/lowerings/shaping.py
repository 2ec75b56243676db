"""Copying and filling tensors, putting them together, turning them round, and the gradients of their parts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import wide
from ampcheck.jax_device.storage.layout import Layout, write


@lower("_to_copy", "clone")
def _copied(self: Array, **_: object) -> Array:
    return self  # the dtype and the strides are what PyTorch's Meta kernel says


@lower("fill.Scalar", "fill.Tensor")
def _fill(self: Array, value: Number) -> Array:
    return jnp.broadcast_to(jnp.asarray(value).astype(self.dtype), self.shape)


@lower("zero")
def _zero(self: Array) -> Array:
    return jnp.zeros_like(self)


@lower("full")
def _full(size: Sequence[int], fill_value: Number, **_: object) -> Array:
    return jnp.broadcast_to(jnp.asarray(fill_value), size)


@lower("cat", promotes=True)
def cat(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Return the tensors one after the other along `dim`; one of shape [0] goes with every shape."""
    # an old promise of PyTorch's, older than tensors of zero size
    kept = [t for t in tensors if t.shape != (0,)] or list(tensors[:1])
    return kept[0] if len(kept) == 1 else jnp.concatenate(kept, dim)


@lower("stack", promotes=True)
def stack(tensors: Sequence[Array], dim: int = 0) -> Array:
    """Return the tensors one after the other along a new dimension."""
    return jnp.stack(tensors, dim)


@lower("roll")
def roll(self: Array, shifts: Sequence[int], dims: Sequence[int] = ()) -> Array:
    """Return the elements moved round along `dims`, or along the flattened tensor."""
    if not self.size or not self.ndim:
        return self
    if not dims:
        return jnp.roll(self.reshape(-1), shifts[0]).reshape(self.shape)
    return jnp.roll(self, shifts, dims)


@lower("flip")
def flip(self: Array, dims: Sequence[int]) -> Array:
    """Return the elements in reverse along `dims`."""
    return jnp.flip(self, tuple(dims)) if self.ndim and dims else self


@lower("rot90")
def rot90(self: Array, k: int = 1, dims: Sequence[int] = (0, 1)) -> Array:
    """Return the plane of `dims` turned by `k` right angles."""
    return jnp.rot90(self, k, (dims[0], dims[1]))


@lower("repeat")
def repeat(self: Array, repeats: Sequence[int]) -> Array:
    """Return the tensor that often along each dimension, new ones in front."""
    return jnp.tile(self, tuple(repeats)) if repeats else self


def _part(ndim: int, dim: int, index: int | slice) -> tuple[int | slice, ...]:
    return (slice(None),) * (dim % ndim) + (index,)


def _slice(length: int, start: int | None, end: int | None, step: int) -> slice:
    return slice(*slice(start, end, step).indices(length))


@lower("slice_scatter")
def slice_scatter(
    self: Array, src: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Array:
    """Return `self` with `src` in place of a slice."""
    return self.at[_part(self.ndim, dim, _slice(self.shape[dim], start, end, step))].set(src)


@lower("select_scatter")
def select_scatter(self: Array, src: Array, dim: int, index: int) -> Array:
    """Return `self` with `src` at one place along `dim`."""
    return self.at[_part(self.ndim, dim, index)].set(src)


def _on_diagonal(base: Array, src: Array, offset: int, dim1: int, dim2: int) -> Array:
    """Return `base` with `src`, whose last dimension runs along it, on the diagonal of two dimensions."""
    turned = jnp.moveaxis(base, (dim1, dim2), (-2, -1))
    steps = jnp.arange(src.shape[-1])
    out = turned.at[..., steps + max(-offset, 0), steps + max(offset, 0)].set(src)
    return jnp.moveaxis(out, (-2, -1), (dim1, dim2))


@lower("diagonal_scatter")
def diagonal_scatter(self: Array, src: Array, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Array:
    """Return `self` with `src` on a diagonal."""
    return _on_diagonal(self, src, offset, dim1, dim2)


@lower("diag_embed")
def diag_embed(self: Array, offset: int = 0, dim1: int = -2, dim2: int = -1) -> Array:
    """Return zeros with the last dimension of `self` on the diagonal of two new dimensions."""
    side, ndim = self.shape[-1] + abs(offset), self.ndim + 1
    first, second = sorted((dim1 % ndim, dim2 % ndim))
    size = list(self.shape[:-1])
    size.insert(first, side)
    size.insert(second, side)
    return _on_diagonal(jnp.zeros(size, self.dtype), self, offset, dim1, dim2)


@lower("as_strided_scatter")
def as_strided_scatter(
    self: Array, src: Array, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Array:
    """Return `self`, taken as contiguous, with `src` at the places that size, strides and offset name."""
    return write(self, Layout(tuple(size), tuple(stride), storage_offset or 0), src)


@lower("select_backward")
def select_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, index: int) -> Array:
    """Return the gradient of one place along `dim`: zeros elsewhere."""
    return select_scatter(jnp.zeros(tuple(input_sizes), grad_output.dtype), grad_output, dim, index)


@lower("slice_backward")
def slice_backward(grad_output: Array, input_sizes: Sequence[int], dim: int, start: int, end: int, step: int) -> Array:
    """Return the gradient of a slice: zeros elsewhere, by padding, which XLA fuses."""
    dim %= len(input_sizes)
    begin = _slice(input_sizes[dim], start, end, step).start
    length = grad_output.shape[dim]
    behind = input_sizes[dim] - begin - ((length - 1) * step + 1 if length else 0)
    edges = [(begin, behind, step - 1) if d == dim else (0, 0, 0) for d in range(len(input_sizes))]
    return jax.lax.pad(grad_output, jnp.zeros((), grad_output.dtype), edges)


@lower("diagonal_backward")
def diagonal_backward(grad_output: Array, input_sizes: Sequence[int], offset: int, dim1: int, dim2: int) -> Array:
    """Return the gradient of a diagonal: zeros elsewhere."""
    return _on_diagonal(jnp.zeros(tuple(input_sizes), grad_output.dtype), grad_output, offset, dim1, dim2)


@lower("unfold_backward")
def unfold_backward(grad_in: Array, input_sizes: Sequence[int], dim: int, size: int, step: int) -> Array:
    """Sum, in float32 at least, the gradients of an element's windows of `size` every `step` along `dim`."""
    if not input_sizes:
        return grad_in.reshape(())
    dim %= len(input_sizes)
    windows = jnp.moveaxis(jnp.moveaxis(wide(grad_in), -1, 0), dim + 1, 0)  # [window, place in it, the rest]
    places = jnp.arange(windows.shape[0])[:, None] * step + jnp.arange(size)[None, :]
    out = jnp.zeros((input_sizes[dim], *windows.shape[2:]), windows.dtype).at[places].add(windows)
    return jnp.moveaxis(out, 0, dim)
