"""Decompositions. They run where JAX has them: all on CPU, by LAPACK; `eig` on CPU only."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax import Array

from ampcheck.jax_device.dispatch.special import kernel
from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import wide
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
    rows, columns = A.shape[-2:]
    if not A.size:
        return _empty_svd(A, rows, columns, full_matrices, compute_uv)
    if not compute_uv:
        nothing = jnp.zeros(0, A.dtype)
        return nothing, jnp.linalg.svd(A, compute_uv=False), nothing
    left, values, right = jnp.linalg.svd(A, full_matrices=full_matrices)
    return left, values, right


def _empty_svd(A: Array, rows: int, columns: int, full: bool, compute_uv: bool) -> tuple[Array, Array, Array]:
    """Decompose matrices without elements: into identities, as far as they have columns."""
    batch, least = A.shape[:-2], min(rows, columns)
    values = jnp.zeros((*batch, least), A.real.dtype)
    if not compute_uv:
        return jnp.zeros(0, A.dtype), values, jnp.zeros(0, A.dtype)
    left = jnp.broadcast_to(
        jnp.eye(rows, rows if full else least, dtype=A.dtype), (*batch, rows, rows if full else least)
    )
    size = (columns if full else least, columns)
    return left, values, jnp.broadcast_to(jnp.eye(*size, dtype=A.dtype), (*batch, *size))


@lower("_linalg_eigh")
def eigh(A: Array, UPLO: str = "L", compute_v: bool = True) -> tuple[Array, Array]:
    """Return eigenvalues, ascending, and vectors of the matrix that one triangle gives."""
    if not A.size:
        return jnp.zeros(A.shape[:-1], A.real.dtype), A if compute_v else jnp.zeros(0, A.dtype)
    if not compute_v:
        # `eigvalsh` reads both triangles, so the one that does not count is made from the other.
        lower_half = jnp.tril(A) if UPLO.upper() == "L" else transposed(jnp.triu(A))
        return jnp.linalg.eigvalsh(lower_half + transposed(jnp.tril(lower_half, -1))), jnp.zeros(0, A.dtype)
    values, vectors = jnp.linalg.eigh(A, UPLO=UPLO.upper(), symmetrize_input=False)
    return values, vectors


@lower("linalg_eig")
def eig(self: Array) -> tuple[Array, Array]:
    """Return complex eigenvalues and vectors."""
    if not self.size:
        kind = jnp.result_type(self.dtype, jnp.complex64)
        return jnp.zeros(self.shape[:-1], kind), jnp.zeros(self.shape, kind)
    values, vectors = jnp.linalg.eig(self)
    return values, vectors


@lower("_linalg_eigvals")
def eigvals(self: Array) -> Array:
    """Return complex eigenvalues."""
    return jnp.linalg.eigvals(self) if self.size else eig(self)[0]


@lower("linalg_qr")
def qr(A: Array, mode: str = "reduced") -> tuple[Array, Array]:
    """Return Q and R; with mode "r" Q is empty."""
    rows, columns = A.shape[-2:]
    if mode == "r":
        if not A.size:
            return jnp.zeros(0, A.dtype), jnp.zeros((*A.shape[:-2], min(rows, columns), columns), A.dtype)
        return jnp.zeros(0, A.dtype), jnp.linalg.qr(A, mode="r")
    if not A.size:
        inner = rows if mode == "complete" else min(rows, columns)
        q = jnp.broadcast_to(jnp.eye(rows, inner, dtype=A.dtype), (*A.shape[:-2], rows, inner))
        return q, jnp.zeros((*A.shape[:-2], inner, columns), A.dtype)
    q, r = jnp.linalg.qr(A, mode=mode)
    return q, r


@lower("geqrf")
def geqrf(self: Array) -> tuple[Array, Array]:
    """Return the QR decomposition as LAPACK stores it: R above, Householder vectors below, and their factors."""
    if not self.size:
        return self, jnp.zeros((*self.shape[:-2], min(self.shape[-2:])), self.dtype)
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
    if not self.size:
        return self, jnp.zeros(self.shape[:-2], jnp.int32)
    half = transposed(self) if upper else self
    factor = jax.lax.linalg.cholesky(half, symmetrize_input=False)
    info = failing_minor(half, factor)
    return transposed(factor) if upper else factor, info


@lower("cholesky")
def cholesky(self: Array, upper: bool = False) -> Array:
    """Return the factor of the matrix that one triangle gives."""
    return cholesky_ex(self, upper=upper)[0]


@lower("cholesky_solve", "_cholesky_solve_helper")
def cholesky_solve(self: Array, input2: Array, upper: bool = False) -> Array:
    """Return the solution X of A X = self, given the Cholesky factor of A."""
    batch = jnp.broadcast_shapes(self.shape[:-2], input2.shape[:-2])
    right = jnp.broadcast_to(self, (*batch, *self.shape[-2:]))
    factor = jnp.broadcast_to(input2, (*batch, *input2.shape[-2:]))
    if not right.size:
        return right
    return jax.scipy.linalg.cho_solve((factor, not upper), right)


@lower("cholesky_inverse")
def cholesky_inverse(self: Array, upper: bool = False) -> Array:
    """Return the inverse of A, given its Cholesky factor."""
    return cholesky_solve(jnp.broadcast_to(jnp.eye(self.shape[-1], dtype=self.dtype), self.shape), self, upper)


@lower("linalg_matrix_exp")
def matrix_exp(self: Array) -> Array:
    """Return the matrix exponential."""
    if not self.size:
        return self
    values = wide(self)
    return jax.scipy.linalg.expm(values, max_squarings=64) if self.shape[-1] > 1 else jnp.exp(values)
