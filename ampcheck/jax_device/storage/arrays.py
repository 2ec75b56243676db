"""Where a tensor's values live: a `jax.Array` hung on its storage, and how a strided tensor is read and written on it.

A tensor of the device is an ordinary `torch.Tensor`: (storage, sizes, strides, offset). The storage's Python object
lives as long as the storage, so what hangs on it follows every alias, saved tensor and detach. Two forms:

- a `jax.Array` of any shape whose row-major flattening is the storage, elements of the tensors' dtype: the usual form,
  in which a contiguous whole tensor reads its array without any work;
- `Bytes`, once one storage has been seen under two dtypes: flat uint8.

Reading and writing are pure functions of arrays, traced by JAX.

Out of memory is JAX's error, at a call or where a value is first read; here it becomes `torch.OutOfMemoryError`.
"""

import functools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.sharding import NamedSharding, Sharding
from torch import Tensor

from ampcheck.jax_device.annotations import NAME, DeviceStorage, Tree
from ampcheck.jax_device.dtypes import jax_dtype, torch_dtype
from ampcheck.jax_device.lowering import F
from ampcheck.jax_device.torch_private import as_strided, create_empty_tensor
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet


class Layout(NamedTuple):
    """Where a tensor's elements lie in its storage, in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: Tensor) -> "Layout":
        return cls(tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


@dataclass(frozen=True)
class Columns:
    """A matrix, or a batch of them, that is stored by columns: `rows` is its transpose, which is stored by rows."""

    rows: jax.Array

    @property
    def dtype(self) -> np.dtype:
        return self.rows.dtype

    @property
    def ndim(self) -> int:
        return self.rows.ndim

    def settled(self) -> jax.Array:
        return jnp.swapaxes(self.rows, -1, -2)


def contiguous(size: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides of a row-major tensor of that size."""
    out, step = [], 1
    for length in reversed(size):
        out.append(step)
        step *= max(length, 1)
    return tuple(reversed(out))


def _by_stride(layout: Layout) -> list[int]:
    """Return the dimensions from slowest to fastest. One of one element has any stride: it is last among equals."""
    return sorted(range(len(layout.size)), key=lambda d: (-layout.stride[d], layout.size[d] == 1, d))


def order(layout: Layout, elements: int) -> tuple[int, ...] | None:
    """Return the dimensions from slowest to fastest if the tensor is its whole storage, permuted; else None."""
    if layout.offset or math.prod(layout.size) != elements:
        return None
    dims = _by_stride(layout)
    step = 1
    for d in reversed(dims):
        if layout.size[d] != 1 and layout.stride[d] != step:
            return None
        step *= layout.size[d]
    return tuple(dims)


def _starts(offset: int | jax.Array, shape: tuple[int, ...], sizes: tuple[int, ...]) -> list[Any]:
    """Return where a block of those sizes begins in each dimension of an array of a shape."""
    out = []
    for step, size, length in zip(contiguous(shape), sizes, shape, strict=True):
        out.append(0 if size == length and isinstance(offset, jax.Array) else offset // step)
        offset = offset % step
    return out


def _sizes(layout: Layout, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the sizes of the block that the tensor is of an array of that shape."""
    kept = [layout.size[d] for d in _by_stride(layout) if layout.size[d] != 1]
    return (math.prod(kept),) if len(shape) == 1 else (*kept, 1)[: len(shape)]


def _shape(layout: Layout, elements: int) -> tuple[int, ...] | None:
    """Return the shape of the storage of which the tensor is a block, with dimensions in any order, else None."""
    shape, rest = [], elements
    for step in (layout.stride[d] for d in _by_stride(layout) if layout.size[d] != 1):
        if not step or rest % step:
            return None
        shape.append(rest // step)
        rest = step
    found = tuple(shape) if shape and rest == 1 else (*shape, rest)
    sizes = _sizes(layout, found)
    ends = [a + n for a, n in zip(_starts(layout.offset, found, sizes), sizes, strict=True)]
    return found if all(end <= length for end, length in zip(ends, found, strict=True)) else None


def _indices(layout: Layout) -> jax.Array:
    """Return each element's place in the flat storage, from where the tensor begins."""
    out = jnp.asarray(0, np.int64)
    for d, (length, step) in enumerate(zip(layout.size, layout.stride, strict=True)):
        places = jnp.arange(length, dtype=np.int64) * step
        out = out + places.reshape([-1 if i == d else 1 for i in range(len(layout.size))])
    return out


def expanded(layout: Layout) -> Layout:
    """Return the layout without what is repeated: a dimension of stride 0 has one element."""
    size = tuple(1 if n and not step else n for n, step in zip(layout.size, layout.stride, strict=True))
    return layout._replace(size=size)


def read(array: jax.Array, layout: Layout) -> jax.Array:
    """Return the tensor's values, in its own shape, from the array of its storage."""
    if 0 in layout.size:
        return jnp.zeros(layout.size, array.dtype)
    return piece(array, layout.offset, Place.of(layout, array.shape, moves=False))


def by_columns(layout: Layout) -> Layout | None:
    """Return the layout of the matrices' transposes where the matrices lie in their storage by columns, else None."""
    if len(layout.size) < 2 or layout.stride[-2] != 1 or layout.stride[-1] < max(layout.size[-2], 2):
        return None
    *size, rows, columns = layout.size
    *stride, _, step = layout.stride
    return Layout((*size, columns, rows), (*stride, step, 1), layout.offset)


def settled(values: jax.Array, conj: bool, neg: bool) -> jax.Array:
    values = jnp.negative(values) if neg else values
    return jnp.conj(values) if conj else values


def write(array: jax.Array, layout: Layout, values: jax.Array) -> jax.Array:
    """Return the storage's array, in its shape, with the tensor's elements replaced by `values` of its shape."""
    if 0 in layout.size:
        return array
    return with_piece(array, layout.offset, Place.of(layout, array.shape, moves=False), values)


def physical(values: jax.Array, stride: tuple[int, ...]) -> jax.Array:
    """Return `values` with its dimensions in the order in which a dense tensor of these strides stores them."""
    if not values.size:
        return values
    dims = order(Layout(values.shape, stride, 0), values.size)
    assert dims is not None, f"strides {stride} leave holes in a tensor of {values.shape}"
    return values.transpose(dims)


create: Callable[[Sequence[int], torch.dtype], Tensor] = (
    create_empty_tensor  # (sizes, dtype) -> a tensor of the PrivateUse1 device, storage empty
)
storage_of: Callable[[Tensor], DeviceStorage] = Tensor.untyped_storage  # type: ignore[assignment]
META = DispatchKeySet(DispatchKey.Meta)


class Bytes:
    """A storage's values as bytes. Its shape equals no tensor's, so that no fast path takes it for an array."""

    __slots__ = ("array",)
    shape = None

    def __init__(self, array: jax.Array) -> None:
        self.array = array


def wrap(array: jax.Array) -> Tensor:
    """Return a contiguous tensor of the array's shape on a new storage that holds it."""
    shape = array.shape
    tensor: Tensor = create(shape, torch_dtype(array.dtype))
    storage_of(tensor).array = array
    if 0 in shape and len(shape) > 1:  # `create` counts a dimension of no elements as 0 in the strides, PyTorch as 1
        return alias(tensor, shape, [math.prod(max(n, 1) for n in shape[d + 1 :]) for d in range(len(shape))], 0)
    return tensor


def alias(tensor: Tensor, size: Sequence[int], stride: Sequence[int], offset: int) -> Tensor:
    """Return a tensor on the same storage with other sizes, strides and offset, all in elements."""
    out: Tensor = as_strided(META, tensor, size, stride, offset)
    return out


def is_slice(tensor: Tensor) -> bool:
    """Return whether a plain tensor of the device is part of a larger array of its dtype, and not expanded."""
    if tensor.device.type != NAME or tensor.requires_grad or type(tensor) is not Tensor:
        return False
    if not tensor.is_contiguous() and 0 in (*tensor.shape, *tensor.stride()):
        return False
    array = storage_of(tensor).array
    whole = isinstance(array, Bytes) or array.size == tensor.numel() or tensor.is_conj() or tensor.is_neg()
    return not whole and torch_dtype(array.dtype) is tensor.dtype and mesh_sharding(array) is None


def copy_of_slice(tensor: Tensor) -> Tensor:
    """Return a dense copy with its order of strides, by a program that takes the offset as a number."""
    array, (size, stride, offset) = storage_of(tensor).array, Layout.of(tensor)
    dims = sorted(range(len(size)), key=stride.__getitem__, reverse=True)
    rows = Layout(tuple(size[d] for d in dims), tuple(stride[d] for d in dims), offset)
    made = wrap(piece_of(array, int(offset), Place.of(rows, array.shape)))
    return made.permute([dims.index(d) for d in range(len(size))]) if dims != sorted(dims) else made


class Place(NamedTuple):
    """Where a tensor lies that may begin anywhere in the array of its storage.

    `shape`: that of the storage in which the tensor is a block, but for what is repeated; None where there is none.
    """

    layout: Layout
    shape: tuple[int, ...] | None = None

    @classmethod
    @lru_cache(4096)  # eager ops ask it at each call
    def of(cls, layout: Layout, shape: tuple[int, ...], *, moves: bool = True) -> "Place":
        """Return the place, without the offset, of a tensor in an array of this shape. `moves`: it begins anywhere."""
        elements, block = math.prod(shape), _shape(expanded(layout), math.prod(shape))
        flat = (elements,) if layout.stride == contiguous(layout.size) else None
        return cls(layout._replace(offset=0), flat or block if moves else block or flat)


def piece(array: jax.Array, offset: int | jax.Array, place: Place) -> jax.Array:
    """Return the values of a tensor that begins anywhere in the array of its storage, in its own shape."""
    narrow, shape = expanded(place.layout), place.shape
    if shape is None:
        return jnp.broadcast_to(array.reshape(-1)[_indices(narrow) + offset], place.layout.size)
    sizes, dims = _sizes(narrow, shape), _by_stride(narrow)
    block, starts = array.reshape(shape), _starts(offset, shape, sizes)
    if isinstance(offset, jax.Array):
        block = jax.lax.dynamic_slice(block, starts, sizes)
    elif sizes != shape:
        block = jax.lax.slice(block, starts, [a + n for a, n in zip(starts, sizes, strict=True)])
    block = block.reshape([narrow.size[d] for d in dims]).transpose([dims.index(d) for d in range(len(dims))])
    return jnp.broadcast_to(block, place.layout.size)


def with_piece(array: jax.Array, offset: int | jax.Array, place: Place, values: jax.Array) -> jax.Array:
    """Return the storage's array with the elements of such a tensor, none of which is repeated, replaced."""
    layout, shape = place
    if shape is None:
        return array.reshape(-1).at[_indices(layout) + offset].set(values).reshape(array.shape)
    sizes = _sizes(layout, shape)
    block = values.transpose(_by_stride(layout)).reshape(sizes)
    if sizes != shape:
        block = jax.lax.dynamic_update_slice(array.reshape(shape), block, _starts(offset, shape, sizes))
    return block.reshape(array.shape)


piece_of = jax.jit(piece, static_argnums=2)


def begins_anywhere(array: object, tensor: Tensor) -> bool:
    """Return whether a program takes the offset as a number: the tensor does not begin where its storage does.

    In a trace the offset is part of the program, which is used once.
    """
    return tensor.storage_offset() != 0 and tensor.numel() > 0 and not isinstance(array, jax.core.Tracer)


def held(tensor: Tensor) -> jax.Array | Bytes:
    """Return what hangs on the tensor's storage. Raises RuntimeError for a tensor that has none."""
    try:
        found: jax.Array | Bytes = storage_of(tensor).array
    except AttributeError:
        raise RuntimeError(
            f"this {tensor.device} tensor has no values: its storage was not allocated by the jax device"
        ) from None
    return found


def contents(tensor: Tensor) -> jax.Array:
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


def raw(found: Any) -> Any:
    """Return the array of what hangs on a storage."""
    return found.array if isinstance(found, Bytes) else found


def mesh_sharding(found: jax.Array | Bytes) -> NamedSharding | None:
    """Return how what hangs on a storage is spread over a mesh; None on one device."""
    sharding = raw(found).sharding
    return sharding if isinstance(sharding, NamedSharding) else None


meshes: set[object] = set()
"""The meshes that tensors were placed on; while there is none, no write asks for a sharding."""


def spread(before: jax.Array | Bytes, array: jax.Array) -> jax.Array:
    """Return a storage's new array, spread over devices as the one before it, where that has its shape."""
    if isinstance(before, (Bytes, jax.core.Tracer)) or isinstance(array, jax.core.Tracer):
        return array
    kept = mesh_sharding(before) is not None and before.shape == array.shape
    return over(array, before.sharding) if kept and array.sharding != before.sharding else array


def over(array: jax.Array | np.ndarray, sharding: Sharding) -> jax.Array:
    """Return the values spread over a mesh, in memory of their own: JAX would leave one part in the array's."""
    source = jax.device_put(array, may_alias=False) if isinstance(array, jax.Array) else array
    spread: jax.Array = jax.device_put(source, sharding)
    return spread


def store(tensor: Tensor, array: jax.Array) -> None:
    """Make `array` the storage's values: as many elements of the tensor's dtype as the storage has."""
    storage = storage_of(tensor)
    if meshes and hasattr(storage, "array"):
        array = spread(storage.array, array)
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


_ASKED = re.compile(r"(?:alloc\w*|reserve|used) ([\d.]+) ?([KMGTP]?)(?:i?B|bytes)?\b", re.IGNORECASE)
_SHORT = re.compile(r"RESOURCE_EXHAUSTED.*alloc|out of memory|can't allocate memory|unable to allocate", re.IGNORECASE)
_MIB = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}


def refuse(error: BaseException) -> None:
    """Raise torch.OutOfMemoryError, with how much was asked for, if an error says that memory ran out."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or not _SHORT.search(text):
        return
    found = _ASKED.search(text)
    where, asked = f"{NAME}:0" if isinstance(error, jax.errors.JaxRuntimeError) else "the host", "a buffer"
    if found is not None:
        amount = float(found[1]) * _MIB[found[2].upper()]
        asked = f"{amount / 1024:.2f} GiB" if amount >= 1024 else f"{amount:.2f} MiB"
    # Libraries that try again with a smaller batch look for " out of memory.".
    raise torch.OutOfMemoryError(f"Tried to allocate {asked}, but {where} is out of memory.") from None


def guarded(function: F) -> F:
    """Return the function with JAX's errors of memory, and NumPy's, as `torch.OutOfMemoryError`."""

    @functools.wraps(function)
    def run(*args: Tree, **kwargs: Tree) -> Tree:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            refuse(error)
            raise

    return cast(F, run)
