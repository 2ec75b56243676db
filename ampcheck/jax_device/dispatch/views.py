"""Kernels of the overloads that give a tensor another storage, size or place in its storage."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ampcheck.jax_device.annotations import DeviceStorage, Kernel, Tree
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.special import kernel, zeros
from ampcheck.jax_device.dispatch.writing import Overlap, assign, elements, place, resize
from ampcheck.jax_device.storage.arrays import alias, storage_of, wrap
from ampcheck.jax_device.storage.layout import Layout, contiguous, expanded


@kernel("resize_")
def _resize(
    self: torch.Tensor, size: Sequence[int], *, memory_format: torch.memory_format | None = None
) -> torch.Tensor:
    if memory_format is torch.preserve_format:
        raise RuntimeError(f"Unsupported memory format{memory_format}")
    if any(n < 0 for n in size):
        raise RuntimeError(f"resize_: sizes must not be negative, got {list(size)}")
    if tuple(size) == self.shape and memory_format is None:
        return self  # with its strides, as PyTorch's kernel leaves it
    kept = memory_format not in (None, torch.contiguous_format)
    stride = torch.empty(size, device="meta", memory_format=memory_format).stride() if kept else None
    return resize(self, size, stride)


@kernel("set_.source_Storage_storage_offset")
def _set(
    self: torch.Tensor, source: DeviceStorage, storage_offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> torch.Tensor:
    size = tuple(size)
    stride = tuple(stride) if stride or not size else contiguous(size)
    if source.device.type != "jax":
        raise RuntimeError(
            f'Attempted to set the storage of a tensor on device "{self.device}" to a storage on different device '
            f'"{source.device}".  This is no longer allowed; the devices must match.'
        )
    if not hasattr(source, "array"):
        raise RuntimeError("this jax storage has no values: it was not allocated by the jax device")
    if storage_offset < 0 or any(n < 0 for n in size) or any(s < 0 for s in stride):
        raise RuntimeError(
            "set_: negative sizes, strides and offsets are not supported: "
            f"{list(size)}, {list(stride)}, {storage_offset}"
        )
    return place(self, source, storage_offset, size, stride)


@kernel("set_.source_Storage")
def _set_storage(self: torch.Tensor, source: DeviceStorage) -> torch.Tensor:
    return _set(self, source, 0, (source.nbytes() // self.element_size(),))


@kernel("set_.source_Tensor")
def _set_tensor(self: torch.Tensor, source: torch.Tensor) -> torch.Tensor:
    if self.dtype is not source.dtype:
        raise RuntimeError(f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}")
    size, stride, offset = Layout.of(source)
    return _set(self, storage_of(source), offset, size, stride)


@kernel("set_")
def _set_empty(self: torch.Tensor) -> torch.Tensor:
    return _set(self, storage_of(wrap(zeros((0,), self.dtype))), 0, (0,))


@kernel("as_strided")
def _as_strided(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Make the alias; PyTorch's own kernel checks the bounds against a storage whose bytes it does not have."""
    offset = int(self.storage_offset() if storage_offset is None else storage_offset)
    if len(size) == len(stride):  # else the alias raises
        last = offset + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        if 0 not in size and last >= elements(self):
            raise RuntimeError(
                f"setStorage: sizes {list(size)}, strides {list(stride)}, storage offset {offset} require {last + 1} "
                f"elements and are out of bounds for storage of {elements(self)} elements"
            )
    if any(s < 0 for s in stride):  # the Meta kernel refuses them from torch 2.12 on
        raise RuntimeError(f"as_strided: Negative strides are not supported at the moment, got strides: {list(stride)}")
    return alias(self, size, stride, offset)


@kernel("_new_zeros_with_same_feature_meta")
def _tangent_like(self: torch.Tensor, other: torch.Tensor, *, self_num_batch_dims: int = 0) -> torch.Tensor:
    """Make zeros with the layout of `other` for each of the batch of `self`; PyTorch's own asks for bytes, as above."""
    batch, count = tuple(self.shape[:self_num_batch_dims]), elements(other)
    made = wrap(zeros((*batch, count), other.dtype))
    strides = (*made.stride()[:-1], *other.stride())
    return alias(made, (*batch, *other.shape), strides, int(other.storage_offset()))


@kernel("as_strided_")
def _as_strided_(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    made: torch.Tensor = _as_strided(self, size, stride, storage_offset)
    return _set(self, storage_of(self), int(made.storage_offset()), made.shape, made.stride())


def _distinct(tensor: torch.Tensor) -> torch.Tensor:
    """Return the tensor without what is repeated: a dimension of stride 0 has one element."""
    return alias(tensor, *expanded(Layout.of(tensor)))


def _filler(name: str) -> Kernel:
    """Return the kernel of a fill in place, which may write to an expanded tensor, as in PyTorch."""

    def fill(self: torch.Tensor, *value: Tree) -> torch.Tensor:
        try:
            assign(self, computed(name)(self, *value))
        except Overlap:
            assign(distinct := _distinct(self), computed(name)(distinct, *value))
        return self

    return fill


kernel("fill_.Scalar")(_filler("fill.Scalar"))
kernel("fill_.Tensor")(_filler("fill.Tensor"))
kernel("zero_")(_filler("zero"))


@kernel("is_set_to")
def _is_set_to(self: torch.Tensor, tensor: torch.Tensor) -> bool:
    """Return whether both lie on one storage with the same sizes, strides and offset."""
    return Layout.of(self) == Layout.of(tensor) and storage_of(self) is storage_of(tensor)


@kernel("record_stream")
def _record_stream(self: torch.Tensor, s: torch.Stream) -> None:
    """Do nothing: JAX frees no buffer that work still needs."""
