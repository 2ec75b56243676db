"""Matrix products on the jax device: CPU's results, and the XLA program of hand-written JAX."""

from __future__ import annotations

import pytest
import torch

from ampcheck.jax_device import jit
from ampcheck.jax_device.lowerings.matmul import experts_backward
from tests.jax.agreement import NAN, close, same

torch.manual_seed(0)
LEFT, RIGHT, BIAS = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
BATCH1, BATCH2 = torch.randn(3, 4, 6), torch.randn(3, 6, 5)


def test_scaled_products_of_lower_precision_and_of_integers() -> None:
    low = [t.bfloat16() for t in (BIAS, LEFT, RIGHT)]
    for scales in ({}, {"beta": 2, "alpha": 0.5}, {"beta": 0.5}, {"alpha": 3}):
        same(torch.addmm, *low, **scales, loose=2)
    whole = torch.arange(4).reshape(2, 2)
    same(torch.addmm, whole, whole, whole, beta=2, alpha=3)
    found = torch.mm(low[1].to("jax"), low[2].to("jax"), out_dtype=torch.float32)
    close(found, low[1].float() @ low[2].float(), 10)
    bytes_ = torch.arange(-8, 8, dtype=torch.int8).reshape(4, 4)
    close(torch._int_mm(bytes_.to("jax"), bytes_.to("jax")), (bytes_.int() @ bytes_.int()))


def test_alpha_is_not_rounded_to_bfloat16() -> None:
    ones = torch.ones(2, 2, dtype=torch.bfloat16, device="jax")
    found = torch.addmm(ones * 0, ones * 256, ones, alpha=0.999)  # 511.488; 0.999 in bfloat16 is 1, which gives 512
    assert found[0, 0].item() == 512 or found[0, 0].item() == 510
    same(
        torch.addmm,
        torch.zeros(1, 1).bfloat16(),
        torch.full((1, 1), 100.0).bfloat16(),
        torch.ones(1, 1).bfloat16(),
        alpha=0.98,
    )


def test_beta_zero_ignores_self() -> None:
    holes = torch.full((5,), NAN)
    for function, first, second in (
        (torch.addmm, LEFT, RIGHT),
        (torch.baddbmm, BATCH1, BATCH2),
        (torch.addbmm, BATCH1, BATCH2),
    ):
        found = same(function, holes, first, second, beta=0, loose=10)
        assert not found.isnan().any()
        assert function(holes.to("jax"), first.to("jax"), second.to("jax"), beta=1).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("left", "right", "ends"),
    [
        ((8, 16), (3, 16, 8), [2, 2, 8]),  # rows in groups, of which one is empty
        ((3, 8, 16), (16, 24), [8, 8, 24]),  # columns
        ((8, 16), (16, 8), [0, 8, 16]),  # the inner dimension
        ((3, 8, 16), (3, 16, 8), None),
    ],
)
def test_grouped_products(
    left: tuple[int, ...], right: tuple[int, ...], ends: list[int] | None, dtype: torch.dtype
) -> None:
    """Forward and gradients are the CPU's, and the groups' lengths are values that a program takes."""
    a, b, weight = torch.randn(left, dtype=dtype), torch.randn(right, dtype=dtype), torch.arange(8.0)
    offs = None if ends is None else torch.tensor(ends, dtype=torch.int32)

    def both(a: torch.Tensor, b: torch.Tensor, offs: torch.Tensor | None) -> list[torch.Tensor]:
        a, b = a.clone().requires_grad_(), b.clone().requires_grad_()
        out = torch.nn.functional.grouped_mm(a, b, offs=offs)
        loss = (out.float() * weight.to(out.device).repeat(out.shape[-1] // 8)).sum()
        return [out.detach(), *torch.autograd.grad(loss, (a, b))]

    expected = both(a, b, offs)
    given = (a.to("jax"), b.to("jax"), None if offs is None else offs.to("jax"))
    for found in (both(*given), jit(both, fullgraph=True)(*given)):
        for one, other in zip(found, expected, strict=True):
            close(one, other, 4)


def test_the_experts_of_hugging_face() -> None:
    """The backward of their op is what autograd makes of the product that it stands for."""
    a, b = torch.randn(8, 16).to("jax").requires_grad_(), torch.randn(3, 16, 4).to("jax").requires_grad_()
    offs, grad = torch.tensor([2, 2, 8], dtype=torch.int32).to("jax"), torch.randn(8, 4).to("jax")
    expected = torch.autograd.grad(torch.nn.functional.grouped_mm(a, b, offs=offs), (a, b), grad)
    for one, other in zip(experts_backward(a.detach(), b.detach(), offs, grad), expected, strict=True):
        close(one, other.cpu())


def test_grouped_products_that_do_not_fit() -> None:
    a, b, offs = torch.randn(8, 16), torch.randn(3, 12, 8), torch.tensor([2, 4, 8], dtype=torch.int32)
    with pytest.raises(RuntimeError, match="contraction dimension"):
        torch.nn.functional.grouped_mm(a.to("jax"), b.to("jax"), offs=offs.to("jax"))
