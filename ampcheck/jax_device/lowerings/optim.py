"""`torch.optim`: `torch._foreach_*` and fused steps, one program for a list of tensors, and the ops of `GradScaler`.

Overloads that take their scalars as a 1-d CPU tensor (`_foreach_addcdiv.Tensor`) are PyTorch's own: it reads the tensor
and calls the `ScalarList` overload. The formulas of the steps are those of PyTorch's fused CUDA kernels
(aten/src/ATen/native/cuda/fused_*): low precision computes in float32, the gradients are unscaled in place where a
gradient scaler gives its scale, and a step in which it found a non-finite gradient changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dtypes import common_dtype_of, convert, jax_dtype, opmath_dtype
from ampcheck.jax_device.lowering import OWN, Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import matmul
from ampcheck.jax_device.lowerings.pointwise import lerp
from ampcheck.jax_device.lowerings.reduction import powersum, vector_norm
from ampcheck.jax_device.lowerings.wide import wide

Operands = Sequence[Array] | Sequence[Number] | Number
"""An operand for each tensor, or one for all."""


def unified(*operands: Number) -> list[Number]:
    """Bring arrays to their common dtype by PyTorch's promotion; low precision to float32, which rounds once."""
    dtype = common_dtype_of(operands)
    if dtype is None:
        return list(operands)
    dtype = opmath_dtype(dtype)  # rounded by the program, once, to what PyTorch promises
    return [convert(o, dtype) if isinstance(o, jax.Array) and not o.weak_type else o for o in operands]


def _zipped(first: Sequence[Array], others: Sequence[Operands]) -> Iterator[list[Number]]:
    """Return the operands of each element: lists by place, anything else as it is for all."""
    for i, x in enumerate(first):
        yield [x, *(o[i] if isinstance(o, (list, tuple)) else cast(Number, o) for o in others)]


def _pointwise(function: Computation) -> Computation:
    def compute(self: Sequence[Array], *others: Operands, **kwargs: Number) -> list[Array]:
        return [function(*unified(*operands), **kwargs) for operands in _zipped(self, others)]

    return compute


def _add(x: Array, other: Array, alpha: Number | None = None) -> Array:
    return x + (other if alpha is None else other * alpha)


def _sub(x: Array, other: Array, alpha: Number | None = None) -> Array:
    return x - (other if alpha is None else other * alpha)


_SCALARS = ("List", "Scalar", "ScalarList")
_BINARY: dict[str, tuple[Computation, tuple[str, ...]]] = {
    "add": (_add, (*_SCALARS, "Tensor")),
    "sub": (_sub, _SCALARS),
    "mul": (lambda x, other: x * other, (*_SCALARS, "Tensor")),
    "div": (lambda x, other: jnp.true_divide(x, other), (*_SCALARS, "Tensor")),
    "addcmul": (lambda x, first, second, value=1: x + value * first * second, _SCALARS[1:]),
    "addcdiv": (lambda x, first, second, value=1: x + value * (first / second), _SCALARS[1:]),
    "lerp": (lerp, _SCALARS),
    "maximum": (jnp.maximum, _SCALARS),
    "minimum": (jnp.minimum, _SCALARS),
    "clamp_min": (jnp.maximum, _SCALARS),
    "clamp_max": (jnp.minimum, _SCALARS),
}
for _name, (_function, _overloads) in _BINARY.items():
    lower(*(f"_foreach_{_name}.{which}" for which in _overloads))(_pointwise(_function))

_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip


def _unary(name: str) -> Computation:
    def compute(self: Sequence[Array]) -> list[Array]:
        return [OWN[name].compute(x) for x in self]

    return compute


for _name in _UNARY:
    lower(f"_foreach_{_name}")(_unary(_name))


@lower("_foreach_pow.List", "_foreach_pow.Scalar", "_foreach_pow.ScalarList")
def power(self: Sequence[Array], exponent: Sequence[Array] | Number | Sequence[Number]) -> list[Array]:
    """Raise each tensor to its exponent."""
    name = "pow.Tensor_Scalar" if not isinstance(exponent, list) or _numbers(exponent) else "pow.Tensor_Tensor"
    return [OWN[name].compute(*unified(*operands)) for operands in _zipped(self, (exponent,))]


def _numbers(values: Sequence[Number]) -> bool:
    return all(not isinstance(v, jax.Array) or v.weak_type for v in values)


@lower("_foreach_pow.ScalarAndTensor")
def power_of(self: Number, exponent: Sequence[Array]) -> list[Array]:
    """Raise the number to each of the exponents."""
    return [OWN["pow.Scalar"].compute(*unified(self, x)) for x in exponent]


@lower("_foreach_zero")
def zero(self: Sequence[Array]) -> list[Array]:
    """Return zeros."""
    return [jnp.zeros_like(x) for x in self]


@lower("_foreach_clone")
def clone(self: Sequence[Array], memory_format: torch.memory_format | None = None) -> list[Array]:
    """Return the same values."""
    return list(self)


@lower("_foreach_copy")
def copy(self: Sequence[Array], src: Sequence[Array], non_blocking: bool = False) -> list[Array]:
    """Return the values of `src` in the shapes and dtypes of `self`."""
    return [jnp.broadcast_to(convert(y, x.dtype), x.shape) for x, y in zip(self, src, strict=True)]


@lower("_foreach_max")
def largest(self: Sequence[Array]) -> list[Array]:
    """Return the largest element of each tensor."""
    return [jnp.max(x) for x in self]


@lower("_foreach_mm")
def mm(self: Sequence[Array], mat2: Sequence[Array]) -> list[Array]:
    """Return the matrix product of each pair."""
    return [matmul(x, y) for x, y in zip(self, mat2, strict=True)]


def _read(x: Array, dtype: torch.dtype | None) -> Array:
    return wide(x if dtype is None else convert(x, jax_dtype(dtype)))


@lower("_foreach_norm.Scalar", static=True)
def norm(self: Sequence[Array], ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    """Return the vector norm of each tensor; low precision is added up in float32."""
    return [vector_norm(_read(x, dtype), ord, tuple(range(x.ndim))) for x in self]


@lower("_foreach_powsum.Scalar", static=True)
def powsum(self: Sequence[Array], ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    """Return the sum of the powers of each tensor's magnitudes: its norm before the root."""
    return [powersum(_read(x, dtype), ord, tuple(range(x.ndim))) for x in self]


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


def _single(name: str, array: Array, dtype: type) -> None:
    if array.size != 1:
        raise RuntimeError(f"{name} must be a 1-element tensor; it has {array.size} elements")
    if array.dtype != dtype:
        raise RuntimeError(f"{name} must be a {jnp.dtype(dtype).name} tensor; it is {array.dtype}")


@lower("_amp_foreach_non_finite_check_and_unscale")
def unscale(self: Sequence[Array], found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
    """Return gradients times `inv_scale`, and `found_inf`: 1 where a gradient was not finite before, else unchanged.

    Low precision is multiplied in float32. A scale of 1 leaves a gradient as it is, also where it is not finite.
    """
    _single("inv_scale", inv_scale, jnp.float32)
    _single("found_inf", found_inf, jnp.float32)
    scale, out, bad = inv_scale.reshape(()), [], jnp.asarray(False)
    for grad in self:
        if not jnp.issubdtype(grad.dtype, jnp.floating):
            raise RuntimeError(f"a gradient to unscale must be a floating tensor; it is {grad.dtype}")
        wide = grad.astype(jnp.promote_types(grad.dtype, jnp.float32))
        bad = bad | ~jnp.all(jnp.isfinite(wide))
        out.append(jnp.where(scale == 1, wide, wide * scale).astype(grad.dtype))
    return out, jnp.where(bad, jnp.float32(1), found_inf)


@lower("_amp_update_scale", traced=("scale_growth_factor", "scale_backoff_factor", "growth_interval"))
def update_scale(
    self: Array,
    growth_tracker: Array,
    found_inf: Array,
    scale_growth_factor: float | Array,
    scale_backoff_factor: float | Array,
    growth_interval: int | Array,
) -> tuple[Array, Array]:
    """Return the next scale, and how many steps since the last growth or overflow.

    After an overflow the scale backs off; after `growth_interval` steps without one it grows, where float32 holds it.
    """
    _single("current_scale", self, jnp.float32)
    _single("growth_tracker", growth_tracker, jnp.int32)
    _single("found_inf", found_inf, jnp.float32)
    overflow = found_inf.reshape(()) != 0
    successful = growth_tracker + 1
    grows = (successful == growth_interval) & ~overflow
    grown = (self.astype(jnp.float64) * scale_growth_factor).astype(jnp.float32)
    backed = (self.astype(jnp.float64) * scale_backoff_factor).astype(jnp.float32)
    scale = jnp.where(overflow, backed, jnp.where(grows & jnp.isfinite(grown), grown, self))
    return scale, jnp.where(overflow | grows, 0, successful).astype(jnp.int32)
