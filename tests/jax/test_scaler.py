"""`torch.amp.GradScaler("jax")` and its two ops, against CPU's scaler and PyTorch's CUDA kernels' rules."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch


def _loop(device: str, fused: bool, clip: bool) -> tuple[list[float], list[torch.Tensor], dict[str, Any]]:
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1, fused=fused)
    scaler = torch.amp.GradScaler(device, init_scale=2.0**10, growth_interval=2)
    x = torch.linspace(-1, 1, 8).reshape(2, 4).to(device)
    scales = []
    for step in range(8):
        optimizer.zero_grad()
        loss = model(x).pow(2).sum() * (math.inf if step in (3, 4) else 1.0)
        scaler.scale(loss).backward()
        if clip:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    return scales, [p.detach().cpu() for p in model.parameters()], scaler.state_dict()


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("clip", [False, True])
def test_loop_with_overflow_skip_and_growth(fused: bool, clip: bool) -> None:
    scales, parameters, state = _loop("jax", fused, clip)
    expected_scales, expected, expected_state = _loop("cpu", fused, clip)
    assert scales == expected_scales == [1024.0, 2048.0, 2048.0, 1024.0, 512.0, 512.0, 1024.0, 1024.0]
    assert state == expected_state
    torch.testing.assert_close(parameters, expected, rtol=1e-5, atol=1e-6)


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


def test_state_dict_carries_the_scale_over() -> None:
    scaler = torch.amp.GradScaler("jax", init_scale=4.0)
    scaler.scale(torch.ones((), device="jax"))
    other = torch.amp.GradScaler("jax")
    other.load_state_dict(scaler.state_dict())
    assert other.scale(torch.full((), 3.0, device="jax")).item() == 12.0
    assert isinstance(other.scale([torch.ones(2, device="jax")]), list)
