"""Say which values of tensors are not finite, and between which bounds the others are."""

import math
from collections.abc import Iterable

import torch

FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
CHOSEN = frozenset(
    ("fill", "fill_", "masked_fill", "masked_fill_", "full", "full_like", "new_full", "where", "resize_", "empty")
) | {"empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
"""Kernels whose infinity or nan is the program's own choice, as that of a mask, or nobody's, as those of new memory."""


def bounds(x: torch.Tensor) -> tuple[float, float] | None:
    """Return the least and the largest value, nan where one is; None for a tensor without elements or order."""
    if not x.numel() or x.dtype is torch.bool or x.is_complex() or x.layout is not torch.strided or x.is_meta:
        return None
    low, high = torch.aminmax(x.detach())
    return low.item(), high.item()


def nonfinite(results: Iterable[torch.Tensor]) -> str:
    """Return which values that are not finite some tensors hold: "nan", "inf and -inf"; "" for none."""
    found: list[str] = []
    for x in results:
        pair = bounds(x) if x.dtype in FLOATS else None
        if pair is None or all(map(math.isfinite, pair)):
            continue
        found += ["nan"] if any(map(math.isnan, pair)) else [str(bound) for bound in pair if math.isinf(bound)]
    return " and ".join(dict.fromkeys(found))
