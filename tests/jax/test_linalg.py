"""Decompositions and solvers on the jax device: CPU's results where they are unique, else what they must satisfy."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from tests.jax.agreement import close, same

torch.manual_seed(0)
SQUARE = torch.randn(3, 4, 4, dtype=torch.float64) + 2 * torch.eye(4, dtype=torch.float64)
TALL = torch.randn(2, 5, 3, dtype=torch.float64)
POSITIVE = SQUARE @ SQUARE.mT + torch.eye(4, dtype=torch.float64)
COMPLEX = torch.complex(SQUARE, SQUARE.mT)
RIGHT = torch.randn(3, 4, 2, dtype=torch.float64)


def grown(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


def there(values: torch.Tensor) -> Any:
    return values.to("jax")


def test_solving() -> None:
    same(torch.linalg.solve, grown(SQUARE), grown(RIGHT))
    same(torch.linalg.solve, COMPLEX, RIGHT.mT.to(COMPLEX.dtype), left=False)
    same(torch.linalg.solve, SQUARE[0], RIGHT[0, :, 0])
    same(torch.linalg.inv, grown(SQUARE))
    same(torch.linalg.det, grown(SQUARE))
    same(lambda a: torch.linalg.det(a.mT), grown(SQUARE))
    for values in (SQUARE, COMPLEX):
        same(torch.linalg.slogdet, grown(values))
        same(lambda a: torch.linalg.slogdet(a.mT), grown(values))
    same(torch.linalg.slogdet, torch.zeros(2, 2))
    same(torch.linalg.pinv, grown(TALL))
    same(torch.linalg.pinv, POSITIVE, hermitian=True)
    same(torch.linalg.matrix_power, grown(SQUARE), -2)
    for upper in (False, True):
        triangle = SQUARE.triu() if upper else SQUARE.tril()
        for left in (False, True):
            right = RIGHT if left else RIGHT.mT
            same(torch.linalg.solve_triangular, grown(triangle), grown(right), upper=upper, left=left)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.triangular_solve is deprecated")
            same(torch.triangular_solve, RIGHT, triangle, upper=upper, transpose=True, unitriangular=True)


def test_lu() -> None:
    for values in (SQUARE, TALL, TALL.mT, COMPLEX):
        same(torch.linalg.lu_factor, values)
        same(torch.linalg.lu, values)
        same(lambda v: torch.lu_unpack(*torch.linalg.lu_factor(v)), values)
    factors = torch.linalg.lu_factor(COMPLEX)
    for left in (False, True):
        for adjoint in (False, True):
            right = (RIGHT if left else RIGHT.mT).to(COMPLEX.dtype)
            same(torch.linalg.lu_solve, *factors, right, left=left, adjoint=adjoint)
    same(torch.linalg.lu, grown(SQUARE))
    packed, _ = torch.linalg.lu_factor(there(SQUARE), pivot=False)  # the CPU has no such decomposition
    close((packed.tril(-1) + torch.eye(4, dtype=torch.float64, device="jax")) @ packed.triu(), SQUARE, 100)


def test_cholesky() -> None:
    for upper in (False, True):
        same(torch.linalg.cholesky, grown(POSITIVE), upper=upper)
        factor = torch.linalg.cholesky(POSITIVE, upper=upper)
        same(torch.cholesky_solve, grown(RIGHT), grown(factor), upper=upper)
        same(torch.cholesky_inverse, factor, upper=upper)


def test_failures() -> None:
    bad = torch.diag(torch.tensor([1.0, 2.0, -1.0, 3.0]))
    same(lambda a: torch.linalg.cholesky_ex(a)[1], torch.stack([bad, bad.abs(), -bad]))
    same(lambda a: torch.linalg.inv_ex(a)[1], torch.diag(torch.tensor([1.0, 0.0, 2.0])))
    for function, message in (
        (torch.linalg.cholesky, "leading minor of order 3 is not positive-definite"),
        (torch.linalg.inv, "The diagonal element 2 is zero"),
        (lambda a: torch.linalg.solve(a, a[0]), "the input matrix is singular"),
    ):
        values = torch.diag(torch.tensor([1.0, 0.0, 2.0])) if function is not torch.linalg.cholesky else bad
        for device in ("cpu", "jax"):
            with pytest.raises(torch.linalg.LinAlgError, match=message):
                function(values.to(device))
    batch = torch.stack([bad.abs(), bad]).to("jax")
    with pytest.raises(torch.linalg.LinAlgError, match=r"\(Batch element 1\)"):
        torch.linalg.cholesky(batch)


def test_svd() -> None:
    for full in (False, True):
        for values in (SQUARE, TALL, COMPLEX, torch.zeros(2, 0, 3)):
            left, sizes, right = torch.linalg.svd(there(values), full_matrices=full)
            wanted = torch.linalg.svd(values, full_matrices=full)
            assert [t.shape for t in (left, sizes, right)] == [t.shape for t in wanted]
            close(sizes, wanted[1], 10)
            least = min(values.shape[-2:])
            close((left[..., :least] * sizes.unsqueeze(-2)) @ right[..., :least, :], values, 100)
    same(torch.linalg.svdvals, grown(TALL), loose=10)
    same(torch.linalg.matrix_norm, grown(TALL), "nuc", loose=10)
    same(torch.linalg.matrix_rank, torch.ones(3, 3))
    same(torch.linalg.cond, SQUARE, loose=10)


def test_eigen() -> None:
    for half in ("L", "U"):
        values, vectors = torch.linalg.eigh(there(COMPLEX), half)
        close(values, torch.linalg.eigh(COMPLEX, half)[0], 10)
        triangle = COMPLEX.tril(-1) if half == "L" else COMPLEX.triu(1)
        whole = triangle + triangle.mH + torch.diag_embed(COMPLEX.diagonal(dim1=-2, dim2=-1).real).to(COMPLEX.dtype)
        close((vectors * values.unsqueeze(-2)) @ vectors.mH, whole, 100)
        same(torch.linalg.eigvalsh, grown(POSITIVE), half, loose=10)
    values, vectors = torch.linalg.eig(there(SQUARE))
    close(vectors @ torch.diag_embed(values) @ torch.linalg.inv(vectors), SQUARE.to(torch.complex128), 1000)
    close(torch.linalg.eigvals(there(SQUARE)), values.cpu(), 100)


def test_a_wrong_decomposition_is_seen() -> None:
    values, vectors = torch.linalg.eigh(there(POSITIVE))
    with pytest.raises(AssertionError, match="not close"):
        close((vectors * (values + 0.01).unsqueeze(-2)) @ vectors.mT, POSITIVE, 100)


def test_qr() -> None:
    for mode in ("reduced", "complete", "r"):
        for values in (TALL, TALL.mT, COMPLEX, torch.zeros(3, 0)):
            same(torch.linalg.qr, values, mode)
    same(torch.linalg.qr, grown(TALL))
    packed, factors = same(torch.geqrf, TALL)
    same(torch.linalg.householder_product, packed.cpu(), factors.cpu())
    for transpose in (False, True):
        same(torch.ormqr, packed.cpu(), factors.cpu(), TALL, transpose=transpose)
        same(torch.ormqr, packed.cpu(), factors.cpu(), TALL.mT, left=False, transpose=transpose)


def test_least_squares() -> None:
    right = torch.randn(2, 5, 2, dtype=torch.float64)
    for driver in (None, "gels", "gelsy", "gelsd", "gelss"):
        same(torch.linalg.lstsq, TALL, right, driver=driver, loose=10)
    poor = torch.ones(4, 2, dtype=torch.float64)
    same(torch.linalg.lstsq, poor, right[0, :4], driver="gelsd", loose=10)
    same(torch.linalg.lstsq, TALL.mT, torch.randn(2, 3, 1, dtype=torch.float64), loose=10)


def test_other_functions() -> None:
    same(torch.linalg.matrix_exp, grown(SQUARE), loose=100)
    same(torch.linalg.matrix_exp, torch.zeros(2, 0, 0))
    same(torch.linalg.cross, grown(TALL), grown(TALL.flip(1)))
    same(torch.linalg.vander, torch.tensor([1.0, 2.0, 3.0]))
    assert torch.allclose(there(SQUARE), there(SQUARE))
    assert not torch.allclose(there(SQUARE), there(SQUARE + 1e-3))
