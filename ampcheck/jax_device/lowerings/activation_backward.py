"""The backward passes of activations: gradient of the input from the gradient of the output."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings import activation
from ampcheck.jax_device.lowerings.wide import pullback, rounded, widened


@lower("threshold_backward")
def threshold_backward(grad_output: Any, self: Any, threshold: Any) -> Any:
    """The gradient where self > threshold or nan."""
    return jnp.where(self <= threshold, jnp.zeros((), grad_output.dtype), grad_output)


@lower("leaky_relu_backward")
@widened
def leaky_relu_backward(grad_output: Any, self: Any, negative_slope: Any, self_is_result: bool) -> Any:
    """The gradient, times the slope where self is not positive."""
    return jnp.where(self > 0, grad_output, grad_output * negative_slope)


@lower("_prelu_kernel_backward")
@widened
def prelu_backward(grad_output: Any, self: Any, weight: Any) -> Any:
    """The gradients of the input and, before it is summed over what was broadcast, of the slopes."""
    positive = self > 0
    return jnp.where(positive, grad_output, weight * grad_output), jnp.where(positive, 0, self * grad_output)


@lower("elu_backward")
@widened
def elu_backward(
    grad_output: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, self_or_result: Any
) -> Any:
    """From the input, or from the output where `is_result`."""
    slope = alpha * scale
    rising = self_or_result + slope if is_result else slope * jnp.exp(self_or_result * input_scale)
    return jnp.where(self_or_result <= 0, grad_output * input_scale * rising, grad_output * scale)


@lower("gelu_backward")
@widened
def gelu_backward(grad_output: Any, self: Any, *, approximate: str = "none") -> Any:
    """The gradient times Phi(self) + self * phi(self), or the derivative of the tanh form."""
    if approximate == "tanh":
        return pullback(lambda x: activation.gelu(x, approximate="tanh"), grad_output, self)[0]
    cdf = 0.5 * (1 + jax.lax.erf(self * activation.SQRT_HALF))
    pdf = 0.3989422804014327 * jnp.exp(-0.5 * self * self)  # 1 / sqrt(2 pi)
    return grad_output * (cdf + self * pdf)


@lower("silu_backward")
@widened
def silu_backward(grad_output: Any, self: Any) -> Any:
    """The gradient times s * (1 + self * (1 - s)), s = sigmoid(self)."""
    s = jax.nn.sigmoid(self)
    return grad_output * s * (1 + self * (1 - s))


@lower("mish_backward")
@widened
def mish_backward(grad_output: Any, self: Any) -> Any:
    """The gradient times t + self * sigmoid(self) * (1 - t * t), t = tanh(softplus(self))."""
    t = jnp.tanh(jnp.logaddexp(self, jnp.zeros((), self.dtype)))
    return grad_output * (t + self * jax.nn.sigmoid(self) * (1 - t * t))


@lower("hardtanh_backward")
def hardtanh_backward(grad_output: Any, self: Any, min_val: Any, max_val: Any) -> Any:
    """The gradient between the bounds, zero on and outside them."""
    return jnp.where((self <= min_val) | (self >= max_val), jnp.zeros((), grad_output.dtype), grad_output)


@lower("hardsigmoid_backward")
@widened
def hardsigmoid_backward(grad_output: Any, self: Any) -> Any:
    """A sixth of the gradient between -3 and 3."""
    return jnp.where((self > -3) & (self < 3), grad_output / 6, 0)


@lower("hardswish_backward")
@widened
def hardswish_backward(grad_output: Any, self: Any) -> Any:
    """Zero up to -3, the gradient from 3, times (self / 3 + 1 / 2) between."""
    return jnp.where(self <= -3, 0, jnp.where(self < 3, grad_output * (self / 3 + 0.5), grad_output))


@lower("softplus_backward")
@widened
def softplus_backward(grad_output: Any, self: Any, beta: Any, threshold: Any) -> Any:
    """The gradient times sigmoid(beta * self), or 1 over the threshold."""
    scaled = self * beta
    return jnp.where(scaled > threshold, grad_output, grad_output * jax.nn.sigmoid(scaled))


@lower("softshrink_backward", "hardshrink_backward")
def shrink_backward(grad_output: Any, self: Any, lambd: Any) -> Any:
    """The gradient where |self| > lambd or nan."""
    inside = (self >= -lambd) & (self <= lambd)
    return jnp.where(inside, jnp.zeros((), grad_output.dtype), grad_output)


@lower("glu_backward")
@widened
def glu_backward(grad_output: Any, self: Any, dim: int) -> Any:
    """The gradients of both halves."""
    return pullback(lambda x: activation.glu(x, dim), grad_output, self)[0]


@lower("glu_backward_jvp")
@rounded
def glu_backward_jvp(grad_x: Any, grad_glu: Any, x: Any, dgrad_glu: Any, dx: Any, dim: int) -> Any:
    """The change of glu_backward's result for changes of the gradient and of the input."""
    return jax.jvp(lambda g, v: glu_backward(g, v, dim), (grad_glu, x), (dgrad_glu, dx))[1]


@lower("log_sigmoid_backward")
@widened
def log_sigmoid_backward(grad_output: Any, self: Any, buffer: Any) -> Any:
    """The gradient times sigmoid(-self)."""
    return grad_output * jax.nn.sigmoid(-self)


@lower("_softmax_backward_data")
@widened
def softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """output * (gradient - the sum of gradient * output along `dim`)."""
    weighted = grad_output * output
    return weighted - output * (jnp.sum(weighted, axis=dim, keepdims=True) if output.ndim else weighted)


@lower("_log_softmax_backward_data")
@widened
def log_softmax_backward(grad_output: Any, output: Any, dim: int, input_dtype: Any) -> Any:
    """gradient - exp(output) * the sum of the gradient along `dim`."""
    return grad_output - jnp.exp(output) * (
        jnp.sum(grad_output, axis=dim, keepdims=True) if output.ndim else grad_output
    )


@lower("_masked_softmax_backward")
@rounded
def masked_softmax_backward(grad_output: Any, output: Any, mask: Any, dim: int | None = None) -> Any:
    """softmax's gradient; where the mask is True it is zero."""
    grad = softmax_backward(grad_output, output, -1 if dim is None else dim, None)
    return jnp.where(jnp.broadcast_to(mask, output.shape), 0, grad)
