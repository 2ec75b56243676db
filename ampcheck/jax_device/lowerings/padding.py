"""Padding, and sliding windows laid out as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import transposed, widened

Places = Callable[[int, int, int], np.ndarray[Any, Any]]


def _reflected(length: int, before: int, after: int) -> np.ndarray[Any, Any]:
    places = np.arange(-before, length + after)
    places = np.abs(places)
    return np.where(places >= length, 2 * (length - 1) - places, places)


def _replicated(length: int, before: int, after: int) -> np.ndarray[Any, Any]:
    return np.clip(np.arange(-before, length + after), 0, length - 1)


def _padded(self: Array, padding: Sequence[int], places: Places) -> Array:
    """`padding` names (before, after) of the last dimension first."""
    for i in range(len(padding) // 2):
        axis = self.ndim - 1 - i
        where = places(self.shape[axis], padding[2 * i], padding[2 * i + 1])
        self = (
            jnp.take(self, where, axis=axis, mode="clip")
            if self.size
            else jnp.zeros((*self.shape[:axis], len(where), *self.shape[axis + 1 :]), self.dtype)
        )
    return self


@lower("reflection_pad1d", "reflection_pad2d", "reflection_pad3d")
def reflection_pad(self: Array, padding: Sequence[int]) -> Array:
    """Mirrored at the edges, which are not repeated."""
    return _padded(self, padding, _reflected)


@lower("replication_pad1d", "replication_pad2d", "replication_pad3d")
def replication_pad(self: Array, padding: Sequence[int]) -> Array:
    """The edges repeated."""
    return _padded(self, padding, _replicated)


@lower("reflection_pad1d_backward", "reflection_pad2d_backward", "reflection_pad3d_backward")
@widened
def reflection_pad_backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: _padded(x, padding, _reflected), grad_output, self.shape)


@lower("replication_pad1d_backward", "replication_pad2d_backward", "replication_pad3d_backward")
@widened
def replication_pad_backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
    """The gradient of the input."""
    return transposed(lambda x: _padded(x, padding, _replicated), grad_output, self.shape)


@lower("constant_pad_nd")
def constant_pad(self: Array, pad: Sequence[int], value: Number = 0) -> Array:
    """`value` around the last dimensions; a negative width takes away."""
    widths = [(pad[2 * i], pad[2 * i + 1], 0) for i in range(len(pad) // 2)][::-1]
    return jax.lax.pad(self, jnp.asarray(value).astype(self.dtype), [(0, 0, 0)] * (self.ndim - len(widths)) + widths)


def _windows(length: int, kernel: int, dilation: int, padding: int, stride: int) -> np.ndarray[Any, Any]:
    """For each place in the kernel and each window, the place in the padded input: (kernel, windows)."""
    count = (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(kernel)[:, None] * dilation + np.arange(count)[None, :] * stride


@lower("im2col")
def im2col(
    self: Array, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Array:
    """(N, C, H, W) to (N, C * kernel, windows)."""
    batch = self if self.ndim == 4 else self[None]
    rows, columns = (
        _windows(n, k, d, p, s)
        for n, k, d, p, s in zip(batch.shape[2:], kernel_size, dilation, padding, stride, strict=True)
    )
    batch = jnp.pad(batch, [(0, 0), (0, 0), *((p, p) for p in padding)])
    taken = batch[:, :, rows][:, :, :, :, columns]  # N, C, kernel h, windows h, kernel w, windows w
    count, channels, kh, h, kw, w = taken.shape
    out = taken.transpose(0, 1, 2, 4, 3, 5).reshape(count, channels * kh * kw, h * w)
    return out if self.ndim == 4 else out[0]


@lower("col2im")
@widened
def col2im(
    self: Array,
    output_size: Sequence[int],
    kernel_size: Sequence[int],
    dilation: Sequence[int],
    padding: Sequence[int],
    stride: Sequence[int],
) -> Array:
    """The transpose of im2col: windows summed into the (N, C, H, W) they were taken from."""
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    size = (*self.shape[:-2], channels, *output_size)
    return transposed(lambda x: im2col(x, kernel_size, dilation, padding, stride), self, size)


def _shuffled(self: Array, groups: int, axis: int) -> Array:
    parts = self.reshape(*self.shape[:axis], groups, self.shape[axis] // groups, *self.shape[axis + 1 :])
    return jnp.swapaxes(parts, axis, axis + 1).reshape(self.shape)


@lower("channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    """The channels (dimension 1) of (groups, rest) in the order (rest, groups)."""
    return _shuffled(self, groups, 1)


@lower("pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """(…, C * r * r, H, W) to (…, C, H * r, W * r)."""
    *lead, channels, h, w = self.shape
    r = upscale_factor
    parts = jnp.moveaxis(self.reshape(*lead, channels // (r * r), r, r, h, w), (-4, -3), (-3, -1))
    return parts.reshape(*lead, channels // (r * r), h * r, w * r)


@lower("pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """(…, C, H * r, W * r) to (…, C * r * r, H, W)."""
    *lead, channels, h, w = self.shape
    r = downscale_factor
    parts = jnp.moveaxis(self.reshape(*lead, channels, h // r, r, w // r, r), (-3, -1), (-4, -3))
    return parts.reshape(*lead, channels * r * r, h // r, w // r)
