"""Scaled dot product attention: plain, causal, and with a mask that hides half of the pairs at random."""

from collections.abc import Callable
from functools import partial
from typing import Unpack

import torch
from torch.nn import functional as F

from ampcheck.bench.core.model import OpWorkload, Spec, Workload, WorkloadOptions


def _masked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


def _sdpa(name: str, shape: tuple[int, int, int, int], kind: str = "", **rest: Unpack[WorkloadOptions]) -> OpWorkload:
    """Attention of a shape (batch, heads, length, width of a head).

    A causal call needs the pairs on and below the diagonal only and is charged for those, so that a kernel which
    leaves out the others does not seem to exceed the device's peak. A mask is not known beforehand: all pairs count.
    """
    batch, _, length, _ = shape
    inputs: tuple[Spec, ...] = (Spec(shape),) * 3
    if kind == "masked":
        inputs = (*inputs, Spec((length, length), torch.bool, high=2))
    calls: dict[str, Callable[..., torch.Tensor]] = {
        "causal": partial(F.scaled_dot_product_attention, is_causal=True),
        "masked": _masked,
    }
    return OpWorkload(
        name=name,
        family="attention",
        policy="downcast",
        inputs=inputs,
        call=calls.get(kind, F.scaled_dot_product_attention),
        needed=(length + 1) / (2 * length) if kind == "causal" else 1,
        samples=batch,
        **rest,
    )


_SMALL = (4, 4, 256, 64)
_LONG = (4, 16, 4096, 64)

WORKLOADS: tuple[Workload, ...] = (
    _sdpa("sdpa", _SMALL, quick=True),
    _sdpa("sdpa-causal", _SMALL, "causal"),
    _sdpa("sdpa-masked", _SMALL, "masked"),
    _sdpa("sdpa-long", _LONG, heavy=True, quick=True),
    _sdpa("sdpa-long-causal", _LONG, "causal", heavy=True),
)
