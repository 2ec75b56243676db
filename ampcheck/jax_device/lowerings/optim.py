"""The fused optimizer steps of `torch.optim`: one program for all parameters of a group.

The formulas are those of PyTorch's fused CUDA kernels (aten/src/ATen/native/cuda/fused_*): low precision computes in
float32, the gradients are unscaled in place where a gradient scaler gives its scale, and a step in which it
found a non-finite gradient changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.lowering import Computation, lower
from ampcheck.jax_device.lowerings.wide import wide


class _FusedStep:
    """What all fused steps share: unscaled gradients, and results kept back where the step is skipped."""

    def __init__(self, maximize: bool, grad_scale: Array | None, found_inf: Array | None) -> None:
        self.maximize, self.grad_scale, self.found_inf = maximize, grad_scale, found_inf

    def gradient(self, grad: Array) -> tuple[Array, Array]:
        """Return the gradient to store, and the one to step against."""
        unscaled = wide(grad)
        if self.grad_scale is not None:
            unscaled = unscaled / self.grad_scale.reshape(()).astype(unscaled.dtype)
        return unscaled, -unscaled if self.maximize else unscaled

    def kept(self, new: list[list[Array]], old: Sequence[Sequence[Array]]) -> tuple[list[Array], ...]:
        """Return the new values in the dtypes of the old, or the old where a non-finite gradient was found."""
        return tuple([self._one(n, o) for n, o in zip(ns, os, strict=True)] for ns, os in zip(new, old, strict=True))

    def _one(self, new: Array, old: Array) -> Array:
        new = new.astype(old.dtype)
        return new if self.found_inf is None else jnp.where(self.found_inf.reshape(()) == 1, old, new)


def _number(x: float | Array) -> float | Array:
    """Return a learning rate given as a tensor, as a scalar."""
    return x.reshape(()) if isinstance(x, Array) else x


def _correction(beta: float | Array, step: Array) -> Array:
    """Compute 1 - beta ** step, in float64: in float32 most digits of the first steps would cancel."""
    return 1 - jnp.power(beta, step.reshape(()).astype(jnp.float64))


def _adam(decoupled: bool) -> Computation:
    def compute(
        self: list[Array],
        grads: list[Array],
        exp_avgs: list[Array],
        exp_avg_sqs: list[Array],
        max_exp_avg_sqs: list[Array],
        state_steps: list[Array],
        *,
        lr: float | Array,
        beta1: float | Array,
        beta2: float | Array,
        weight_decay: float,
        eps: float,
        amsgrad: bool,
        maximize: bool,
        grad_scale: Array | None = None,
        found_inf: Array | None = None,
    ) -> tuple[list[Array], ...]:
        step, lr = _FusedStep(maximize, grad_scale, found_inf), _number(lr)
        new: list[list[Array]] = [[], [], [], [], []]
        for i, stored in enumerate(self):
            param, dtype = wide(stored), wide(stored).dtype
            unscaled, grad = step.gradient(grads[i])
            if weight_decay and decoupled:
                param = param - jnp.asarray(lr * weight_decay, dtype) * param
            elif weight_decay:
                grad = grad + weight_decay * param
            mean = beta1 * wide(exp_avgs[i]) + (1 - beta1) * grad
            square = beta2 * wide(exp_avg_sqs[i]) + (1 - beta2) * grad * grad
            largest = jnp.maximum(wide(max_exp_avg_sqs[i]), square) if amsgrad else square
            size = jnp.asarray(lr / _correction(beta1, state_steps[i]), dtype)
            root = jnp.sqrt(_correction(beta2, state_steps[i])).astype(dtype)
            param = param - size * mean / (jnp.sqrt(largest) / root + eps)
            for values, value in zip(new, (param, unscaled, mean, square, largest), strict=True):
                values.append(value)
        if not amsgrad:
            new[4] = list(max_exp_avg_sqs)
        return step.kept(new, [self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs])

    return compute


_ADAM = ("lr", "beta1", "beta2")
lower("_fused_adam", "_fused_adam.tensor_lr", traced=_ADAM)(_adam(decoupled=False))
lower("_fused_adamw", "_fused_adamw.tensor_lr", traced=_ADAM)(_adam(decoupled=True))


@lower("_fused_sgd", "_fused_sgd.tensor_lr", traced=("lr", "momentum"))
def sgd(
    self: Sequence[Array],
    grads: Sequence[Array],
    momentum_buffer_list: Sequence[Array],
    *,
    weight_decay: float,
    momentum: float | Array,
    lr: float | Array,
    dampening: float,
    nesterov: bool,
    maximize: bool,
    is_first_step: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[list[Array], ...]:
    """Take a step of stochastic gradient descent; without momentum the list of buffers is empty."""
    step, lr = _FusedStep(maximize, grad_scale, found_inf), _number(lr)
    params, unscaled, buffers = [], [], []
    for i, stored in enumerate(self):
        param = wide(stored)
        kept, grad = step.gradient(grads[i])
        if weight_decay:
            grad = grad + weight_decay * param
        if momentum_buffer_list:
            buffer = grad if is_first_step else momentum * wide(momentum_buffer_list[i]) + (1 - dampening) * grad
            grad = grad + momentum * buffer if nesterov else buffer
            buffers.append(buffer)
        params.append(param - jnp.asarray(lr, param.dtype) * grad)
        unscaled.append(kept)
    return step.kept([params, unscaled, buffers], [self, grads, momentum_buffer_list])


@lower("_fused_adagrad", "_fused_adagrad.tensor_lr", traced=("lr",))
def adagrad(
    self: Sequence[Array],
    grads: Sequence[Array],
    state_sums: Sequence[Array],
    state_steps: Sequence[Array],
    *,
    lr: float | Array,
    lr_decay: float,
    weight_decay: float,
    eps: float,
    maximize: bool,
    grad_scale: Array | None = None,
    found_inf: Array | None = None,
) -> tuple[list[Array], ...]:
    """Take a step of Adagrad. With a number for `lr` PyTorch's schema claims that it writes the steps too."""
    step, rate = _FusedStep(maximize, grad_scale, found_inf), _number(lr)
    params, unscaled, sums = [], [], []
    for i, stored in enumerate(self):
        param = wide(stored)
        kept, grad = step.gradient(grads[i])
        if weight_decay:
            grad = grad + weight_decay * param
        total = wide(state_sums[i]) + grad * grad
        size = rate / (1 + (state_steps[i].reshape(()).astype(jnp.float64) - 1) * lr_decay)
        params.append(param - jnp.asarray(size, param.dtype) * grad / (jnp.sqrt(total) + eps))
        unscaled.append(kept)
        sums.append(total)
    out = step.kept([params, unscaled, sums], [self, grads, state_sums])
    return out if isinstance(lr, Array) and not lr.weak_type else (*out, list(state_steps))
