"""ldl_solve on the jax device: the CPU's solution from the CPU's factors."""

from __future__ import annotations

import pytest
import torch


def factored(n: int, batch: tuple[int, ...], dtype: torch.dtype, hermitian: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """Factors and pivots of an indefinite matrix with a zero diagonal, which makes two by two blocks."""
    a = torch.randn(*batch, n, n, dtype=dtype)
    a = a + (a.mH if hermitian else a.mT)
    a.diagonal(dim1=-2, dim2=-1)[..., : n // 2] = 0
    factors, pivots, _ = torch.linalg.ldl_factor_ex(a, hermitian=hermitian)
    return factors, pivots


@pytest.mark.parametrize("hermitian", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.complex128])
@pytest.mark.parametrize(("n", "batch"), [(1, ()), (2, ()), (5, ()), (8, (2, 3)), (0, ()), (4, (0,))], ids=str)
def test_solutions_are_the_cpus(n: int, batch: tuple[int, ...], dtype: torch.dtype, hermitian: bool) -> None:
    torch.manual_seed(n)
    factors, pivots = factored(n, batch, dtype, hermitian)
    b = torch.randn(*batch, n, 3, dtype=dtype)
    expected = torch.linalg.ldl_solve(factors, pivots, b, hermitian=hermitian)
    found = torch.linalg.ldl_solve(factors.to("jax"), pivots.to("jax"), b.to("jax"), hermitian=hermitian)
    tolerance = {"rtol": 1e-3, "atol": 1e-3} if dtype is torch.float32 else {}
    torch.testing.assert_close(found.cpu(), expected, **tolerance)


def test_blocks_of_two_occur() -> None:
    """What the test above is about."""
    torch.manual_seed(5)
    assert bool((factored(5, (), torch.float64, False)[1] < 0).any())


def test_a_batch_of_right_sides_shares_factors() -> None:
    torch.manual_seed(0)
    factors, pivots = factored(4, (), torch.float64, False)
    b = torch.randn(3, 4, 2, dtype=torch.float64)
    expected = torch.linalg.ldl_solve(factors, pivots, b)
    torch.testing.assert_close(torch.linalg.ldl_solve(factors.to("jax"), pivots.to("jax"), b.to("jax")).cpu(), expected)
