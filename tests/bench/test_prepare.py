"""The results of a prepared variant: in its region and dtypes, from the same start each time, through its compiler."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import nn

from ampcheck.bench.core.accuracy import error
from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, StepWorkload, Variant, Workload
from ampcheck.bench.core.prepare import prepare, reference

OP = OpWorkload(name="op", family="f", policy="downcast", inputs=(Spec((16, 16)), Spec((16, 16))), call=torch.mm)
STEP = StepWorkload(
    name="step",
    family="f",
    policy="mixed",
    model=lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4)),
    inputs=(Spec((16, 8)), Spec((16, 4))),
    loss=nn.functional.mse_loss,
    rate=0.1,
)
OVERFLOWING = dataclasses.replace(STEP, overflows=True)


def variant(name: str) -> Variant:
    return Variant(PRECISIONS[name])


@pytest.mark.parametrize(
    ("name", "dtype"),
    [("fp32", torch.float32), ("bf16", torch.bfloat16), ("fp16", torch.float16), ("bf16-native", torch.bfloat16)],
)
def test_an_op_computes_in_the_dtype_of_its_variant(name: str, dtype: torch.dtype) -> None:
    ready = prepare(OP, variant(name), "cpu", "eager")
    assert ready.call().dtype is dtype
    assert not ready.call().requires_grad
    assert not torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize("workload", [OP, STEP], ids=["op", "step"])
def test_errors_are_of_the_size_of_the_precision(workload: Workload) -> None:
    exact = reference(workload)
    errors = {name: error(prepare(workload, variant(name), "cpu", "eager").output(), exact) for name in PRECISIONS}
    assert errors["fp32"] < 1e-6
    assert 1e-5 < errors["fp16"] < 2e-3
    assert 1e-4 < errors["bf16"] < 2e-2


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16", "bf16-native"])
def test_a_step_trains_and_can_be_put_back(name: str) -> None:
    ready = prepare(STEP, variant(name), "cpu", "eager")
    first = ready.output()
    losses = [float(ready.call()) for _ in range(30)]
    assert losses[-1] < losses[0]
    assert torch.equal(ready.output(), first)  # which restores before and after
    ready.call()
    ready.restore()
    assert float(ready.call()) == losses[0]


def test_a_step_that_overflows_changes_nothing() -> None:
    ready = prepare(OVERFLOWING, variant("bf16"), "cpu", "eager")
    losses = [float(ready.call()) for _ in range(3)]
    assert len(set(losses)) == 1
    assert ready.output().shape == (1,)


def test_compile_gives_what_eager_gives() -> None:
    eager = prepare(STEP, variant("bf16"), "cpu", "eager")
    compiled = prepare(STEP, variant("bf16"), "cpu", "eager")
    compiled.call = compiled.compiled_with("aot_eager")
    assert error(compiled.output(), eager.output()) < 1e-2
    torch._dynamo.reset()
