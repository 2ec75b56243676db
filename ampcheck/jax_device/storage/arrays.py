"""Where a tensor's values live: a `jax.Array` hung on its storage.

A tensor of the device is an ordinary `torch.Tensor`: (storage, sizes, strides, offset). The storage's Python object
lives as long as the storage, so what hangs on it follows every alias, saved tensor and detach. Two forms:

- a `jax.Array` of any shape whose row-major flattening is the storage, elements of the tensors' dtype: the usual form,
  in which a contiguous whole tensor reads its array without any work;
- `Bytes`, once one storage has been seen under two dtypes: flat uint8.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import DeviceStorage
from ampcheck.jax_device.dtypes import jax_dtype, torch_dtype
from ampcheck.jax_device.torch_private import as_strided, create_empty_tensor
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet

create: Callable[[Sequence[int], torch.dtype], torch.Tensor] = (
    create_empty_tensor  # (sizes, dtype) -> a tensor of the PrivateUse1 device, storage empty
)
storage_of: Callable[[torch.Tensor], DeviceStorage] = torch.Tensor.untyped_storage  # type: ignore[assignment]
META = DispatchKeySet(DispatchKey.Meta)


class Bytes:
    """A storage's values as bytes. Its shape equals no tensor's, so that no fast path takes it for an array."""

    __slots__ = ("array",)
    shape = None

    def __init__(self, array: jax.Array) -> None:
        self.array = array


def wrap(array: jax.Array) -> torch.Tensor:
    """Return a contiguous tensor of the array's shape on a new storage that holds it."""
    shape = array.shape
    tensor: torch.Tensor = create(shape, torch_dtype(array.dtype))
    storage_of(tensor).array = array
    if 0 in shape and len(shape) > 1:  # `create` counts a dimension of no elements as 0 in the strides, PyTorch as 1
        return alias(tensor, shape, [math.prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape))], 0)
    return tensor


def alias(tensor: torch.Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> torch.Tensor:
    """Return a tensor on the same storage with other sizes, strides and offset, all in elements."""
    out: torch.Tensor = as_strided(META, tensor, size, stride, offset)
    return out


def held(tensor: torch.Tensor) -> jax.Array | Bytes:
    """Return what hangs on the tensor's storage. Raises RuntimeError for a tensor that has none."""
    try:
        found: jax.Array | Bytes = storage_of(tensor).array
    except AttributeError:
        raise RuntimeError(
            f"this {tensor.device} tensor has no values: its storage was not allocated by the jax device"
        ) from None
    return found


def contents(tensor: torch.Tensor) -> jax.Array:
    """Return the storage's array, of whatever shape, in the tensor's dtype.

    A storage seen under another dtype than it holds becomes `Bytes`, from which every dtype is read.
    """
    found = held(tensor)
    dtype = jax_dtype(tensor.dtype)
    if isinstance(found, Bytes):
        return from_bytes(found.array, dtype)
    if found.dtype == dtype:
        return found
    found = storage_of(tensor).array = Bytes(to_bytes(found))
    return from_bytes(found.array, dtype)


def store(tensor: torch.Tensor, array: jax.Array) -> None:
    """Make `array` the storage's values: as many elements of the tensor's dtype as the storage has."""
    storage = storage_of(tensor)
    if isinstance(getattr(storage, "array", None), Bytes):
        storage.array = Bytes(to_bytes(array))
    else:
        storage.array = array


def to_bytes(array: jax.Array) -> jax.Array:
    """Return the array's values as flat uint8, in the machine's byte order."""
    if array.dtype == jnp.bool_:
        return array.reshape(-1).astype(jnp.uint8)
    if jnp.issubdtype(array.dtype, jnp.complexfloating):
        array = jnp.stack([array.real, array.imag], axis=-1)
    return jax.lax.bitcast_convert_type(array.reshape(-1), jnp.uint8).reshape(-1)


def from_bytes(array: jax.Array, dtype: np.dtype) -> jax.Array:
    """Read flat uint8 as a flat array of a dtype; bytes that make no whole element are left out."""
    if dtype == jnp.uint8:
        return array
    if dtype == jnp.bool_:
        return array.astype(jnp.bool_)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        parts = from_bytes(array, jnp.finfo(dtype).dtype).reshape(-1, 2)
        return jax.lax.complex(parts[:, 0], parts[:, 1])
    size = dtype.itemsize
    whole = array[: array.size // size * size]
    return jax.lax.bitcast_convert_type(whole.reshape((-1, size) if size > 1 else (-1,)), dtype)
