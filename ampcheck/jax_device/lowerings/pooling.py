"""Pooling over windows: dimension after dimension, so that a window costs the sum of its sides."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import rounded, transposed, widened

_FAR = np.iinfo(np.int32).max  # the index of padding, so that an element that equals it is taken instead


def _each(value: Sequence[int], dims: int, default: Sequence[int] = ()) -> tuple[int, ...]:
    value = tuple(value) or tuple(default)
    return value * dims if len(value) == 1 else value


def windows(length: int, kernel: int, stride: int, padding: int, dilation: int, ceil_mode: bool) -> int:
    """How many windows a dimension has; with `ceil_mode` the last one may hang over, but starts inside."""
    span = length + 2 * padding - dilation * (kernel - 1) - 1
    count = (span + stride - 1 if ceil_mode else span) // stride + 1
    return count - 1 if ceil_mode and (count - 1) * stride >= length + padding else count


def better(new: tuple[Array, Array], old: tuple[Array, Array]) -> tuple[Array, Array]:
    """The greater of two (value, index); the lower index where equal; nan over everything."""
    (value, index), (best, place) = new, old
    wins = (value > best) | ((value == best) & (index < place))
    if jnp.issubdtype(value.dtype, jnp.floating):
        wins = wins | (jnp.isnan(value) & ~(jnp.isnan(best) & (place >= index)))
    return jnp.where(wins, value, best), jnp.where(wins, index, place)


def _greatest(candidates: Iterator[tuple[Array, Array]]) -> tuple[Array, Array]:
    best = next(candidates)
    for candidate in candidates:
        best = better(candidate, best)
    return best


def _lowest(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _places(size: Sequence[int], ndim: int) -> Array:
    """Each element's index within its last dimensions, of shape (1, …, *size)."""
    return jnp.arange(math.prod(size), dtype=np.int32).reshape(*((1,) * (ndim - len(size))), *size)


def _strided(array: Array, axis: int, start: int, count: int, step: int) -> Array:
    return jax.lax.slice_in_dim(array, start, start + (count - 1) * step + 1, step, axis)


@lower("max_pool2d_with_indices")
def max_pool2d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """The greatest of each window of the last two dimensions, and its index in them."""
    return _max_pool(self, 2, kernel_size, stride, padding, dilation, ceil_mode)


@lower("max_pool3d_with_indices")
def max_pool3d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    dilation: Sequence[int] = (1,),
    ceil_mode: bool = False,
) -> tuple[Array, Array]:
    """The greatest of each window of the last three dimensions, and its index in them."""
    return _max_pool(self, 3, kernel_size, stride, padding, dilation, ceil_mode)


def _max_pool(
    self: Array,
    dims: int,
    kernel: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    ceil_mode: bool,
) -> tuple[Array, Array]:
    kernel = _each(kernel, dims)
    options = zip(kernel, _each(stride, dims, kernel), _each(padding, dims), _each(dilation, dims), strict=True)
    value, index = self, jnp.broadcast_to(_places(self.shape[-dims:], self.ndim), self.shape)
    for axis, (k, s, p, d) in enumerate(options, self.ndim - dims):
        count = windows(self.shape[axis], k, s, p, d, ceil_mode)
        after = max(0, (count - 1) * s + d * (k - 1) + 1 - p - self.shape[axis])
        around = [(p, after) if i == axis else (0, 0) for i in range(self.ndim)]
        value = jnp.pad(value, around, constant_values=_lowest(self.dtype))
        index = jnp.pad(index, around, constant_values=_FAR)
        value, index = _greatest(
            (_strided(value, axis, j * d, count, s), _strided(index, axis, j * d, count, s)) for j in range(k)
        )
    return value, index


@lower("adaptive_max_pool2d", "adaptive_max_pool3d")
def adaptive_max_pool(self: Array, output_size: Sequence[int]) -> tuple[Array, Array]:
    """The greatest of each of `output_size` nearly equal parts, and its index in the last dimensions."""
    dims = len(output_size)
    value, index = self, jnp.broadcast_to(_places(self.shape[-dims:], self.ndim), self.shape)
    for axis, parts in enumerate(output_size, self.ndim - dims):
        starts, stops = _parts(self.shape[axis], parts)
        longest = int((stops - starts).max(initial=1))
        taps = [np.minimum(starts + j, stops - 1) for j in range(longest)]
        value, index = _greatest((jnp.take(value, t, axis=axis), jnp.take(index, t, axis=axis)) for t in taps)
    return value, index


def _parts(length: int, parts: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    i = np.arange(parts)
    return i * length // max(parts, 1), -(-(i + 1) * length // max(parts, 1))


@lower("max_pool2d_with_indices_backward", "adaptive_max_pool2d_backward", "fractional_max_pool2d_backward")
@widened
def max_pool2d_backward(grad_output: Array, self: Array, *options: Any) -> Array:
    """Each gradient added where its maximum was found; the indices are the last argument."""
    return _scattered(grad_output, options[-1], self.shape, 2)


@lower("max_pool3d_with_indices_backward", "adaptive_max_pool3d_backward", "fractional_max_pool3d_backward")
@rounded
def max_pool3d_backward(grad_output: Array, self: Array, *options: Any) -> Array:
    """Each gradient added where its maximum was found; the indices are the last argument."""
    return _scattered(grad_output, options[-1], self.shape, 3)


def _rows(array: Array, dims: int) -> Array:
    """(all leading dimensions, all last `dims` ones)."""
    return array.reshape(math.prod(array.shape[:-dims]), math.prod(array.shape[-dims:]))


def _scattered(values: Array, indices: Array, size: Sequence[int], dims: int) -> Array:
    flat = jnp.zeros((math.prod(size[:-dims]), math.prod(size[-dims:])), values.dtype)
    rows = jnp.arange(flat.shape[0])[:, None]
    return flat.at[rows, _rows(indices, dims)].add(_rows(values, dims)).reshape(size)


@lower("max_unpool2d", "max_unpool3d")
def max_unpool(self: Array, indices: Array, output_size: Sequence[int], *_: Any) -> Array:
    """Zeros, with each element of self at its index in the last dimensions."""
    dims = len(output_size)
    size = (*self.shape[:-dims], *output_size)
    flat = jnp.zeros((math.prod(size[:-dims]), math.prod(output_size)), self.dtype)
    rows = jnp.arange(flat.shape[0])[:, None]
    return flat.at[rows, _rows(indices, dims)].set(_rows(self, dims)).reshape(size)


@lower("avg_pool2d")
@widened
def avg_pool2d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """The mean of each window of the last two dimensions."""
    return _avg_pool(self, 2, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@lower("avg_pool3d")
@widened
def avg_pool3d(
    self: Array,
    kernel_size: Sequence[int],
    stride: Sequence[int] = (),
    padding: Sequence[int] = (0,),
    ceil_mode: bool = False,
    count_include_pad: bool = True,
    divisor_override: int | None = None,
) -> Array:
    """The mean of each window of the last three dimensions."""
    return _avg_pool(self, 3, kernel_size, stride, padding, ceil_mode, count_include_pad, divisor_override)


@lower("avg_pool2d_backward")
@widened
def avg_pool2d_backward(grad_output: Array, self: Array, *options: Any) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: _avg_pool(x, 2, *options), grad_output, self.shape)


@lower("avg_pool3d_backward")
@widened
def avg_pool3d_backward(grad_output: Array, self: Array, *options: Any) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: _avg_pool(x, 3, *options), grad_output, self.shape)


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
    kernel = _each(kernel, dims)
    options = zip(kernel, _each(stride, dims, kernel), _each(padding, dims), strict=True)
    out, sizes = self, np.ones((1,) * dims)
    for i, (k, s, p) in enumerate(options):
        axis, length = self.ndim - dims + i, self.shape[self.ndim - dims + i]
        count = windows(length, k, s, p, 1, ceil_mode)
        after = max(0, (count - 1) * s + k - p - length)
        out = jnp.pad(out, [(p, after) if j == axis else (0, 0) for j in range(self.ndim)])
        out = reduce(operator.add, [_strided(out, axis, j, count, s) for j in range(k)])
        starts = np.arange(count) * s - p
        stops = np.minimum(starts + k, length + p)
        covered = stops - starts if counted else np.minimum(stops, length) - np.maximum(starts, 0)
        sizes = sizes * covered.reshape([-1 if j == i else 1 for j in range(dims)])
    if jnp.issubdtype(out.dtype, jnp.integer):
        return out // (sizes.astype(np.int64) if divisor is None else divisor)
    return out / (sizes.astype(out.dtype) if divisor is None else divisor)


@lower("_adaptive_avg_pool2d", "_adaptive_avg_pool3d")
@widened
def adaptive_avg_pool(self: Array, output_size: Sequence[int]) -> Array:
    """The mean of each of `output_size` nearly equal parts of the last dimensions."""
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


@lower("_adaptive_avg_pool2d_backward")
@widened
def adaptive_avg_pool2d_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: adaptive_avg_pool(x, grad_output.shape[-2:]), grad_output, self.shape)


@lower("_adaptive_avg_pool3d_backward")
@widened
def adaptive_avg_pool3d_backward(grad_output: Array, self: Array) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: adaptive_avg_pool(x, grad_output.shape[-3:]), grad_output, self.shape)
