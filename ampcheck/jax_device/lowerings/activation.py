"""Activations."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings.wide import rounded, widened

SQRT_HALF = 0.7071067811865476
_SQRT_2_OVER_PI = 0.7978845608028654
_CUBIC = 0.044715  # of the tanh form of gelu


@lower("relu")
def relu(self: Array) -> Array:
    """max(self, 0); nan stays."""
    return jnp.maximum(self, jnp.zeros((), self.dtype))


@lower("threshold")
def threshold(self: Array, threshold: Number, value: Number) -> Array:
    """`value` where self <= threshold."""
    return jnp.where(self <= threshold, value, self)


@lower("leaky_relu")
@widened
def leaky_relu(self: Array, negative_slope: Number = 0.01) -> Array:
    """self, times the slope where negative."""
    return jnp.where(self > 0, self, self * negative_slope)


@lower("_prelu_kernel")
@widened
def prelu(self: Array, weight: Array) -> Array:
    """leaky_relu with a slope per channel, which the caller has broadcast."""
    return jnp.where(self > 0, self, self * weight)


@lower("elu")
@widened
def elu(self: Array, alpha: Number = 1, scale: Number = 1, input_scale: Number = 1) -> Array:
    """scale * self, or scale * alpha * (exp(input_scale * self) - 1) where negative."""
    return jnp.where(self > 0, self * scale, jnp.expm1(self * input_scale) * (alpha * scale))


@lower("gelu")
@widened
def gelu(self: Array, *, approximate: str = "none") -> Array:
    """self * Phi(self), Phi by erf or by its tanh form."""
    if approximate == "tanh":
        return 0.5 * self * (1 + jnp.tanh(_SQRT_2_OVER_PI * (self + _CUBIC * self * self * self)))
    return self * 0.5 * (1 + jax.lax.erf(self * SQRT_HALF))


@lower("silu")
@widened
def silu(self: Array) -> Array:
    """self * sigmoid(self)."""
    return self / (1 + jnp.exp(-self))


@lower("mish")
@widened
def mish(self: Array) -> Array:
    """self * tanh(softplus(self))."""
    return self * jnp.tanh(jnp.logaddexp(self, jnp.zeros((), self.dtype)))


@lower("hardtanh")
def hardtanh(self: Array, min_val: Number = -1, max_val: Number = 1) -> Array:
    """self between two bounds; nan stays."""
    return jnp.minimum(jnp.maximum(self, min_val), max_val)


@lower("hardsigmoid")
@widened
def hardsigmoid(self: Array) -> Array:
    """(self + 3) / 6 between 0 and 1."""
    return jnp.clip(self + 3, 0, 6) / 6


@lower("hardswish")
@widened
def hardswish(self: Array) -> Array:
    """self * hardsigmoid(self)."""
    return self * jnp.clip(self + 3, 0, 6) / 6


@lower("softplus")
@widened
def softplus(self: Array, beta: Number = 1, threshold: Number = 20) -> Array:
    """log(1 + exp(beta * self)) / beta, or self where beta * self is over the threshold."""
    scaled = self * beta
    return jnp.where(scaled > threshold, self, jnp.log1p(jnp.exp(scaled)) / beta)


@lower("softshrink")
@widened
def softshrink(self: Array, lambd: Number = 0.5) -> Array:
    """self brought nearer to zero by lambd; nan stays."""
    return jnp.where(self > lambd, self - lambd, jnp.where(self < -lambd, self + lambd, self * 0))


@lower("hardshrink")
@widened
def hardshrink(self: Array, lambd: Number = 0.5) -> Array:
    """Zero where |self| <= lambd."""
    return jnp.where((self >= -lambd) & (self <= lambd), 0, self)


@lower("glu")
@widened
def glu(self: Array, dim: int = -1) -> Array:
    """One half along `dim` times the sigmoid of the other."""
    first, second = jnp.split(self, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


@lower("glu_jvp")
@rounded
def glu_jvp(glu_: Array, x: Array, dx: Array, dim: int) -> Array:
    """The change of glu(x) for a change dx."""
    out: Array = jax.jvp(lambda v: glu(v, dim), (x,), (dx.astype(x.dtype),))[1]
    return out


@lower("log_sigmoid_forward")
@widened
def log_sigmoid(self: Array) -> tuple[Array, Array]:
    """log(sigmoid(self)), and exp(-|self|), which the backward pass takes."""
    buffer = jnp.exp(-jnp.abs(self))
    return jnp.minimum(self, 0) - jnp.log1p(buffer), buffer


@lower("_softmax")
@widened
def softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    """exp(self) over its sum along `dim`."""
    return jax.nn.softmax(self, axis=dim) if self.size and self.ndim else self * 0 + 1


@lower("_log_softmax")
@widened
def log_softmax(self: Array, dim: int, half_to_float: bool) -> Array:
    """log(softmax(self))."""
    return jax.nn.log_softmax(self, axis=dim) if self.size and self.ndim else self - self


@lower("_masked_softmax")
@rounded
def masked_softmax(self: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """softmax of (B, heads, L, S) where the mask is False; a row without such an element is zero.

    `mask_type` 0: the mask is (L, S); 1: it is (B, S); 2, or none: it has self's shape.
    """
    if mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    kept = jnp.broadcast_to(jnp.logical_not(mask), self.shape)
    axis = -1 if dim is None else dim
    peak = jnp.max(jnp.where(kept, self, -jnp.inf), axis=axis, keepdims=True, initial=-jnp.inf)
    powers = jnp.where(kept, jnp.exp(self - jnp.where(jnp.isneginf(peak), 0, peak)), 0)
    total = jnp.sum(powers, axis=axis, keepdims=True)
    return jnp.where(total == 0, 0, powers / jnp.where(total == 0, 1, total))
