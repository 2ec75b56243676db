"""Fractional max pooling: windows of one size at random, nearly regular places."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.pooling import better


def _starts(samples: Array, length: int, parts: int, kernel: int) -> Array:
    """Where the windows of one dimension start, per batch and channel: (N, C, parts)."""
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
    """The greatest of each window, and its index in the last dimensions. `random_samples`: (N, C, dims) in [0, 1)."""
    dims = len(output_size)
    batch = self if self.ndim == dims + 2 else self[None]
    size = batch.shape[2:]
    order = (1, 0) if dims == 2 else (0, 1, 2)  # the two-dimensional kernels take the samples as (width, height)
    flat = batch.reshape(*batch.shape[:2], math.prod(size))
    starts = [
        _starts(random_samples[..., order[i]], n, parts, k)
        for i, (n, parts, k) in enumerate(zip(size, output_size, kernel_size, strict=True))
    ]
    best: Any = None
    for offsets in itertools.product(*map(range, kernel_size)):
        index = jnp.zeros((), jnp.int64)
        for i, (start, offset) in enumerate(zip(starts, offsets, strict=True)):
            places = (start + offset) * math.prod(size[i + 1 :])
            index = index + places.reshape(*places.shape[:2], *[places.shape[2] if j == i else 1 for j in range(dims)])
        taken = jnp.take_along_axis(flat, index.reshape(*flat.shape[:2], math.prod(output_size)), axis=-1).reshape(
            index.shape
        )
        best = (taken, index) if best is None else better((taken, index), best)
    value, index = best
    return (value, index) if batch is self else (value[0], index[0])
