"""`torch.optim`: `torch._foreach_*` and fused steps, one program for a list of tensors, and the ops of `GradScaler`.

Overloads that take their scalars as a 1-d CPU tensor (`_foreach_addcdiv.Tensor`) are PyTorch's own: it reads the tensor
and calls the `ScalarList` overload. The formulas of the steps are those of PyTorch's fused CUDA kernels
(aten/src/ATen/native/cuda/fused_*): low precision computes in float32, the gradients are unscaled in place where a
gradient scaler gives its scale, and a step in which it found a non-finite gradient changes nothing.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dtypes import common_dtype_of, convert, jax_dtype, opmath_dtype
from ampcheck.jax_device.lowering import OWN, Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import matmul, wide
from ampcheck.jax_device.lowerings.pointwise import filled, lerp
from ampcheck.jax_device.lowerings.reduction import powersum, vector_norm

Arrays = Sequence[Array]
Operands = Arrays | Sequence[Number] | Number
"""An operand for each tensor, or one for all."""


def unified(*operands: Number) -> list[Any]:
    """Bring arrays to their common dtype by PyTorch's promotion; low precision to float32, which rounds once."""
    dtype = common_dtype_of(operands)
    if dtype is None:
        return list(operands)
    dtype = opmath_dtype(dtype)  # rounded by the program, once, to what PyTorch promises
    return [convert(o, dtype) if isinstance(o, jax.Array) and not o.weak_type else o for o in operands]


def _zipped(first: Arrays, others: Sequence[Operands]) -> Iterator[list[Number]]:
    """Return the operands of each element: lists by place, anything else as it is for all."""
    for i, x in enumerate(first):
        yield [x, *(o[i] if isinstance(o, (list, tuple)) else cast(Number, o) for o in others)]


def _pointwise(function: Computation) -> Computation:
    def compute(self: Arrays, *others: Operands, **kwargs: Number) -> list[Array]:
        each = (unified(*operands) for operands in _zipped(self, others))
        return [function(x, *(filled(o, x) for o in rest), **kwargs) for x, *rest in each]

    return compute


_SCALARS = ("List", "Scalar", "ScalarList")
for _names, _overloads in (
    ("add mul div", (*_SCALARS, "Tensor")),
    ("sub maximum minimum clamp_min clamp_max", _SCALARS),
    ("addcmul addcdiv", _SCALARS[1:]),
):
    for _name in _names.split():
        _plain = OWN.get(f"{_name}.Tensor") or OWN[_name]
        lower(*(f"_foreach_{_name}.{which}" for which in _overloads))(_pointwise(_plain.compute))

lower(*(f"_foreach_lerp.{which}" for which in _SCALARS))(
    lambda self, ends, weight: [lerp(*unified(*operands)) for operands in _zipped(self, (ends, weight))]
)
_UNARY = (
    "abs", "acos", "asin", "atan", "ceil", "cos", "cosh", "erf", "erfc", "exp", "expm1", "floor", "frac", "lgamma",
    "log", "log10", "log1p", "log2", "neg", "reciprocal", "round", "rsqrt", "sigmoid", "sign", "sin", "sinh", "sqrt",
    "tan", "tanh", "trunc",
)  # fmt: skip
for _name in _UNARY:
    lower(f"_foreach_{_name}")(partial(lambda compute, self: [compute(x) for x in self], OWN[_name].compute))
lower("_foreach_zero")(lambda self: [jnp.zeros_like(x) for x in self])
lower("_foreach_clone")(lambda self, memory_format=None: list(self))
lower("_foreach_max")(lambda self: [jnp.max(x) for x in self])
lower("_foreach_mm")(lambda self, mat2: [matmul(x, y) for x, y in zip(self, mat2, strict=True)])
lower("_foreach_copy")(  # in the shapes and dtypes of `self`
    lambda self, src, non_blocking=False: [
        jnp.broadcast_to(convert(y, x.dtype), x.shape) for x, y in zip(self, src, strict=True)
    ]
)


@lower("_foreach_pow.List", "_foreach_pow.Scalar", "_foreach_pow.ScalarList")
def power(self: Arrays, exponent: Arrays | Number | Sequence[Number]) -> list[Array]:
    arrays = isinstance(exponent, list) and any(isinstance(v, jax.Array) and not v.weak_type for v in exponent)
    name = "pow.Tensor_Tensor" if arrays else "pow.Tensor_Scalar"
    return [OWN[name].compute(*unified(*operands)) for operands in _zipped(self, (exponent,))]


lower("_foreach_pow.ScalarAndTensor")(
    lambda self, exponent: [OWN["pow.Scalar"].compute(filled(o, x), x) for o, x in (unified(self, x) for x in exponent)]
)


def _norms(norm: Computation, self: Arrays, ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    given = [wide(x if dtype is None else convert(x, jax_dtype(dtype))) for x in self]
    return [norm(x, ord, tuple(range(x.ndim))) for x in given]


lower("_foreach_norm.Scalar", static=True)(partial(_norms, vector_norm))
lower("_foreach_powsum.Scalar", static=True)(partial(_norms, powersum))


Rate = float | Array
"""A learning rate, or another number of a step that may change from call to call."""


@dataclass(frozen=True)
class _FusedStep:
    """What all fused steps share: gradients unscaled and decayed, and results kept back where the step is skipped."""

    maximize: bool
    weight_decay: float = 0
    grad_scale: Array | None = None
    found_inf: Array | None = None

    def gradient(self, grad: Array, param: Array) -> tuple[Array, Array]:
        """Return the gradient to store, and the one to step against."""
        unscaled = wide(grad)
        if self.grad_scale is not None:
            unscaled = unscaled / self.grad_scale.reshape(()).astype(unscaled.dtype)
        against = -unscaled if self.maximize else unscaled
        return unscaled, against + self.weight_decay * param if self.weight_decay else against

    def kept(self, new: Sequence[Sequence[Array]], old: Sequence[Sequence[Array]]) -> tuple[list[Array], ...]:
        """Return the new values in the dtypes of the old, or the old where a non-finite gradient was found.

        `new`: for each parameter its new values.
        """
        lists = [list(values) for values in zip(*new, strict=True)] if new else [[] for _ in old]
        return tuple([self._one(n, o) for n, o in zip(ns, os, strict=True)] for ns, os in zip(lists, old, strict=True))

    def _one(self, new: Array, old: Array) -> Array:
        new = new.astype(old.dtype)
        return new if self.found_inf is None else jnp.where(self.found_inf.reshape(()) == 1, old, new)


def _number(x: Rate) -> Rate:
    """Return a learning rate given as a tensor, as a scalar."""
    return x.reshape(()) if isinstance(x, Array) else x


def _correction(beta: Rate, step: Array) -> Array:
    """Compute 1 - beta ** step, in float64: in float32 most digits of the first steps would cancel."""
    return 1 - jnp.power(beta, step.reshape(()).astype(jnp.float64))


def _adam(decoupled: bool) -> Computation:
    def compute(
        *lists: list[Array], lr: Rate, beta1: Rate, beta2: Rate, eps: Rate, amsgrad: bool, **options: Any
    ) -> tuple[list[Array], ...]:
        self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs, state_steps = lists
        weight_decay = options.pop("weight_decay")
        step, lr, new = _FusedStep(weight_decay=0 if decoupled else weight_decay, **options), _number(lr), []
        for i, stored in enumerate(self):
            param, dtype = wide(stored), wide(stored).dtype
            unscaled, grad = step.gradient(grads[i], param)
            if weight_decay and decoupled:
                param = param - jnp.asarray(lr * weight_decay, dtype) * param
            mean = beta1 * wide(exp_avgs[i]) + (1 - beta1) * grad
            square = beta2 * wide(exp_avg_sqs[i]) + (1 - beta2) * grad * grad
            largest = jnp.maximum(wide(max_exp_avg_sqs[i]), square) if amsgrad else square
            size = jnp.asarray(lr / _correction(beta1, state_steps[i]), dtype)
            root = jnp.sqrt(_correction(beta2, state_steps[i])).astype(dtype)
            param = param - size * mean / (jnp.sqrt(largest) / root + eps)
            new.append((param, unscaled, mean, square, largest)[: 5 if amsgrad else 4])
        old = [self, grads, exp_avgs, exp_avg_sqs, max_exp_avg_sqs]
        return step.kept(new, old) if amsgrad else (*step.kept(new, old[:4]), list(max_exp_avg_sqs))

    return compute


_ADAM = ("lr", "beta1", "beta2", "eps")
lower("_fused_adam", "_fused_adam.tensor_lr", traced=_ADAM)(_adam(decoupled=False))
lower("_fused_adamw", "_fused_adamw.tensor_lr", traced=_ADAM)(_adam(decoupled=True))


@lower("_fused_sgd", "_fused_sgd.tensor_lr", traced=("lr", "momentum", "dampening"))
def sgd(
    self: Arrays, grads: Arrays, buffers: Arrays, *, momentum: Rate, lr: Rate, dampening: Rate, **options: Any
) -> tuple[list[Array], ...]:
    """Take a step of stochastic gradient descent; without momentum the list of buffers is empty."""
    nesterov, is_first_step = options.pop("nesterov"), options.pop("is_first_step")
    step, lr, new = _FusedStep(**options), _number(lr), []
    for i, stored in enumerate(self):
        param = wide(stored)
        unscaled, grad = step.gradient(grads[i], param)
        made = []
        if buffers:
            buffer = grad if is_first_step else momentum * wide(buffers[i]) + (1 - dampening) * grad
            grad = grad + momentum * buffer if nesterov else buffer
            made.append(buffer)
        new.append((param - jnp.asarray(lr, param.dtype) * grad, unscaled, *made))
    return step.kept(new, [self, grads, buffers]) if buffers else (*step.kept(new, [self, grads]), [])


@lower("_fused_adagrad", "_fused_adagrad.tensor_lr", traced=("lr", "lr_decay", "eps"))
def adagrad(
    self: Arrays, grads: Arrays, sums: Arrays, steps: Arrays, *, lr: Rate, lr_decay: float, eps: float, **options: Any
) -> tuple[list[Array], ...]:
    """Take a step of Adagrad. With a number for `lr` PyTorch's schema claims that it writes the steps too."""
    step, rate, new = _FusedStep(**options), _number(lr), []
    for i, stored in enumerate(self):
        param = wide(stored)
        unscaled, grad = step.gradient(grads[i], param)
        total = wide(sums[i]) + grad * grad
        size = rate / (1 + (steps[i].reshape(()).astype(jnp.float64) - 1) * lr_decay)
        new.append((param - jnp.asarray(size, param.dtype) * grad / (jnp.sqrt(total) + eps), unscaled, total))
    out = step.kept(new, [self, grads, sums])
    return out if isinstance(lr, Array) and not lr.weak_type else (*out, list(steps))


def _single(name: str, array: Array, dtype: type) -> None:
    if array.size != 1:
        raise RuntimeError(f"{name} must be a 1-element tensor; it has {array.size} elements")
    if array.dtype != dtype:
        raise RuntimeError(f"{name} must be a {jnp.dtype(dtype).name} tensor; it is {array.dtype}")


@lower("_amp_foreach_non_finite_check_and_unscale")
def unscale(self: Arrays, found_inf: Array, inv_scale: Array) -> tuple[list[Array], Array]:
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
    self: Array, growth_tracker: Array, found_inf: Array, growth: Rate, backoff: Rate, interval: Rate
) -> tuple[Array, Array]:
    """Return the next scale, and how many steps since the last growth or overflow.

    After an overflow the scale backs off; after `interval` steps without one it grows, where float32 holds it.
    """
    _single("current_scale", self, jnp.float32)
    _single("growth_tracker", growth_tracker, jnp.int32)
    _single("found_inf", found_inf, jnp.float32)
    overflow = found_inf.reshape(()) != 0
    successful = growth_tracker + 1
    grows = (successful == interval) & ~overflow
    grown = (self.astype(jnp.float64) * growth).astype(jnp.float32)
    backed = (self.astype(jnp.float64) * backoff).astype(jnp.float32)
    scale = jnp.where(overflow, backed, jnp.where(grows & jnp.isfinite(grown), grown, self))
    return scale, jnp.where(overflow | grows, 0, successful).astype(jnp.int32)
