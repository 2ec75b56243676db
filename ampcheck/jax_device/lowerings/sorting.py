"""Sorting and what is found by it: extremes, distinct elements, places in sorted sequences, counts.

nan is greater than everything, as PyTorch orders. The shapes of distinct elements depend on the values, so that these
cannot be compiled.
"""

import math
from collections.abc import Sequence
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.lowering import Number, lower


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


lower("sort.stable")(lambda self, *, stable=None, dim=-1, descending=False: sort(self, dim, descending))


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


def _middle(self: Array, dim: int, keepdim: bool = False, *, ignore_nan: bool) -> tuple[Array, Array]:
    """Return the lower of the middle elements. A nan, the first, stands for its whole line unless nan is ignored."""
    if not self.ndim:
        return self, jnp.zeros((), jnp.int64)
    _, places = sort(self, dim)
    holes = self != self  # nan
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
    return _middle(self.reshape(-1), 0, ignore_nan=ignore_nan)[0]


for _name, _ignores in (("median", False), ("nanmedian", True)):
    lower(_name)(partial(_middle_of_all, ignore_nan=_ignores))
    lower(f"{_name}.dim")(partial(_middle, ignore_nan=_ignores))


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
    found = jnp.unique(self, return_inverse=True, return_counts=True, equal_nan=False)
    return _wanted(found, return_inverse, return_counts)


lower("_unique", concrete=True)(lambda self, *options: unique(self, *options)[:2])


@lower("unique_dim", concrete=True)
def unique_dim(
    self: Array, dim: int, sorted: bool = True, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    """Return the distinct slices along `dim` in order, each slice's place among them, and how often each occurs."""
    values, inverse, counts = jnp.unique(self, return_inverse=True, return_counts=True, axis=dim, equal_nan=False)
    return values, inverse, counts


@lower("unique_dim_consecutive", concrete=True)
def unique_dim_consecutive(
    self: Array, dim: int, return_inverse: bool = False, return_counts: bool = False
) -> tuple[Array, Array, Array]:
    """Return the slices along `dim` that differ from the one before, each one's place among them, and runs' lengths."""
    front = jnp.moveaxis(self, dim, 0)
    lines = front.reshape(front.shape[0], math.prod(front.shape[1:]))
    new = jnp.concatenate([jnp.ones(min(1, lines.shape[0]), jnp.bool_), jnp.any(lines[1:] != lines[:-1], axis=1)])
    starts = jnp.asarray(np.flatnonzero(np.asarray(new)))
    inverse = jnp.cumsum(new.astype(jnp.int64)) - 1
    return jnp.take(self, starts, dim), inverse, jnp.diff(starts, append=lines.shape[0])


@lower("unique_consecutive", concrete=True)
def unique_consecutive(
    self: Array, return_inverse: bool = False, return_counts: bool = False, dim: int | None = None
) -> tuple[Array, Array, Array]:
    """Return the elements, or slices along `dim`, that differ from the one before; inverse and counts if wanted."""
    values, inverse, counts = unique_dim_consecutive(*((self.reshape(-1), 0) if dim is None else (self, dim)))
    found = values, inverse.reshape(self.shape) if dim is None else inverse, counts
    return _wanted(found, return_inverse, return_counts)


def insertion(ordered: Array, values: Array, right: bool, sorter: Array | None = None) -> Array:
    """Return where each of `values` goes in `ordered`, whose last dimension is sorted, before or after what equals it.

    A binary search for all values at once, with the comparisons of ATen/native/Bucketization.cpp: nan goes last.
    """
    length = ordered.shape[-1]
    low, high = jnp.zeros(values.shape, jnp.int64), jnp.full(values.shape, length, jnp.int64)
    if not length or not values.size:
        return low
    lines = (lambda line, at: line[at]) if ordered.ndim == 1 else partial(jnp.take_along_axis, axis=-1)

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        place = jnp.minimum(middle, length - 1)
        found = lines(ordered, place if sorter is None else lines(sorter, place))
        # Negated, so that a comparison with nan sends the search to the right.
        before = ~(found > values) if right else ~(found >= values)
        before = before & (low < high)
        return jnp.where(before, middle + 1, low), jnp.where(before, high, middle)

    out: Array = jax.lax.fori_loop(0, length.bit_length(), halve, (low, high))[0]
    return out


@lower("searchsorted.Tensor", "searchsorted.Scalar", promotes=True)
def searchsorted(
    ordered: Array, self: Number, *, right: bool = False, side: str = "", sorter: Array | None = None, **_: bool
) -> Array:
    """Return where each value goes in the sorted sequence, or in the sequence sorted by the places in `sorter`."""
    places = None if sorter is None else sorter.astype(jnp.int64)
    return insertion(ordered, jnp.asarray(self), right or side == "right", places)


lower("bucketize.Tensor", "bucketize.Scalar", promotes=True)(
    lambda self, boundaries, *, right=False, **_: insertion(boundaries, jnp.asarray(self), right)
)


@lower("histc")
def histc(self: Array, bins: int = 100, min: Number = 0, max: Number = 0) -> Array:
    """Count the elements in each of `bins` equal intervals from `min` to `max`, or from the least to the greatest
    element where these are equal. What lies outside, and nan, is not counted."""
    values = self.reshape(-1)
    low, high = jnp.asarray(min).astype(self.dtype), jnp.asarray(max).astype(self.dtype)
    if values.size:
        given = low != high
        low, high = jnp.where(given, low, jnp.min(values)), jnp.where(given, high, jnp.max(values))
    low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    inside = (values >= low) & (values <= high)
    place = jnp.where(inside, (values - low) / (high - low) * bins, bins + 1).astype(jnp.int64)
    place = jnp.where(inside & (place == bins), bins - 1, place)  # the last interval holds its upper end
    return jnp.zeros(bins, jnp.int64).at[place].add(inside.astype(jnp.int64), mode="drop")


@lower("bincount", concrete=True)
def bincount(self: Array, weights: Array | None = None, minlength: int = 0) -> Array:
    """Return how often each number from 0 to the greatest occurs, or the sum of the weights where it does.

    Raises RuntimeError for negative numbers.
    """
    if self.ndim != 1 or (self.size and int(self.min()) < 0):
        raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
    if weights is not None and weights.shape != self.shape:
        raise RuntimeError(f"weights should be 1-d and have the same length as input, {self.size}, not {weights.shape}")
    length = max(int(self.max()) + 1 if self.size else 0, minlength)
    if weights is None or (not self.size and not weights.size):
        return jnp.zeros(length, jnp.int64).at[self].add(1)
    kept = weights if weights.dtype in (jnp.float32, jnp.float64) else weights.astype(jnp.float64)
    return jnp.zeros(length, kept.dtype).at[self].add(kept)


def _edges(values: Array, count: int, bounds: Sequence[float] | None) -> Array:
    """Return the ends of `count` equal intervals over the values."""
    return jnp.histogram_bin_edges(values, count, bounds if bounds is not None or values.size else (0, 1))


def _counted(
    points: Array, edges: Sequence[Array], *, weight: Array | None = None, density: bool = False, **_: Tree
) -> Array:
    """Return the histogram of points, a row each, over the grid of the edges; the last interval holds its upper end."""
    weights = jnp.ones(points.shape[0], points.dtype) if weight is None else weight.reshape(-1)
    places = []
    inside = jnp.ones(points.shape[0], jnp.bool_)
    for d, edge in enumerate(edges):
        column = points[:, d]
        inside = inside & (column >= edge[0]) & (column <= edge[-1])
        place = insertion(edge, column, right=True) - 1
        places.append(jnp.clip(place, 0, edge.shape[0] - 2))
    out = jnp.zeros([edge.shape[0] - 1 for edge in edges], points.dtype)
    out = out.at[tuple(places)].add(jnp.where(inside, weights, jnp.zeros_like(weights)))
    if not density:
        return out
    out = out / jnp.sum(out)
    for d, edge in enumerate(edges):
        out = out / jnp.diff(edge).reshape([-1 if i == d else 1 for i in range(out.ndim)])
    return out


@lower("histogram.bins_tensor")
def histogram(self: Array, bins: Array, **options: Tree) -> tuple[Array, Array]:
    """Return the histogram over the intervals between the given edges, and the edges."""
    return _counted(self.reshape(-1, 1), [bins], **options), bins


@lower("histogram.bin_ct")
def histogram_count(self: Array, bins: int = 100, **options: Tree) -> tuple[Array, Array]:
    return histogram(self, _edges(self, bins, options.get("range")), **options)


@lower("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Tree
) -> list[Array]:
    """Return the edges of equal intervals in each dimension of the points, which lie along the last one."""
    points = self.reshape(-1, self.shape[-1])
    return [
        _edges(points[:, d], count, None if range is None else range[2 * d : 2 * d + 2]) for d, count in enumerate(bins)
    ]


@lower("_histogramdd_from_bin_cts")
def histogramdd_count(self: Array, bins: Sequence[int], **options: Tree) -> Array:
    return histogramdd(self, histogramdd_edges(self, bins, **options), **options)


@lower("_histogramdd_from_bin_tensors")
def histogramdd(self: Array, bins: Sequence[Array], **options: Tree) -> Array:
    return _counted(self.reshape(-1, self.shape[-1]), bins, **options)
