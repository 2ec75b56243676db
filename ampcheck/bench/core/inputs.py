"""Tensors and modules of workloads: the same numbers in every variant, in every process and on every device."""

from __future__ import annotations

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, StepWorkload

_FORMATS = {4: torch.channels_last, 5: torch.channels_last_3d}


def make_inputs(
    workload: OpWorkload | StepWorkload, device: str, convert: torch.dtype | None = None, seed: int = 0
) -> list[torch.Tensor]:
    """The tensors of a workload on a device, in the order of its specs.

    `convert`: what float32 specs become. float64 is for a reference, so specs of lower precision become that as well,
    with the values that they have after rounding. On the device "meta" the tensors have no values. Raises ValueError
    for channels-last memory of a tensor that has neither four nor five dimensions.
    """
    generator = torch.Generator().manual_seed(seed)
    return [_tensor(spec, device, convert, generator) for spec in workload.inputs]


def make_module(
    workload: OpWorkload | StepWorkload, device: str, convert: torch.dtype | None = None
) -> nn.Module | None:
    """The module of a workload on a device, its parameters drawn on the CPU from seed 0; None for one without.

    `convert`: what its floating point parameters and buffers become. On the device "meta" they have no values.
    """
    make = workload.model if isinstance(workload, StepWorkload) else workload.module
    if make is None:
        return None
    if device == "meta":
        with torch.device("meta"):
            return make().to(convert)
    with torch.random.fork_rng(devices=()):
        torch.manual_seed(0)
        module = make()
    return module.to(device, convert)


def _tensor(spec: Spec, device: str, convert: torch.dtype | None, generator: torch.Generator) -> torch.Tensor:
    if spec.channels_last and len(spec.shape) not in _FORMATS:
        raise ValueError(f"a tensor of shape {spec.shape} has no channels-last memory format")
    if device == "meta":
        tensor = torch.empty(spec.shape, dtype=spec.dtype, device=device)
    elif spec.high is not None:
        tensor = torch.randint(spec.high, spec.shape, generator=generator).to(spec.dtype)
    else:
        tensor = torch.randn(spec.shape, generator=generator).to(spec.dtype)
    is_reference = convert is torch.float64 and spec.dtype.is_floating_point
    if convert is not None and (spec.dtype is torch.float32 or is_reference):
        tensor = tensor.to(convert)
    tensor = tensor.to(device)
    # On the device and not before: what a move makes of a memory format is the device's own affair.
    return tensor.contiguous(memory_format=_FORMATS[len(spec.shape)]) if spec.channels_last else tensor
