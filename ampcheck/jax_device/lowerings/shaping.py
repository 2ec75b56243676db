"""Copying and filling tensors, putting them together, and the gradients of their parts."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower


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


def _slice(length: int, start: int | None, end: int | None, step: int) -> slice:
    return slice(*slice(start, end, step).indices(length))


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
