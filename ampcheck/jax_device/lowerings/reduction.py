"""Reductions over dimensions: sums, extremes, truth values, moments. Lower precision is accumulated in float32."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dispatch.promotion import convert
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.wide import wide

Dims = int | Sequence[int] | None


def axes(array: Array, dim: Dims) -> tuple[int, ...]:
    """Return the dimensions to reduce, counted from the front: all of them for None or none given."""
    if dim is None or (not isinstance(dim, int) and not len(dim)):
        return tuple(range(array.ndim))
    if not array.ndim:
        return ()
    return tuple(d % array.ndim for d in ((dim,) if isinstance(dim, int) else dim))


def summand(self: Array, dtype: torch.dtype | None) -> Array:
    """Return what a sum or product adds up: in `dtype`, or int64 for integers and truth values; wide."""
    if dtype is not None:
        return wide(convert(self, jax_dtype(dtype)))
    return wide(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self.astype(jnp.int64)


@lower("sum", "sum.dim_IntList")
def sum_(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    """Return the sum; of integers in int64."""
    return jnp.sum(summand(self, dtype), axes(self, dim), keepdims=keepdim)


@lower("mean", "mean.dim")
def mean(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    """Return the mean; nan of nothing."""
    reduced = axes(self, dim)
    values = jnp.sum(summand(self, dtype), reduced, keepdims=keepdim)
    return values / math.prod(self.shape[d] for d in reduced)


@lower("prod", "prod.dim_int")
def prod(self: Array, dim: Dims = None, keepdim: bool = False, *, dtype: torch.dtype | None = None) -> Array:
    """Return the product; of integers in int64."""
    if dtype is torch.bool:
        return jnp.all(self != 0, axes(self, dim), keepdims=keepdim)
    return jnp.prod(summand(self, dtype), axes(self, dim), keepdims=keepdim)


def moments(self: Array, dim: Dims, correction: Number | None, keepdim: bool) -> tuple[Array, Array]:
    """Return variance, with `correction` taken off the count (1 for None), and mean, in float32 at least."""
    values, reduced = wide(self), axes(self, dim)
    count = math.prod(self.shape[d] for d in reduced)
    center = jnp.sum(values, reduced, keepdims=True) / count
    off = values - center
    squares = jnp.square(off.real) + jnp.square(off.imag) if jnp.iscomplexobj(off) else jnp.square(off)
    divisor = jnp.maximum(count - jnp.asarray(1 if correction is None else correction), 0)
    variance = jnp.sum(squares, reduced, keepdims=keepdim) / divisor.astype(squares.dtype)
    return variance, center if keepdim else jnp.squeeze(center, reduced)


# Each moment of variance and mean: what the overload returns.
_MOMENTS: dict[str, Computation] = {
    "var": lambda variance, _: variance,
    "std": lambda variance, _: jnp.sqrt(variance),
    "var_mean": lambda variance, mean: (variance, mean),
    "std_mean": lambda variance, mean: (jnp.sqrt(variance), mean),
}


def _register_moment(name: str, chosen: Computation) -> None:
    @lower(f"{name}.correction")
    def moment(self: Array, dim: Dims = None, *, correction: Number | None = None, keepdim: bool = False) -> Array:
        out: Array = chosen(*moments(self, dim, correction, keepdim))
        return out


for _name, _chosen in _MOMENTS.items():
    _register_moment(_name, _chosen)


def _register_extreme(kind: str, greatest: Callable[..., Array], first: Callable[..., Array]) -> None:
    """Register the extreme and its place: nan where there is one, and of several the first."""

    @lower(f"a{kind}", kind)
    def value(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
        return greatest(self, axes(self, dim), keepdims=keepdim)

    @lower(f"arg{kind}")
    def place(self: Array, dim: int | None = None, keepdim: bool = False) -> Array:
        return first(self, dim, keepdims=keepdim).astype(jnp.int64) if self.ndim else jnp.zeros((), jnp.int64)

    @lower(f"{kind}.dim")
    def both(self: Array, dim: int, keepdim: bool = False) -> tuple[Array, Array]:
        return value(self, dim, keepdim), place(self, dim, keepdim)


_register_extreme("max", jnp.max, jnp.argmax)
_register_extreme("min", jnp.min, jnp.argmin)


@lower("_aminmax", "_aminmax.dim")
def _aminmax(self: Array, dim: int | None = None, keepdim: bool = False) -> tuple[Array, Array]:
    reduced = axes(self, dim)
    return jnp.min(self, reduced, keepdims=keepdim), jnp.max(self, reduced, keepdims=keepdim)


@lower("any", "any.dim", "any.dims")
def any_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Return whether some element is not zero; nan is not zero. An empty list of dimensions reduces nothing."""
    return self != 0 if dim == () else jnp.any(self != 0, axes(self, dim), keepdims=keepdim)


@lower("all", "all.dim", "all.dims")
def all_(self: Array, dim: Dims = None, keepdim: bool = False) -> Array:
    """Return whether no element is zero. An empty list of dimensions reduces nothing."""
    return self != 0 if dim == () else jnp.all(self != 0, axes(self, dim), keepdims=keepdim)


@lower("count_nonzero", "count_nonzero.dim_IntList")
def count_nonzero(self: Array, dim: Dims = None) -> Array:
    """Return how many elements are not zero."""
    return jnp.sum(self != 0, axes(self, dim), dtype=jnp.int64)


@lower("logsumexp")
def logsumexp(self: Array, dim: Dims, keepdim: bool = False) -> Array:
    """Compute log(sum(exp(self))) without overflow; minus infinity of nothing."""
    values, reduced = wide(self), axes(self, dim)
    if not jnp.issubdtype(values.dtype, jnp.inexact):
        values = values.astype(jax_dtype(torch.get_default_dtype()))
    top = jnp.max(values.real, reduced, keepdims=True, initial=-jnp.inf)
    top = jnp.where(jnp.isinf(top), jnp.zeros_like(top), top)
    total = jnp.log(jnp.sum(jnp.exp(values - top), reduced, keepdims=True)) + top
    return total if keepdim else jnp.squeeze(total, reduced)


@lower("hash_tensor")
def hash_tensor(self: Array, dim: Dims = None, *, keepdim: bool = False, mode: int = 0) -> Array:
    """Return the exclusive or of the elements' bits: of floating numbers as float64, of integers as int64."""
    if jnp.issubdtype(self.dtype, jnp.floating):
        bits = jax.lax.bitcast_convert_type(self.astype(jnp.float64), jnp.uint64)
    else:
        bits = self.astype(jnp.uint64)
    reduced = axes(self, dim)
    out = jax.lax.reduce(bits, jnp.uint64(0), jax.lax.bitwise_xor, reduced)
    return jnp.expand_dims(out, reduced) if keepdim else out
