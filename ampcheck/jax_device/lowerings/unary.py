"""Elementwise functions of one tensor, with PyTorch's results for integers: of most functions, floating ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import jax.scipy.special as special
from jax import Array

from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import lower

_LOW = (jnp.float16, jnp.bfloat16)


def floating(x: Array) -> Array:
    """The array, integers and bools in PyTorch's default floating dtype."""
    import torch

    return x if jnp.issubdtype(x.dtype, jnp.inexact) else x.astype(jax_dtype(torch.get_default_dtype()))


def once(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` of a floating array; low precision is computed in float32 and rounded once."""

    def compute(self: Any, *args: Any, **kwargs: Any) -> Any:
        x = floating(self)
        return (
            function(x.astype(jnp.float32), *args, **kwargs).astype(x.dtype)
            if x.dtype in _LOW
            else function(x, *args, **kwargs)
        )

    return compute


def digamma(x: Array) -> Array:
    """The derivative of the logarithm of gamma, with PyTorch's infinities at both zeros."""
    return jnp.where(x == 0, jnp.copysign(jnp.inf, -x), special.digamma(x))


def _rsqrt(x: Array) -> Array:
    return jax.lax.rsqrt(x)


def _log10(x: Array) -> Array:
    return jnp.log10(x)


def _exp2(x: Array) -> Array:
    return jnp.exp2(x)


def _log_ndtr(x: Array) -> Array:
    return special.log_ndtr(x)


def _erfcx(x: Array) -> Array:
    """exp(x²) erfc(x): the product where nothing overflows, a continued fraction for large x."""
    large = jnp.maximum(x, 5.0)
    tail = jnp.zeros_like(x)
    for k in range(40, 0, -1):
        tail = (k / 2) / (large + tail)
    # x * x rounds; what is lost matters, as exp multiplies it.
    safe = jnp.minimum(x, 5.0)
    wide = safe.astype(jnp.float64)
    product = jnp.exp(wide * wide) * jax.lax.erfc(wide)
    return jnp.where(x > 5, 1 / (jnp.sqrt(jnp.pi) * (large + tail)), product.astype(x.dtype))


_FUNCTIONS: dict[str, Callable[..., Any]] = {
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
    "exp2": _exp2,
    "expm1": jnp.expm1,
    "digamma": digamma,
    "lgamma": special.gammaln,
    "log": jnp.log,
    "log10": _log10,
    "log1p": jnp.log1p,
    "log2": jnp.log2,
    "rsqrt": _rsqrt,
    "sigmoid": jax.nn.sigmoid,
    "sin": jnp.sin,
    "sinc": jnp.sinc,
    "sinh": jnp.sinh,
    "sqrt": jnp.sqrt,
    "tan": jnp.tan,
    "tanh": jnp.tanh,
    "reciprocal": jnp.reciprocal,
    "special_erfcx": _erfcx,
    "special_log_ndtr": _log_ndtr,
    "special_ndtri": special.ndtri,
    "i0": special.i0,
    "special_i0e": special.i0e,
    "special_i1": special.i1,
    "special_i1e": special.i1e,
    "special_entr": special.entr,
}
for _name, _function in _FUNCTIONS.items():
    lower(_name)(once(_function))


def _kept(function: Callable[..., Array]) -> Callable[..., Array]:
    """`function` of a floating array; an integer is its own result."""

    def compute(self: Array) -> Array:
        return function(self) if jnp.issubdtype(self.dtype, jnp.inexact) else self

    return compute


def _sign(x: Array) -> Array:
    return jnp.where(jnp.isnan(x), jnp.zeros_like(x), jnp.sign(x))


def _frac(x: Array) -> Array:
    return x - jnp.trunc(x)


for _name, _function in {"ceil": jnp.ceil, "floor": jnp.floor, "trunc": jnp.trunc, "round": jnp.round}.items():
    lower(_name)(_kept(_function))
lower("frac")(_kept(_frac))
lower("abs")(jnp.abs)
lower("neg")(jnp.negative)


@lower("sign")
def sign(self: Array) -> Array:
    """-1, 0 or 1; 0 of nan; a bool as it is."""
    return self if self.dtype == jnp.bool_ else _sign(self)


@lower("sgn")
def sgn(self: Array) -> Array:
    """The sign; of a complex number, the number of magnitude 1 in its direction."""
    if not jnp.issubdtype(self.dtype, jnp.complexfloating):
        return sign(self)
    size = jnp.abs(self)
    return jnp.where(size == 0, jnp.zeros_like(self), self / jnp.where(size == 0, 1, size))


@lower("round.decimals")
def round_decimals(self: Array, *, decimals: int) -> Array:
    """Rounded to that many decimal places, halves to even, as PyTorch scales: by a power of ten, and back."""
    if not jnp.issubdtype(self.dtype, jnp.inexact):
        return self
    wide = self.astype(jnp.float32) if self.dtype in _LOW else self
    ten = 10.0 ** abs(decimals)
    return jnp.round(wide * ten) / ten if decimals >= 0 else jnp.round(wide / ten) * ten


@lower("angle")
def angle(self: Array) -> Array:
    """The angle of a complex number; of a real one 0 or pi, and nan of nan."""
    if jnp.issubdtype(self.dtype, jnp.complexfloating):
        return jnp.angle(self)
    x = floating(self)
    wide = x.astype(jnp.float32) if x.dtype in _LOW else x
    out = jnp.where(wide < 0, jnp.asarray(jnp.pi, wide.dtype), jnp.zeros_like(wide))
    return jnp.where(jnp.isnan(wide), wide, out)


@lower("conj_physical", "_conj_physical")
def conj_physical(self: Array) -> Array:
    """The conjugate."""
    return jnp.conj(self)


@lower("signbit")
def signbit(self: Array) -> Array:
    """Whether the sign bit is set."""
    if jnp.issubdtype(self.dtype, jnp.floating):
        return jnp.signbit(self)
    return self < 0 if self.dtype != jnp.bool_ else jnp.zeros_like(self)


@lower("logit")
def logit(self: Array, eps: float | None = None) -> Array:
    """log(x / (1 - x)), x kept within [eps, 1 - eps]."""
    x = floating(self)
    wide = x.astype(jnp.float32) if x.dtype in _LOW else x
    wide = wide if eps is None else jnp.clip(wide, eps, 1 - eps)
    return jnp.log(wide / (1 - wide))


@lower("frexp.Tensor")
def frexp(self: Array) -> tuple[Array, Array]:
    """Mantissa of [0.5, 1) and exponent; of 0, infinity and nan the number and 0."""
    wide = self.astype(jnp.float32) if self.dtype in _LOW else self
    mantissa, exponent = jnp.frexp(wide)
    plain = jnp.isfinite(wide)
    return jnp.where(plain, mantissa, wide), jnp.where(plain, exponent, 0).astype(jnp.int32)
