"""Elementwise functions of one tensor, with PyTorch's results for integers: of most functions, floating ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import jax.scipy.special as special
import torch
from jax import Array

from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.wide import wide


def floating(x: Array) -> Array:
    """Return the array, integers and bools in PyTorch's default floating dtype."""
    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jax_dtype(torch.get_default_dtype()))


def once(function: Computation) -> Computation:
    """Wrap a function of a floating array: low precision is computed in float32 and rounded once."""

    def compute(self: Array, *args: Array) -> Array:
        x = floating(self)
        out: Array = function(wide(x), *args)
        return out.astype(x.dtype)

    return compute


def digamma(x: Array) -> Array:
    """Return the derivative of the logarithm of gamma, with PyTorch's infinities at both zeros."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


def _erfcx(x: Array) -> Array:
    """Compute exp(x²) erfc(x): the product where nothing overflows, a continued fraction for large x."""
    large = jnp.maximum(x, 5.0)
    tail = jnp.zeros_like(x)
    for k in range(40, 0, -1):
        tail = (k / 2) / (large + tail)
    # x * x rounds; what is lost matters, as exp multiplies it.
    safe = jnp.minimum(x, 5.0)
    wide = safe.astype(jnp.float64)
    product = jnp.exp(wide * wide) * jax.lax.erfc(wide)
    return jnp.where(x > 5, 1 / (jnp.sqrt(jnp.pi) * (large + tail)), product.astype(x.dtype))


_FUNCTIONS: dict[str, Computation] = {
    "acos": jnp.arccos,
    "acosh": jnp.arccosh,
    "asin": jnp.arcsin,
    "asinh": jnp.arcsinh,
    "atan": jnp.arctan,
    "atanh": jnp.arctanh,
    "cos": jnp.cos,
    "cosh": jnp.cosh,
    "erf": jax.lax.erf,
    "erfc": jax.lax.erfc,
    "erfinv": jax.lax.erf_inv,
    "exp": jnp.exp,
    "exp2": jnp.exp2,
    "expm1": jnp.expm1,
    "digamma": digamma,
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": jnp.log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "rsqrt": jax.lax.rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "reciprocal": jnp.reciprocal,
    "special_erfcx": _erfcx,
    "special_ndtri": special.ndtri,
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
}
for _name, _function in _FUNCTIONS.items():
    lower(_name)(once(_function))


def _kept(function: Computation) -> Computation:
    """Wrap a function of floating arrays; an integer is its own result."""

    def compute(self: Array) -> Array:
        out: Array = function(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self
        return out

    return compute


_ROUNDING: dict[str, Computation] = {
    "ceil": jnp.ceil,
    "floor": jnp.floor,
    "trunc": jnp.trunc,
    "round": jnp.round,
    "frac": lambda x: x - jnp.trunc(x),
}
for _name, _function in _ROUNDING.items():
    lower(_name)(_kept(_function))
lower("abs")(jnp.abs)
lower("neg")(jnp.negative)
lower("conj_physical", "_conj_physical")(jnp.conj)


@lower("sign")
def sign(self: Array) -> Array:
    """Return -1, 0 or 1; 0 of nan; a bool as it is."""
    # JAX's sign of nan is nan, PyTorch's is 0.
    return self if self.dtype == jnp.bool_ else jnp.where(jnp.isnan(self), jnp.zeros_like(self), jnp.sign(self))


@lower("sgn")
def sgn(self: Array) -> Array:
    """Return the sign; of a complex number, the number of magnitude 1 in its direction."""
    if not jnp.issubdtype(self.dtype, jnp.complexfloating):
        return sign(self)
    size = jnp.abs(self)
    return jnp.where(size == 0, jnp.zeros_like(self), self / jnp.where(size == 0, 1, size))


@lower("angle")
def angle(self: Array) -> Array:
    """Return the angle of a complex number; of a real one 0 or pi, and nan of nan."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    x = wide(floating(self))
    out = jnp.where(x < 0, jnp.asarray(jnp.pi, x.dtype), jnp.zeros_like(x))
    return jnp.where(jnp.isnan(x), x, out)
