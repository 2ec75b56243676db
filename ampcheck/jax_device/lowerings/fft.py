"""Fourier transforms."""

from __future__ import annotations

import math
from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import lower

BY_ROOT_N, BY_N = 1, 2  # ATen/native/SpectralOpsUtils.h: fft_norm_mode; 0 is none


def _scaled(values: Array, normalization: int, count: int) -> Array:
    if normalization == BY_ROOT_N:
        return values * (1 / math.sqrt(count))
    return values * (1 / count) if normalization == BY_N else values


def _complex(values: Array, dims: Sequence[int], forward: bool) -> Array:
    """Return the unscaled transform along each of the dimensions."""
    for d in dims:
        values = jnp.fft.fft(values, axis=d) if forward else jnp.fft.ifft(values, axis=d, norm="forward")
    return values


@lower("_fft_c2c")
def fft_c2c(self: Array, dim: Sequence[int], normalization: int, forward: bool) -> Array:
    """Return the transform of complex numbers."""
    return _scaled(_complex(self, dim, forward), normalization, math.prod(self.shape[d] for d in dim))


@lower("_fft_r2c")
def fft_r2c(self: Array, dim: Sequence[int], normalization: int, onesided: bool) -> Array:
    """Transform real numbers; `onesided` gives the first half along the last of `dim`, which the rest mirrors."""
    last = dim[-1]
    out = jnp.fft.rfft(self, axis=last) if onesided else jnp.fft.fft(self, axis=last)
    return _scaled(_complex(out, dim[:-1], True), normalization, math.prod(self.shape[d] for d in dim))


@lower("_fft_c2r")
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """Return the inverse of the transform of real numbers, from its first half along the last of `dim`."""
    inner = _complex(self, dim[:-1], False)
    out = jnp.fft.irfft(inner, last_dim_size, axis=dim[-1], norm="forward")
    return _scaled(out, normalization, math.prod(out.shape[d] for d in dim))
