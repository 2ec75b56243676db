"""Running reductions along a dimension. Lower precision is accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.reduction import summand
from ampcheck.jax_device.lowerings.wide import wide


def _register_running(name: str, running: Callable[[Array, int], Array]) -> None:
    @lower(name)
    def compute(self: Array, dim: int, *, dtype: torch.dtype | None = None) -> Array:
        values = summand(self, dtype)  # of integers in int64
        return running(values, dim) if self.ndim else values


_register_running("cumsum", jnp.cumsum)
_register_running("cumprod", jnp.cumprod)


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
