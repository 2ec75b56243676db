"""Writing to tensors: whole storages, parts of them through views, other sizes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import DeviceStorage, Kernel, Tree
from ampcheck.jax_device.dispatch.promotion import convert
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import compiled
from ampcheck.jax_device.storage.arrays import META, Bytes, contents, from_bytes, storage_of, store, to_bytes
from ampcheck.jax_device.storage.layout import Layout, contiguous, read, settled, write
from ampcheck.jax_device.torch_private import set_storage


class Overlap(RuntimeError):
    """Elements of a tensor that is written to are one element of its storage, as in an expanded tensor."""


def assign(target: Tree, values: Tree) -> Tree:
    """Make the new tensor `values` (nobody else's) the contents of `target`, of the same shape; returns `target`.

    Raises RuntimeError, as PyTorch does, where the shape differs or the dtype cannot be cast to the target's.
    """
    if isinstance(target, (list, tuple)):
        return [assign(t, v) for t, v in zip(target, values, strict=True)]
    if target is None:
        return None
    if target.device.type != "jax":
        return target.copy_(values)
    if target.shape != values.shape:
        raise RuntimeError(
            f"output with shape {list(target.shape)} doesn't match the broadcast shape {list(values.shape)}"
        )
    if target.dtype is values.dtype:
        mine, theirs = storage_of(target), storage_of(values)
        if (
            mine.array.shape == target.shape
            and theirs.array.shape == target.shape
            and target.is_contiguous()
            and values.is_contiguous()
            and target.is_conj() is values.is_conj()
            and target.is_neg() is values.is_neg()
        ):
            # Arrays never change: the whole write is that the storage takes over the other one.
            mine.array = theirs.array
            return target
    else:
        check_cast(values.dtype, target.dtype)
    return put(target, values)


def check_cast(given: torch.dtype, wanted: torch.dtype) -> None:
    """Raise RuntimeError where PyTorch casts no result of one dtype to the other, e.g. a float to an integer."""
    if not torch.can_cast(given, wanted):
        raise RuntimeError(f"result type {given} can't be cast to the desired output type {wanted}")


def put(target: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Write the values of a device tensor of the same shape to `target`, converted to its dtype."""
    source, layout = Layout.of(values), Layout.of(target)
    if 0 in layout.stride and any(n > 1 and not step for n, step in zip(layout.size, layout.stride, strict=True)):
        raise Overlap(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    held = contents(target)
    conj = target.is_conj() is not values.is_conj()
    program = _writer(layout, source, jax_dtype(target.dtype), conj, values.is_neg(), target.is_neg())
    store(target, program(held, contents(values)))
    return target


@cache
def _writer(target: Layout, source: Layout, dtype: np.dtype, conj: bool, was: bool, becomes: bool) -> Kernel:
    """Compile a write. `conj`: conjugate bits differ; `was`, `becomes`: the source's and the target's negative bit."""

    def program(held: jax.Array, values: jax.Array) -> jax.Array:
        given = settled(read(values, source), False, was)
        return write(held, target, settled(convert(given, dtype), conj, becomes))

    return compiled(program, max(math.prod(target.size), math.prod(source.size)))


def resize(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int] | None = None) -> torch.Tensor:
    """Give the tensor another size in place, its storage growing where it must; what is new is zero."""
    size = tuple(size)
    stride = contiguous(size) if stride is None else tuple(stride)
    return place(tensor, storage_of(tensor), int(tensor.storage_offset()), size, stride)


def place(
    tensor: torch.Tensor, source: DeviceStorage, offset: int, size: tuple[int, ...], stride: tuple[int, ...]
) -> torch.Tensor:
    """Put the tensor, in place, somewhere on a device storage, which grows where it must; what is new is zero."""
    set_storage(META, tensor, source, offset, size, stride)
    grow(tensor, 0 if 0 in size else offset + 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)))
    _adopt(source, tensor)
    return tensor


def _adopt(source: DeviceStorage, tensor: torch.Tensor) -> None:
    """Keep the storage's values in the dtype and shape of a tensor that is all of it: reading is then free."""
    found, dtype = source.array, jax_dtype(tensor.dtype)
    raw = isinstance(found, Bytes)
    if source.nbytes() != tensor.numel() * dtype.itemsize or tensor.storage_offset() or not tensor.is_contiguous():
        return
    if raw or found.dtype != dtype:
        found = from_bytes(found.array if raw else to_bytes(found), dtype)
    source.array = found.reshape(tuple(tensor.shape))


def grow(tensor: torch.Tensor, elements: int) -> None:
    """Make the storage hold at least that many elements of the tensor's dtype."""
    array = contents(tensor)
    if array.size < elements:
        flat = jnp.zeros(elements, array.dtype)
        store(tensor, flat.at[: array.size].set(array.reshape(-1)) if array.size else flat)


def elements(tensor: torch.Tensor) -> int:
    """Return how many elements of the tensor's dtype its storage has."""
    return math.prod(contents(tensor).shape)
