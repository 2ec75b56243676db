"""Embedding tables."""

from __future__ import annotations

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import widened

_MEAN, _MAX = 1, 2  # the modes; 0 is the sum
_RENORM_FLOOR = 1e-7


@lower("embedding")
def embedding(weight: Array, indices: Array, *_: object) -> Array:
    """Return the rows at the indices; an index outside the table gives nan, as nothing can raise in a program."""
    return jnp.take(weight, indices, axis=0)


@lower("embedding_renorm")
@widened
def embedding_renorm(self: Array, indices: Array, max_norm: float, norm_type: float) -> Array:
    """Return the rows at the indices scaled down to a norm of `max_norm`, where it is greater."""
    norms = jnp.linalg.norm(self, ord=norm_type, axis=1, keepdims=True)
    named = jnp.zeros((self.shape[0], 1), bool).at[indices.reshape(-1)].set(True)
    return jnp.where(named & (norms > max_norm), self * (max_norm / (norms + _RENORM_FLOOR)), self)


def _bags(indices: Array, offsets: Array, bags: int) -> Array:
    """Return which bag each index lies in."""
    starts = jnp.zeros(indices.shape[0] + 1, jnp.int64).at[offsets[:bags]].add(1)
    return jnp.cumsum(starts[: indices.shape[0]]) - 1


@lower("_embedding_bag", "_embedding_bag_forward_only")
@widened
def embedding_bag(
    weight: Array,
    indices: Array,
    offsets: Array,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Array | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Array, Array, Array, Array]:
    """Return each bag's sum, mean or maximum of rows, each index's bag, the bags' sizes, and the greatest rows."""
    count = offsets.shape[0] - include_last_offset
    bag = _bags(indices, offsets, count)
    kept = indices != padding_idx
    sizes = jnp.zeros(count, jnp.int64).at[bag].add(kept)
    rows = jnp.take(weight, indices, axis=0)
    padded = jnp.pad(sizes, (0, int(include_last_offset)))
    if mode == _MAX:
        out, greatest = _greatest(rows, kept, bag, indices, count)
        return out, bag, padded, greatest
    if per_sample_weights is not None:
        rows = rows * per_sample_weights[:, None]
    out = jnp.zeros((count, weight.shape[1]), weight.dtype).at[bag].add(jnp.where(kept[:, None], rows, 0))
    if mode == _MEAN:
        out = out / jnp.maximum(sizes, 1)[:, None].astype(out.dtype)
    return out, bag, padded, jnp.zeros((0,), jnp.int64)


def _greatest(rows: Array, kept: Array, bag: Array, indices: Array, count: int) -> tuple[Array, Array]:
    """Return each bag's maximum by feature and the first index that has it; zero and -1 for an empty bag."""
    size, features = rows.shape
    rows = jnp.where(kept[:, None], rows, -jnp.inf)
    best = jnp.full((count, features), -jnp.inf, rows.dtype).at[bag].max(rows)
    first = jnp.where((rows == best[bag]) & kept[:, None], jnp.arange(size)[:, None], size)
    place = jnp.full((count, features), size).at[bag].min(first)
    found = place < size
    chosen = jnp.take(indices, place, mode="clip") if size else place
    return jnp.where(found, best, 0), jnp.where(found, chosen, -1)


@lower("_embedding_bag_dense_backward")
@widened
def _embedding_bag_dense_backward(grad: Array, indices: Array, *given: Tree) -> Array:
    """Return the gradient of the table.

    `given`: each index's bag, the bags' sizes and greatest rows; how many rows the table has, whether they count by how
    often they occur, the mode, each index's weight, and the index of padding.
    """
    offset2bag, bag_size, maximum_indices, num_weights, scale_grad_by_freq, mode, per_sample_weights, *padding = given
    table = jnp.zeros((num_weights, grad.shape[1]), grad.dtype)
    if mode == _MAX:
        rows = jnp.where(maximum_indices < 0, num_weights, maximum_indices)  # out of range: dropped
        return table.at[rows, jnp.arange(grad.shape[1])[None]].add(grad, mode="drop")
    by_index = grad[offset2bag]
    if mode == _MEAN:
        by_index = by_index / jnp.maximum(bag_size[offset2bag], 1)[:, None].astype(grad.dtype)
    if per_sample_weights is not None:
        by_index = by_index * per_sample_weights[:, None]
    if scale_grad_by_freq:
        by_index = by_index / jnp.bincount(indices, length=num_weights)[indices][:, None].astype(grad.dtype)
    return table.at[indices].add(jnp.where((indices != (padding or [-1])[0])[:, None], by_index, 0))


@lower("_embedding_bag_backward")
@widened
def _embedding_bag_backward(grad: Array, indices: Array, offsets: Array, *given: Tree) -> Array:
    *found, sparse, weights, padding_idx = (*given, -1)[:9]
    if sparse:
        raise NotImplementedError("the jax device has no sparse tensors: embedding_bag needs sparse=False")
    return _embedding_bag_dense_backward(grad, indices, *found, weights, padding_idx)


@lower("_embedding_bag_per_sample_weights_backward")
@widened
def embedding_bag_weights_backward(
    grad: Array, weight: Array, indices: Array, offsets: Array, offset2bag: Array, mode: int, padding_idx: int = -1
) -> Array:
    """Return the gradient of each index's weight."""
    by_index = jnp.sum(grad[offset2bag] * weight[indices], axis=1)
    return jnp.where(indices != padding_idx, by_index, 0)
