"""A PrivateUse1 backend that cannot copy bfloat16 and does not say so."""

from __future__ import annotations

import torch
from engine import Arrays, Backend, Tested


def _copy(target: torch.Tensor, source: torch.Tensor) -> None:
    if torch.bfloat16 in (target.dtype, source.dtype):
        raise RuntimeError("halfonly has no bfloat16")
    target.copy_(source)


BACKEND = Backend("halfonly", Arrays())
BACKEND.copy = _copy
BACKEND.register()
DEVICES = (Tested(BACKEND),)
