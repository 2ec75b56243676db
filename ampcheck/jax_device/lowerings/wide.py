"""Computing float16 and bfloat16 steps in float32, and gradients by JAX: what several families share."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
from jax import Array

from ampcheck.jax_device.dtypes import opmath_dtype
from ampcheck.jax_device.lowering import F

T = TypeVar("T")
MEAN, SUM = 1, 2  # at::Reduction; 0 is none


def wide(value: T) -> T:
    """Return the array in float32 where it is float16 or bfloat16 (ATen/OpMathType.h); anything else as it is."""
    if isinstance(value, jax.Array) and (dtype := opmath_dtype(value.dtype)) != value.dtype:
        return cast(T, value.astype(dtype))
    return value


def widened(compute: F) -> F:
    """Decorate a lowering to get float32 for lower precision, so that several steps are rounded once, at the end."""

    @wraps(compute)
    def run(*args: object, **kwargs: object) -> object:
        return compute(*map(wide, args), **{name: wide(value) for name, value in kwargs.items()})

    return cast(F, run)


def rounded(compute: F) -> F:
    """Decorate as `widened` does, with results in the dtype of the first argument: where no Meta kernel says it."""

    @wraps(compute)
    def run(first: Array, *args: object, **kwargs: object) -> Any:
        out = widened(compute)(first, *args, **kwargs)
        if isinstance(out, tuple):
            return tuple(None if o is None else o.astype(first.dtype) for o in out)
        return out.astype(first.dtype)

    return cast(F, run)


def pullback(forward: Callable[..., Array], grad: Array, *primals: Array) -> tuple[Array, ...]:
    """Return the gradients of `forward`, a function of arrays with one array result, by each of `primals`."""
    out, vjp = jax.vjp(forward, *primals)
    gradients: tuple[Array, ...] = vjp(grad.astype(out.dtype).reshape(out.shape))
    return gradients


def transposed(forward: Callable[[Array], Array], grad: Array, size: Sequence[int]) -> Array:
    """Return the gradient of a linear `forward` by an input of that size, in the gradient's dtype."""
    return pullback(forward, grad, jnp.zeros(tuple(size), grad.dtype))[0]


def wanted(mask: Sequence[bool], *grads: Array | None) -> tuple[Array | None, ...]:
    """Return the gradients, with None where the mask does not ask for one."""
    return tuple(grad if asked else None for grad, asked in zip(grads, mask, strict=True))


def reduced(values: Array, reduction: int) -> Array:
    """Return the losses, their mean or their sum, as `reduction` says."""
    if reduction == MEAN:
        return jnp.mean(values)
    return jnp.sum(values) if reduction == SUM else values


def spread(grad: Array, reduction: int, count: int) -> Array:
    """Return the gradient of each loss from the gradient of what `reduced` made of `count` of them."""
    return grad / count if reduction == MEAN and count else grad
