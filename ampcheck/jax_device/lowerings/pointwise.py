"""Elementwise arithmetic of two or more tensors, with PyTorch's promotion."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower

_LOW = (jnp.float16, jnp.bfloat16)


def opmath(function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with float16 and bfloat16 arrays computed in float32; the result is rounded once, by the program."""

    @wraps(function)
    def compute(*args: Any, **kwargs: Any) -> Any:
        wide = [a.astype(jnp.float32) if getattr(a, "dtype", None) in _LOW else a for a in args]
        return function(*wide, **kwargs)

    return compute


@lower("add.Tensor", "add.Scalar", promotes=True)
def add(self: Array, other: Number, alpha: Number | None = None) -> Array:
    """self + alpha * other."""
    return jnp.add(self, other if alpha is None else jnp.multiply(other, alpha))


@lower("sub.Tensor", "sub.Scalar", promotes=True)
def sub(self: Array, other: Number, alpha: Number | None = None) -> Array:
    """self - alpha * other."""
    return jnp.subtract(self, other if alpha is None else jnp.multiply(other, alpha))


@lower("rsub.Tensor", "rsub.Scalar", promotes=True)
def rsub(self: Array, other: Number, alpha: Number | None = None) -> Array:
    """other - alpha * self."""
    return jnp.subtract(other, self if alpha is None else jnp.multiply(self, alpha))


@lower("mul.Tensor", "mul.Scalar", promotes=True)
def mul(self: Array, other: Number) -> Array:
    """self * other."""
    return jnp.multiply(self, other)


@lower("div.Tensor", "div.Scalar", promotes=True)
def div(self: Array, other: Number) -> Array:
    """self / other."""
    return jnp.true_divide(self, other)


@lower("div.Tensor_mode", "div.Scalar_mode", promotes=True)
def div_mode(self: Array, other: Number, *, rounding_mode: str | None) -> Array:
    """self / other, rounded towards zero ("trunc"), down ("floor"), or not."""
    if rounding_mode is None:
        return jnp.true_divide(self, other)
    if rounding_mode == "floor":
        out: Array = floor_divide(self, other)
        return out
    if _integral(self, other):
        return jax.lax.div(*jnp.broadcast_arrays(self, jnp.asarray(other).astype(jnp.result_type(self))))
    quotient = jnp.true_divide(self, other)
    info = jnp.finfo(quotient.dtype)  # XLA may keep the quotient in float32, where 17.99 is not bfloat16's 18
    return jnp.trunc(jax.lax.reduce_precision(quotient, info.nexp, info.nmant))


def _integral(*operands: Number) -> bool:
    return not jnp.issubdtype(jnp.result_type(*operands), jnp.inexact)


@lower("floor_divide", "floor_divide.Scalar", promotes=True)
@opmath
def floor_divide(self: Array, other: Number) -> Array:
    """The quotient rounded down; of floating numbers from the remainder, as Python's, so that it is exact."""
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
@opmath
def remainder(self: Number, other: Number) -> Array:
    """What is left of the division rounded down; it has the divisor's sign."""
    if _integral(self, other):
        return jnp.remainder(self, other)
    left = jnp.fmod(self, other)
    return jnp.where((left != 0) & ((left < 0) != (jnp.asarray(other) < 0)), left + other, left)


@lower("fmod.Tensor", "fmod.Scalar", promotes=True)
@opmath
def fmod(self: Array, other: Number) -> Array:
    """What is left of the division rounded towards zero; it has the dividend's sign."""
    return jnp.fmod(self, other)


@lower("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", promotes=True)
@opmath
def power(self: Number, exponent: Number) -> Array:
    """self ** exponent; a square is a product, and of integers a negative power is 0 where the base is not 1 or -1."""
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
    chosen: Array = jax.lax.cond(
        raised == 2, lambda x: x * x, lambda x: jnp.power(x, exponent).astype(x.dtype), floating
    )
    return chosen


@lower("maximum", promotes=True)
def maximum(self: Array, other: Array) -> Array:
    """The larger; nan where one is nan."""
    return jnp.maximum(self, other)


@lower("minimum", promotes=True)
def minimum(self: Array, other: Array) -> Array:
    """The smaller; nan where one is nan."""
    return jnp.minimum(self, other)


@lower("clamp_min", "clamp_min.Tensor", promotes=True)
def clamp_min(self: Array, min: Number) -> Array:
    """The tensor, no less than the bound."""
    return jnp.maximum(self, min)


@lower("clamp_max", "clamp_max.Tensor", promotes=True)
def clamp_max(self: Array, max: Number) -> Array:
    """The tensor, no more than the bound."""
    return jnp.minimum(self, max)


@lower("clamp", "clamp.Tensor", promotes=True)
def clamp(self: Array, min: Number | None = None, max: Number | None = None) -> Array:
    """The tensor within the bounds; the upper one wins where they cross."""
    out = self if min is None else jnp.maximum(self, min)
    return out if max is None else jnp.minimum(out, max)


@lower("addcmul", promotes=True)
@opmath
def addcmul(self: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    """self + value * tensor1 * tensor2."""
    return self + value * tensor1 * tensor2


@lower("addcdiv", promotes=True)
@opmath
def addcdiv(self: Array, tensor1: Array, tensor2: Array, *, value: Number = 1) -> Array:
    """self + value * tensor1 / tensor2."""
    return self + value * (tensor1 / tensor2)


@lower("lerp.Scalar", "lerp.Tensor")
@opmath
def lerp(self: Array, end: Array, weight: Number) -> Array:
    """From `self` to `end`, computed from whichever is nearer, so that weight 1 gives `end` itself."""
    near = jnp.abs(weight) < 0.5
    return jnp.where(near, self + weight * (end - self), end - (end - self) * (1 - weight))


@lower("where.self")
def where(condition: Array, self: Array, other: Array) -> Array:
    """`self` where the condition holds, else `other`."""
    return jnp.where(condition.astype(jnp.bool_), self, other)


@lower("logaddexp", promotes=True)
@opmath
def logaddexp(self: Array, other: Array) -> Array:
    """log(exp(self) + exp(other))."""
    return jnp.logaddexp(self, other)


@lower("logaddexp2", promotes=True)
@opmath
def logaddexp2(self: Array, other: Array) -> Array:
    """log2(2 ** self + 2 ** other)."""
    return jnp.logaddexp2(self, other)
