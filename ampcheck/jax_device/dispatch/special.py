"""Kernels that are no computation: views, storage, copies between devices, empty tensors, values read by Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import Device, Kernel, Tree
from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.dispatch.kernels import computed
from ampcheck.jax_device.dispatch.writing import assign, put, resize
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.lowering import F
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import alias, contents, wrap
from ampcheck.jax_device.storage.layout import Layout, contiguous, order
from ampcheck.register.dynamo_skip import dynamo_skip
from ampcheck.register.torch_private import DispatchKey, OpOverload

SPECIAL: dict[str, Kernel] = {}
COMPOSED: dict[str, Kernel] = {}
_SMALL = 4096  # elements; larger zeros are made anew, so that the shared ones hold little memory


def kernel(*names: str) -> Callable[[F], F]:
    """Decorate a function as the device's kernel of the overloads of those names, written as in `lower`."""

    def register(function: F) -> F:
        for name in names:
            if name in SPECIAL:
                raise ValueError(f"{name} has two kernels")
            SPECIAL[name] = function
        return function

    return register


def composed(*names: str) -> Callable[[F], F]:
    """Decorate a function that takes the overloads of those names apart, in place of PyTorch's composite kernel.

    What it calls is differentiated, not the overload itself.
    """

    def register(function: F) -> F:
        COMPOSED.update(dict.fromkeys(names, dynamo_skip(function)))
        return function

    return register


def apart(op: OpOverload, *args: Tree, **kwargs: Tree) -> Tree:
    """Run PyTorch's composite kernel of an overload on these arguments; `op.decompose` would prefer Python's."""
    return op._op_dk(DispatchKey.CompositeImplicitAutograd, *args, **kwargs)


_shared: WeakValueDictionary[tuple[tuple[int, ...], torch.dtype], jax.Array] = WeakValueDictionary()


def zeros(size: tuple[int, ...], dtype: torch.dtype) -> jax.Array:
    """Return an array of zeros; small ones are shared while somebody holds one, as arrays never change."""
    if min(size, default=0) < 0:
        raise RuntimeError(f"Trying to create tensor with negative dimension {min(size)}: {list(size)}")
    if math.prod(size) > _SMALL:
        return jnp.zeros(size, jax_dtype(dtype))
    found = _shared.get((size, dtype))
    if found is None:
        with jax.ensure_compile_time_eval():  # not a value of the program that jit may be tracing
            found = _shared[size, dtype] = jax.device_put(np.zeros(size, jax_dtype(dtype)))
    return found


@kernel("empty.memory_format")
def _empty(
    size: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Device = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    _check_strided(layout)
    dtype = dtype or torch.get_default_dtype()
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return wrap(zeros(tuple(size), dtype))
    stride = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format).stride()
    return alias(wrap(zeros((int(np.prod(size)),), dtype)), size, stride, 0)


def _check_strided(layout: torch.layout | None) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the jax device has no {layout} tensors, only strided ones")


@kernel("empty_strided")
def _empty_strided(
    size: Sequence[int],
    stride: Sequence[int],
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Device = None,
    pin_memory: bool | None = None,
) -> torch.Tensor:
    _check_strided(layout)
    size, stride, dtype = tuple(size), tuple(stride), dtype or torch.get_default_dtype()
    if stride == contiguous(size):
        return wrap(zeros(size, dtype))
    needed = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return alias(wrap(zeros((needed,), dtype)), size, stride, 0)


@kernel("empty_like")
def _empty_like(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: Device = None,
    pin_memory: bool | None = None,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    """Make an empty tensor without values of `self`, which PyTorch's fake tensors do not have."""
    _check_strided(layout)
    dtype = dtype or self.dtype
    if self.is_contiguous() and memory_format in (None, torch.preserve_format, torch.contiguous_format):
        return wrap(zeros(tuple(self.shape), dtype))
    there = torch.empty_strided(self.shape, self.stride(), dtype=dtype, device="meta")
    like = torch.empty_like(there, memory_format=memory_format or torch.preserve_format)
    made: torch.Tensor = _empty_strided(like.shape, like.stride(), dtype=dtype)
    return made


@kernel("_efficientzerotensor")
def _zero_tensor(size: Sequence[int], *, dtype: torch.dtype | None = None, **_: object) -> torch.Tensor:
    return wrap(zeros(tuple(size), dtype or torch.get_default_dtype()))


@kernel("_to_copy")
def _to_copy(
    self: torch.Tensor,
    *,
    dtype: torch.dtype | None = None,
    layout: torch.layout | None = None,
    device: torch.device | None = None,
    pin_memory: bool | None = None,
    non_blocking: bool = False,
    memory_format: torch.memory_format | None = None,
) -> torch.Tensor:
    _check_strided(layout)
    if device is not None and device.index and device.type == "jax":
        index_of(device)
    if self.device.type != "jax":
        return _placed(self.to(dtype or self.dtype), memory_format)
    if device is not None and device.type != "jax":
        kept = {} if memory_format is None else {"memory_format": memory_format}
        return _hosted(self).to(device=device, dtype=dtype or self.dtype, copy=False, **kept)  # type: ignore[call-overload, no-any-return]
    return computed("_to_copy")(self, dtype=dtype or self.dtype, memory_format=memory_format)  # type: ignore[no-any-return]


def _placed(tensor: torch.Tensor, memory_format: torch.memory_format | None) -> torch.Tensor:
    """Return the device copy of a CPU tensor, with its strides where they are dense."""
    like = torch.empty_like(tensor, device="meta", memory_format=memory_format or torch.preserve_format)
    dims = order(Layout(tuple(like.shape), like.stride(), 0), like.numel())
    if dims is None or like.is_contiguous():
        return transfer.to_device(tensor)
    return alias(transfer.to_device(tensor.permute(dims)), like.shape, like.stride(), 0)


def _hosted(tensor: torch.Tensor) -> torch.Tensor:
    """Return the CPU copy of a device tensor, with its strides where they are dense."""
    host = transfer.to_host(tensor)
    out = torch.empty_like(tensor, device="meta")
    return (
        host
        if out.stride() == host.stride()
        else torch.empty_strided(out.shape, out.stride(), dtype=host.dtype).copy_(host)
    )


@kernel("copy_", "_copy_from")
def _copy(self: torch.Tensor, src: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    if self.device.type != "jax":
        return self.copy_(transfer.to_host(src))
    if src.device.type != "jax":
        src = transfer.to_device(src.to(self.dtype))
    if self.shape != src.shape:
        if src.dim() > self.dim():
            raise RuntimeError(
                f"output with shape {list(self.shape)} doesn't match the broadcast shape {list(src.shape)}"
            )
        src = src.expand(self.shape)
    # `assign` refuses casts that lose (an in-place op's rule), which a copy does not: `put` converts.
    if src.dtype is self.dtype:
        return assign(self, src)  # type: ignore[no-any-return]
    return put(self, src)


@kernel("_copy_from_and_resize")
def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    if dst.device.type == "jax":
        resize(dst, tuple(self.shape))
    resized: torch.Tensor = _copy(dst.resize_(self.shape), self)
    return resized


@kernel("clone")
def _clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    array = contents(self)
    lazy = self.is_conj() or self.is_neg()
    if (
        array.shape == self.shape
        and self.is_contiguous()
        and not lazy
        and memory_format in (None, torch.preserve_format, torch.contiguous_format)
    ):
        return wrap(array)  # arrays never change, so the copy may share it
    return computed("clone")(self, memory_format=memory_format)  # type: ignore[no-any-return]


@kernel("_local_scalar_dense")
def _item(self: torch.Tensor) -> Tree:
    return np.asarray(transfer.values(self)).item()


@kernel("equal")
def _equal(self: torch.Tensor, other: torch.Tensor) -> bool:
    _check_same_device(self, other)
    if self.shape != other.shape:
        return False
    return bool(np.asarray(jnp.array_equal(transfer.values(self), transfer.values(other))))


def _check_same_device(*tensors: torch.Tensor) -> None:
    """Raise RuntimeError, worded as PyTorch's, where the tensors are on several devices."""
    devices = sorted({str(t.device) for t in tensors})
    if len(devices) > 1:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{devices[0]} and {devices[1]}!"
        )


@kernel("allclose")
def allclose(
    self: torch.Tensor, other: torch.Tensor, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False
) -> bool:
    """Return whether all elements are close, as `torch.isclose` says."""
    return bool(torch.isclose(self, other, rtol, atol, equal_nan).all())


@kernel("as_strided_copy")
def as_strided_copy(
    self: torch.Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> torch.Tensor:
    """Return a copy of what size, strides and offset name in the storage."""
    return torch.as_strided(self, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)
