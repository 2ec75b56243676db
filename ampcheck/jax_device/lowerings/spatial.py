"""Images: convolution, pooling, padding by what is inside, interpolation, and sampling at the places of a grid.

Windows are pooled and images interpolated dimension after dimension, so that a window costs the sum of its sides.
Convolutions accumulate as accumulate.py says. Their gradients are convolutions themselves, written out: JAX's transpose
of a convolution that gives float32 would have a float32 and a bfloat16 operand.
"""

import itertools
import math
import operator
from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import Computation, decomposed, lower
from ampcheck.jax_device.lowerings.accumulate import asked, pullback, rounded, transposed, wanted, widened

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.floating[Any]]]
_FAR = np.iinfo(np.int32).max  # the index of padding, so that an element that equals it is taken instead


def each(value: Sequence[int], dims: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return an option for each spatial dimension; a single number is repeated."""
    value = tuple(value) or tuple(default)
    return value * dims if len(value) == 1 else value


def windows(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """Return how many windows a dimension has; with `ceil_mode` the last one may hang over, but starts inside."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + stride - 1 if ceil_mode else span) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


def _better(new: tuple[Array, Array], old: tuple[Array, Array]) -> tuple[Array, Array]:
    """Return the greater of two (value, index); the lower index where equal; nan over everything."""
    (value, index), (best, place) = new, old
    wins = (value > best) | ((value == best) & (index < place))
    if jnp.issubdtype(value.dtype, jnp.floating):
        wins = wins | (jnp.isnan(value) & ~(jnp.isnan(best) & (place >= index)))
    return jnp.where(wins, value, best), jnp.where(wins, index, place)


_FEW = 16
"""How many elements of a window are taken one by one, which XLA fuses; a long one would be thousands of ops."""


def _taken(array: Array, axis: int, places: Ints) -> Array:
    """Return the elements at places of an axis, by a slice where they are evenly spaced."""
    step = int(places[1] - places[0]) if places.ndim == 1 and len(places) > 1 else 1
    if places.ndim == 1 and len(places) and step > 0 and (np.diff(places) == step).all():
        return jax.lax.slice_in_dim(array, int(places[0]), int(places[-1]) + 1, step, axis)
    return jnp.take(array, places, axis=axis)


def _greatest(value: Array, index: Array, axis: int, taps: Ints) -> tuple[Array, Array]:
    """Return the greatest of the elements at taps (element of a window, window) of an axis, and its index."""
    if len(taps) <= _FEW:
        return reduce(_better, ((_taken(value, axis, t), _taken(index, axis, t)) for t in taps))
    both = [_taken(x, axis, taps) for x in (value, index)]
    while (count := both[0].shape[axis]) > 1:
        half = (count + 1) // 2
        first, second = ([jax.lax.slice_in_dim(x, at, at + half, axis=axis) for x in both] for at in (0, count - half))
        both = [*_better((first[0], first[1]), (second[0], second[1]))]
    return both[0].squeeze(axis), both[1].squeeze(axis)


def _sums(array: Array, axis: int, taps: Ints, weights: Floats) -> Array:
    """Return the weighted sums of the elements at taps (element of a window, window) of an axis.

    An element of weight zero counts for nothing, even if it is not finite.
    """
    column = [-1 if i == axis else 1 for i in range(array.ndim)]

    def term(places: Ints, weight: Floats) -> Array:
        taken = _taken(array, axis, places)
        if (weight == 1).all():
            return taken
        by = weight.astype(array.dtype).reshape([*weight.shape, *column[axis + 1 :]])
        return taken * by if weight.all() else jnp.where(by != 0, taken * by, 0)

    if len(taps) > _FEW:
        return term(taps, weights).sum(axis, dtype=array.dtype)
    return reduce(operator.add, (term(t, weight) for t, weight in zip(taps, weights, strict=True) if weight.any()))


def _places(size: Sequence[int], ndim: int) -> Array:
    """Return each element's index within its last dimensions, of shape (1, …, *size)."""
    return jnp.arange(math.prod(size), dtype=np.int32).reshape(*((1,) * (ndim - len(size))), *size)


def _taps(kernel: int, dilation: int, count: int, stride: int) -> Ints:
    """Return where the elements of windows lie: (element of a window, window)."""
    return np.arange(kernel)[:, None] * dilation + stride * np.arange(count)


def _register_max_pool(dims: int) -> None:
    lower(f"max_pool{dims}d_with_indices")(lambda self, *options: _max_pool(self, dims, *options))
    kinds = ("max_pool{}d_with_indices", "adaptive_max_pool{}d", "fractional_max_pool{}d")
    # The indices are the last argument of each. Some Meta kernels do not say the dtype of the result.
    lower(*(f"{kind.format(dims)}_backward" for kind in kinds))(
        rounded(lambda grad, self, *options: _scattered(grad, options[-1], self.shape, dims))
    )


def _max_pool(
    self: Array, dims: int, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *rest: Any
) -> tuple[Array, Array]:
    """Return the greatest of each window, and its index. `rest`: dilation, and whether a window may hang over."""
    dilation, ceil_mode = rest + ((1,), False)[len(rest) :]
    kernel = each(kernel, dims)
    options = zip(kernel, each(stride, dims, kernel), each(padding, dims), each(dilation, dims), strict=True)
    value, index = self, jnp.broadcast_to(_places(self.shape[-dims:], self.ndim), self.shape)
    lowest = -jnp.inf if jnp.issubdtype(self.dtype, jnp.floating) else jnp.iinfo(self.dtype).min
    for axis, (k, s, p, d) in enumerate(options, self.ndim - dims):
        count = windows(self.shape[axis], k, s, p, d, ceil_mode)
        after = max(0, (count - 1) * s + d * (k - 1) + 1 - p - self.shape[axis])
        around = [(p, after) if i == axis else (0, 0) for i in range(self.ndim)]
        # A window of several dimensions is the extreme of its rows' extremes; the index goes along, so it stays exact.
        value = jnp.pad(value, around, constant_values=lowest)
        index = jnp.pad(index, around, constant_values=_FAR)
        value, index = _greatest(value, index, axis, _taps(k, d, count, s))
    return value, index


@lower("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    """Return the greatest of each of `output_size` nearly equal parts, and its index in the last dimensions."""
    dims = len(output_size)
    value, index = self, jnp.broadcast_to(_places(self.shape[-dims:], self.ndim), self.shape)
    for axis, parts in enumerate(output_size, self.ndim - dims):
        starts, stops = _parts(self.shape[axis], parts)
        longest = int((stops - starts).max(initial=1))
        # Parts differ in length by one at most: a short one takes its last element twice, which changes no maximum.
        value, index = _greatest(value, index, axis, np.minimum(starts + np.arange(longest)[:, None], stops - 1))
    return value, index


def _parts(length: int, parts: int) -> tuple[Ints, Ints]:
    i = np.arange(parts)
    return i * length // max(parts, 1), -(-(i + 1) * length // max(parts, 1))


def _rows(array: Array, dims: int) -> Array:
    """Flatten to (all leading dimensions, all last `dims` ones)."""
    return array.reshape(math.prod(array.shape[:-dims]), math.prod(array.shape[-dims:]))


def _scattered(values: Array, indices: Array, size: Sequence[int], dims: int) -> Array:
    """Return zeros with each value added at its index in the last dimensions."""
    flat = jnp.zeros((math.prod(size[:-dims]), math.prod(size[-dims:])), values.dtype)
    at = flat.at[jnp.arange(flat.shape[0])[:, None], _rows(indices, dims)]
    return at.add(_rows(values, dims)).reshape(size)


def _register_avg_pool(dims: int) -> None:
    lower(f"avg_pool{dims}d")(widened(lambda self, *options: _avg_pool(self, dims, *options)))
    lower(f"avg_pool{dims}d_backward")(
        widened(lambda grad, self, *options: transposed(lambda x: _avg_pool(x, dims, *options), grad, self.shape))
    )
    lower(f"_adaptive_avg_pool{dims}d_backward")(
        widened(lambda grad, self: transposed(lambda x: adaptive_avg_pool(x, grad.shape[-dims:]), grad, self.shape))
    )


decomposed("max_unpool2d", "max_unpool3d")
for _dims in (2, 3):
    _register_max_pool(_dims)
    _register_avg_pool(_dims)


def _avg_pool(
    self: Array, dims: int, kernel: Sequence[int], stride: Sequence[int] = (), padding: Sequence[int] = (0,), *rest: Any
) -> Array:
    """Return the mean of each window. `rest`: whether one may hang over, whether padding counts, and the divisor."""
    ceil_mode, counted, divisor = rest + (False, True, None)[len(rest) :]
    kernel = each(kernel, dims)
    options = zip(kernel, each(stride, dims, kernel), each(padding, dims), strict=True)
    out, sizes = self, np.ones((1,) * dims)
    for i, (k, s, p) in enumerate(options):
        axis, length = self.ndim - dims + i, self.shape[self.ndim - dims + i]
        count = windows(length, k, s, p, 1, ceil_mode)
        after = max(0, (count - 1) * s + k - p - length)
        out = jnp.pad(out, [(p, after) if j == axis else (0, 0) for j in range(self.ndim)])
        out = _sums(out, axis, _taps(k, 1, count, s), np.ones((k, count)))
        starts = np.arange(count) * s - p
        stops = np.minimum(starts + k, length + p)
        # what hangs over by ceil_mode beyond the padding is never counted
        covered = stops - starts if counted else np.minimum(stops, length) - np.maximum(starts, 0)
        sizes = sizes * covered.reshape([-1 if j == i else 1 for j in range(dims)])
    if jnp.issubdtype(out.dtype, jnp.integer):
        by = jnp.asarray(sizes if divisor is None else divisor).astype(out.dtype)
        return jax.lax.div(*jnp.broadcast_arrays(out, by))  # towards zero, as C++ divides
    return out / (sizes.astype(out.dtype) if divisor is None else divisor)


@lower("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
@widened
def adaptive_avg_pool(self: Array, output_size: Sequence[int]) -> Array:
    """Return the mean of each of `output_size` nearly equal parts of the last dimensions."""
    dims = len(output_size)
    for axis, parts in enumerate(output_size, self.ndim - dims):
        self = _part_means(self, axis, parts)
    return self


def _part_means(array: Array, axis: int, parts: int) -> Array:
    length = array.shape[axis]
    if parts and length % parts == 0:
        return jnp.mean(
            array.reshape(*array.shape[:axis], parts, length // parts, *array.shape[axis + 1 :]), axis=axis + 1
        )
    starts, stops = _parts(length, parts)
    taps = starts + np.arange(int((stops - starts).max(initial=1)))[:, None]
    out = _sums(array, axis, np.minimum(taps, stops - 1), (taps < stops) * 1.0)
    means: Array = out / (stops - starts).reshape(-1, *(1,) * (out.ndim - axis - 1)).astype(out.dtype)
    return means


def _starts(samples: Array, length: int, parts: int, kernel: int) -> Array:
    """Return where the windows of one dimension start, per batch and channel: (N, C, parts)."""
    if parts == 1:
        return jnp.full((*samples.shape, 1), length - kernel)
    alpha = jnp.asarray((length - kernel) / (parts - 1), samples.dtype)
    steps = jnp.arange(parts, dtype=samples.dtype)
    starts = jnp.trunc((steps + samples[..., None]) * alpha) - jnp.trunc(samples * alpha)[..., None]
    return starts.astype(jnp.int64).at[..., -1].set(length - kernel)


@lower("fractional_max_pool2d", "fractional_max_pool3d")
def fractional_max_pool(
    self: Array, kernel_size: Sequence[int], output_size: Sequence[int], random_samples: Array
) -> tuple[Array, Array]:
    """Return the greatest of each window, and its index. `random_samples`: (N, C, dims) in [0, 1)."""
    dims = len(output_size)
    batch = self if self.ndim == dims + 2 else self[None]
    size = batch.shape[2:]
    order = (1, 0) if dims == 2 else (0, 1, 2)  # the two-dimensional kernels take the samples as (width, height)
    flat = batch.reshape(*batch.shape[:2], math.prod(size))
    starts = [
        _starts(random_samples[..., order[i]], n, parts, k)
        for i, (n, parts, k) in enumerate(zip(size, output_size, kernel_size, strict=True))
    ]
    best: tuple[Array, Array] | None = None
    for offsets in itertools.product(*map(range, kernel_size)):
        index = jnp.zeros((), jnp.int64)
        for i, (start, offset) in enumerate(zip(starts, offsets, strict=True)):
            places = (start + offset) * math.prod(size[i + 1 :])
            index = index + places.reshape(*places.shape[:2], *[places.shape[2] if j == i else 1 for j in range(dims)])
        places = index.reshape(*flat.shape[:2], math.prod(output_size))
        taken = jnp.take_along_axis(flat, places, axis=-1).reshape(index.shape)
        best = (taken, index) if best is None else _better((taken, index), best)
    assert best is not None  # a kernel has an element
    value, index = best
    return (value, index) if batch is self else (value[0], index[0])


def _padded(self: Array, padding: Sequence[int], mode: str) -> Array:
    """Pad by `padding`, which names (before, after) of the last dimension first; a negative width cuts off."""
    last = [(padding[i], padding[i + 1]) for i in reversed(range(0, len(padding), 2))]
    widths = [(0, 0)] * (self.ndim - len(last)) + last
    wide = jnp.pad(self, [(max(a, 0), max(b, 0)) for a, b in widths], mode=mode)
    return wide[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(widths, wide.shape, strict=True))]


def _register_pad(kind: str, mode: str) -> None:
    names = [f"{kind}_pad{dims}d" for dims in (1, 2, 3)]
    lower(*names)(lambda self, padding: _padded(self, padding, mode))
    lower(*(f"{name}_backward" for name in names))(
        widened(lambda grad, self, padding: transposed(lambda x: _padded(x, padding, mode), grad, self.shape))
    )


_register_pad("reflection", "reflect")
_register_pad("replication", "edge")


_CUBIC = -0.75  # Keys' parameter of upsample_bicubic2d and of grid_sampler_2d
_CUBIC_SMOOTH = -0.5  # and of its antialiased form


class Taps(NamedTuple):
    """For one dimension: which inputs each output takes, (outputs, taps), and their weights."""

    places: Ints
    weight: Floats


def _step(length: int, out: int, scale: float | None) -> float:
    return 1 / scale if scale is not None and scale > 0 else length / out


def nearest(length: int, out: int, scale: float | None, *, exact: bool = False) -> Taps:
    """Take the input under each output; `exact`: under its middle. float32, as PyTorch's kernels compute it."""
    step = np.float32(_step(length, out, scale))  # float64 would take another input where a quotient is nearly whole
    places = np.arange(out, dtype=np.float32) + np.float32(0.5 if exact else 0)
    index = np.minimum(np.floor(places * step).astype(np.int64), length - 1)
    return Taps(index[:, None], np.ones((out, 1)))


def _sources(length: int, out: int, scale: float | None, align_corners: bool, *, clipped: bool) -> Floats:
    places = np.arange(out, dtype=np.float64)
    if align_corners:
        return places * ((length - 1) / (out - 1) if out > 1 else 0.0)
    sources = (places + 0.5) * _step(length, out, scale) - 0.5
    return np.maximum(sources, 0) if clipped else sources


def linear(length: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Weigh the two nearest inputs."""
    if length == out:  # PyTorch copies
        return Taps(np.arange(out)[:, None], np.ones((out, 1)))
    sources = _sources(length, out, scale, align_corners, clipped=True)
    low = np.minimum(np.floor(sources).astype(np.int64), length - 1)
    share = np.clip(sources - low, 0, 1)
    return Taps(np.stack([low, np.minimum(low + 1, length - 1)], 1), np.stack([1 - share, share], 1))


def _keys(x: Any, a: float) -> Any:
    """Compute Keys' kernel of an array of numpy or of JAX."""
    x, where = abs(x), jnp.where if isinstance(x, Array) else np.where
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return where(x <= 1, near, where(x >= 2, 0.0, far))


def cubic(length: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Weigh the four nearest inputs; the edges are repeated."""
    sources = _sources(length, out, scale, align_corners, clipped=False)
    low = np.floor(sources).astype(np.int64)
    offsets = np.arange(-1, 3)
    return Taps(np.clip(low[:, None] + offsets, 0, length - 1), _keys((sources - low)[:, None] - offsets, _CUBIC))


def antialiased(
    length: int, out: int, scale: float | None, align_corners: bool, window: Callable[[Floats], Floats], reach: int
) -> Taps:
    """Weigh every input within the window, which is widened where the output is smaller."""
    width = ((length - 1) / (out - 1) if out > 1 else 0.0) if align_corners else _step(length, out, scale)
    widened_by = max(width, 1.0)
    support = reach * widened_by
    centre = width * (np.arange(out) + 0.5)
    first = np.maximum((centre - support + 0.5).astype(np.int64), 0)
    last = np.minimum((centre + support + 0.5).astype(np.int64), length)
    taps = np.arange(math.ceil(support) * 2 + 1)
    index = first[:, None] + taps
    weight = window((index - centre[:, None] + 0.5) / widened_by)
    weight = np.where(index < last[:, None], weight, 0.0)
    total = weight.sum(1, keepdims=True)
    return Taps(np.minimum(index, length - 1), weight / np.where(total == 0, 1, total))


def resample(array: Array, axis: int, taps: Taps) -> Array:
    """Return the weighted sums along one axis. An input of weight zero counts for nothing, even if it is not finite."""
    if taps.places.shape[1] == 1:
        return jnp.take(array, taps.places[:, 0], axis=axis)
    if jnp.issubdtype(array.dtype, jnp.integer):
        return _resample_bytes(array, axis, taps)
    return _sums(array, axis, taps.places.T, taps.weight.T)


def _resample_bytes(array: Array, axis: int, taps: Taps) -> Array:
    """Return the weighted sums of bytes along one axis, with PyTorch's weights of 16 bits, rounded to bytes."""
    if array.shape[axis] == taps.places.shape[0]:
        return array
    shares = taps.weight.copy()
    for i in reversed(range(1, shares.shape[1])):  # an edge that is repeated has one weight
        again = taps.places[:, i] == taps.places[:, i - 1]
        shares[again, i - 1] += shares[again, i]
        shares[again, i] = 0
    bits = next(n for n in range(23) if n == 22 or int(0.5 + shares.max() * 2 ** (n + 1)) >= 1 << 15)
    weight = np.trunc(shares * 2**bits + np.copysign(0.5, shares)).astype(np.int32)
    terms = jnp.moveaxis(array, axis, -1)[..., taps.places].astype(np.int32) * weight
    total = (terms.sum(-1) + (1 << bits >> 1)) >> bits
    return jnp.moveaxis(jnp.clip(total, 0, 255), -1, axis).astype(array.dtype)


Dimension = Callable[[int, int, "float | None", bool], Taps]


def _define(names: Sequence[str], taps: Dimension, *, aligned: bool) -> None:

    def resized(self: Array, output_size: Sequence[int], *rest: float | None) -> Array:
        align, scales = (bool(rest[0]), rest[1:]) if aligned else (False, rest)
        first = self.ndim - len(output_size)
        given = (*scales, *((None,) * (len(output_size) - len(scales))))
        for i, (out, scale) in reversed([*enumerate(zip(output_size, given, strict=True))]):  # bytes round by the way
            self = resample(self, first + i, taps(self.shape[first + i], out, scale, align))
        return self

    lower(*names)(widened(resized))
    lower(*(f"{name}_backward" for name in names))(
        widened(lambda grad, size, input_size, *rest: transposed(lambda x: resized(x, size, *rest), grad, input_size))
    )


_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_define(_NEAREST, lambda n, out, scale, _: nearest(n, out, scale), aligned=False)
_define(_EXACT, lambda n, out, scale, _: nearest(n, out, scale, exact=True), aligned=False)
_define(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), linear, aligned=True)
_define(("upsample_bicubic2d",), cubic, aligned=True)
for _kind, _window, _reach in (
    ("bilinear", lambda x: np.maximum(0, 1 - np.abs(x)), 1),
    ("bicubic", partial(_keys, a=_CUBIC_SMOOTH), 2),
    ("lanczos", lambda x: np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0), 3),
):
    _define((f"_upsample_{_kind}2d_aa",), partial(antialiased, window=_window, reach=_reach), aligned=True)


_NEAREST_MODE, _BICUBIC = 1, 2  # interpolation modes; 0 is linear
_BORDER, _REFLECTION = 1, 2  # padding modes; 0 is zeros


def _place(normal: Array, length: int, align_corners: bool) -> Array:
    """Convert a coordinate in [-1, 1] to elements."""
    return (normal + 1) / 2 * (length - 1) if align_corners else ((normal + 1) * length - 1) / 2


def _inside(place: Array, length: int, padding: int, align_corners: bool) -> Array:
    """Return the place after padding; its gradient is zero where it was clipped, also on the edge itself."""
    if padding == _REFLECTION:
        low, span = (0.0, length - 1) if align_corners else (-0.5, length)
        if span == 0:
            return jnp.zeros_like(place)
        distance = jnp.abs(place - low)
        rest, turns = jax.lax.rem(distance, jnp.full_like(distance, span)), jnp.floor(distance / span)
        place = jnp.where(turns % 2 == 0, rest, span - rest) + low
    if padding in (_BORDER, _REFLECTION):
        place = jax.lax.clamp(jnp.zeros((), place.dtype), place, jnp.asarray(length - 1, place.dtype))
    return place


def _fetch(flat: Array, size: Sequence[int], places: Sequence[Array]) -> Array:
    """Return the values at whole places, zero outside. flat: (N, C, elements); places: (N, outputs) each."""
    index, valid = jnp.zeros((), jnp.int64), jnp.ones((), jnp.bool_)
    for place, length in zip(places, size, strict=True):
        valid = valid & (place >= 0) & (place <= length - 1)
        # outside it is any valid place: its value is dropped below
        index = index * length + jnp.clip(jnp.nan_to_num(place), 0, length - 1).astype(jnp.int64)
    index = jnp.broadcast_to(index[:, None], (*flat.shape[:2], index.shape[-1]))
    return jnp.where(valid[:, None], jnp.take_along_axis(flat, index, axis=2), 0)


@lower("grid_sampler_2d", "grid_sampler_3d")
@widened
def grid_sampler(input: Array, grid: Array, interpolation_mode: int, padding_mode: int, align_corners: bool) -> Array:
    """Sample (N, C, …) at the grid (N, …, dims), whose coordinates are x first and in [-1, 1]."""
    size, shape = input.shape[2:], grid.shape[1:-1]
    flat = input.reshape(*input.shape[:2], math.prod(size))
    rows = grid.reshape(grid.shape[0], math.prod(shape), len(size))
    places = [_place(rows[..., len(size) - 1 - i], n, align_corners) for i, n in enumerate(size)]

    def pad(place: Array, length: int) -> Array:
        return _inside(place, length, padding_mode, align_corners)

    def weighted(offsets: Sequence[int], weigh: Computation, pad: Computation) -> Array:
        out = jnp.zeros((), flat.dtype)
        floors = [jax.lax.stop_gradient(jnp.floor(p)) for p in places]
        for corner in itertools.product(offsets, repeat=len(size)):
            weight = math.prod(weigh(p - (f + c)) for p, f, c in zip(places, floors, corner, strict=True))
            taken = _fetch(flat, size, [pad(f + c, n) for f, c, n in zip(floors, corner, size, strict=True)])
            out = out + taken * weight[:, None]
        return out

    if interpolation_mode == _BICUBIC:
        out = weighted((-1, 0, 1, 2), partial(_keys, a=_CUBIC), pad)
    else:
        places = [pad(p, n) for p, n in zip(places, size, strict=True)]
        if interpolation_mode == _NEAREST_MODE:
            out = _fetch(flat, size, [jnp.round(p) for p in places])
        else:
            out = weighted((0, 1), lambda x: 1 - jnp.abs(x), lambda p, _: p)
    return out.reshape(*input.shape[:2], *shape)


@lower("grid_sampler_2d_backward", "grid_sampler_3d_backward")
@widened
def grid_sampler_backward(grad_output: Array, input: Array, grid: Array, *options: Any) -> tuple[Array | None, ...]:
    """Return the gradients of input and grid that the mask asks for, which is the last of the options."""
    grads = pullback(lambda x, g: grid_sampler(x, g, *options[:3]), grad_output, input, grid)
    return wanted(options[3], *grads)


# PyTorch's own kernels of these overloads read CPU memory, on any device.
kernel("_grid_sampler_2d_cpu_fallback")(lambda *args: computed("grid_sampler_2d")(*args))
kernel("_grid_sampler_2d_cpu_fallback_backward")(
    lambda *args: computed("grid_sampler_2d_backward")(*args, [True, True])
)


def _turned(weight: Array, groups: int) -> Array:
    """Return (in, out / groups, …) as (out, in / groups, …), flipped: a transposed weight as a plain convolution's."""
    inputs, outputs, *kernel = weight.shape
    grouped = weight.reshape(groups, inputs // groups, outputs, *kernel)
    swapped = jnp.swapaxes(grouped, 1, 2).reshape(groups * outputs, inputs // groups, *kernel)
    return jnp.flip(swapped, tuple(range(2, weight.ndim)))


def _convolved(input: Array, weight: Array, steps: Sequence[int], pads: Tree, **options: Any) -> Array:
    """Convolve as it is accumulated."""
    kept: dict[str, Any] = {**options, "preferred_element_type": asked(input.dtype)}
    return jax.lax.conv_general_dilated(input, weight, steps, pads, **kept)


@lower("convolution_overrideable")
def convolve(input: Array, weight: Array, bias: Array | None, *options: Tree) -> Array:
    """Convolve (N, C, …) with 1, 2 or 3 spatial dimensions; it is rounded once, on a CPU with the bias.

    `options`: stride, padding, dilation, whether it is transposed, output padding, groups.
    """
    dims, (*window, transposed, output_padding, groups) = input.ndim - 2, options
    stride, padding, dilation = (each(option, dims) for option in window)
    pads = [(p, p) for p in padding]
    steps, spread = stride, (1,) * dims
    if transposed:
        reach = [d * (k - 1) - p for d, k, p in zip(dilation, weight.shape[2:], padding, strict=True)]
        pads = [(r, r + o) for r, o in zip(reach, each(output_padding, dims), strict=True)]
        steps, spread, weight = spread, stride, _turned(weight, groups)
    out = _convolved(input, weight, steps, pads, lhs_dilation=spread, rhs_dilation=dilation, feature_group_count=groups)
    if bias is not None:
        out = out + bias.reshape(1, -1, *((1,) * dims)).astype(out.dtype)
    return out.astype(input.dtype)


def _lacking(grad: Array, input: Array, weight: Array, *window: Sequence[int]) -> list[int]:
    """Return the input's last elements that no window of a plain convolution reached, per spatial dimension."""
    spatial = zip(input.shape[2:], grad.shape[2:], weight.shape[2:], *window, strict=True)
    return [n - ((o - 1) * s - 2 * p + d * (k - 1) + 1) for n, o, k, s, p, d in spatial]


def _by_weight(large: Array, small: Array, kernel: Sequence[int], groups: int, *window: Sequence[int]) -> Array:
    """Return the gradient of a plain convolution's weight by its input `large` and its output's gradient `small`.

    Batch and channels change places: the batch is summed over, `small` slides over `large`. A transposed convolution's
    is the same of its output's gradient and its input.
    """
    stride, _, dilation = window
    spatial = zip(large.shape[2:], small.shape[2:], kernel, *window, strict=True)
    pads = [(p, (k - 1) * d + (o - 1) * s + 1 - n - p) for n, o, k, s, p, d in spatial]
    axes = "DHW"[3 - len(kernel) :]
    kinds = (f"CN{axes}", f"IO{axes}", f"CN{axes}")
    out = _convolved(
        large, small, dilation, pads, rhs_dilation=stride, dimension_numbers=kinds, batch_group_count=groups
    )
    return out.astype(large.dtype)


@lower("convolution_backward_overrideable")
def convolution_backward(grad_output: Array, input: Array, weight: Array, *options: Tree) -> tuple[Array | None, ...]:
    dims, (*given, transposed, _, groups, output_mask) = input.ndim - 2, options
    window = [each(option, dims) for option in given]
    by_input = by_weight = None
    if output_mask[0]:
        extra = (0,) * dims if transposed else _lacking(grad_output, input, weight, *window)
        out = convolve(grad_output, weight, None, *window, not transposed, extra, groups)
        # The gradient by the input is the other kind of convolution, of the gradient with the same weight.
        by_input = out[tuple(slice(0, n) for n in input.shape)]  # more than asked for where output_padding >= stride
    if output_mask[1]:
        large, small = (grad_output, input) if transposed else (input, grad_output)
        by_weight = _by_weight(large, small, weight.shape[2:], groups, *window)
    by_bias = jnp.sum(grad_output, axis=(0, *range(2, grad_output.ndim)))
    return by_input, by_weight, by_bias if output_mask[2] else None


@lower("conv_tbc")
def conv_tbc(self: Array, weight: Array, bias: Array, pad: int = 0) -> Array:
    """Convolve (time, batch, channels) with a weight of (kernel, in, out)."""
    out = convolve(self.transpose(1, 2, 0), weight.transpose(2, 1, 0), bias, (1,), (pad,), (1,), False, (0,), 1)
    return out.transpose(2, 0, 1)
