"""Reductions, running reductions, sorting and counting on the jax device give CPU's results."""

from __future__ import annotations

import pytest
import torch

from ampcheck.jax_device.dispatch.kernels import computed, functional_kernel
from ampcheck.jax_device.dispatch.program import Functional
from ampcheck.jax_device.lowering import Lowering
from tests.jax.agreement import INF, NAN, close, same

SPECIAL = torch.tensor([[1.0, NAN, 3.0, 3.0], [-INF, 2.0, 2.0, INF], [0.0, -0.0, 5.0, 5.0]])
PLAIN = torch.linspace(-2, 3, 24).reshape(2, 3, 4)
COUNTS = torch.tensor([[3, 1, 3], [0, 7, 7]])


def test_sums() -> None:
    for function in (
        torch.sum,
        torch.nansum,
        torch.mean,
        torch.prod,
        torch.var,
        torch.std,
        torch.amax,
        torch.logsumexp,
    ):
        for keepdim in (False, True):
            same(function, SPECIAL, dim=1, keepdim=keepdim)
            same(function, PLAIN.clone().requires_grad_(), dim=-1, keepdim=keepdim)
    same(torch.sum, PLAIN, dim=(0, -1))
    same(torch.sum, PLAIN, dim=[])
    same(torch.mean, torch.zeros(0, 3))
    same(torch.sum, torch.zeros(0, 3), dim=1)
    same(torch.logsumexp, torch.zeros(2, 0), dim=1)


def test_a_wrong_sum_is_seen() -> None:
    wrong = functional_kernel(Functional(torch.ops.aten.sum.default, Lowering(lambda self: self.sum() + 1)))
    close(computed("sum")(PLAIN.to("jax")), PLAIN.sum())
    with pytest.raises(AssertionError, match="not close"):
        close(wrong(PLAIN.to("jax")), PLAIN.sum())


def test_dtypes_of_sums() -> None:
    for values in (COUNTS.to(torch.uint8), COUNTS.int(), COUNTS > 2):
        for function in (torch.sum, torch.prod, torch.count_nonzero, torch.any, torch.all):
            same(function, values)
            same(function, values, dim=1)
        for function in (torch.cumsum, torch.cumprod):
            same(function, values, dim=1)
    same(torch.sum, PLAIN, dtype=torch.float64)
    same(torch.sum, torch.tensor([300, 1]), dtype=torch.uint8)
    same(torch.mean, COUNTS, dtype=torch.float32)


def test_low_precision_accumulates_in_float32() -> None:
    ones = torch.ones(4096, dtype=torch.bfloat16)  # in bfloat16, 256 + 1 is 256
    for function in (torch.sum, torch.nansum):
        assert function(ones.to("jax")).item() == 4096
    assert torch.cumsum(ones.to("jax"), 0)[-1].item() == 4096
    nowhere, start = (
        torch.zeros(4096, dtype=torch.int64, device="jax"),
        torch.zeros(1, dtype=torch.bfloat16, device="jax"),
    )
    for added in (start.index_add(0, nowhere, ones.to("jax")), start.scatter_add(0, nowhere, ones.to("jax"))):
        assert added.item() == 4096
    same(torch.var, torch.linspace(100, 101, 50).half(), dim=0)


def test_variance() -> None:
    for correction in (0, 1, 2, 0.5):
        same(torch.var, PLAIN, dim=1, correction=correction)
    with pytest.warns(UserWarning, match="degrees of freedom"):  # the CPU's, of nothing left to divide by
        same(torch.var, PLAIN, dim=1, correction=9)
    same(torch.var_mean, PLAIN.clone().requires_grad_(), dim=(0, 2), correction=0, keepdim=True)
    same(torch.std_mean, torch.complex(PLAIN, PLAIN.flip(0)), dim=1)


def test_extremes_and_their_places() -> None:
    for function in (torch.max, torch.min, torch.cummax, torch.cummin):
        same(function, SPECIAL, dim=1)
        same(function, COUNTS, dim=0)
        same(function, torch.tensor(3.0), dim=0)
    for function in (torch.argmax, torch.argmin):
        same(function, SPECIAL)
        same(function, SPECIAL, dim=-1, keepdim=True)
        same(function, COUNTS, dim=1)
    same(torch.max, PLAIN.clone().requires_grad_(), dim=1)
    same(torch.aminmax, SPECIAL, dim=0)
    same(torch.any, SPECIAL, dim=1)


def test_running() -> None:
    for function in (torch.cumsum, torch.cumprod, torch.logcumsumexp):
        same(function, PLAIN.clone().requires_grad_(), 1)
        same(function, SPECIAL, 1)
    same(torch.logcumsumexp, torch.tensor([-INF, -INF, 1.0, INF]), 0)
    same(torch.logcumsumexp, torch.complex(PLAIN, 3 * PLAIN.flip(1)), 1)


def test_norms() -> None:
    for order in (0, 0.5, 1, 2, 3, INF, -INF):
        same(torch.linalg.vector_norm, PLAIN.clone().requires_grad_(), order, dim=(0, 2), loose=4)
    for order in (1, 2, INF):
        same(torch.linalg.vector_norm, torch.complex(PLAIN, PLAIN), order, loose=4)
        same(torch.dist, PLAIN, PLAIN.flip(0), order, loose=4)
    same(torch.linalg.vector_norm, PLAIN.half(), dtype=torch.float32)
    same(torch.renorm, PLAIN, 2, 0, 1.5)


def test_distances() -> None:
    first, second = torch.randn(2, 4, 3, requires_grad=True), torch.randn(2, 5, 3, requires_grad=True)
    for p in (0.5, 1.0, 1.5, 2.0, INF):
        same(torch.cdist, first, second, p, loose=10)
        same(torch.pdist, first[0].detach().requires_grad_(), p, loose=10)
    same(torch.cdist, torch.ones(2, 3, requires_grad=True), torch.ones(2, 3), 2.0)  # a gradient at distance 0


def test_sorting() -> None:
    for values in (SPECIAL, COUNTS, COUNTS > 2, SPECIAL.bfloat16()):
        for descending in (False, True):
            same(torch.sort, values, dim=1, descending=descending, stable=True)
    same(torch.sort, PLAIN.clone().requires_grad_(), dim=1)
    for largest in (False, True):
        same(torch.topk, PLAIN, 2, dim=1, largest=largest)
    values, places = torch.topk(SPECIAL.to("jax"), 2)
    close(values, torch.topk(SPECIAL, 2)[0])
    close(torch.gather(SPECIAL.to("jax"), 1, places), values.cpu())
    for function in (torch.median, torch.nanmedian):
        close(function(SPECIAL.to("jax"), 1)[0], function(SPECIAL, 1)[0])
        same(function, PLAIN.clone().requires_grad_(), dim=1)
        same(function, SPECIAL)
    same(torch.kthvalue, PLAIN, 2, dim=2)
    same(torch.mode, COUNTS, dim=1)


def test_unique() -> None:
    for values in (COUNTS, SPECIAL, torch.zeros(0)):
        same(torch.unique, values, return_inverse=True, return_counts=True)
        same(torch.unique_consecutive, values, return_inverse=True, return_counts=True)
    rows = torch.tensor([[1, 2], [0, 9], [1, 2], [1, 2]])
    for dim in (0, 1):
        same(torch.unique, rows, dim=dim, return_inverse=True, return_counts=True)
        same(torch.unique_consecutive, rows, dim=dim, return_inverse=True, return_counts=True)


def test_searching() -> None:
    line, wanted = torch.tensor([1.0, 3.0, 3.0, 7.0]), torch.tensor([[3.0, 0.0], [NAN, 8.0]])
    for right in (False, True):
        same(torch.searchsorted, line, wanted, right=right)
        same(torch.bucketize, wanted, line, right=right, out_int32=True)
        same(torch.searchsorted, line, 3, right=right)
    shuffled = torch.tensor([7.0, 3.0, 1.0, 3.0])
    same(torch.searchsorted, shuffled, wanted, sorter=torch.argsort(shuffled, stable=True))
    same(torch.searchsorted, torch.sort(PLAIN)[0], PLAIN)


def test_counting() -> None:
    same(torch.histc, PLAIN, 5)
    same(torch.histc, torch.tensor([0.0, 1.0, NAN, 4.0, 9.0]), 4, 0, 4)
    same(torch.histc, torch.full((3,), 2.0), 4)
    same(torch.bincount, COUNTS.reshape(-1), minlength=10)
    same(torch.bincount, COUNTS.reshape(-1), torch.linspace(0, 1, 6))
    with pytest.raises(RuntimeError, match="non-negative"):
        torch.bincount(torch.tensor([-1], device="jax"))
    same(torch.histogram, PLAIN, 4, density=True)
    same(torch.histogram, PLAIN, torch.tensor([-1.0, 0.0, 2.5]), weight=PLAIN)


def test_transforms() -> None:
    values = torch.randn(3, 4, 5, requires_grad=True)
    for function in (
        torch.fft.fftn,
        torch.fft.ifftn,
        torch.fft.rfftn,
        torch.fft.irfftn,
        torch.fft.hfft,
        torch.fft.ihfft,
    ):
        same(function, values.detach(), norm="ortho", loose=20)
    for norm in ("backward", "ortho", "forward"):
        same(torch.fft.rfft, values, norm=norm, loose=20)
        same(lambda v, n: torch.fft.irfft(torch.fft.fft(v, dim=1), 6, norm=n), values, norm, loose=20)
