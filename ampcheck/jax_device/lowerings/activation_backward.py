"""The backward passes of activations: gradient of the input from the gradient of the output."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.lowering import Number, lower
from ampcheck.jax_device.lowerings import activation
from ampcheck.jax_device.lowerings.wide import pullback, rounded, widened


@lower("threshold_backward")
def threshold_backward(grad_output: Array, self: Array, threshold: Number) -> Array:
    """The gradient where self > threshold or nan."""
    return jnp.where(self <= threshold, jnp.zeros((), grad_output.dtype), grad_output)


@lower("leaky_relu_backward")
@widened
def leaky_relu_backward(grad_output: Array, self: Array, negative_slope: Number, self_is_result: bool) -> Array:
    """The gradient, times the slope where self is not positive."""
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lower("_prelu_kernel_backward")
@widened
def prelu_backward(grad_output: Array, self: Array, weight: Array) -> tuple[Array, Array]:
    """The gradients of the input and, before it is summed over what was broadcast, of the slopes."""
    positive = self > 0
    return jnp.where(positive, grad_output, weight * grad_output), jnp.where(positive, 0, self * grad_output)


@lower("elu_backward")
@widened
def elu_backward(
    grad_output: Array, alpha: Number, scale: Number, input_scale: Number, is_result: bool, self_or_result: Array
) -> Array:
    """From the input, or from the output where `is_result`."""
    slope = alpha * scale
    rising = self_or_result + slope if is_result else slope * jnp.exp(self_or_result * input_scale)
    return jnp.where(self_or_result <= 0, grad_output * input_scale * rising, grad_output * scale)


@lower("gelu_backward")
@widened
def gelu_backward(grad_output: Array, self: Array, *, approximate: str = "none") -> Array:
    """The gradient times Phi(self) + self * phi(self), or the derivative of the tanh form."""
    if approximate == "tanh":
        return pullback(lambda x: activation.gelu(x, approximate="tanh"), grad_output, self)[0]
    cdf = 0.5 * (1 + jax.lax.erf(self * activation.SQRT_HALF))
    pdf = 0.3989422804014327 * jnp.exp(-0.5 * self * self)  # 1 / sqrt(2 pi)
    return grad_output * (cdf + self * pdf)


@lower("silu_backward")
@widened
def silu_backward(grad_output: Array, self: Array) -> Array:
    """The gradient times s * (1 + self * (1 - s)), s = sigmoid(self)."""
    s = jax.nn.sigmoid(self)
    return grad_output * s * (1 + self * (1 - s))


@lower("mish_backward")
@widened
def mish_backward(grad_output: Array, self: Array) -> Array:
    """The gradient times t + self * sigmoid(self) * (1 - t * t), t = tanh(softplus(self))."""
    t = jnp.tanh(jnp.logaddexp(self, jnp.zeros((), self.dtype)))
    return grad_output * (t + self * jax.nn.sigmoid(self) * (1 - t * t))


@lower("hardtanh_backward")
def hardtanh_backward(grad_output: Array, self: Array, min_val: Number, max_val: Number) -> Array:
    """The gradient between the bounds, zero on and outside them."""
    return jnp.where((self <= min_val) | (self >= max_val), jnp.zeros((), grad_output.dtype), grad_output)


@lower("hardsigmoid_backward")
@widened
def hardsigmoid_backward(grad_output: Array, self: Array) -> Array:
    """A sixth of the gradient between -3 and 3."""
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lower("hardswish_backward")
@widened
def hardswish_backward(grad_output: Array, self: Array) -> Array:
    """Zero up to -3, the gradient from 3, times (self / 3 + 1 / 2) between."""
    return jnp.where(self <= -3, 0, jnp.where(self < 3, grad_output * (self / 3 + 0.5), grad_output))


@lower("softplus_backward")
@widened
def softplus_backward(grad_output: Array, self: Array, beta: Number, threshold: Number) -> Array:
    """The gradient times sigmoid(beta * self), or 1 over the threshold."""
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * jax.nn.sigmoid(scaled))


@lower("softshrink_backward", "hardshrink_backward")
def shrink_backward(grad_output: Array, self: Array, lambd: Number) -> Array:
    """The gradient where |self| > lambd or nan."""
    inside = (self >= -lambd) & (self <= lambd)
    return jnp.where(inside, jnp.zeros((), grad_output.dtype), grad_output)


@lower("glu_backward")
@widened
def glu_backward(grad_output: Array, self: Array, dim: int) -> Array:
    """The gradients of both halves."""
    return pullback(lambda x: activation.glu(x, dim), grad_output, self)[0]


@lower("glu_backward_jvp")
@rounded
def glu_backward_jvp(grad_x: Array, grad_glu: Array, x: Array, dgrad_glu: Array, dx: Array, dim: int) -> Array:
    """The change of glu_backward's result for changes of the gradient and of the input."""
    out: Array = jax.jvp(lambda g, v: glu_backward(g, v, dim), (grad_glu, x), (dgrad_glu, dx))[1]
    return out


@lower("log_sigmoid_backward")
@widened
def log_sigmoid_backward(grad_output: Array, self: Array, buffer: Array) -> Array:
    """The gradient times sigmoid(-self)."""
    return grad_output * jax.nn.sigmoid(-self)


@lower("_softmax_backward_data")
@widened
def softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype | None) -> Array:
    """output * (gradient - the sum of gradient * output along `dim`)."""
    weighted = grad_output * output
    return weighted - output * (jnp.sum(weighted, axis=dim, keepdims=True) if output.ndim else weighted)


@lower("_log_softmax_backward_data")
@widened
def log_softmax_backward(grad_output: Array, output: Array, dim: int, input_dtype: torch.dtype | None) -> Array:
    """gradient - exp(output) * the sum of the gradient along `dim`."""
    return grad_output - jnp.exp(output) * (
        jnp.sum(grad_output, axis=dim, keepdims=True) if output.ndim else grad_output
    )


@lower("_masked_softmax_backward")
@rounded
def masked_softmax_backward(grad_output: Array, output: Array, mask: Array, dim: int | None = None) -> Array:
    """softmax's gradient; where the mask is True it is zero."""
    grad = softmax_backward(grad_output, output, -1 if dim is None else dim, None)
    return jnp.where(jnp.broadcast_to(mask, output.shape), 0, grad)
