"""Matrix products on the jax device: CPU's results, and the XLA program of hand-written JAX."""

from __future__ import annotations

from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch

from ampcheck.jax_device import jit
from ampcheck.jax_device.lowerings.accumulate import has_bfloat16_instructions
from ampcheck.jax_device.lowerings.grouped import experts_backward
from ampcheck.jax_device.lowerings.matmul import addmm
from tests.jax.agreement import NAN, close, same

torch.manual_seed(0)
LEFT, RIGHT, BIAS = torch.randn(4, 6), torch.randn(6, 5), torch.randn(5)
BATCH1, BATCH2 = torch.randn(3, 4, 6), torch.randn(3, 6, 5)
BFLOAT16 = jax.ShapeDtypeStruct((8, 8), jnp.bfloat16)


def operations(function: Any, *shapes: Any) -> Counter[str]:
    """How often each operation occurs in the program a function is compiled from."""
    text = jax.jit(function).lower(*shapes).as_text()
    words = (word.strip('"(') for line in text.splitlines() for word in line.split()[2:3])
    return Counter(word for word in words if word.startswith("stablehlo."))


def grown(values: torch.Tensor) -> torch.Tensor:
    return values.clone().requires_grad_()


def test_products() -> None:
    same(torch.mm, grown(LEFT), grown(RIGHT), loose=4)
    same(torch.bmm, grown(BATCH1), grown(BATCH2), loose=4)
    same(torch.mv, grown(LEFT), grown(RIGHT[:, 0]), loose=4)
    same(torch.dot, grown(LEFT[0]), grown(RIGHT[:, 0]), loose=4)
    same(torch.matmul, grown(BATCH1), grown(RIGHT), loose=4)
    same(torch.matmul, grown(LEFT), grown(RIGHT[:, 0]), loose=4)
    same(torch.einsum, "bij,bjk->ik", grown(BATCH1), grown(BATCH2), loose=10)
    same(torch.tensordot, BATCH1, BATCH2, dims=([0, 2], [0, 1]), loose=10)
    same(torch.mm, torch.zeros(2, 0), torch.zeros(0, 3))
    same(torch.mm, torch.arange(6).reshape(2, 3), torch.arange(6).reshape(3, 2))
    turned = torch.complex(LEFT[0], LEFT[1])
    same(torch.vdot, turned, turned.flip(0), loose=4)
    same(torch.mm, LEFT.bfloat16(), RIGHT.bfloat16())


def test_scaled_products() -> None:
    for scales in ({}, {"beta": 2, "alpha": 0.5}, {"beta": 0.5}, {"alpha": 3}):
        same(torch.addmm, grown(BIAS), grown(LEFT), grown(RIGHT), **scales, loose=4)
        same(torch.addmv, grown(LEFT[:, 0]), grown(LEFT), grown(RIGHT[:, 0]), **scales, loose=4)
        same(torch.addbmm, grown(BIAS), grown(BATCH1), grown(BATCH2), **scales, loose=10)
        same(torch.baddbmm, grown(BIAS), grown(BATCH1), grown(BATCH2), **scales, loose=4)
        same(torch.addr, grown(LEFT[:, :5]), grown(LEFT[:, 1]), grown(BIAS), **scales)
        same(torch.addmm, BIAS.bfloat16(), LEFT.bfloat16(), RIGHT.bfloat16(), **scales, loose=2)
    whole = torch.arange(4).reshape(2, 2)
    same(torch.addmm, whole, whole, whole, beta=2, alpha=3)


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


def test_addmm_is_the_program_of_hand_written_jax() -> None:
    bias, kernel = jax.ShapeDtypeStruct((8,), jnp.bfloat16), has_bfloat16_instructions()

    def by_hand(b: Any, x: Any, w: Any) -> Any:
        return jnp.matmul(x, w, preferred_element_type=jnp.float32) + b

    ours, hand = operations(addmm, bias, BFLOAT16, BFLOAT16), operations(by_hand, bias, BFLOAT16, BFLOAT16)
    fences = {"stablehlo.optimization_barrier": 3, "stablehlo.broadcast_in_dim": 2, "stablehlo.reshape": 2}
    assert ours == hand + Counter(fences if kernel else {"stablehlo.transpose": 1})
    assert ours["stablehlo.dot_general"] == 1
    assert ours["stablehlo.convert"] == 1  # the bias, to be added before the only rounding
    scaled = operations(lambda b, x, w: addmm(b, x, w, alpha=0.5), bias, BFLOAT16, BFLOAT16)
    assert scaled["stablehlo.multiply"] == 1, "multiplying by alpha is not seen"
    assert not ours["stablehlo.multiply"]
    wide = jax.ShapeDtypeStruct((8, 8), jnp.float32)
    assert operations(addmm, bias, wide, wide) == operations(lambda b, x, w: x @ w + b, bias, wide, wide)


def test_a_product_with_a_cast_is_seen() -> None:
    wide = operations(lambda x, w: x.astype(jnp.float32) @ w.astype(jnp.float32), BFLOAT16, BFLOAT16)
    assert wide["stablehlo.convert"] == 2
    with pytest.raises(AssertionError, match="not close"):
        close((LEFT.to("jax") @ RIGHT.to("jax")) * 1.01, LEFT @ RIGHT)


def test_bilinear() -> None:
    weight, bias = torch.randn(2, 6, 5), torch.randn(2)
    same(torch.nn.functional.bilinear, grown(LEFT), grown(torch.randn(4, 5)), grown(weight), grown(bias), loose=10)


def test_other_dtypes() -> None:
    left, right = LEFT.bfloat16().to("jax"), RIGHT.bfloat16().to("jax")
    found = torch.mm(left, right, out_dtype=torch.float32)
    close(found, LEFT.bfloat16().float() @ RIGHT.bfloat16().float(), 10)
    bytes_ = torch.arange(-8, 8, dtype=torch.int8).reshape(4, 4)
    close(torch._int_mm(bytes_.to("jax"), bytes_.to("jax")), (bytes_.int() @ bytes_.int()))


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
