"""Low precision: several steps in float32, products that accumulate in float32, rounded once; gradients by JAX.

GPUs and TPUs accumulate products of lower precision in float32 themselves and get the plain operation, in the operands'
dtype. XLA's CPU backend converts the operands of a bfloat16 dot that gives bfloat16 to float32 first; asked for a
float32 result it runs the kernel that the processor has for bfloat16 (1024 x 1024: twice the speed). It has none for
float16, where asking for float32 costs nothing. So on a CPU every product gives float32, and is rounded afterwards.
Without instructions for bfloat16 the kernel is the slower one (1024 x 1024: 44 against 29 ms), and is kept away.

The kernel takes matrices by rows, and XLA decides early whether a dot is for it: one whose operand is transposed, or
looks it, is not. If a later pass moves a transpose into a dot that was, the program fails when it runs, with
"Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32" (jax 0.10.2). Barriers around the dot prevent both.
A right operand that is stored by columns is multiplied as it lies (`Columns`); a left one is copied.
"""

from collections.abc import Callable, Sequence
from functools import cache, wraps
from typing import Any, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.dtypes import opmath_dtype
from ampcheck.jax_device.lowering import F
from ampcheck.jax_device.storage.arrays import Columns

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


Matrix = Array | Columns
"""Of shape (…, m, n), or a vector."""

_LONG = 4096  # measured: the inner dimension from which XLA's loop over a row of bfloat16 falls behind the kernel


def widens(dtype: np.dtype) -> bool:
    """Return whether products of that dtype are asked for in float32: lower precision on a CPU."""
    return opmath_dtype(dtype) != dtype and jax.default_backend() == "cpu"


def asked(dtype: np.dtype) -> np.dtype:
    """Return what to ask of a product of that dtype, for `preferred_element_type`."""
    return opmath_dtype(dtype) if widens(dtype) else dtype


@cache
def has_bfloat16_instructions() -> bool:
    """Return whether the processor has bfloat16 instructions; XLA's kernel takes them whatever `xla_cpu_max_isa` is."""
    has = torch.cpu.get_capabilities()
    return has["architecture"] != "x86_64" or bool(has["avx512_bf16"] or has["amx_bf16"])


def settled(matrix: Matrix) -> Array:
    """Return the matrix as an array, transposed where it is stored by columns."""
    return matrix.settled() if isinstance(matrix, Columns) else matrix


def turned(matrix: Matrix) -> Matrix:
    """Return the transpose of matrices, without a copy."""
    return matrix.rows if isinstance(matrix, Columns) else Columns(matrix)


def product(a: Matrix, b: Matrix, dtype: np.dtype | None = None) -> Array:
    """Compute a @ b as it is accumulated: in `dtype`, else in float32 for lower precision on a CPU, else in a's dtype.

    a: (…, m, k) or (k,); b: (…, k, n) or (k,). Both may be `Columns`. Batch dimensions are broadcast.
    """
    dtype = dtype or asked(a.dtype)
    if not (widens(a.dtype) and a.dtype == jnp.bfloat16 and dtype == jnp.float32) or a.ndim == b.ndim == 1:
        return jnp.matmul(settled(a), settled(b), preferred_element_type=dtype)
    if isinstance(a, Array) and a.ndim == 1:
        return _by_kernel(a[None], b)[..., 0, :]
    if isinstance(b, Array) and b.ndim == 1:
        return _by_kernel(b[None], turned(a))[..., 0, :]
    return _by_kernel(a, b)


def matmul(a: Matrix, b: Matrix) -> Array:
    """Compute a @ b in a's dtype, rounded once."""
    return product(a, b).astype(a.dtype)


def linear(x: Array, weight: Array, bias: Array) -> Array:
    """Compute x @ weight^T + bias of (…, in) and a weight of (out, in), in x's dtype; on a CPU it is rounded once."""
    out = product(x.reshape(-1, x.shape[-1]), Columns(weight)) + bias
    return out.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _by_kernel(a: Matrix, b: Matrix) -> Array:
    """Compute a @ b in float32, of bfloat16 matrices, in the form the CPU's kernel takes."""
    left = settled(a)
    right, along = (b.rows, -1) if isinstance(b, Columns) else (b, -2)  # where `right` has the inner dimension
    rows, inner = left.shape[-2:]
    columns = right.shape[-3 - along]
    if columns == 1 < rows:
        return jnp.swapaxes(_by_kernel(turned(b), turned(a)), -1, -2)
    batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    each = tuple(range(len(batch)))
    if not has_bfloat16_instructions():  # a left operand that looks transposed keeps the kernel away
        left, right = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (jnp.swapaxes(left, -1, -2), right))
        dims = (((len(batch),), (len(batch) + 2 + along,)), (each, each))
        return jax.lax.dot_general(left, right, dims, preferred_element_type=jnp.float32)
    if 0 in (rows, inner, columns, *batch) or (rows == 1 and along == -1 and inner < _LONG and not batch):
        return jnp.matmul(left, settled(b), preferred_element_type=jnp.float32)
    if rows == 1 < columns:  # the kernel takes no vectors, and two rows cost it hardly more than one
        left = jnp.broadcast_to(left, (*left.shape[:-2], 2, inner))
    left, right = (_by_rows(jnp.broadcast_to(m, (*batch, *m.shape[-2:]))) for m in (left, right))
    contracted = ((len(batch) + 1,), (len(batch) + 2 + along,))
    out = jax.lax.dot_general(left, right, (contracted, (each, each)), preferred_element_type=jnp.float32)
    kept: Array = jax.lax.optimization_barrier(out)[..., :rows, :]
    return kept


def _by_rows(matrix: Array) -> Array:
    """Return the matrix as XLA has to compute it before the dot: what a reshape gives counts as by rows."""
    out: Array = jax.lax.optimization_barrier(matrix[None])[0]
    return out
