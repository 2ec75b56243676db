"""Reductions: sums, extremes, moments, running ones, norms, those of consecutive segments; sorting, and what it finds.

Lower precision is accumulated in float32. Distances are of differences, not of products, so that near rows stay apart.
In sorting nan is greater than everything, as PyTorch orders. The shapes of distinct elements depend on the values, so
that these cannot be compiled.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dtypes import convert, jax_dtype
from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import rounded, wide

Dims = int | Sequence[int] | None


def axes(array: Array, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions to reduce, counted from the front: all of them for None or none given."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(array.ndim))
    if not array.ndim:
        return ()
    return tuple(d % array.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def summand(self: Array, dtype: torch.dtype | None) -> Array:
    """Return what a sum or product adds up: in `dtype`, or int64 for integers and truth values; wide."""
    if dtype is not None:
        return wide(convert(self, jax_dtype(dtype)))
    return wide(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(jnp.int64)


@lower("sum", "sum.dim_IntList")
def sum_(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    return jnp.sum(summand(self, dtype), axes(self, dim), keepdims=keepdim)


@lower("mean", "mean.dim")
def mean(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    reduced = axes(self, dim)
    values = jnp.sum(summand(self, dtype), reduced, keepdims=keepdim)
    return values / math.prod(self.shape[d] for d in reduced)


@lower("prod", "prod.dim_int")
def prod(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    if dtype is torch.bool:
        return jnp.all(self != 0, axes(self, dim), keepdims=keepdim)
    return jnp.prod(summand(self, dtype), axes(self, dim), keepdims=keepdim)


def moments(self: Array, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    """Return variance, with `correction` taken off the count (1 for None), and mean, in float32 at least."""
    values, reduced = wide(self), axes(self, dim)
    count = math.prod(self.shape[d] for d in reduced)
    center = jnp.sum(values, reduced, keepdims=True) / count
    off = values - center
    squares = jnp.square(off.real) + jnp.square(off.imag) if jnp.iscomplexobj(off) else jnp.square(off)
    divisor = jnp.maximum(count - jnp.asarray(1 if correction is None else correction), 0)
    variance = jnp.sum(squares, reduced, keepdims=keepdim) / divisor.astype(squares.dtype)
    return variance, center if keepdim else jnp.squeeze(center, reduced)


# Each moment of variance and mean: what the overload returns.
_MOMENTS: dict[str, Computation] = {
    "var": lambda variance, _: variance,
    "std": lambda variance, _: jnp.sqrt(variance),
    "var_mean": lambda variance, mean: (variance, mean),
    "std_mean": lambda variance, mean: (jnp.sqrt(variance), mean),
}


def _moment(
    chosen: Computation, self: Array, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False
) -> Tree:
    return chosen(*moments(self, dim, correction, keepdim))


for _name, _chosen in _MOMENTS.items():
    lower(f"{_name}.correction")(partial(_moment, _chosen))


def _register_extreme(kind: str, greatest: Callable[..., Array], first: Callable[..., Array]) -> None:
    """Register the extreme and its place: nan where there is one, and of several the first."""

    @lower(f"a{kind}", kind)
    def value(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
        return greatest(self, axes(self, dim), keepdims=keepdim)

    @lower(f"arg{kind}")
    def place(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return first(self, dim, keepdims=keepdim).astype(jnp.int64) if self.ndim else jnp.zeros((), jnp.int64)

    @lower(f"{kind}.dim")
    def both(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        return value(self, dim, keepdim), place(self, dim, keepdim)


_register_extreme("max", jnp.max, jnp.argmax)
_register_extreme("min", jnp.min, jnp.argmin)


@lower("_aminmax", "_aminmax.dim")
def _aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    reduced = axes(self, dim)
    return jnp.min(self, reduced, keepdims=keepdim), jnp.max(self, reduced, keepdims=keepdim)


def _truth(reduce: Callable[..., Array], self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Reduce whether elements are not zero, as nan is not; an empty list of dimensions reduces nothing."""
    return self != 0 if dim == () else reduce(self != 0, axes(self, dim), keepdims=keepdim)


lower("any", "any.dim", "any.dims")(partial(_truth, jnp.any))
lower("all", "all.dim", "all.dims")(partial(_truth, jnp.all))
lower("count_nonzero", "count_nonzero.dim_IntList")(
    lambda self, dim=None: jnp.sum(self != 0, axes(self, dim), dtype=jnp.int64)
)


@lower("logsumexp")
def logsumexp(self: Array, dim: Dims, keepdim: bool = False) -> Array:
    """Compute log(sum(exp(self))) without overflow; minus infinity of nothing."""
    values = self if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(jax_dtype(torch.get_default_dtype()))
    return jax.nn.logsumexp(wide(values), axes(self, dim), keepdims=keepdim)


@lower("hash_tensor")
def hash_tensor(self: Array, dim: Dims = None, *, keepdim: bool = False, mode: int = 0) -> Array:
    """Return the exclusive or of the elements' bits: of floating numbers as float64, of integers as int64."""
    if jnp.issubdtype(self.dtype, jnp.floating):
        bits = jax.lax.bitcast_convert_type(self.astype(jnp.float64), jnp.uint64)
    else:
        bits = self.astype(jnp.uint64)
    reduced = axes(self, dim)
    out = jax.lax.reduce(bits, jnp.uint64(0), jax.lax.bitwise_xor, reduced)
    return jnp.expand_dims(out, reduced) if keepdim else out


def _running_total(running: Computation, self: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
    values = summand(self, dtype)  # of integers in int64
    return running(values, dim) if self.ndim else values


lower("cumsum")(partial(_running_total, jnp.cumsum))
lower("cumprod")(partial(_running_total, jnp.cumprod))


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Array, dim: int) -> Array:
    """Compute log(cumsum(exp(self))) without overflow."""
    if not self.ndim or not self.size:
        return self
    if jnp.iscomplexobj(self):
        return _complex_logcumsumexp(self, dim)
    out: Array = jax.lax.associative_scan(jnp.logaddexp, wide(self), axis=dim % self.ndim)
    return out


def _complex_logcumsumexp(self: Array, dim: int) -> Array:
    """Add one element after the other, as PyTorch does: the multiple of 2 pi in the imaginary part depends on it."""

    def step(total: Array, value: Number) -> tuple[Array, Array]:
        first = total.real > value.real
        greater, less = jnp.where(first, total, value), jnp.where(first, value, total)
        both = jnp.where(jnp.isneginf(less.real), greater, greater + jnp.log1p(jnp.exp(less - greater)))
        return both, both

    lines = jnp.moveaxis(self, dim, 0)
    rest = jax.lax.scan(step, lines[0], lines[1:])[1]
    return jnp.moveaxis(jnp.concatenate([lines[:1], rest]), 0, dim)


def _running(self: Array, dim: int, beats: Callable[[Array, Array], Array]) -> tuple[Array, Array]:
    if not self.ndim or not self.size:
        return self, jnp.zeros(self.shape, jnp.int64)
    floating = jnp.issubdtype(self.dtype, jnp.floating)

    def later(first: tuple[Array, Array], second: tuple[Array, Array]) -> tuple[Array, Array]:
        wins = beats(second[0], first[0])
        if floating:
            wins = jnp.isnan(second[0]) | (~jnp.isnan(first[0]) & wins)
        return jnp.where(wins, second[0], first[0]), jnp.where(wins, second[1], first[1])

    places = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim % self.ndim)
    values, indices = jax.lax.associative_scan(later, (self, places), axis=dim % self.ndim)
    return values, indices


# At each place the last extreme so far, and its place; the last nan once there was one.
lower("cummax")(lambda self, dim: _running(self, dim, jnp.greater_equal))
lower("cummin")(lambda self, dim: _running(self, dim, jnp.less_equal))


def vector_norm(values: Array, order: float, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """Compute (sum |x|^order)^(1/order), with the limits for 0, infinity and minus infinity."""
    if order == math.inf:
        return jnp.max(jnp.abs(values), reduced, keepdims=keepdim, initial=0)
    if order == -math.inf:
        return jnp.min(jnp.abs(values), reduced, keepdims=keepdim, initial=jnp.inf)
    total = powersum(values, order, reduced, keepdim)
    if order == 2:
        return jnp.sqrt(total)
    return total if order in (0, 1) else jnp.power(total, 1 / order)


def powersum(values: Array, order: float, reduced: tuple[int, ...], keepdim: bool = False) -> Array:
    """Return the sum of |x|^order; for 0 the number of elements that are not zero."""
    if order == 2:  # `abs` would cost a pass, and have a gradient of its own at 0
        squares = jnp.square(values.real) + jnp.square(values.imag) if jnp.iscomplexobj(values) else jnp.square(values)
        return jnp.sum(squares, reduced, keepdims=keepdim)
    size = jnp.abs(values)
    terms = (size != 0).astype(size.dtype) if order == 0 else size if order == 1 else jnp.power(size, order)
    return jnp.sum(terms, reduced, keepdims=keepdim)


def _norm(
    norm: Computation, self: Array, ord: float | None = 2, dim: Dims = None, keepdim: bool = False, **given: Tree
) -> Array:
    dtype = given.get("dtype")
    values = wide(self if dtype is None else convert(self, jax_dtype(dtype)))
    out: Array = norm(values, 2 if ord is None else ord, axes(self, dim), keepdim)
    return out


lower("linalg_vector_norm", static=True)(partial(_norm, vector_norm))
lower("linalg__powsum", static=True)(partial(_norm, powersum))
lower("norm.Scalar", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dtype", static=True)(
    lambda self, p=2, *rest, **dtype: _norm(vector_norm, self, p, *rest, **dtype)
)


@lower("dist", static=True)
def dist(self: Array, other: Array, p: float = 2) -> Array:
    apart = wide(self) - wide(other)
    return vector_norm(apart, p, tuple(range(apart.ndim)))


@lower("_cdist_forward")
def cdist_forward(x1: Array, x2: Array, p: float, compute_mode: int | None = None) -> Array:
    return vector_norm(wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :], p, (-1,))


lower("_euclidean_dist")(lambda x1, x2: cdist_forward(x1, x2, 2.0))


def _slope(apart: Array, p: float, distance: Array) -> Array:
    """Return the derivative of the norm by its elements: 0 at distance 0 (ATen/native/cpu/DistanceOpsKernel.cpp)."""
    sign = jnp.sign(apart)
    if p == 0:
        return jnp.zeros_like(apart)
    if p == 1:
        return sign
    if p == math.inf:
        return sign * (jnp.abs(apart) == distance)
    safe = jnp.where(distance == 0, jnp.ones_like(distance), distance)
    steep = apart / safe if p == 2 else sign * jnp.power(jnp.abs(apart), p - 1) / jnp.power(safe, p - 1)
    flat = (distance == 0) | ((apart == 0) if p < 1 else False)
    return jnp.where(flat, jnp.zeros_like(steep), steep)


@lower("_cdist_backward")
def cdist_backward(grad: Array, x1: Array, x2: Array, p: float, cdist: Array) -> Array:
    apart = wide(x1)[..., :, None, :] - wide(x2)[..., None, :, :]
    return jnp.sum(wide(grad)[..., None] * _slope(apart, p, wide(cdist)[..., None]), -2)


@lower("_pdist_forward")
def pdist_forward(self: Array, p: float = 2.0) -> Array:
    first, second = np.triu_indices(self.shape[0], 1)
    return vector_norm(wide(self)[first] - wide(self)[second], p, (-1,))


@lower("_pdist_backward")
def pdist_backward(grad: Array, self: Array, p: float, pdist: Array) -> Array:
    first, second = np.triu_indices(self.shape[0], 1)
    apart = wide(self)[first] - wide(self)[second]
    slopes = wide(grad)[:, None] * _slope(apart, p, wide(pdist)[:, None])
    return jnp.zeros_like(wide(self)).at[first].add(slopes).at[second].add(-slopes)


# Of each reduction the start, how two are combined, and the reduction of segments.
_SEGMENTS: dict[str, tuple[float, Computation, Computation]] = {
    "max": (-math.inf, jnp.maximum, jax.ops.segment_max),
    "min": (math.inf, jnp.minimum, jax.ops.segment_min),
    "sum": (0.0, jnp.add, jax.ops.segment_sum),
    "mean": (0.0, jnp.add, jax.ops.segment_sum),
    "prod": (1.0, jnp.multiply, jax.ops.segment_prod),
}


def _ends(lengths: Array | None = None, offsets: Array | None = None, **_: object) -> tuple[Array, Array]:
    """Return length and end of each segment, of shape (rows, segments): the dimensions before the axis are rows."""
    if offsets is not None:
        offsets = offsets.reshape(-1, offsets.shape[-1])
        return offsets[:, 1:] - offsets[:, :-1], offsets[:, 1:]
    assert lengths is not None  # a call gives one of the two
    lengths = lengths.reshape(-1, lengths.shape[-1])
    return lengths, jnp.cumsum(lengths, axis=-1)


def _places(ends: Array, lengths: Array, count: int) -> Array:
    """Return the segment of each of the `count` elements of a row; one past the last for elements in none."""
    at = jnp.arange(count)
    found = jax.vmap(lambda e: jnp.searchsorted(e, at, side="right"))(ends)
    # Offsets may start behind the first element; what lies before them is in no segment.
    first = (ends - lengths)[:, :1] if ends.shape[1] else jnp.zeros((ends.shape[0], 1), ends.dtype)
    return jnp.where(at < first, ends.shape[1], found)


def _each(rows: Array, places: Array, segments: int, reduce: str) -> Array:
    """Return each row's reduction per segment, of shape (rows, segments, rest)."""
    over = _SEGMENTS[reduce][2]
    out: Array = jax.vmap(lambda row, place: over(row, place, num_segments=segments))(rows, places)
    return out


@lower("segment_reduce")
@rounded
def segment_reduce(data: Array, reduce: str, *, axis: int = 0, initial: Number | None = None, **runs: Any) -> Array:
    """Reduce each segment of the dimension `axis`; a mean of no elements is nan unless `initial` is given."""
    length, end = _ends(**runs)
    segments = end.shape[1]
    shape = (*data.shape[:axis], segments, *data.shape[axis + 1 :])
    if not data.size and not segments:
        return jnp.zeros(shape, data.dtype)
    rows = data.reshape(end.shape[0], data.shape[axis], -1)
    out = _each(rows, _places(end, length, data.shape[axis]), segments, reduce)
    start, combine, _ = _SEGMENTS[reduce]
    out = combine(out, jnp.asarray(start if initial is None else initial, out.dtype))
    if reduce == "mean":
        count = length[..., None].astype(out.dtype)
        empty = jnp.nan if initial is None else out
        out = jnp.where(count == 0, empty, out / jnp.maximum(count, 1))
    return out.reshape(shape)


@lower("_segment_reduce_backward")
@rounded
def segment_reduce_backward(
    grad: Array, output: Array, data: Array, reduce: str, *, axis: int = 0, initial: Number | None = None, **runs: Any
) -> Array:
    """Return the gradient of `data`: equal extrema share it; elements in no segment have none."""
    length, end = _ends(**runs)
    segments = end.shape[1]
    if not data.size:
        return jnp.zeros_like(data)
    rows = data.reshape(end.shape[0], data.shape[axis], -1)
    places = _places(end, length, data.shape[axis])

    def spread(values: Array) -> Array:
        """Return each segment's value at its elements, 0 at elements in no segment."""
        padded = jnp.pad(values.reshape(end.shape[0], segments, -1), ((0, 0), (0, 1), (0, 0)))
        return jnp.take_along_axis(padded, places[..., None], axis=1)

    given = spread(grad)
    if reduce == "mean":
        given = given / jnp.maximum(
            spread(jnp.broadcast_to(length[..., None], grad.reshape(given.shape[0], segments, -1).shape)), 1
        )
    elif reduce in ("max", "min"):
        chosen = ((rows == spread(output)) | jnp.isnan(rows)).astype(rows.dtype)
        given = given * chosen / jnp.maximum(spread(_each(chosen, places, segments, "sum")), 1)
    elif reduce == "prod":
        given = given * _others(rows, places, segments, spread, 1.0 if initial is None else initial)
    return given.reshape(data.shape)


def _others(rows: Array, places: Array, segments: int, spread: Callable[[Array], Array], start: Number) -> Array:
    """Return, at each element, the product of `start` and the segment's other elements, also where it is zero."""
    zero = rows == 0
    product = spread(_each(jnp.where(zero, 1, rows), places, segments, "prod") * start)
    zeros = spread(_each(zero.astype(rows.dtype), places, segments, "sum"))
    return jnp.where(zero, jnp.where(zeros == 1, product, 0), jnp.where(zeros == 0, product / rows, 0))


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
    """Return the lower of the two middle elements of each line; of one that has a nan the first nan, unless ignored."""
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

    nan goes last.
    """
    ordered = ordered if sorter is None else jnp.take_along_axis(ordered, sorter, -1)
    found = partial(jnp.searchsorted, side="right" if right else "left")
    if ordered.ndim == 1 or not values.size:
        return found(ordered.reshape(-1), values).astype(jnp.int64)
    lines = jax.vmap(found)(*(a.reshape(-1, a.shape[-1]) for a in (ordered, values)))
    return lines.reshape(values.shape).astype(jnp.int64)


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


lower("histogram.bin_ct")(
    lambda self, bins=100, **options: histogram(self, _edges(self, bins, options.get("range")), **options)
)


@lower("_histogramdd_bin_edges")
def histogramdd_edges(
    self: Array, bins: Sequence[int], *, range: Sequence[float] | None = None, **_: Tree
) -> list[Array]:
    """Return the edges of equal intervals in each dimension of the points, which lie along the last one."""
    points = self.reshape(-1, self.shape[-1])
    return [
        _edges(points[:, d], count, None if range is None else range[2 * d : 2 * d + 2]) for d, count in enumerate(bins)
    ]


@lower("_histogramdd_from_bin_tensors")
def histogramdd(self: Array, bins: Sequence[Array], **options: Tree) -> Array:
    return _counted(self.reshape(-1, self.shape[-1]), bins, **options)


lower("_histogramdd_from_bin_cts")(
    lambda self, bins, **options: histogramdd(self, histogramdd_edges(self, bins, **options), **options)
)
