"""Decompositions, what is solved by them, and Fourier transforms.

They run where JAX has them: all on CPU, by LAPACK; `eig` on CPU only. Pivots count from 1, as LAPACK's do.
"""

from collections.abc import Sequence
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
from ampcheck.jax_device.lowerings.accumulate import wide
from ampcheck.jax_device.storage import transfer

# What an info over 0 says, by how the function's name starts (ATen/native/BatchLinearAlgebra.cpp).
_POSITIVE = (
    ("inv", "The diagonal element {} is zero: the input matrix is singular and has no inverse."),
    ("solve", "There is no one solution: the input matrix is singular (pivot {} is zero)."),
    ("cholesky", "There is no factor: the leading minor of order {} is not positive-definite."),
    ("lu_factor", "U[{0},{0}] is zero: lu_solve would divide by it; lu_factor_ex gives the factors all the same."),
)


@kernel("_linalg_check_errors")
def check_errors(info: torch.Tensor, api_name: str, *, is_matrix: bool) -> None:
    """Raise torch.linalg.LinAlgError for the first matrix whose decomposition failed.

    Values that are being traced by JAX are not looked at: the results then hold nan or infinity.
    """
    array = transfer.values(info)
    if isinstance(array, jax.core.Tracer):
        return
    found = np.asarray(array).reshape(-1)
    if not found.any():
        return
    first = int(np.flatnonzero(found)[0])
    code = int(found[first])
    where = "" if is_matrix else f"(Batch element {first}): "
    if code < 0:
        raise RuntimeError(f"{api_name}: {where}Argument {-code} has illegal value. Most certainly there is a bug.")
    says = next((text for start, text in _POSITIVE if api_name.rpartition(".")[2].startswith(start)), None)
    text = says.format(code) if says else f"The decomposition failed with error code {code}."
    raise torch.linalg.LinAlgError(f"{api_name}: {where}{text}")  # type: ignore[attr-defined]


def transposed(values: Array) -> Array:
    """Return the matrices transposed and conjugated."""
    return jnp.conj(jnp.swapaxes(values, -1, -2))


@lower("_linalg_svd")
def svd(
    A: Array, full_matrices: bool = False, compute_uv: bool = True, *, driver: str | None = None
) -> tuple[Array, Array, Array]:
    """Return U, S and Vh; without vectors these are empty."""
    if not compute_uv:
        nothing = jnp.zeros(0, A.dtype)
        return nothing, jnp.linalg.svd(A, compute_uv=False), nothing
    left, values, right = jnp.linalg.svd(A, full_matrices=full_matrices)
    return left, values, right


def _identity(A: Array) -> Array:
    return jnp.broadcast_to(jnp.eye(A.shape[-1], dtype=A.dtype), A.shape)


@lower("_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and vectors of the matrix that one triangle gives."""
    if not compute_v:
        # `eigvalsh` reads both triangles, so the one that does not count is made from the other.
        lower_half = jnp.tril(A) if UPLO.upper() == "L" else transposed(jnp.triu(A))
        return jnp.linalg.eigvalsh(lower_half + transposed(jnp.tril(lower_half, -1))), jnp.zeros(0, A.dtype)
    values, vectors = jnp.linalg.eigh(A, UPLO=UPLO.upper(), symmetrize_input=False)
    return values, vectors


lower("linalg_eig")(lambda self: tuple(jnp.linalg.eig(self)))
lower("_linalg_eigvals")(jnp.linalg.eigvals)


@lower("linalg_qr")
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """Return Q and R; with mode "r" Q is empty."""
    if mode == "r":
        return jnp.zeros(0, A.dtype), jnp.linalg.qr(A, mode="r")
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@lower("geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    """Return the QR decomposition as LAPACK stores it: R above, Householder vectors below, and their factors."""
    packed, factors = jnp.linalg.qr(self, mode="raw")
    return jnp.swapaxes(packed, -1, -2), factors


@lower("ormqr")
def ormqr(self: Array, input2: Array, input3: Array, left: bool = True, transpose: bool = False) -> Array:
    """Multiply `input3` from either side by the whole orthogonal matrix of Householder reflections."""
    if not self.size or not input3.size:
        return input3
    return jax.lax.linalg.ormqr(self, input2, input3, left=left, transpose=transpose)


def failing_minor(A: Array, factor: Array) -> Array:
    """Return 0 where a Cholesky factor was found, else the order of the first leading minor that is not positive.

    `A` has its lower triangle in use. Leading minors fail from some order on, so a binary search over them finds it.
    """
    failed = jnp.any(jnp.isnan(factor), (-1, -2))
    size = A.shape[-1]

    def halve(_: int, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high) // 2
        inside = jnp.arange(size) < middle[..., None]
        both = inside[..., :, None] & inside[..., None, :]
        minor = jnp.where(both, A, jnp.eye(size, dtype=A.dtype))
        good = ~jnp.any(jnp.isnan(jax.lax.linalg.cholesky(minor, symmetrize_input=False)), (-1, -2))
        return jnp.where(good & (low < high), middle + 1, low), jnp.where(good, high, middle)

    def search() -> Array:
        ones = jnp.ones(failed.shape, jnp.int32)
        out: Array = jax.lax.fori_loop(0, size.bit_length(), halve, (ones, ones * size))[0]
        return out

    order = jax.lax.cond(jnp.any(failed), search, lambda: jnp.zeros(failed.shape, jnp.int32))
    return jnp.where(failed, order, 0)


@lower("linalg_cholesky_ex")
def cholesky_ex(self: Array, *, upper: bool = False, check_errors: bool = False) -> tuple[Array, Array]:
    """Return the factor of the matrix that one triangle gives, and the order of the minor at which it fails."""
    half = transposed(self) if upper else self
    factor = jax.lax.linalg.cholesky(half, symmetrize_input=False)
    info = failing_minor(half, factor)
    return transposed(factor) if upper else factor, info


lower("cholesky")(lambda self, upper=False: cholesky_ex(self, upper=upper)[0])


@lower("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    factor, right = _batched(input2, self)
    return jax.scipy.linalg.cho_solve((factor, not upper), right)


lower("cholesky_inverse")(lambda self, upper=False: cholesky_solve(_identity(self), self, upper))


@lower("linalg_matrix_exp")
def matrix_exp(self: Array) -> Array:
    values = wide(self)
    return jax.scipy.linalg.expm(values, max_squarings=64) if self.shape[-1] > 1 else jnp.exp(values)


def factor(A: Array, pivot: bool = True) -> tuple[Array, Array, Array]:
    """Return LU in one matrix, pivots from 0, and the row order they make."""
    rows, least = A.shape[-2], min(A.shape[-2:])
    order = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.int32), (*A.shape[:-2], rows))
    if not pivot:
        return _without_pivots(A) if A.size else A, order[..., :least], order
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


@lower("lu_unpack")
def lu_unpack(
    LU_data: Array, LU_pivots: Array, unpack_data: bool = True, unpack_pivots: bool = True
) -> tuple[Array, Array, Array]:
    nothing = jnp.zeros(0, LU_data.dtype)
    left, right = _halves(LU_data) if unpack_data else (nothing, nothing)
    if not unpack_pivots:
        return nothing, left, right
    order = jax.lax.linalg.lu_pivots_to_permutation(LU_pivots.astype(jnp.int32) - 1, LU_data.shape[-2])
    return _permutation(order, LU_data.dtype), left, right


def _batched(a: Array, b: Array) -> tuple[Array, Array]:
    batch = jnp.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return jnp.broadcast_to(a, (*batch, *a.shape[-2:])), jnp.broadcast_to(b, (*batch, *b.shape[-2:]))


def _solved(lu: Array, pivots: Array, b: Array, adjoint: bool = False) -> Array:
    """Return X of A X = b, or of the adjoint of A, from the packed decomposition and the pivots from 0."""
    lu, b = _batched(lu, b)
    solved: Array = jax.scipy.linalg.lu_solve((lu, pivots), b, 2 if adjoint else 0)
    return solved


@lower("linalg_lu_solve")
def lu_solve(LU: Array, pivots: Array, B: Array, *, left: bool = True, adjoint: bool = False) -> Array:
    """Solve A X = B, or with A's adjoint, or from the right, by the factors and pivots of A."""
    if not left:
        return transposed(_solved(LU, pivots - 1, transposed(B), not adjoint))
    return _solved(LU, pivots - 1, B, adjoint)


@lower("_linalg_solve_ex")
def solve_ex(A: Array, B: Array, *, left: bool = True, check_errors: bool = False) -> tuple[Array, Array, Array, Array]:
    """Return X of A X = B, or X A = B, with the decomposition of A and its first zero pivot."""
    packed, pivots, _ = factor(A)  # one decomposition serves the solution and, in backward, its gradient
    vector = B.ndim == 1 or (A.ndim - 1 == B.ndim and B.shape == A.shape[:-1])
    right = B[..., None] if vector else B
    out = _solved(packed, pivots, right) if left else transposed(_solved(packed, pivots, transposed(right), True))
    return out[..., 0] if vector else out, packed, pivots + 1, _info(packed)


@lower("linalg_inv_ex")
def inv_ex(A: Array, *, check_errors: bool = False) -> tuple[Array, Array]:
    packed, pivots, _ = factor(A)
    return _solved(packed, pivots, _identity(A)), _info(packed)


def _parity(pivots: Array) -> Array:
    """Return 1 or -1 by how often rows were exchanged."""
    return 1 - 2 * (jnp.sum(pivots != jnp.arange(pivots.shape[-1]), -1) % 2)


@lower("_linalg_det")
def det(A: Array) -> tuple[Array, Array, Array]:
    packed, pivots, _ = factor(A)
    product = jnp.prod(jnp.diagonal(packed, axis1=-2, axis2=-1), -1)
    return product * _parity(pivots).astype(A.dtype), packed, pivots + 1


@lower("_linalg_slogdet")
def slogdet(A: Array) -> tuple[Array, Array, Array, Array]:
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


def _second(negative: Array) -> Array:
    """Return which rows are the second of a two by two block: pivots of a block are both negative."""

    def step(before: Array, mine: Array) -> tuple[Array, Array]:
        found = mine & before
        return mine & ~found, found

    return jax.lax.scan(step, jnp.zeros((), jnp.bool_), negative)[1]


def _swapped(b: Array, one: Array, other: Array) -> Array:
    return b.at[one].set(b[other]).at[other].set(b[one])


def _solve(factors: Array, pivots: Array, b: Array, hermitian: bool) -> Array:
    """Solve one system: L, then D and its two by two blocks, then Lᵀ (Lᴴ), with the interchanges of rows in between."""
    n = factors.shape[0]
    rows = jnp.arange(n)
    second = _second(pivots < 0)
    first = (pivots < 0) & ~second
    target = jnp.abs(pivots) - 1
    turned = jnp.conj(factors) if hermitian else factors
    diagonal = jnp.diagonal(factors).real.astype(factors.dtype) if hermitian else jnp.diagonal(factors)

    def down(k: Array, b: Array) -> Array:
        after = jnp.minimum(k + 1, n - 1)
        at = jnp.where(first[k], after, k)
        moved = _swapped(b, at, target[k])
        mine, its = moved[k], moved[after]
        left = jnp.where(rows > at, factors[:, k], 0)[:, None] * mine
        right = jnp.where(first[k] & (rows > at), factors[:, after], 0)[:, None] * its
        out = moved - left - right
        low, high = factors[after, k], turned[after, k]
        determinant = diagonal[k] * diagonal[after] - low * high
        pair = (diagonal[after] * mine - high * its) / determinant, (diagonal[k] * its - low * mine) / determinant
        block = out.at[k].set(pair[0]).at[after].set(pair[1])
        return jnp.where(second[k], b, jnp.where(first[k], block, out.at[k].set(mine / diagonal[k])))

    def up(j: Array, b: Array) -> Array:
        k = n - 1 - j
        before = jnp.maximum(k - 1, 0)
        below = jnp.where((rows > k)[:, None], b, 0)
        out = b.at[k].add(-(turned[:, k] @ below))
        out = jnp.where(second[k], out.at[before].add(-(turned[:, before] @ below)), out)
        return jnp.where(first[k], b, _swapped(out, k, target[k]))

    out: Array = jax.lax.fori_loop(0, n, up, jax.lax.fori_loop(0, n, down, b))
    return out


@lower("linalg_ldl_solve")
def ldl_solve(LD: Array, pivots: Array, B: Array, *, hermitian: bool = False) -> Array:
    """Return X of A X = B, where A has the factors `LD` and the pivots that `ldl_factor` gives."""
    n = LD.shape[-1]
    batch = jnp.broadcast_shapes(LD.shape[:-2], pivots.shape[:-1], B.shape[:-2])
    if not B.size or not n:
        return jnp.zeros((*batch, *B.shape[-2:]), B.dtype)
    cores = ((LD, (n, n)), (pivots, (n,)), (B, B.shape[-2:]))
    flat = (jnp.broadcast_to(a, (*batch, *core)).reshape(-1, *core) for a, core in cores)
    out = jax.vmap(lambda f, p, b: _solve(f, p, b, hermitian and jnp.iscomplexobj(LD)))(*flat)
    return out.reshape(*batch, *B.shape[-2:])


NORMS = "forward", "ortho", "backward"
"""JAX's names of an inverse's fft_norm_mode (SpectralOpsUtils.h): not scaled, by the root of the size, by the size."""


@lower("_fft_c2r")
def fft_c2r(self: Array, dim: Sequence[int], normalization: int, last_dim_size: int) -> Array:
    """Return the inverse of the transform of real numbers, from its first half along the last of `dim`."""
    sizes = [*(self.shape[d] for d in dim[:-1]), last_dim_size]
    return jnp.fft.irfftn(self, sizes, axes=dim, norm=NORMS[normalization])
