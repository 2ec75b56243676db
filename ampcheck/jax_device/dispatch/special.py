"""Kernels that are no computation: views, storage, copies between devices, empty tensors, values read by Python.

And cuDNN's own overloads of convolution, made of the general one, whose arguments they take in another order.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial
from weakref import WeakValueDictionary

import jax
import jax.numpy as jnp
import numpy as np
import torch
from torch import Tensor

from ampcheck.jax_device.annotations import DeviceStorage, Kernel, Tree
from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.dispatch.kernels import Overlap, assign, computed, elements, place, put, resize
from ampcheck.jax_device.dtypes import jax_dtype
from ampcheck.jax_device.jax_private import traced
from ampcheck.jax_device.lowering import F
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import Layout, alias, contents, contiguous, expanded, order, storage_of, wrap
from ampcheck.register.torch_private import DispatchKey, OpOverload, dynamo_skip

DType = torch.dtype | None
LayoutKind = torch.layout | None
Format = torch.memory_format | None
SPECIAL: dict[str, Kernel] = {}
COMPOSED: dict[str, Kernel] = {}
_SMALL = 4096  # elements; larger zeros are made anew, so that the shared ones hold little memory
_FILLED = 1 << 20  # elements; to copy fewer from the host takes less time than to compile a program for that size


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
    count = math.prod(size)
    if count > _FILLED or (count > _SMALL and traced() is not False):
        return jnp.zeros(size, jax_dtype(dtype))
    found = _shared.get((size, dtype))
    if found is None:
        with jax.ensure_compile_time_eval():  # not a value of the program that jit may be tracing
            found = jax.device_put(np.zeros(size, jax_dtype(dtype)))
        if count <= _SMALL:
            _shared[size, dtype] = found
    return found


@kernel("empty.memory_format", "zeros", "_efficientzerotensor")
def _empty(
    size: Sequence[int], *, dtype: DType = None, layout: LayoutKind = None, memory_format: Format = None, **_: object
) -> Tensor:
    _check_strided(layout)
    dtype = dtype or torch.get_default_dtype()
    if memory_format in (None, torch.contiguous_format, torch.preserve_format):
        return wrap(zeros(tuple(size), dtype))
    stride = torch.empty(size, dtype=dtype, device="meta", memory_format=memory_format).stride()
    return alias(wrap(zeros((int(np.prod(size)),), dtype)), size, stride, 0)


def _check_strided(layout: LayoutKind) -> None:
    if layout not in (None, torch.strided):
        raise NotImplementedError(f"the jax device has no {layout} tensors, only strided ones")


@kernel("empty_strided")
def _empty_strided(
    size: Sequence[int], stride: Sequence[int], *, dtype: DType = None, layout: LayoutKind = None, **_: object
) -> Tensor:
    _check_strided(layout)
    size, stride, dtype = tuple(size), tuple(stride), dtype or torch.get_default_dtype()
    if stride == contiguous(size):
        return wrap(zeros(size, dtype))
    needed = 0 if 0 in size else 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    return alias(wrap(zeros((needed,), dtype)), size, stride, 0)


@kernel("empty_like", "zeros_like")
def _empty_like(
    self: Tensor, *, dtype: DType = None, layout: LayoutKind = None, memory_format: Format = None, **_: object
) -> Tensor:
    """Make an empty tensor without values of `self`, which PyTorch's fake tensors do not have."""
    _check_strided(layout)
    dtype = dtype or self.dtype
    if self.is_contiguous() and memory_format in (None, torch.preserve_format, torch.contiguous_format):
        return wrap(zeros(tuple(self.shape), dtype))
    there = torch.empty_strided(self.shape, self.stride(), dtype=dtype, device="meta")
    like = torch.empty_like(there, memory_format=memory_format or torch.preserve_format)
    made: Tensor = _empty_strided(like.shape, like.stride(), dtype=dtype)
    return made


@kernel("_to_copy")
def _to_copy(
    self: Tensor, *, dtype: DType = None, device: torch.device | None = None, memory_format: Format = None, **rest: Tree
) -> Tensor:
    _check_strided(rest.get("layout"))
    if device is not None and device.index and device.type == "jax":
        index_of(device)
    if self.device.type != "jax":
        return _placed(self.to(dtype or self.dtype), memory_format)
    if device is not None and device.type != "jax":
        kept = {} if memory_format is None else {"memory_format": memory_format}
        return _hosted(self).to(device=device, dtype=dtype or self.dtype, copy=False, **kept)  # type: ignore[call-overload, no-any-return]
    return computed("_to_copy")(self, dtype=dtype or self.dtype, memory_format=memory_format)  # type: ignore[no-any-return]


def _placed(tensor: Tensor, memory_format: Format) -> Tensor:
    """Return the device copy of a CPU tensor, with its strides where they are dense."""
    like = torch.empty_like(tensor, device="meta", memory_format=memory_format or torch.preserve_format)
    dims = order(Layout(tuple(like.shape), like.stride(), 0), like.numel())
    if dims is None or like.is_contiguous():
        return transfer.to_device(tensor)
    return alias(transfer.to_device(tensor.permute(dims)), like.shape, like.stride(), 0)


def _hosted(tensor: Tensor) -> Tensor:
    """Return the CPU copy of a device tensor, with its strides where they are dense."""
    host = transfer.to_host(tensor)
    out = torch.empty_like(tensor, device="meta")
    return (
        host
        if out.stride() == host.stride()
        else torch.empty_strided(out.shape, out.stride(), dtype=host.dtype).copy_(host)
    )


@kernel("copy_", "_copy_from")
def _copy(self: Tensor, src: Tensor, non_blocking: bool = False) -> Tensor:
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
def _copy_from_and_resize(self: Tensor, dst: Tensor) -> Tensor:
    if dst.device.type == "jax":
        resize(dst, tuple(self.shape))
    resized: Tensor = _copy(dst.resize_(self.shape), self)
    return resized


@kernel("clone")
def _clone(self: Tensor, *, memory_format: Format = None) -> Tensor:
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


kernel("_local_scalar_dense")(lambda self: np.asarray(transfer.values(self)).item())


@kernel("equal")
def _equal(self: Tensor, other: Tensor) -> bool:
    if self.device != other.device:
        first, second = sorted((str(self.device), str(other.device)))
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {first} and {second}!"
        )
    if self.shape != other.shape:
        return False
    return bool(np.asarray(jnp.array_equal(transfer.values(self), transfer.values(other))))


kernel("allclose")(lambda *args: bool(torch.isclose(*args).all()))


@kernel("as_strided_copy")
def as_strided_copy(
    self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None
) -> Tensor:
    """Return a copy of what size, strides and offset name in the storage."""
    return torch.as_strided(self, size, stride, storage_offset).clone(memory_format=torch.contiguous_format)


@kernel("resize_")
def _resize(self: Tensor, size: Sequence[int], *, memory_format: Format = None) -> Tensor:
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
    self: Tensor, source: DeviceStorage, storage_offset: int, size: Sequence[int], stride: Sequence[int] = ()
) -> Tensor:
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


kernel("set_.source_Storage")(lambda self, source: _set(self, source, 0, (source.nbytes() // self.element_size(),)))
kernel("set_")(lambda self: _set(self, storage_of(wrap(zeros((0,), self.dtype))), 0, (0,)))


@kernel("set_.source_Tensor")
def _set_tensor(self: Tensor, source: Tensor) -> Tensor:
    if self.dtype is not source.dtype:
        raise RuntimeError(f"Could not set tensor of type {source.dtype} to a tensor of type {self.dtype}")
    size, stride, offset = Layout.of(source)
    return _set(self, storage_of(source), offset, size, stride)


@kernel("as_strided")
def _as_strided(self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
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
def _tangent_like(self: Tensor, other: Tensor, *, self_num_batch_dims: int = 0) -> Tensor:
    """Make zeros with the layout of `other` for each of the batch of `self`; PyTorch's own asks for bytes, as above."""
    batch, count = tuple(self.shape[:self_num_batch_dims]), elements(other)
    made = wrap(zeros((*batch, count), other.dtype))
    strides = (*made.stride()[:-1], *other.stride())
    return alias(made, (*batch, *other.shape), strides, int(other.storage_offset()))


@kernel("as_strided_")
def _as_strided_(self: Tensor, size: Sequence[int], stride: Sequence[int], storage_offset: int | None = None) -> Tensor:
    made: Tensor = _as_strided(self, size, stride, storage_offset)
    return _set(self, storage_of(self), int(made.storage_offset()), made.shape, made.stride())


def _fill(name: str, self: Tensor, *value: Tree) -> Tensor:
    """Fill in place; the tensor may be expanded, as in PyTorch."""
    try:
        assign(self, computed(name)(self, *value))
    except Overlap:
        distinct = alias(self, *expanded(Layout.of(self)))  # without what is repeated
        assign(distinct, computed(name)(distinct, *value))
    return self


for _name, _functional in (("fill_.Scalar", "fill.Scalar"), ("fill_.Tensor", "fill.Tensor"), ("zero_", "zero")):
    kernel(_name)(partial(_fill, _functional))


kernel("is_set_to")(lambda a, b: Layout.of(a) == Layout.of(b) and storage_of(a) is storage_of(b))
kernel("record_stream")(lambda self, stream: None)  # JAX frees no buffer that work still needs


def by_convolution(convolve: Kernel) -> dict[str, Kernel]:
    """Return a kernel of each overload of cuDNN, made of a kernel of `convolution`; what follows `groups` is unused."""

    def plain(x: Tree, weight: Tree, bias: Tree, stride: Sequence[int], *rest: Tree, output: Tree = None) -> Tree:
        padding, dilation, groups = rest[:3]
        return convolve(
            x, weight, bias, stride, padding, dilation, output is not None, output or [0] * len(stride), groups
        )

    return {
        "cudnn_convolution": lambda x, w, padding, stride, *rest: plain(x, w, None, stride, padding, *rest),
        "cudnn_convolution_transpose": lambda x, w, padding, output, stride, *rest: plain(
            x, w, None, stride, padding, *rest, output=output
        ),
        "cudnn_convolution_relu": lambda *given: torch.relu(plain(*given)),
        "cudnn_convolution_add_relu": lambda x, w, z, alpha, *rest: torch.relu(
            torch.add(plain(x, w, *rest), z, alpha=1 if alpha is None else alpha)
        ),
    }


for _name, _kernel in by_convolution(lambda *args: computed("convolution_overrideable")(*args)).items():
    kernel(_name)(_kernel)
