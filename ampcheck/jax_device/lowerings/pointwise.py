"""Elementwise arithmetic of two or more tensors, with PyTorch's promotion.

Operands reach a formula in their common dtype. What says "wide" has several steps, so it is computed in float32 for
float16 and bfloat16 and rounded once; a single step rounds once by itself.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, Number, lower
from ampcheck.jax_device.lowerings.wide import widened


def _scaled(value: Number, alpha: Number | None) -> Number:
    return value if alpha is None else jnp.multiply(value, alpha)


_EXACT: dict[tuple[str, ...], Computation] = {
    ("add.Tensor", "add.Scalar"): lambda x, other, alpha=None: jnp.add(x, _scaled(other, alpha)),
    ("sub.Tensor", "sub.Scalar"): lambda x, other, alpha=None: jnp.subtract(x, _scaled(other, alpha)),
    ("rsub.Tensor", "rsub.Scalar"): lambda x, other, alpha=None: jnp.subtract(other, _scaled(x, alpha)),
    ("mul.Tensor", "mul.Scalar"): lambda x, other: jnp.multiply(x, other),
    ("div.Tensor", "div.Scalar"): lambda x, other: jnp.true_divide(x, other),
    ("maximum", "clamp_min", "clamp_min.Tensor"): lambda x, other: jnp.maximum(x, other),
    ("minimum", "clamp_max", "clamp_max.Tensor"): lambda x, other: jnp.minimum(x, other),
}
_WIDE: dict[tuple[str, ...], Computation] = {
    ("fmod.Tensor", "fmod.Scalar"): lambda x, other: jnp.fmod(x, other),
    ("addcmul",): lambda x, first, second, *, value=1: x + value * first * second,
    ("addcdiv",): lambda x, first, second, *, value=1: x + value * (first / second),
    ("logaddexp",): lambda x, other: jnp.logaddexp(x, other),
    ("logaddexp2",): lambda x, other: jnp.logaddexp2(x, other),
}
for _names, _formula in _EXACT.items():
    lower(*_names, promotes=True)(_formula)
for _names, _formula in _WIDE.items():
    lower(*_names, promotes=True)(widened(_formula))


@lower("div.Tensor_mode", "div.Scalar_mode", promotes=True)
def _div_mode(self: Array, other: Number, *, rounding_mode: str | None) -> Array:
    if rounding_mode is None:
        return jnp.true_divide(self, other)
    if rounding_mode == "floor":
        return _floor_divide(self, other)
    if _integral(self, other):
        return jax.lax.div(*jnp.broadcast_arrays(self, jnp.asarray(other).astype(jnp.result_type(self))))
    quotient = jnp.true_divide(self, other)
    info = jnp.finfo(quotient.dtype)  # XLA may keep the quotient in float32, where 17.99 is not bfloat16's 18
    return jnp.trunc(jax.lax.reduce_precision(quotient, info.nexp, info.nmant))


def _integral(*operands: Number) -> bool:
    return not jnp.issubdtype(jnp.result_type(*operands), jnp.inexact)


@lower("floor_divide", "floor_divide.Scalar", promotes=True)
@widened
def _floor_divide(self: Array, other: Number) -> Array:
    """Divide and round down; floating numbers by their remainder, as Python does, so that it is exact."""
    if _integral(self, other):
        return jnp.floor_divide(self, other)
    left = jnp.fmod(self, other)
    quotient = (self - left) / other
    quotient = jnp.where((left != 0) & ((left < 0) != (jnp.asarray(other) < 0)), quotient - 1, quotient)
    down = jnp.floor(quotient)
    down = jnp.where(quotient - down > 0.5, down + 1, down)
    plain = self / other
    return jnp.where(jnp.asarray(other) == 0, plain, jnp.where(quotient != 0, down, jnp.copysign(0.0, plain)))


@lower("remainder.Tensor", "remainder.Scalar", "remainder.Scalar_Tensor", promotes=True)
@widened
def _remainder(self: Number, other: Number) -> Array:
    """Return the rest of the division that rounds down; it has the divisor's sign."""
    if _integral(self, other):
        return jnp.remainder(self, other)
    left = jnp.fmod(self, other)
    return jnp.where((left != 0) & ((left < 0) != (jnp.asarray(other) < 0)), left + other, left)


@lower("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", promotes=True)
@widened
def _power(self: Number, exponent: Number) -> Array:
    """Return self ** exponent; a negative power of an integer is 0 where the base is neither 1 nor -1."""
    base, raised = jnp.asarray(self), jnp.asarray(exponent)
    if _integral(self, exponent):
        dtype = jnp.result_type(self, exponent)
        base, raised = base.astype(dtype), raised.astype(dtype)
        out = jnp.power(base, jnp.maximum(raised, 0))
        if jnp.issubdtype(dtype, jnp.unsignedinteger):
            return out
        odd = jnp.where(raised % 2 == 0, 1, base)
        return jnp.where(raised < 0, jnp.where(jnp.abs(base) == 1, odd, 0), out)
    if raised.ndim or not base.ndim or jnp.issubdtype(raised.dtype, jnp.complexfloating):
        return jnp.power(self, exponent)
    floating = base if jnp.issubdtype(base.dtype, jnp.inexact) else base.astype(jnp.result_type(self, exponent))
    # PyTorch computes a square as a product, whose last bit differs from the power's. The exponent is traced.
    chosen: Array = jax.lax.cond(
        raised == 2, lambda x: x * x, lambda x: jnp.power(x, exponent).astype(x.dtype), floating
    )
    return chosen


@lower("clamp", "clamp.Tensor", promotes=True)
def _clamp(self: Array, min: Number | None = None, max: Number | None = None) -> Array:
    """Keep the tensor within the bounds; the upper one wins where they cross."""
    out = self if min is None else jnp.maximum(self, min)
    return out if max is None else jnp.minimum(out, max)


@lower("lerp.Scalar", "lerp.Tensor")
@widened
def lerp(self: Array, end: Array, weight: Number) -> Array:
    """Go from `self` to `end`, computed from whichever is nearer, so that weight 1 gives `end` itself."""
    near = jnp.abs(weight) < 0.5
    return jnp.where(near, self + weight * (end - self), end - (end - self) * (1 - weight))


@lower("where.self")
def _where(condition: Array, self: Array, other: Array) -> Array:
    return jnp.where(condition.astype(jnp.bool_), self, other)
