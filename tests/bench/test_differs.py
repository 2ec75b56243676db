"""An output in lower precision that is float32's bit for bit shows that nothing was cast."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core import precision_check
from ampcheck.bench.core.model import PRECISIONS, OpWorkload, Spec, StepWorkload, Variant

X = Spec((8, 8))
MM = OpWorkload(name="mm", family="m", policy="downcast", flops=1, inputs=(X, X), call=torch.mm)
EXP = OpWorkload(name="exp", family="e", policy="upcast", inputs=(X,), call=torch.exp)
OVERFLOW = StepWorkload(
    name="s", family="s", policy="mixed", inputs=(X, X), model=lambda: nn.Linear(8, 8), loss=F.mse_loss, overflows=True
)


def variant(name: str) -> Variant:
    return Variant(PRECISIONS[name])


def test_an_output_that_is_float32_s_is_found() -> None:
    third = torch.arange(5, dtype=torch.float64) / 3
    whole = torch.arange(5, dtype=torch.float64)  # bfloat16 has these, so equality shows nothing
    same = "the output is float32's bit for bit, so nothing was computed in bf16"
    assert precision_check.differs(variant("bf16"), MM, third.clone(), third) == same
    assert precision_check.differs(variant("bf16"), MM, third * 1.001, third) == ""
    assert precision_check.differs(variant("bf16"), MM, whole.clone(), whole) == ""
    assert precision_check.differs(variant("fp32"), MM, third.clone(), third) == ""
    assert precision_check.differs(variant("bf16"), EXP, third.clone(), third) == ""
    assert precision_check.differs(variant("bf16-native"), EXP, third.clone(), third) == same
    assert precision_check.differs(variant("bf16"), OVERFLOW, third.clone(), third) == ""
    assert (
        precision_check.differs(variant("bf16"), MM, third[:3], third)
        == "the output has 3 numbers and the first variant's 5"
    )
