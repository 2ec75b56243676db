"""Places in sorted sequences, and counts: searchsorted, histograms, bincount."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower


def insertion(ordered: Array, values: Array, right: bool, sorter: Array | None = None) -> Array:
    """Return where each of `values` goes in `ordered`, whose last dimension is sorted, before or after what equals it.

    A binary search for all values at once, with the comparisons of ATen/native/Bucketization.cpp: nan goes last.
    """
    length = ordered.shape[-1]
    low, high = jnp.zeros(values.shape, jnp.int64), jnp.full(values.shape, length, jnp.int64)
    if not length or not values.size:
        return low
    lines = (lambda line, places: line[places]) if ordered.ndim == 1 else _along_last

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


def _along_last(line: Array, places: Array) -> Array:
    return jnp.take_along_axis(line, places, -1)


@lower("searchsorted.Tensor", "searchsorted.Scalar", promotes=True)
def searchsorted(
    sorted_sequence: Array,
    self: Number,
    *,
    out_int32: bool = False,
    right: bool = False,
    side: str | None = None,
    sorter: Array | None = None,
) -> Array:
    """Return where each value goes in the sorted sequence, or in the sequence sorted by the places in `sorter`."""
    places = None if sorter is None else sorter.astype(jnp.int64)
    return insertion(sorted_sequence, jnp.asarray(self), right or side == "right", places)


@lower("bucketize.Tensor", "bucketize.Scalar", promotes=True)
def bucketize(self: Number, boundaries: Array, *, out_int32: bool = False, right: bool = False) -> Array:
    """Return where each value goes in the sorted boundaries."""
    return insertion(boundaries, jnp.asarray(self), right)


def _widened(low: Number, high: Number) -> tuple[Array, Array]:
    """Widen a range that is one number by one on both sides."""
    return jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)


@lower("histc")
def histc(self: Array, bins: int = 100, min: Number = 0, max: Number = 0) -> Array:
    """Count the elements in each of `bins` equal intervals from `min` to `max`, or from the least to the greatest
    element where these are equal. What lies outside, and nan, is not counted."""
    values = self.reshape(-1)
    low, high = jnp.asarray(min).astype(self.dtype), jnp.asarray(max).astype(self.dtype)
    if values.size:
        given = low != high
        low, high = jnp.where(given, low, jnp.min(values)), jnp.where(given, high, jnp.max(values))
    low, high = _widened(low, high)
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
    if bounds is not None:
        low, high = (jnp.asarray(b, values.dtype) for b in bounds)
    elif values.size:
        low, high = jnp.min(values), jnp.max(values)
    else:
        low, high = jnp.asarray(0, values.dtype), jnp.asarray(1, values.dtype)
    low, high = jnp.where(low == high, low - 0.5, low), jnp.where(low == high, high + 0.5, high)
    return jnp.linspace(low, high, count + 1, dtype=values.dtype)


def _counted(points: Array, edges: Sequence[Array], weight: Array | None, density: bool) -> Array:
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
def histogram(self: Array, bins: Array, *, weight: Array | None = None, density: bool = False) -> tuple[Array, Array]:
    """Return the histogram over the intervals between the given edges, and the edges."""
    return _counted(self.reshape(-1, 1), [bins], weight, density), bins


@lower("histogram.bin_ct")
def histogram_count(
    self: Array,
    bins: int = 100,
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> tuple[Array, Array]:
    """Return the histogram over that many equal intervals, and their edges."""
    edges = _edges(self, bins, range)
    return _counted(self.reshape(-1, 1), [edges], weight, density), edges


@lower("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> list[Array]:
    """Return the edges of equal intervals in each dimension of the points, which lie along the last one."""
    points = self.reshape(-1, self.shape[-1])
    return [
        _edges(points[:, d], count, None if range is None else range[2 * d : 2 * d + 2]) for d, count in enumerate(bins)
    ]


@lower("_histogramdd_from_bin_cts")
def histogramdd_count(
    self: Array,
    bins: Sequence[int],
    *,
    range: Sequence[float] | None = None,
    weight: Array | None = None,
    density: bool = False,
) -> Array:
    """Return the histogram over that many equal intervals in each dimension."""
    return histogramdd(self, histogramdd_edges(self, bins, range=range), weight=weight, density=density)


@lower("_histogramdd_from_bin_tensors")
def histogramdd(self: Array, bins: Sequence[Array], *, weight: Array | None = None, density: bool = False) -> Array:
    """Return the histogram over the grid of the given edges."""
    return _counted(self.reshape(-1, self.shape[-1]), bins, weight, density)
