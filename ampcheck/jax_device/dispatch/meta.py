"""Meta kernels of ops that PyTorch has none for: what shapes come out, also of sizes that `torch.compile` leaves open.

Other ops without a Meta kernel are run on zeros by PyTorch's fake tensors, which takes sizes that are numbers.
"""

from __future__ import annotations

import torch
from torch.library import Library

from ampcheck.jax_device.annotations import Kernel
from ampcheck.jax_device.dispatch.cudnn import by_convolution
from ampcheck.register.torch_private import has_kernel

_library = Library("aten", "IMPL")


def _gru_cell(
    input_gates: torch.Tensor, hidden_gates: torch.Tensor, hx: torch.Tensor, *_: object
) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty_like(hx), hx.new_empty((hx.shape[0], 5 * hx.shape[1]))


def _gru_cell_backward(
    grad_hy: torch.Tensor, workspace: torch.Tensor, has_bias: bool
) -> tuple[torch.Tensor | None, ...]:
    rows, width = workspace.shape[0], workspace.shape[1] // 5 * 3
    gates = [workspace.new_empty((rows, width)) for _ in range(2)]
    biases = [workspace.new_empty((width,)) if has_bias else None for _ in range(2)]
    return *gates, torch.empty_like(grad_hy), *biases


_META: dict[str, Kernel] = {
    "_thnn_fused_gru_cell": _gru_cell,
    "_thnn_fused_gru_cell_backward": _gru_cell_backward,
    **by_convolution(torch.convolution),
}


def install() -> None:
    """Register the kernels that this PyTorch lacks, once a process."""
    for name, function in _META.items():
        if not has_kernel(f"aten::{name}", "Meta"):
            _library.impl(name, function, "Meta")
