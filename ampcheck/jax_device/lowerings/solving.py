"""LU decompositions and what is solved by them. Pivots count from 1, as LAPACK's do."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.annotations import Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.linalg import transposed


def factor(A: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """Return LU in one matrix, pivots from 0, and the row order they make."""
    rows, columns = A.shape[-2:]
    least = min(rows, columns)
    order = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*A.shape[:-2], rows))
    if not A.size:
        return A, order[..., :least], order
    if not pivot:
        return _without_pivots(A), order[..., :least], order
    lu, pivots, order = jax.lax.linalg.lu(A)
    return lu, pivots, order


def _without_pivots(A: Array) -> Array:
    rows, columns = A.shape[-2:]

    def eliminate(k: Array, lu: Array) -> Array:
        below = jnp.arange(rows) > k
        scale = jnp.where(below, lu[..., :, k] / lu[..., k, k][..., None], 0)
        right = jnp.where(jnp.arange(columns) > k, lu[..., k, :], 0)
        lu = lu - scale[..., :, None] * right[..., None, :]
        return lu.at[..., :, k].set(jnp.where(below, scale, lu[..., :, k]))

    out: Array = jax.lax.fori_loop(0, min(rows, columns), eliminate, A)
    return out


def _info(lu: Array) -> Array:
    """Return the first zero of U's diagonal, counted from 1; 0 where there is none."""
    zero = jnp.diagonal(lu, axis1=-2, axis2=-1) == 0
    if not zero.shape[-1]:
        return jnp.zeros(zero.shape[:-1], jnp.int32)
    return jnp.where(jnp.any(zero, -1), jnp.argmax(zero, -1) + 1, 0).astype(jnp.int32)


@lower("linalg_lu_factor_ex")
def lu_factor_ex(A: Array, *, pivot: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array]:
    """Return L and U in one matrix, the pivots, and the first pivot that is zero."""
    lu, pivots, _ = factor(A, pivot)
    return lu, pivots + 1, _info(lu)


def _halves(lu: Array) -> tuple[Array, Array]:
    rows, columns = lu.shape[-2:]
    least = min(rows, columns)
    left = jnp.tril(lu[..., :least], -1) + jnp.eye(rows, least, dtype=lu.dtype)
    return left, jnp.triu(lu[..., :least, :])


def _permutation(order: Array, dtype: np.dtype) -> Array:
    """Return the matrix P of A = P L U, from the row order of P.T A."""
    return jnp.swapaxes(jax.nn.one_hot(order, order.shape[-1], dtype=dtype), -1, -2)


@lower("linalg_lu")
def lu(A: Array, *, pivot: bool = True) -> tuple[Array, Array, Array]:
    """Return P, L and U; P is empty without pivoting."""
    packed, _, order = factor(A, pivot)
    left, right = _halves(packed)
    return _permutation(order, A.dtype) if pivot else jnp.zeros(0, A.dtype), left, right


def _order(pivots: Array, rows: int) -> Array:
    """Return the row order that pivots, counted from 1, make."""
    if not pivots.size:
        return jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*pivots.shape[:-1], rows))
    return jax.lax.linalg.lu_pivots_to_permutation(pivots.astype(jnp.int32) - 1, rows)


@lower("lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    """Return P, L and U of a packed decomposition; empty what is not wanted."""
    nothing = jnp.zeros(0, LU_data.dtype)
    left, right = _halves(LU_data) if unpack_data else (nothing, nothing)
    order = _permutation(_order(LU_pivots, LU_data.shape[-2]), LU_data.dtype) if unpack_pivots else nothing
    return order, left, right


def _triangular(a: Array, b: Array, *, upper: bool, unit: bool = False, adjoint: bool = False) -> Array:
    """Return X of a X = b, or of the adjoint of `a`, which is triangular."""
    return jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, unit_diagonal=unit, transpose_a=adjoint, conjugate_a=adjoint
    )


def _batched(a: Array, b: Array) -> tuple[Array, Array]:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))


def _solved(lu: Array, order: Array, b: Array, adjoint: bool = False) -> Array:
    """Return X of A X = b, or of the adjoint of A, from the packed decomposition and the row order."""
    lu, b = _batched(lu, b)
    if not b.size or not lu.size:
        return jnp.zeros(b.shape, b.dtype)
    order = jnp.broadcast_to(order, lu.shape[:-1])
    if adjoint:
        y = _triangular(lu, b, upper=True, adjoint=True)
        y = _triangular(lu, y, upper=False, unit=True, adjoint=True)
        return jnp.take_along_axis(y, jnp.argsort(order, -1)[..., None], -2)
    y = _triangular(lu, jnp.take_along_axis(b, order[..., None], -2), upper=False, unit=True)
    return _triangular(lu, y, upper=True)


@lower("_linalg_solve_ex")
def solve_ex(A: Array, B: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array, Array]:
    """Return X of A X = B, or X A = B, with the decomposition of A and its first zero pivot."""
    packed, pivots, order = factor(A)  # one decomposition serves the solution and, in backward, its gradient
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = B[..., None] if vector else B
    out = _solved(packed, order, right) if left else transposed(_solved(packed, order, transposed(right), True))
    return out[..., 0] if vector else out, packed, pivots + 1, _info(packed)


@lower("linalg_inv_ex")
def inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    """Return the inverse, and the first zero pivot of its decomposition."""
    packed, _, order = factor(A)
    return _solved(packed, order, jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)), _info(packed)


def _parity(pivots: Array) -> Array:
    """Return 1 or -1 by how often rows were exchanged."""
    return 1 - 2 * (jnp.sum(pivots != jnp.arange(pivots.shape[-1]), -1) % 2)


@lower("_linalg_det")
def det(A: Array) -> tuple[Array, Array, Array]:
    """Return the determinant, with the decomposition."""
    packed, pivots, _ = factor(A)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    return jnp.prod(diagonal, -1) * _parity(pivots).astype(A.dtype), packed, pivots + 1


@lower("_linalg_slogdet")
def slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
    """Return sign and logarithm of the determinant, with the decomposition."""
    packed, pivots, _ = factor(A)
    diagonal = jnp.diagonal(packed, axis1=-2, axis2=-1)
    sign = jnp.prod(jnp.sign(diagonal), -1) * _parity(pivots).astype(A.dtype)
    return sign, jnp.sum(jnp.log(jnp.abs(diagonal)), -1), packed, pivots + 1


def _decomposed(name: str, A: torch.Tensor) -> Tree:
    """Decompose a contiguous real matrix transposed, as linalg_det_backward (FunctionsManual.cpp) expects it."""
    return computed(name)(A.mT if A.is_contiguous() and not A.is_complex() else A)


for _name in ("_linalg_det", "_linalg_slogdet"):
    kernel(_name)(partial(_decomposed, _name))


@lower("triangular_solve")
def triangular_solve(
    self: Array, A: Array, upper: bool = True, transpose: bool = False, unitriangular: bool = False
) -> tuple[Array, Array]:
    """Return X of A X = self, or of A transposed, for a triangular A; and A."""
    a, b = _batched(A, self)
    if not b.size or not a.size:
        return jnp.zeros(b.shape, b.dtype), a
    out = jax.lax.linalg.triangular_solve(
        a, b, left_side=True, lower=not upper, unit_diagonal=unitriangular, transpose_a=transpose
    )
    return out, a


@lower("linalg_lstsq", concrete=True)
def lstsq(
    self: Array, b: Array, rcond: float | None = None, *, driver: str | None = None
) -> tuple[Array, Array, Array, Array]:
    """Return the least squares solution of least norm by the singular values above `rcond` times the greatest.

    Residuals, rank and singular values are empty where LAPACK's driver of that name, "gelsy" for None, gives none.
    """
    rows, columns = self.shape[-2:]
    vector = b.ndim == 1 or (b.ndim == self.ndim - 1 and b.shape == self.shape[:-1])
    a, right = _batched(self, b[..., None] if vector else b)
    left, values, vh = jnp.linalg.svd(a, full_matrices=False)
    cutoff = (jnp.finfo(a.dtype).eps * max(rows, columns) if rcond is None else rcond) * values[..., :1]
    kept = values > cutoff
    inverse = jnp.where(kept, 1 / jnp.where(kept, values, 1), 0)
    out = transposed(vh) @ (inverse[..., None].astype(a.dtype) * (transposed(left) @ right))
    off = a @ out - right
    residuals = jnp.sum(off.real**2 + off.imag**2 if jnp.iscomplexobj(off) else off**2, -2)
    rank, nothing = jnp.sum(kept, -1), jnp.zeros(0, values.dtype)
    by_values = driver in ("gelsd", "gelss")
    full = driver == "gels" or (by_values and bool(jnp.all(rank == columns)))
    return (
        out[..., 0] if vector else out,
        residuals if rows > columns and full else nothing,
        jnp.zeros(0, jnp.int64) if driver == "gels" else rank,
        values if by_values else nothing,
    )
