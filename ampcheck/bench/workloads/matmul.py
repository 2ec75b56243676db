"""Matrix products, from sizes where the launch is all to sizes where the arithmetic is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, Workload
from ampcheck.bench.workloads.counting import product, traffic

FP16_ON_CPU = 128
"""The largest matrix that torch multiplies in float16 on a CPU within reason."""

QUICK = (64, 512, 1024)
HEAVY = (4096, 8192)


def _product(
    name: str, call: Callable[..., torch.Tensor], flops: float, *shapes: tuple[int, ...], **more: Any
) -> OpWorkload:
    """Make a product of square matrices of these shapes; the output has the last one."""
    inputs = tuple(map(Spec, shapes))
    size = shapes[-1][-1]
    return OpWorkload(
        name=name,
        family="matmul",
        policy="downcast",
        inputs=inputs,
        call=call,
        flops=flops,
        moved=traffic(inputs, shapes[-1]),
        fp16_on_cpu=size <= FP16_ON_CPU,
        **more,
    )


def _mm(size: int) -> OpWorkload:
    more = {"base": "mm", "size": size, "quick": size in QUICK, "heavy": size in HEAVY}
    return _product(f"mm-{size}", torch.mm, product(size, size, size), (size, size), (size, size), **more)


def _call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = module(x)
    return out


def _linear(name: str, tokens: int, width: int, *, quick: bool = False, heavy: bool = False) -> OpWorkload:
    inputs = (Spec((tokens, width)),)
    return OpWorkload(
        name=name,
        family="matmul",
        policy="downcast",
        base="linear",
        size=width,
        inputs=inputs,
        module=lambda: nn.Linear(width, width),
        call=_call,
        flops=product(tokens, width, width),
        moved=traffic(inputs, (tokens, width), weights=width * width + width),
        samples=tokens,
        quick=quick,
        heavy=heavy,
        fp16_on_cpu=width <= FP16_ON_CPU,
    )


WORKLOADS: tuple[Workload, ...] = (
    *(_mm(size) for size in (16, 32, 64, 128, 256, 512, 1001, 1024, 2048, *HEAVY)),
    _linear("linear-64", 64, 64),
    _linear("linear", 256, 1024, quick=True),
    _linear("linear-4096", 8192, 4096, heavy=True),
    _product("addmm", torch.addmm, product(512, 512, 512), (512,), (512, 512), (512, 512)),
    _product("bmm", torch.bmm, product(256, 256, 256, 8), (8, 256, 256), (8, 256, 256)),
)
