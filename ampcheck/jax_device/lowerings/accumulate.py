"""Products of lower precision, accumulated in float32 and rounded once.

GPUs and TPUs accumulate such products in float32 themselves and get the plain operation, in the operands' dtype. XLA's
CPU backend converts the operands of a bfloat16 dot that gives bfloat16 to float32 first; asked for a float32 result it
runs the kernel that the processor has for bfloat16 (1024 x 1024: twice the speed). It has none for float16, where the
same form costs nothing. So there every product gives float32, and is rounded afterwards.

That kernel takes its operands by rows, and XLA decides early whether a dot gets it: of a transposed operand, or what it
takes for one, it does not. If a later pass moves a transpose into a dot that was to get the kernel, the program fails
when it runs, with "Unsupported element type for DotThunk::Execute: BF16 x BF16 = F32" (jax 0.10.2). Barriers around the
dot prevent both; an operand that is stored by columns is multiplied as it lies (`Columns`).
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from ampcheck.jax_device.layout import Columns

LOW = (jnp.float16, jnp.bfloat16)


def widens(dtype: Any) -> bool:
    """Whether products of that dtype are asked for in float32: lower precision on a CPU."""
    return dtype in LOW and jax.default_backend() == "cpu"


def wide_dtype(dtype: Any) -> Any:
    """float32 for lower precision, else the dtype itself."""
    return jnp.float32 if dtype in LOW else dtype


def settled(matrix: Any) -> Any:
    """The matrix itself, transposed where it is stored by columns."""
    return jnp.swapaxes(matrix.rows, -1, -2) if isinstance(matrix, Columns) else matrix


def turned(matrix: Any) -> Any:
    """The transpose of matrices, without a copy."""
    return matrix.rows if isinstance(matrix, Columns) else Columns(matrix)


def product(a: Any, b: Any, dtype: Any = None) -> Any:
    """a @ b as it was accumulated: of `dtype` if given, else float32 for lower precision on a CPU, else a's dtype.

    a: (…, m, k) or (k,); b: (…, k, n) or (k,). Both may be `Columns`. Batch dimensions are broadcast.
    """
    own = (a.rows if isinstance(a, Columns) else a).dtype
    if not widens(own) or (dtype or jnp.float32) != jnp.float32:
        return jnp.matmul(settled(a), settled(b), preferred_element_type=dtype)
    if not isinstance(a, Columns) and a.ndim == 1:
        return _fast(a[None], b)[..., 0, :] if isinstance(b, Columns) or b.ndim > 1 else _inner(a, b)
    if not isinstance(b, Columns) and b.ndim == 1:
        return jnp.swapaxes(_fast(b[None], turned(a)), -1, -2)[..., 0]
    return _fast(a, b)


def matmul(a: Any, b: Any) -> Any:
    """a @ b in a's dtype, rounded once."""
    return product(a, b).astype((a.rows if isinstance(a, Columns) else a).dtype)


def linear(x: Any, weight: Any, bias: Any) -> Any:
    """x @ weight^T + bias for x of (…, in) and a weight of (out, in), in x's dtype, rounded once on a CPU."""
    out = product(x.reshape(-1, x.shape[-1]), Columns(weight)) + bias
    return out.astype(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


def _inner(a: Any, b: Any) -> Any:
    return jnp.matmul(a, b, preferred_element_type=jnp.float32)


def _fast(a: Any, b: Any) -> Any:
    """a @ b in float32, of matrices of lower precision, as the CPU's kernel takes them."""
    left = settled(a)
    right = b.rows if isinstance(b, Columns) else b
    along = -1 if isinstance(b, Columns) else -2
    rows, columns = left.shape[-2], right.shape[-3 - along]
    if left.shape[-1] == 0 or columns == 0 or rows == 0:
        return jnp.matmul(left, settled(b), preferred_element_type=jnp.float32)
    if columns == 1 < rows:
        return jnp.swapaxes(_fast(turned(b), turned(a)), -1, -2)
    if rows == 1 < columns:  # the kernel takes no vectors, but two rows cost it hardly more than one
        left = jnp.broadcast_to(left, (*left.shape[:-2], 2, left.shape[-1]))
    batch = jnp.broadcast_shapes(left.shape[:-2], right.shape[:-2])
    left, right = (jnp.broadcast_to(m, (*batch, *m.shape[-2:])) for m in (left, right))
    dims = tuple(range(len(batch)))
    contracted = ((len(batch) + 1,), (len(batch) + 2 + along,))
    out = jax.lax.dot_general(
        _by_rows(left), _by_rows(right), (contracted, (dims, dims)), preferred_element_type=jnp.float32
    )
    return jax.lax.optimization_barrier(out)[..., :rows, :]


def _by_rows(matrix: Any) -> Any:
    """The matrix as XLA has to compute it before the dot. A reshape's result is by rows whatever its operand is."""
    return jax.lax.optimization_barrier(matrix[None])[0]
