"""Matrix products, from sizes where the launch is all to sizes where the arithmetic is."""

from __future__ import annotations

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, Workload
from ampcheck.bench.workloads.counting import product, traffic

FP16_ON_CPU = 128
"""The largest matrix that torch multiplies in float16 on a CPU within reason."""

QUICK = (64, 512, 1024)
HEAVY = (4096, 8192)


def _mm(size: int) -> OpWorkload:
    inputs = (Spec((size, size)), Spec((size, size)))
    return OpWorkload(
        name=f"mm-{size}",
        family="matmul",
        policy="downcast",
        base="mm",
        size=size,
        inputs=inputs,
        call=torch.mm,
        flops=product(size, size, size),
        moved=traffic(inputs, (size, size)),
        quick=size in QUICK,
        heavy=size in HEAVY,
        fp16_on_cpu=size <= FP16_ON_CPU,
    )


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


def _addmm(size: int) -> OpWorkload:
    inputs = (Spec((size,)), Spec((size, size)), Spec((size, size)))
    return OpWorkload(
        name="addmm",
        family="matmul",
        policy="downcast",
        inputs=inputs,
        call=torch.addmm,
        flops=product(size, size, size),
        moved=traffic(inputs, (size, size)),
        fp16_on_cpu=size <= FP16_ON_CPU,
    )


def _bmm(batch: int, size: int) -> OpWorkload:
    inputs = (Spec((batch, size, size)), Spec((batch, size, size)))
    return OpWorkload(
        name="bmm",
        family="matmul",
        policy="downcast",
        inputs=inputs,
        call=torch.bmm,
        flops=product(size, size, size, batch),
        moved=traffic(inputs, (batch, size, size)),
        fp16_on_cpu=size <= FP16_ON_CPU,
    )


WORKLOADS: tuple[Workload, ...] = (
    *(_mm(size) for size in (16, 32, 64, 128, 256, 512, 1001, 1024, 2048, *HEAVY)),
    _linear("linear-64", 64, 64),
    _linear("linear", 256, 1024, quick=True),
    _linear("linear-4096", 8192, 4096, heavy=True),
    _addmm(512),
    _bmm(8, 256),
)
