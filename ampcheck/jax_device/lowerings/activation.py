"""Activations and their backward passes: the gradient of the input from the gradient of the output.

Here are those that are wanted most, or of which neither torchax nor PyTorch's decompositions have the CPU's results.
A formula's arguments are those of the overload, in its order. What says "wide" is computed in float32 for float16 and
bfloat16 and rounded once, as PyTorch's kernels do.
"""

import math

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.accumulate import pullback, rounded, widened

_SQRT_HALF = math.sqrt(0.5)
_SQRT_2_OVER_PI = math.sqrt(2 / math.pi)
_CUBIC = 0.044715  # of the tanh form of gelu


def _softplus(x: Array) -> Array:
    return jnp.logaddexp(x, jnp.zeros((), x.dtype))


def _zero(array: Array) -> Array:
    """Return a zero that does not change what dtype `jnp.where` gives."""
    return jnp.zeros((), array.dtype)


def _summed(array: Array, dim: int) -> Array:
    return jnp.sum(array, axis=dim, keepdims=True) if array.ndim else array


@lower("glu")
@widened
def _glu(x: Array, dim: int = -1) -> Array:
    first, second = jnp.split(x, 2, axis=dim)
    return first * jax.nn.sigmoid(second)


@lower("_softmax_backward_data")
@widened
def _softmax_backward(grad: Array, out: Array, dim: int, _: object = None) -> Array:
    weighted = grad * out
    return weighted - out * _summed(weighted, dim)


# Comparisons are written so that nan comes through as PyTorch's kernels let it.
_EXACT: dict[str, Computation] = {
    "relu": lambda x: jnp.maximum(x, _zero(x)),
    "threshold_backward": lambda grad, x, threshold: jnp.where(x <= threshold, _zero(grad), grad),
    "softshrink_backward": lambda grad, x, lambd: jnp.where((x >= -lambd) & (x <= lambd), _zero(grad), grad),
    "hardshrink_backward": lambda grad, x, lambd: jnp.where((x >= -lambd) & (x <= lambd), _zero(grad), grad),
}
_WIDE: dict[str, Computation] = {
    "leaky_relu": lambda x, slope=0.01: jnp.where(x > 0, x, x * slope),
    "leaky_relu_backward": lambda grad, x, slope, _: jnp.where(x > 0, grad, grad * slope),
    "silu": lambda x: x / (1 + jnp.exp(-x)),
    "silu_backward": lambda grad, x: grad * jax.nn.sigmoid(x) * (1 + x * (1 - jax.nn.sigmoid(x))),
    "mish": lambda x: x * jnp.tanh(_softplus(x)),
    # Without elements, or of one number, jax.nn has no axis to go along.
    "_softmax": lambda x, dim, _: jax.nn.softmax(x, axis=dim) if x.size and x.ndim else x * 0 + 1,
    "_log_softmax": lambda x, dim, _: jax.nn.log_softmax(x, axis=dim) if x.size and x.ndim else x - x,
    "_log_softmax_backward_data": lambda grad, out, dim, _: grad - jnp.exp(out) * _summed(grad, dim),
    "glu_backward": lambda grad, x, dim: pullback(lambda y: _glu(y, dim), grad, x)[0],
}
# The result has the first argument's dtype, which no Meta kernel says.
_ROUNDED: dict[str, Computation] = {
    "glu_jvp": lambda _, x, dx, dim: jax.jvp(lambda v: _glu(v, dim), (x,), (dx.astype(x.dtype),))[1],
    "glu_backward_jvp": lambda _, grad, x, dgrad, dx, dim: jax.jvp(
        lambda g, v: _WIDE["glu_backward"](g, v, dim), (grad, x), (dgrad, dx)
    )[1],
    "_masked_softmax_backward": lambda grad, out, mask, dim=None: jnp.where(
        jnp.broadcast_to(mask, out.shape), 0, _softmax_backward(grad, out, -1 if dim is None else dim)
    ),
}
for _name, _formula in _EXACT.items():
    lower(_name)(_formula)
for _name, _formula in _WIDE.items():
    lower(_name)(widened(_formula))
for _name, _formula in _ROUNDED.items():
    lower(_name)(rounded(_formula))


@lower("mish_backward")
@widened
def _mish_backward(grad: Array, x: Array) -> Array:
    t = jnp.tanh(_softplus(x))
    return grad * (t + x * jax.nn.sigmoid(x) * (1 - t * t))


@lower("gelu")
@widened
def gelu(x: Array, *, approximate: str = "none") -> Array:
    """Return x * Phi(x), Phi by erf or by its tanh form."""
    if approximate == "tanh":
        return 0.5 * x * (1 + jnp.tanh(_SQRT_2_OVER_PI * (x + _CUBIC * x * x * x)))
    return x * 0.5 * (1 + jax.lax.erf(x * _SQRT_HALF))


@lower("_masked_softmax")
@rounded
def masked_softmax(x: Array, mask: Array, dim: int | None = None, mask_type: int | None = None) -> Array:
    """Return the softmax of (B, heads, L, S) where the mask is False; a row without such an element is zero.

    `mask_type` 0: the mask is (L, S); 1: it is (B, S); 2, or none: it has the shape of `x`.
    """
    if mask_type == 1 and mask.ndim == 2:
        mask = mask[:, None, None, :]
    kept = jnp.broadcast_to(jnp.logical_not(mask), x.shape)
    return jax.nn.softmax(x, axis=-1 if dim is None else dim, where=kept)
