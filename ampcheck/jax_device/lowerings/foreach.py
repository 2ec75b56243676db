"""`torch._foreach_*`: one program for a whole list of tensors.

Overloads that take their scalars as a 1-d CPU tensor (`_foreach_addcdiv.Tensor`) are PyTorch's own: it reads the tensor
and calls the `ScalarList` overload.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import cast

import jax
import jax.numpy as jnp
import torch
from jax import Array

from ampcheck.jax_device.dispatch.promotion import common_of, convert
from ampcheck.jax_device.dtypes import jax_dtype, opmath_dtype
from ampcheck.jax_device.lowering import OWN, Computation, Number, lower
from ampcheck.jax_device.lowerings.accumulate import matmul
from ampcheck.jax_device.lowerings.norms import powersum, vector_norm
from ampcheck.jax_device.lowerings.pointwise import lerp
from ampcheck.jax_device.lowerings.wide import wide

Operands = Sequence[Array] | Sequence[Number] | Number
"""An operand for each tensor, or one for all."""


def unified(*operands: Number) -> list[Number]:
    """Bring arrays to their common dtype by PyTorch's promotion; low precision to float32, which rounds once."""
    dtype = common_of(operands)
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
