"""What a backend notes of a tensor and `torch.save` writes with it: `torch._utils.set_tensor_metadata`.

PyTorch keeps it in C++ for devices that register functions there, and for others forgets it without a word.
"""

from __future__ import annotations

import functools

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ampcheck.jax_device.torch_private import torch_utils

_noted = WeakTensorKeyDictionary()


def install() -> None:
    """Replace the two functions for tensors of the device, once a process."""
    read, write = torch_utils.get_tensor_metadata, torch_utils.set_tensor_metadata

    @functools.wraps(read)
    def get_tensor_metadata(tensor: torch.Tensor) -> dict[str, bool]:
        found: dict[str, bool] = read(tensor)
        return found | _noted.get(tensor, {}) if tensor.device.type == "jax" else found

    @functools.wraps(write)
    def set_tensor_metadata(tensor: torch.Tensor, metadata: dict[str, bool]) -> None:
        write(tensor, metadata)
        if tensor.device.type == "jax":
            _noted[tensor] = {name: value for name, value in metadata.items() if name not in ("conj", "neg")}

    torch_utils.get_tensor_metadata, torch_utils.set_tensor_metadata = get_tensor_metadata, set_tensor_metadata
