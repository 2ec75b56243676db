"""Running reductions along a dimension. Lower precision is accumulated in float32."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.reduction import summand
from ampcheck.jax_device.lowerings.wide import wide


@lower("cumsum")
def cumsum(self: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """The sum of what came so far; of integers in int64."""
    values = summand(self, dtype)
    return jnp.cumsum(values, dim) if self.ndim else values


@lower("cumprod")
def cumprod(self: Any, dim: int, *, dtype: torch.dtype | None = None) -> Any:
    """The product of what came so far; of integers in int64."""
    values = summand(self, dtype)
    return jnp.cumprod(values, dim) if self.ndim else values


@lower("logcumsumexp", "_logcumsumexp")
def logcumsumexp(self: Any, dim: int) -> Any:
    """log(cumsum(exp(self))) without overflow."""
    if not self.ndim or not self.size:
        return self
    if jnp.iscomplexobj(self):
        return _complex_logcumsumexp(self, dim)
    return jax.lax.associative_scan(jnp.logaddexp, wide(self), axis=dim % self.ndim)


def _complex_logcumsumexp(self: Any, dim: int) -> Any:
    """One element after the other, as PyTorch adds: the multiple of 2 pi in the imaginary part depends on the order."""

    def step(total: Any, value: Any) -> tuple[Any, Any]:
        first = total.real > value.real
        greater, less = jnp.where(first, total, value), jnp.where(first, value, total)
        both = jnp.where(jnp.isneginf(less.real), greater, greater + jnp.log1p(jnp.exp(less - greater)))
        return both, both

    lines = jnp.moveaxis(self, dim, 0)
    rest = jax.lax.scan(step, lines[0], lines[1:])[1]
    return jnp.moveaxis(jnp.concatenate([lines[:1], rest]), 0, dim)


@lower("cummax")
def cummax(self: Any, dim: int) -> tuple[Any, Any]:
    """The greatest so far, and its last place; the last nan once there was one."""
    return _running(self, dim, jnp.greater_equal)


@lower("cummin")
def cummin(self: Any, dim: int) -> tuple[Any, Any]:
    """The least so far, and its last place; the last nan once there was one."""
    return _running(self, dim, jnp.less_equal)


def _running(self: Any, dim: int, beats: Callable[[Any, Any], Any]) -> tuple[Any, Any]:
    if not self.ndim or not self.size:
        return self, jnp.zeros(self.shape, jnp.int64)
    floating = jnp.issubdtype(self.dtype, jnp.floating)

    def later(first: tuple[Any, Any], second: tuple[Any, Any]) -> tuple[Any, Any]:
        wins = beats(second[0], first[0])
        if floating:
            wins = jnp.isnan(second[0]) | (~jnp.isnan(first[0]) & wins)
        return jnp.where(wins, second[0], first[0]), jnp.where(wins, second[1], first[1])

    places = jax.lax.broadcasted_iota(jnp.int64, self.shape, dim % self.ndim)
    values, indices = jax.lax.associative_scan(later, (self, places), axis=dim % self.ndim)
    return values, indices
