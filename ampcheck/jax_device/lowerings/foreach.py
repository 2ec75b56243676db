"""`torch._foreach_*`: one program for a whole list of tensors.

Overloads that take their scalars as a 1-d CPU tensor (`_foreach_addcdiv.Tensor`) are PyTorch's own: it reads the tensor
and calls the `ScalarList` overload.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.dispatch.promotion import common_of, convert
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import OWN, Number, lower
from ampcheck.jax_device.lowerings.accumulate import matmul

_LOW = (jnp.float16, jnp.bfloat16)


def unified(*operands: Number) -> list[Any]:
    """Arrays in their common dtype, with PyTorch's promotion; low precision in float32, which rounds once."""
    dtype = common_of(operands)
    if dtype is None:
        return list(operands)
    dtype = np.dtype(np.float32) if dtype in _LOW else dtype
    return [convert(o, dtype) if isinstance(o, jax.Array) and not o.weak_type else o for o in operands]


def _zipped(first: Sequence[Array], others: tuple[Any, ...]) -> Iterator[list[Any]]:
    """The operands of each element: lists by place, anything else as it is for all."""
    return ([x, *(o[i] if isinstance(o, (list, tuple)) else o for o in others)] for i, x in enumerate(first))


def _pointwise(function: Callable[..., Any]) -> Callable[..., Any]:
    def compute(self: list[Any], *others: Any, **kwargs: Any) -> list[Any]:
        return [function(*unified(*operands), **kwargs) for operands in _zipped(self, others)]

    return compute


def _add(x: Array, other: Array, alpha: Number | None = None) -> Array:
    return x + (other if alpha is None else other * alpha)


def _sub(x: Array, other: Array, alpha: Number | None = None) -> Array:
    return x - (other if alpha is None else other * alpha)


def _mul(x: Array, other: Array) -> Array:
    return x * other


def _div(x: Array, other: Array) -> Array:
    return jnp.true_divide(x, other)


def _addcmul(x: Array, first: Array, second: Array, value: Number = 1) -> Array:
    return x + value * first * second


def _addcdiv(x: Array, first: Array, second: Array, value: Number = 1) -> Array:
    return x + value * (first / second)


def lerped(x: Array, end: Array, weight: Array) -> Array:
    """From `x` to `end`; from whichever is nearer, as PyTorch computes it, so that weight 1 gives `end` itself."""
    near = jnp.abs(weight) < 0.5
    return jnp.where(near, x + weight * (end - x), end - (end - x) * (1 - weight))


_BINARY: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
    "add": (_add, ("List", "Scalar", "ScalarList", "Tensor")),
    "sub": (_sub, ("List", "Scalar", "ScalarList")),
    "mul": (_mul, ("List", "Scalar", "ScalarList", "Tensor")),
    "div": (_div, ("List", "Scalar", "ScalarList", "Tensor")),
    "addcmul": (_addcmul, ("Scalar", "ScalarList")),
    "addcdiv": (_addcdiv, ("Scalar", "ScalarList")),
    "lerp": (lerped, ("List", "Scalar", "ScalarList")),
    "maximum": (jnp.maximum, ("List", "Scalar", "ScalarList")),
    "minimum": (jnp.minimum, ("List", "Scalar", "ScalarList")),
    "clamp_min": (jnp.maximum, ("List", "Scalar", "ScalarList")),
    "clamp_max": (jnp.minimum, ("List", "Scalar", "ScalarList")),
}
for _name, (_function, _overloads) in _BINARY.items():
    lower(*(f"_foreach_{_name}.{which}" for which in _overloads))(_pointwise(_function))

_UNARY = [
    "abs",
    "acos",
    "asin",
    "atan",
    "ceil",
    "cos",
    "cosh",
    "erf",
    "erfc",
    "exp",
    "expm1",
    "floor",
    "frac",
    "lgamma",
    "log",
    "log10",
    "log1p",
    "log2",
    "neg",
    "reciprocal",
    "round",
    "rsqrt",
    "sigmoid",
    "sign",
    "sin",
    "sinh",
    "sqrt",
    "tan",
    "tanh",
    "trunc",
]


def _unary(name: str) -> Callable[..., Any]:
    def compute(self: list[Array]) -> list[Array]:
        return [OWN[name].compute(x) for x in self]

    return compute


for _name in _UNARY:
    lower(f"_foreach_{_name}")(_unary(_name))


@lower("_foreach_pow.List", "_foreach_pow.Scalar", "_foreach_pow.ScalarList")
def power(self: Sequence[Array], exponent: Sequence[Array] | Number | Sequence[Number]) -> list[Array]:
    """Each tensor to its exponent."""
    name = "pow.Tensor_Scalar" if not isinstance(exponent, list) or _numbers(exponent) else "pow.Tensor_Tensor"
    return [OWN[name].compute(*unified(*operands)) for operands in _zipped(self, (exponent,))]


def _numbers(values: Sequence[Number]) -> bool:
    return all(not isinstance(v, jax.Array) or v.weak_type for v in values)


@lower("_foreach_pow.ScalarAndTensor")
def power_of(self: Number, exponent: Sequence[Array]) -> list[Array]:
    """The number to each of the exponents."""
    return [OWN["pow.Scalar"].compute(*unified(self, x)) for x in exponent]


@lower("_foreach_zero")
def zero(self: Sequence[Array]) -> list[Array]:
    """Zeros."""
    return [jnp.zeros_like(x) for x in self]


@lower("_foreach_clone")
def clone(self: Sequence[Array], memory_format: torch.memory_format | None = None) -> list[Array]:
    """The same values."""
    return list(self)


@lower("_foreach_copy")
def copy(self: Sequence[Array], src: Sequence[Array], non_blocking: bool = False) -> list[Array]:
    """The values of `src` in the shapes and dtypes of `self`."""
    return [jnp.broadcast_to(convert(y, x.dtype), x.shape) for x, y in zip(self, src, strict=True)]


@lower("_foreach_max")
def largest(self: Sequence[Array]) -> list[Array]:
    """The largest element of each tensor."""
    return [jnp.max(x) for x in self]


@lower("_foreach_mm")
def mm(self: Sequence[Array], mat2: Sequence[Array]) -> list[Array]:
    """The matrix product of each pair."""
    return [matmul(x, y) for x, y in zip(self, mat2, strict=True)]


def _magnitudes(x: Array) -> Array:
    size = jnp.abs(x)
    return size.astype(jnp.float32) if size.dtype in _LOW else size


@lower("_foreach_norm.Scalar", static=True)
def norm(self: Sequence[Array], ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    """The vector norm of each tensor; low precision is added up in float32."""
    return [_norm(_magnitudes(x if dtype is None else convert(x, jax_dtype(dtype))), ord) for x in self]


def _norm(size: Array, ord: float) -> Array:
    if ord in (float("inf"), float("-inf")) and size.size:
        return jnp.max(size) if ord > 0 else jnp.min(size)
    if ord in (1, 2):
        return jnp.sum(size) if ord == 1 else jnp.sqrt(jnp.sum(size * size))
    if ord == 0:
        return jnp.sum(size != 0).astype(size.dtype)
    return jnp.sum(size**ord) ** (1.0 / ord)


@lower("_foreach_powsum.Scalar", static=True)
def powsum(self: Sequence[Array], ord: float = 2, dtype: torch.dtype | None = None) -> list[Array]:
    """The sum of the powers of each tensor's magnitudes: its norm before the root."""
    sizes = [_magnitudes(x if dtype is None else convert(x, jax_dtype(dtype))) for x in self]
    return [jnp.sum(jnp.power(size, ord)) for size in sizes]
