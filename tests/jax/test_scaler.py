"""The two ops of `torch.amp.GradScaler("jax")`, by the rules of PyTorch's CUDA kernels; test_jit_steps.py has loops."""

from __future__ import annotations

import math

import pytest
import torch


def _unscaled(grads: list[torch.Tensor], found: float, inv_scale: float) -> tuple[list[torch.Tensor], float]:
    grads = [g.to("jax") for g in grads]
    found_inf = torch.tensor(found, device="jax")
    torch._amp_foreach_non_finite_check_and_unscale_(grads, found_inf, torch.tensor(inv_scale, device="jax"))
    return [g.cpu() for g in grads], found_inf.item()


@pytest.mark.parametrize("bad", [math.inf, -math.inf, math.nan])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_unscale_finds_what_is_not_finite(bad: float, dtype: torch.dtype) -> None:
    out, found = _unscaled([torch.ones(2, dtype=dtype), torch.tensor([1.0, bad], dtype=dtype)], 0.0, 0.5)
    assert found == _unscaled(out[:1], 1.0, 0.5)[1] == 1.0  # it stays set
    assert _unscaled(out[:1], 0.0, 0.5)[1] == 0.0
    assert out[0].dtype is dtype
    assert out[0].tolist() == [0.5, 0.5]


def test_unscale_multiplies_float16_in_float32() -> None:
    # The scale's inverse is below float16's smallest number; the product is not.
    out, found = _unscaled([torch.full((2,), 60000.0, dtype=torch.float16)], 0.0, 2.0**-26)
    assert found == 0.0
    assert out[0].tolist() == [torch.tensor(60000.0 * 2.0**-26).half().item()] * 2 != [0.0, 0.0]


@pytest.mark.parametrize("wrong", ["size", "dtype", "integers"])
def test_unscale_refuses(wrong: str) -> None:
    found = torch.zeros(2 if wrong == "size" else (), device="jax")
    found = found.double() if wrong == "dtype" else found
    grad = torch.ones(2, device="jax", dtype=torch.int64 if wrong == "integers" else torch.float32)
    with pytest.raises(RuntimeError, match=r"1-element|float"):
        torch._amp_foreach_non_finite_check_and_unscale_([grad], found, torch.tensor(0.5, device="jax"))


@pytest.mark.parametrize(
    ("scale", "tracker", "found", "next_scale", "next_tracker"),
    [
        (8.0, 0, 0.0, 8.0, 1),
        (8.0, 2, 0.0, 16.0, 0),
        (8.0, 2, 1.0, 2.0, 0),
        (8.0, 0, 2.0, 2.0, 0),  # any value but 0 is an overflow
        (3e38, 2, 0.0, 3e38, 0),  # growth would leave float32
    ],
)
def test_update_scale(scale: float, tracker: int, found: float, next_scale: float, next_tracker: int) -> None:
    current = torch.tensor(scale, device="jax")
    growth = torch.tensor(tracker, device="jax", dtype=torch.int32)
    out = torch._amp_update_scale_(current, growth, torch.tensor(found, device="jax"), 2.0, 0.25, 3)
    assert out.data_ptr() == current.data_ptr()
    assert current.item() == torch.tensor(next_scale).item()
    assert growth.item() == next_tracker
