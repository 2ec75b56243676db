"""Interpolation: dimension after dimension, each output a weighted sum of a few inputs."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import transposed, widened

_CUBIC = -0.75  # Keys' parameter of upsample_bicubic2d
_CUBIC_SMOOTH = -0.5  # and of its antialiased form
Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Floats = np.ndarray[tuple[int, ...], np.dtype[np.float64]]


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


def _keys(x: Floats, a: float) -> Floats:
    x = np.abs(x)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = (((x - 5) * x + 8) * x - 4) * a
    return np.where(x <= 1, near, np.where(x < 2, far, 0.0))


def cubic(length: int, out: int, scale: float | None, align_corners: bool) -> Taps:
    """Weigh the four nearest inputs; the edges are repeated."""
    sources = _sources(length, out, scale, align_corners, clipped=False)
    low = np.floor(sources).astype(np.int64)
    offsets = np.arange(-1, 3)
    return Taps(np.clip(low[:, None] + offsets, 0, length - 1), _keys((sources - low)[:, None] - offsets, _CUBIC))


def _triangle(x: Floats) -> Floats:
    triangle: Floats = np.maximum(0, 1 - np.abs(x))
    return triangle


def _smooth_cubic(x: Floats) -> Floats:
    return _keys(x, _CUBIC_SMOOTH)


def _lanczos(x: Floats) -> Floats:
    return np.where(np.abs(x) < 3, np.sinc(x) * np.sinc(x / 3), 0.0)


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
    column = [-1 if i == axis else 1 for i in range(array.ndim)]
    if taps.places.shape[1] == 1:
        return jnp.take(array, taps.places[:, 0], axis=axis)
    out = jnp.zeros((), array.dtype)
    for index, weight in zip(taps.places.T, taps.weight.T, strict=True):
        if weight.any():
            term = jnp.take(array, index, axis=axis) * weight.astype(array.dtype).reshape(column)
            out = out + (term if weight.all() else jnp.where((weight != 0).reshape(column), term, 0))
    return out


Dimension = Callable[[int, int, "float | None", bool], Taps]


def _resized(
    self: Array, output_size: Sequence[int], align: bool, scales: Sequence[float | None], taps: Dimension
) -> Array:
    first = self.ndim - len(output_size)
    given = (*scales, *((None,) * (len(output_size) - len(scales))))
    for i, (out, scale) in enumerate(zip(output_size, given, strict=True)):
        self = resample(self, first + i, taps(self.shape[first + i], out, scale, align))
    return self


def _define(names: Sequence[str], taps: Dimension, *, aligned: bool) -> None:
    """Register the forward and the backward pass of one kind of interpolation."""

    @lower(*names)
    @widened
    def forward(self: Array, output_size: Sequence[int], *rest: float | None) -> Array:
        align, scales = (bool(rest[0]), rest[1:]) if aligned else (False, rest)
        return _resized(self, output_size, align, scales, taps)

    @lower(*(f"{name}_backward" for name in names))
    @widened
    def backward(
        grad_output: Array, output_size: Sequence[int], input_size: Sequence[int], *rest: float | None
    ) -> Array:
        align, scales = (bool(rest[0]), rest[1:]) if aligned else (False, rest)
        return transposed(lambda x: _resized(x, output_size, align, scales, taps), grad_output, input_size)


def _antialiased(window: Callable[[Floats], Floats], reach: int) -> Dimension:
    return lambda n, out, scale, align: antialiased(n, out, scale, align, window, reach)


_NEAREST = ("upsample_nearest1d", "upsample_nearest2d", "upsample_nearest3d")
_EXACT = ("_upsample_nearest_exact1d", "_upsample_nearest_exact2d", "_upsample_nearest_exact3d")
_define(_NEAREST, lambda n, out, scale, _: nearest(n, out, scale), aligned=False)
_define(_EXACT, lambda n, out, scale, _: nearest(n, out, scale, exact=True), aligned=False)
_define(("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"), linear, aligned=True)
_define(("upsample_bicubic2d",), cubic, aligned=True)
_define(("_upsample_bilinear2d_aa",), _antialiased(_triangle, 1), aligned=True)
_define(("_upsample_bicubic2d_aa",), _antialiased(_smooth_cubic, 2), aligned=True)
_define(("_upsample_lanczos2d_aa",), _antialiased(_lanczos, 3), aligned=True)
