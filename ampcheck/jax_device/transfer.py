"""Values between the CPU and the device, and CPU tensors among an op's arguments."""

from __future__ import annotations

from typing import Any

import jax
import ml_dtypes
import numpy as np
import torch

from ampcheck.jax_device.dtypes import TO_JAX, jax_dtype, torch_dtype
from ampcheck.jax_device.layout import Layout, read, settled
from ampcheck.jax_device.storage import contents, wrap

# NumPy cannot hold these; the bits travel under an integer dtype of the same size.
_CARRIERS = {1: torch.uint8, 2: torch.int16}
_FOREIGN = frozenset(t for t, j in TO_JAX.items() if j.type.__module__ == ml_dtypes.__name__)
# Overloads whose index tensors may lie on the CPU, as on CUDA (aten/src/ATen/native/TensorAdvancedIndexing.cpp).
_INDEXING = ("index.", "index_put", "_index_put_impl", "_unsafe_index")


def to_numpy(tensor: torch.Tensor) -> np.ndarray[Any, Any]:
    """A CPU tensor's values as an array that shares nothing with it."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if tensor.dtype in _FOREIGN:
        carrier = _CARRIERS[tensor.element_size()]
        return tensor.contiguous().view(carrier).numpy().view(TO_JAX[tensor.dtype]).copy()
    return np.array(tensor.numpy(), TO_JAX.get(tensor.dtype) or jax_dtype(tensor.dtype), copy=True, order="C")


def from_numpy(array: np.ndarray[Any, Any]) -> torch.Tensor:
    """A CPU tensor with a copy of the array's values."""
    dtype = torch_dtype(array.dtype)
    if dtype in _FOREIGN:
        carrier = np.dtype(np.uint8 if array.dtype.itemsize == 1 else np.int16)
        return torch.from_numpy(np.array(array, copy=True, order="C").view(carrier)).view(dtype)
    return torch.from_numpy(np.array(array, copy=True, order="C"))


def values(tensor: torch.Tensor) -> jax.Array:
    """A device tensor's values as an array of its shape; the storage's own array where the tensor is all of it."""
    array = contents(tensor)
    size = tuple(tensor.shape)
    if array.shape != size or not tensor.is_contiguous():
        array = read(array, Layout(size, tensor.stride(), tensor.storage_offset()))
    return settled(array, tensor.is_conj(), tensor.is_neg())


def to_device(tensor: torch.Tensor) -> torch.Tensor:
    """A contiguous tensor of the device with the values of a CPU tensor."""
    return wrap(jax.device_put(to_numpy(tensor)))


def to_host(tensor: torch.Tensor) -> torch.Tensor:
    """A CPU tensor with the values of a device tensor."""
    return from_numpy(np.asarray(values(tensor)))


def guest(tensor: torch.Tensor, name: str) -> Any:
    """A tensor of another device among the arguments: a CPU scalar becomes a NumPy scalar array.

    Raises RuntimeError where PyTorch would: anything else must be on one device.
    """
    if tensor.device.type == "cpu" and not tensor.dim():
        return to_numpy(tensor)
    if tensor.device.type == "cpu" and name.startswith(_INDEXING):
        return to_device(tensor)
    raise RuntimeError(
        f"Expected all tensors to be on the same device, but aten::{name} was given tensors on jax:0 and {tensor.device}"
    )


def dtype_of(array: Any) -> torch.dtype:
    """The PyTorch dtype of a NumPy array or scalar."""
    return torch_dtype(array.dtype)
