"""Values between the CPU and the device, and CPU tensors among an op's arguments."""

import ctypes

import jax
import numpy as np
import torch
from torch import Tensor

from ampcheck.jax_device.dtypes import jax_dtype, torch_dtype
from ampcheck.jax_device.storage.arrays import Layout, Place, begins_anywhere, contents, piece_of, read, settled, wrap

# Overloads whose index tensors may lie on the CPU, as on CUDA (aten/src/ATen/native/TensorAdvancedIndexing.cpp).
_INDEXING = ("index.", "index_put", "_index_put_impl", "_unsafe_index")


def to_numpy(tensor: Tensor) -> np.ndarray:
    """Return a tensor's values as an array that shares nothing with it. Raise RuntimeError for a tensor without values.

    `Tensor.numpy` would leave the tensor unable to be resized, and NumPy's own dtypes lack bfloat16.
    """
    dtype = jax_dtype(tensor.dtype)
    host = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    out = np.empty(tuple(host.shape), dtype)
    # a null pointer: a zero tensor of autograd, or one whose backend has no memory
    if out.nbytes and not host.data_ptr():
        host = host.clone()  # a tensor of zeros without storage gets one
        if not host.data_ptr():
            raise RuntimeError(f"a {type(tensor).__name__} without values cannot be copied to the jax device")
    ctypes.memmove(out.ctypes.data, host.data_ptr(), out.nbytes)
    return out


def from_numpy(array: np.ndarray) -> Tensor:
    """Copy an array to a CPU tensor that can be resized, as none of `torch.from_numpy` can."""
    array = np.ascontiguousarray(array).reshape(array.shape)
    out = torch.empty(array.shape, dtype=torch_dtype(array.dtype), device="cpu")
    ctypes.memmove(out.data_ptr(), array.ctypes.data, array.nbytes)
    return out


def values(tensor: Tensor) -> jax.Array:
    """Return a device tensor's values as an array of its shape; the storage's own if the tensor is all of it."""
    array = contents(tensor)
    if begins_anywhere(array, tensor):
        array = piece_of(array, int(tensor.storage_offset()), Place.of(Layout.of(tensor), array.shape))
    elif array.shape != tensor.shape or not tensor.is_contiguous():
        array = read(array, Layout.of(tensor))
    return settled(array, tensor.is_conj(), tensor.is_neg())


def to_device(tensor: Tensor) -> Tensor:
    return wrap(jax.device_put(to_numpy(tensor)))


def to_host(tensor: Tensor) -> Tensor:
    return from_numpy(np.asarray(values(tensor)))


def guest(tensor: Tensor, name: str) -> Tensor | np.ndarray:
    """Return a tensor of another device among the arguments: a CPU scalar becomes a NumPy scalar array.

    Raises RuntimeError where PyTorch would: anything else must be on one device.
    """
    if tensor.device.type == "cpu" and not tensor.dim():
        return to_numpy(tensor)
    if tensor.device.type == "cpu" and name.startswith(_INDEXING):
        return to_device(tensor)
    raise RuntimeError(
        "Expected all tensors to be on the same device, "
        f"but aten::{name} was given tensors on jax:0 and {tensor.device}"
    )
