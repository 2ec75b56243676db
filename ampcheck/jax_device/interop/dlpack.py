"""Tensors of the device as `jax.Array`s and back, without a copy, and what DLPack needs to know of them."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.utils.dlpack
from torch import Tensor

from ampcheck.jax_device.annotations import NAME, Args, Device, Function, Kwargs, Tree
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import wrap


def to_jax(tensor: Tensor) -> jax.Array:
    """Return the values of a tensor of the device, as an array of its shape.

    No copy where the tensor is all of its storage: arrays never change, and a later write to the tensor gives its
    storage another array. Raises TypeError for a tensor of another device, RuntimeError for one that requires grad.
    """
    if tensor.device.type != NAME:
        raise TypeError(
            f"to_jax takes a tensor of the jax device, got one on {tensor.device}; use tensor.to('jax') first"
        )
    if tensor.requires_grad:
        raise RuntimeError("to_jax cannot take a tensor that requires grad; use tensor.detach()")
    return transfer.values(tensor.resolve_conj().resolve_neg())


def from_jax(array: jax.Array) -> Tensor:
    """Return a contiguous tensor of the device on the array, without a copy; writes to it leave the array as it is.

    Raises TypeError for what is no `jax.Array`, NotImplementedError for a dtype that PyTorch lacks.
    """
    if not isinstance(array, jax.Array):
        raise TypeError(f"from_jax takes a jax.Array, got {type(array).__name__}")
    return wrap(array)


def _exported(tensor: Tensor) -> Tree:
    if tensor.requires_grad:
        raise BufferError("Can't export tensors that require gradient, use tensor.detach()")
    if tensor.is_conj():
        raise BufferError("Can't export tensors with the conjugate bit set")
    return transfer.values(tensor.resolve_neg())


def _capsule(
    tensor: Tensor,
    *,
    stream: int | None = -1,
    max_version: tuple[int, int] | None = None,
    dl_device: Tree = None,
    copy: bool | None = None,
) -> Tree:
    """Return the tensor's values as a DLPack capsule on JAX's device.

    A capsule of DLPack 1.0 says that it is read only. An older one cannot, so it holds a copy: a consumer that writes
    would change an array that other tensors may share.
    """
    array = _exported(tensor)
    versioned = max_version is not None and max_version[0] >= 1
    if not versioned and copy is not False:
        copy = True
    if copy:
        array, copy = jnp.array(array, copy=True), None
    waited = None if stream == -1 else stream
    return array.__dlpack__(stream=waited, max_version=max_version, dl_device=dl_device, copy=copy)


def install() -> None:
    """Divert PyTorch's DLPack functions, which would export null pointers, for tensors of the device."""
    dlpack, dlpack_device = Tensor.__dlpack__, Tensor.__dlpack_device__
    from_dlpack: Function = torch.utils.dlpack.from_dlpack
    to_dlpack: Function = torch.utils.dlpack.to_dlpack  # type: ignore[attr-defined]

    @functools.wraps(to_dlpack)
    def exported(tensor: Tensor, *args: Tree, **kwargs: Tree) -> Tree:
        return _capsule(tensor) if tensor.device.type == NAME else to_dlpack(tensor, *args, **kwargs)

    @functools.wraps(dlpack)
    def __dlpack__(self: Tensor, **kwargs: Any) -> Tree:
        return _capsule(self, **kwargs) if self.device.type == NAME else dlpack(self, **kwargs)

    @functools.wraps(dlpack_device)
    def __dlpack_device__(self: Tensor) -> Tree:
        return _exported(self).__dlpack_device__() if self.device.type == NAME else dlpack_device(self)

    @functools.wraps(from_dlpack)
    def imported(ext_tensor: Tree, *, device: Device = None, copy: bool | None = None) -> Tensor:
        """Import as PyTorch does; a tensor of the device gives a tensor of the device on the same storage."""
        if device is None or torch.device(device).type == NAME:
            if isinstance(ext_tensor, Tensor) and ext_tensor.device.type == NAME:
                return ext_tensor.detach().clone() if copy else ext_tensor.detach()
            if isinstance(ext_tensor, jax.Array) and device is not None:
                return wrap(ext_tensor)
        given: Kwargs = {"device": device, "copy": copy}
        made: Tensor = from_dlpack(ext_tensor, **{n: value for n, value in given.items() if value is not None})
        return made

    Tensor.__dlpack__ = __dlpack__  # type: ignore[method-assign]
    Tensor.__dlpack_device__ = __dlpack_device__  # type: ignore[method-assign]
    modules: Args = (torch, torch.utils.dlpack)
    for module in modules:
        module.from_dlpack, module.to_dlpack = imported, exported
