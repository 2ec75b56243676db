"""Matrix products, from sizes where the launch is all to sizes where the arithmetic is."""

from collections.abc import Callable
from typing import Unpack

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, Workload, WorkloadOptions

FP16_ON_CPU = 128
"""The largest matrix that torch multiplies in float16 on a CPU within reason."""

QUICK = (64, 512, 1024, 4096)
HEAVY = (4096, 8192)


def _product(
    name: str, call: Callable[..., torch.Tensor], *shapes: tuple[int, ...], **more: Unpack[WorkloadOptions]
) -> OpWorkload:
    """Make a product of square matrices of these shapes; the output has the last one."""
    more["fp16_on_cpu"] = shapes[-1][-1] <= FP16_ON_CPU
    return OpWorkload(name=name, family="matmul", policy="downcast", inputs=tuple(map(Spec, shapes)), call=call, **more)


def _mm(size: int) -> OpWorkload:
    quick, heavy, shape = size in QUICK, size in HEAVY, (size, size)
    return _product(f"mm-{size}", torch.mm, shape, shape, base="mm", size=size, quick=quick, heavy=heavy)


def _call(module: nn.Module, x: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = module(x)
    return out


def _linear(name: str, tokens: int, width: int, **more: Unpack[WorkloadOptions]) -> OpWorkload:
    more |= {"base": "linear", "size": width, "fp16_on_cpu": width <= FP16_ON_CPU}
    return OpWorkload(
        name=name,
        family="matmul",
        policy="downcast",
        inputs=(Spec((tokens, width)),),
        module=lambda: nn.Linear(width, width),
        call=_call,
        samples=tokens,
        **more,
    )


WORKLOADS: tuple[Workload, ...] = (
    *(_mm(size) for size in (16, 32, 64, 128, 256, 512, 1001, 1024, 2048, *HEAVY)),
    _linear("linear-64", 64, 64),
    _linear("linear", 256, 1024, quick=True),
    _linear("linear-4096", 8192, 4096, heavy=True, quick=True),
    _product("addmm", torch.addmm, (512,), (512, 512), (512, 512)),
    _product("bmm", torch.bmm, (8, 256, 256), (8, 256, 256)),
)
