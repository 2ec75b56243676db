"""Tensors that autocast casts, and the casts. Source: aten/src/ATen/autocast_mode.h, `is_eligible`, `cached_cast`."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ampcheck.register.weight_cache import Cache

Element = torch.Tensor | None
"""What a list of tensors among the arguments holds."""
FLOAT32 = torch.float32
_DOUBLE = torch.float64
_cache_enabled = torch.is_autocast_cache_enabled


class Casts:
    """The casts of one device type. Kernels bind the methods they use when they are made."""

    def __init__(self, device_type: str, cache: Cache) -> None:
        self._type = device_type
        self._cached = cache.cast

    def eligible(self, tensor: torch.Tensor) -> bool:
        """Return whether a tensor is of a floating dtype other than float64, on the device."""
        dtype = tensor.dtype
        return dtype.is_floating_point and dtype is not _DOUBLE and tensor.device.type == self._type

    def wide(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return an eligible tensor in `dtype`, another one as it is. For casts that are not cached."""
        return tensor.to(dtype) if tensor.dtype is not dtype and self.eligible(tensor) else tensor

    def low(self, tensor: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        """Return the same for the region's dtype; the cast of a float32 leaf that requires grad is cached."""
        given = tensor.dtype
        if given is dtype or not self.eligible(tensor):
            return tensor
        leaf = given is FLOAT32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        return self._cached(tensor, dtype) if leaf and _cache_enabled() else tensor.to(dtype)

    def wide_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `wide` to each tensor; None stays."""
        return [None if tensor is None else self.wide(tensor, dtype) for tensor in tensors]

    def low_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `low` to each tensor; None stays."""
        return [None if tensor is None else self.low(tensor, dtype) for tensor in tensors]

    def widest(self, *values: Element | Sequence[Element]) -> torch.dtype | None:
        """Return the dtype promotion goes to: the widest of the eligible tensors in tensors, lists and None.

        Of float16 and bfloat16 it is float32, which holds the values of both. None where no tensor is eligible.
        """
        found: set[torch.dtype] = set()
        for value in values:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if tensor is not None and self.eligible(tensor):
                    found.add(tensor.dtype)
        if len(found) < 2:
            return found.pop() if found else None
        top = max(dtype.itemsize for dtype in found)
        widest = [dtype for dtype in found if dtype.itemsize == top]
        return widest[0] if len(widest) == 1 else FLOAT32
