"""`pin_memory` of CPU tensors in a process whose accelerator is the device, so that a `DataLoader` that pins works."""

from __future__ import annotations

import warnings

import torch
from torch.library import Library

_library = Library("aten", "IMPL")


def _pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    if device is not None and device.type != "jax":
        raise RuntimeError(f"cannot pin memory for {device}: the accelerator of this process is the jax device")
    warnings.warn(
        "JAX gives out no pinned memory: pin_memory makes an ordinary copy; leave it out", UserWarning, stacklevel=2
    )
    return self.clone()


def install() -> None:
    """Register the kernel, once a process. PyTorch's own wants an allocator of pinned memory."""
    _library.impl("_pin_memory", _pin_memory, "CPU")
