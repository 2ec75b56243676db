"""Padding, and sliding windows laid out as columns."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import transposed, widened

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Places = Callable[[int, int, int], Ints]
"""Where each element of a padded dimension comes from, of a length and the widths before and after it."""


def _reflected(length: int, before: int, after: int) -> Ints:
    places = np.arange(-before, length + after)
    places = np.abs(places)
    return np.where(places >= length, 2 * (length - 1) - places, places)


def _replicated(length: int, before: int, after: int) -> Ints:
    return np.clip(np.arange(-before, length + after), 0, length - 1)


def _padded(self: Array, padding: Sequence[int], places: Places) -> Array:
    """Pad by `padding`, which names (before, after) of the last dimension first."""
    for i in range(len(padding) // 2):
        axis = self.ndim - 1 - i
        where = places(self.shape[axis], padding[2 * i], padding[2 * i + 1])
        self = (
            jnp.take(self, where, axis=axis, mode="clip")
            if self.size
            else jnp.zeros((*self.shape[:axis], len(where), *self.shape[axis + 1 :]), self.dtype)
        )
    return self


def _register(kind: str, places: Places) -> None:
    names = [f"{kind}_pad{dims}d" for dims in (1, 2, 3)]

    @lower(*names)
    def forward(self: Array, padding: Sequence[int]) -> Array:
        return _padded(self, padding, places)

    @lower(*(f"{name}_backward" for name in names))
    @widened
    def backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
        return transposed(lambda x: _padded(x, padding, places), grad_output, self.shape)


_register("reflection", _reflected)
_register("replication", _replicated)


@lower("constant_pad_nd")
def constant_pad(self: Array, pad: Sequence[int], value: Number = 0) -> Array:
    """Put `value` around the last dimensions; a negative width takes away."""
    widths = [(pad[2 * i], pad[2 * i + 1], 0) for i in range(len(pad) // 2)][::-1]
    return jax.lax.pad(self, jnp.asarray(value).astype(self.dtype), [(0, 0, 0)] * (self.ndim - len(widths)) + widths)


def _windows(length: int, kernel: int, dilation: int, padding: int, stride: int) -> Ints:
    """Return the place in the padded input for each place in the kernel and each window: (kernel, windows)."""
    count = (length + 2 * padding - dilation * (kernel - 1) - 1) // stride + 1
    return np.arange(kernel)[:, None] * dilation + np.arange(count)[None, :] * stride


@lower("im2col")
def im2col(
    self: Array, kernel_size: Sequence[int], dilation: Sequence[int], padding: Sequence[int], stride: Sequence[int]
) -> Array:
    """Lay (N, C, H, W) out as (N, C * kernel, windows)."""
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
    """Return the transpose of im2col: windows summed into the (N, C, H, W) they were taken from."""
    channels = self.shape[-2] // (kernel_size[0] * kernel_size[1])
    size = (*self.shape[:-2], channels, *output_size)
    return transposed(lambda x: im2col(x, kernel_size, dilation, padding, stride), self, size)


@lower("channel_shuffle")
def channel_shuffle(self: Array, groups: int) -> Array:
    """Put the channels (dimension 1) of (groups, rest) in the order (rest, groups)."""
    parts = self.reshape(self.shape[0], groups, self.shape[1] // groups, *self.shape[2:])
    return jnp.swapaxes(parts, 1, 2).reshape(self.shape)


@lower("pixel_shuffle")
def pixel_shuffle(self: Array, upscale_factor: int) -> Array:
    """Rearrange (…, C * r * r, H, W) to (…, C, H * r, W * r)."""
    *lead, channels, h, w = self.shape
    r = upscale_factor
    parts = jnp.moveaxis(self.reshape(*lead, channels // (r * r), r, r, h, w), (-4, -3), (-3, -1))
    return parts.reshape(*lead, channels // (r * r), h * r, w * r)


@lower("pixel_unshuffle")
def pixel_unshuffle(self: Array, downscale_factor: int) -> Array:
    """Rearrange (…, C, H * r, W * r) to (…, C * r * r, H, W)."""
    *lead, channels, h, w = self.shape
    r = downscale_factor
    parts = jnp.moveaxis(self.reshape(*lead, channels, h // r, r, w // r, r), (-3, -1), (-4, -3))
    return parts.reshape(*lead, channels * r * r, h // r, w // r)
