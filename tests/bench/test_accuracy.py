"""Errors beside float64, and which are too large for what a variant claims to be."""

from __future__ import annotations

from math import inf, nan

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core import accuracy
from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, StepWorkload
from ampcheck.bench.core.prepare import reference

MM = OpWorkload(name="mm", family="m", policy="downcast", inputs=(Spec((64, 64)),) * 2, call=torch.mm)
HALF = OpWorkload(name="exp", family="e", policy="upcast", inputs=(Spec((8,), torch.bfloat16),), call=torch.exp)
STEP = StepWorkload(name="step", family="s", policy="mixed", model=lambda: nn.Linear(4, 4), inputs=(), loss=F.mse_loss)


def vector(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


@pytest.mark.parametrize(
    ("output", "exact", "error"),
    [
        ((3, 4), (3, 4), 0),
        ((3, 4.5), (3, 4), 0.1),
        ((0, 0), (3, 4), 1),
        ((0, 0), (0, 0), 0),
        ((0, 1e-30), (0, 0), inf),
        ((3, nan), (3, 4), inf),
        ((3, inf), (3, 4), inf),
        ((3, 4), (3, inf), inf),
        ((3, -inf), (3, inf), inf),
        ((3, inf), (3, nan), inf),
        ((3, nan), (3, inf), inf),
        ((3, inf), (3, inf), 0),
        ((3, nan), (3, nan), 0),
        ((6, nan, inf), (3, nan, inf), 1),
        ((), (), 0),
    ],
)
def test_error(output: tuple[float, ...], exact: tuple[float, ...], error: float) -> None:
    assert accuracy.error(vector(*output), vector(*exact)) == pytest.approx(error)


def test_vectors_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"an output of shape \(1,\) beside a reference of \(2,\)"):
        accuracy.error(vector(1), vector(1, 1))  # would be broadcast


@pytest.mark.parametrize("name", ["fp32", "bf16", "fp16"])
def test_real_arithmetic_is_within_its_limit_and_beyond_the_next(name: str) -> None:
    a, b = (torch.randn(64, 64, dtype=torch.float64, generator=torch.Generator().manual_seed(s)) for s in (0, 1))
    low = PRECISIONS[name].low or torch.float32
    found = accuracy.error((a.to(low) @ b.to(low)).double().flatten(), (a @ b).flatten())
    assert not accuracy.beyond(found, PRECISIONS[name], MM)
    assert bool(accuracy.beyond(found, PRECISIONS["fp32"], MM)) == (name != "fp32")
    assert accuracy.beyond(300 * found, PRECISIONS[name], MM)
    assert accuracy.limit(name, STEP) > accuracy.limit(name, MM)


@pytest.mark.parametrize(
    ("found", "precision", "workload", "words"),
    [
        (0.5, "bf16", MM, "error 5.0e-01 is beyond what bf16 gives (3e-02 at most)"),
        (0.02, "fp16", MM, "error 2.0e-02 is beyond what fp16 gives (8e-03 at most)"),
        (0.02, "bf16-native", MM, ""),
        (inf, "bf16", MM, "the output is not finite, or not zero, where float64's is"),
        (3e-4, "fp32", MM, "error 3.0e-04 is beyond what fp32 gives (3e-05 at most): this is TF32"),
        (0.5, "fp32", MM, "error 5.0e-01 is beyond what fp32 gives (3e-05 at most)"),
        (2e-3, "fp32", HALF, ""),  # inputs in lower precision are no fault of the variant
        (2e-2, "fp16", HALF, ""),
        (0.5, "fp32", HALF, "error 5.0e-01 is beyond what bf16 gives (3e-02 at most)"),
    ],
)
def test_what_is_too_large_says_so(found: float, precision: str, workload: OpWorkload, words: str) -> None:
    assert accuracy.beyond(found, PRECISIONS[precision], workload, "cuda") == words


def test_the_reference_is_float64_with_the_same_values() -> None:
    exact = reference(HALF)
    assert exact.dtype == torch.float64
    rounded = torch.exp(exact.log().bfloat16().double())  # the inputs are bf16 numbers, the result is float64's
    assert accuracy.error(rounded, exact) < 1e-14
    assert accuracy.error(exact.bfloat16(), exact) > 1e-4
