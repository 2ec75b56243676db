"""Pooling over windows: dimension after dimension, so that a window costs the sum of its sides.

Fractional max pooling has windows of one size at random, nearly regular places.
"""

from __future__ import annotations

import itertools
import math
import operator
from collections.abc import Iterator, Sequence
from functools import reduce

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import rounded, transposed, widened

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
_FAR = np.iinfo(np.int32).max  # the index of padding, so that an element that equals it is taken instead


def each(value: Sequence[int], dims: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    """Return an option for each spatial dimension: one number stands for all."""
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


def _greatest(candidates: Iterator[tuple[Array, Array]]) -> tuple[Array, Array]:
    best = next(candidates)
    for candidate in candidates:
        best = _better(candidate, best)
    return best


def _lowest(dtype: np.dtype) -> float:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _places(size: Sequence[int], ndim: int) -> Array:
    """Return each element's index within its last dimensions, of shape (1, …, *size)."""
    return jnp.arange(math.prod(size), dtype=np.int32).reshape(*((1,) * (ndim - len(size))), *size)


def _strided(array: Array, axis: int, start: int, count: int, step: int) -> Array:
    return jax.lax.slice_in_dim(array, start, start + (count - 1) * step + 1, step, axis)


def _register_max_pool(dims: int) -> None:
    @lower(f"max_pool{dims}d_with_indices")
    def forward(
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        dilation: Sequence[int] = (1,),
        ceil_mode: bool = False,
    ) -> tuple[Array, Array]:
        return _max_pool(self, dims, kernel_size, stride, padding, dilation, ceil_mode)

    kinds = ("max_pool{}d_with_indices", "adaptive_max_pool{}d", "fractional_max_pool{}d")

    # The indices are the last argument of each. Some Meta kernels do not say the dtype of the result.
    @lower(*(f"{kind.format(dims)}_backward" for kind in kinds))
    @rounded
    def backward(grad_output: Array, self: Array, *options: Array) -> Array:
        return _scattered(grad_output, options[-1], self.shape, dims)


def _max_pool(
    self: Array,
    dims: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Array, Array]:
    kernel = each(kernel, dims)
    options = zip(kernel, each(stride, dims, kernel), each(padding, dims), each(dilation, dims), strict=True)
    value, index = self, jnp.broadcast_to(_places(self.shape[-dims:], self.ndim), self.shape)
    for axis, (k, s, p, d) in enumerate(options, self.ndim - dims):
        count = windows(self.shape[axis], k, s, p, d, ceil_mode)
        after = max(0, (count - 1) * s + d * (k - 1) + 1 - p - self.shape[axis])
        around = [(p, after) if i == axis else (0, 0) for i in range(self.ndim)]
        # A window of several dimensions is the extreme of its rows' extremes; the index goes along, so it stays exact.
        value = jnp.pad(value, around, constant_values=_lowest(self.dtype))
        index = jnp.pad(index, around, constant_values=_FAR)
        value, index = _greatest(
            (_strided(value, axis, j * d, count, s), _strided(index, axis, j * d, count, s)) for j in range(k)
        )
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
        taps = [np.minimum(starts + j, stops - 1) for j in range(longest)]
        value, index = _greatest((jnp.take(value, t, axis=axis), jnp.take(index, t, axis=axis)) for t in taps)
    return value, index


def _parts(length: int, parts: int) -> tuple[Ints, Ints]:
    i = np.arange(parts)
    return i * length // max(parts, 1), -(-(i + 1) * length // max(parts, 1))


def _rows(array: Array, dims: int) -> Array:
    """Flatten to (all leading dimensions, all last `dims` ones)."""
    return array.reshape(math.prod(array.shape[:-dims]), math.prod(array.shape[-dims:]))


def _scattered(values: Array, indices: Array, size: Sequence[int], dims: int) -> Array:
    flat = jnp.zeros((math.prod(size[:-dims]), math.prod(size[-dims:])), values.dtype)
    rows = jnp.arange(flat.shape[0])[:, None]
    return flat.at[rows, _rows(indices, dims)].add(_rows(values, dims)).reshape(size)


@lower("max_unpool2d", "max_unpool3d")
def max_unpool(self: Array, indices: Array, output_size: Sequence[int], *_: Sequence[int]) -> Array:
    """Return zeros, with each element of self at its index in the last dimensions."""
    dims = len(output_size)
    size = (*self.shape[:-dims], *output_size)
    flat = jnp.zeros((math.prod(size[:-dims]), math.prod(output_size)), self.dtype)
    rows = jnp.arange(flat.shape[0])[:, None]
    return flat.at[rows, _rows(indices, dims)].set(_rows(self, dims)).reshape(size)


def _register_avg_pool(dims: int) -> None:
    @lower(f"avg_pool{dims}d")
    @widened
    def forward(
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int] = (),
        padding: Sequence[int] = (0,),
        ceil_mode: bool = False,
        count_include_pad: bool = True,
        divisor_override: int | None = None,
    ) -> Array:
        return _avg_pool(self, dims, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)

    @lower(f"avg_pool{dims}d_backward")
    @widened
    def backward(
        grad_output: Array,
        self: Array,
        kernel_size: Sequence[int],
        stride: Sequence[int],
        padding: Sequence[int],
        *options: bool,
    ) -> Array:
        def pooled(x: Array) -> Array:
            return _avg_pool(x, dims, kernel_size, stride, padding, *options)

        return transposed(pooled, grad_output, self.shape)

    @lower(f"_adaptive_avg_pool{dims}d_backward")
    @widened
    def adaptive_backward(grad_output: Array, self: Array) -> Array:
        return transposed(lambda x: adaptive_avg_pool(x, grad_output.shape[-dims:]), grad_output, self.shape)


for _dims in (2, 3):
    _register_max_pool(_dims)
    _register_avg_pool(_dims)


def _avg_pool(
    self: Array,
    dims: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    ceil_mode: bool,
    counted: bool,
    divisor: int | None,
) -> Array:
    kernel = each(kernel, dims)
    options = zip(kernel, each(stride, dims, kernel), each(padding, dims), strict=True)
    out, sizes = self, np.ones((1,) * dims)
    for i, (k, s, p) in enumerate(options):
        axis, length = self.ndim - dims + i, self.shape[self.ndim - dims + i]
        count = windows(length, k, s, p, 1, ceil_mode)
        after = max(0, (count - 1) * s + k - p - length)
        out = jnp.pad(out, [(p, after) if j == axis else (0, 0) for j in range(self.ndim)])
        out = reduce(operator.add, [_strided(out, axis, j, count, s) for j in range(k)])
        starts = np.arange(count) * s - p
        stops = np.minimum(starts + k, length + p)
        # what hangs over by ceil_mode beyond the padding is never counted
        covered = stops - starts if counted else np.minimum(stops, length) - np.maximum(starts, 0)
        sizes = sizes * covered.reshape([-1 if j == i else 1 for j in range(dims)])
    if jnp.issubdtype(out.dtype, jnp.integer):
        return out // (sizes.astype(np.int64) if divisor is None else divisor)
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
    column = [-1 if i == axis else 1 for i in range(array.ndim)]
    out = jnp.zeros((), array.dtype)
    for j in range(int((stops - starts).max(initial=1))):
        taken = jnp.take(array, np.minimum(starts + j, stops - 1), axis=axis)
        out = out + jnp.where((starts + j < stops).reshape(column), taken, 0)
    means: Array = out / (stops - starts).reshape(column).astype(out.dtype)
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
