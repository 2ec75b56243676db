"""Every way by which PyTorch makes, copies or looks into a storage of the device without a tensor.

The device has no allocator: PyTorch's own kernels, asked for a storage on it, would follow a null pointer. So the
methods of `torch.UntypedStorage` are replaced by ones that look for the array that hangs on a storage of the device,
and leave storages of other devices to PyTorch. For a way that nobody
thought of, PyTorch is given the allocator of its Meta device, so that it ends in a storage without memory, which the
kernels refuse, and not in a crash.
"""

import ctypes
import functools
import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import NAME, Device, DeviceStorage, Function, Tree
from ampcheck.jax_device.storage import arrays, transfer
from ampcheck.jax_device.storage.arrays import Bytes, guarded, storage_of, wrap
from ampcheck.jax_device.torch_private import StorageBase

Storage = torch.UntypedStorage
_SET, _GET = "_ZN3c1012SetAllocatorENS_10DeviceTypeEPNS_9AllocatorEh", "_ZN3c1012GetAllocatorERKNS_10DeviceTypeE"
_META, _PRIVATEUSE1 = 14, 20  # c10::DeviceType


def libc10() -> ctypes.CDLL | None:
    """Return PyTorch's core library, whose functions can be called by their names; None where it is not found."""
    for name in ("libc10.so", "libc10.dylib"):
        path = Path(torch.__file__).parent / "lib" / name
        if path.exists():
            return ctypes.CDLL(str(path))
    return None


def use_meta_allocator() -> bool:
    """Give PyTorch the Meta device's allocator for the device; whether this PyTorch exports what that takes."""
    library = libc10()
    if library is None or not (hasattr(library, _SET) and hasattr(library, _GET)):
        return False
    get, put = getattr(library, _GET), getattr(library, _SET)
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.POINTER(ctypes.c_int8)]
    put.restype, put.argtypes = None, [ctypes.c_int8, ctypes.c_void_p, ctypes.c_uint8]
    found = get(ctypes.byref(ctypes.c_int8(_META)))
    if not found:
        return False
    put(_PRIVATEUSE1, found, 0)
    return True


def new_storage(found: jax.Array | Bytes) -> DeviceStorage:
    """Return a storage of the device that holds these values; arrays never change, so it may share them."""
    tensor = wrap(found.array if isinstance(found, Bytes) else found)
    made = storage_of(tensor)
    made.array = found
    return made


def content(of: DeviceStorage) -> jax.Array:
    """Return a device storage's values as flat bytes."""
    found = of.array
    return found.array if isinstance(found, Bytes) else arrays.to_bytes(found)


def replace(of: DeviceStorage, values: jax.Array) -> None:
    """Make flat bytes the values of a device storage, kept in the dtype it has where they are whole elements of it."""
    found = of.array
    if isinstance(found, Bytes) or values.size % found.dtype.itemsize:
        of.array = Bytes(values)
        return
    flat = arrays.from_bytes(values, found.dtype)
    # The shape is kept, as a tensor that has it reads its array without work.
    of.array = flat.reshape(found.shape) if flat.size == found.size else flat


def host(of: DeviceStorage) -> torch.UntypedStorage:
    """Return a CPU storage with the bytes of a device storage."""
    return transfer.from_numpy(np.asarray(content(of))).untyped_storage()


def device_copy(of: Tree) -> DeviceStorage:
    """Return a device storage with the bytes of a storage of another device."""
    tensor = torch.empty(0, dtype=torch.uint8, device="cpu").set_(of.cpu())
    return new_storage(jax.device_put(transfer.to_numpy(tensor)))


def _nbytes(self: DeviceStorage) -> int:
    found = self.array
    return int(found.array.size if isinstance(found, Bytes) else found.size * found.dtype.itemsize)


def _data_ptr(self: DeviceStorage) -> int:
    """Return one number for each storage, as addresses are compared for; JAX moves the values at each write."""
    return int(self._cdata) if _nbytes(self) else 0


def _getitem(self: DeviceStorage, index: int) -> int:
    if isinstance(index, slice):
        raise NotImplementedError("a part of a jax storage shares no memory with it; take a view of a tensor")
    place, length = operator.index(index), _nbytes(self)
    if not -length <= place < length:
        raise IndexError(f"index {place} out of range for storage of size {length}")
    return int(content(self)[place])


def _fill(self: DeviceStorage, value: int) -> Tree:
    replace(self, jnp.full((_nbytes(self),), np.uint8(value)))
    return self


def _copy(self: Tree, source: Tree, non_blocking: bool | None = None) -> Tree:
    if self.nbytes() != source.nbytes():
        raise RuntimeError(f"size does not match, self was {self.nbytes()} bytes but src was {source.nbytes()} bytes")
    if not _ours(self):
        return _originals["copy_"](self, host(source))
    replace(self, content(source if _ours(source) else device_copy(source)))
    return self


def _resize(self: DeviceStorage, size: int) -> Tree:
    old = content(self)
    size = operator.index(size)
    if size < 0:
        raise RuntimeError(f"a storage cannot have {size} bytes")
    replace(self, old[:size] if size <= old.size else jnp.zeros(size, jnp.uint8).at[: old.size].set(old))
    return self


def _to(self: DeviceStorage, *, device: torch.device | str | int, non_blocking: bool = False) -> Tree:
    if torch.device(device).type == NAME:
        return self if _ours(self) else device_copy(self)
    made = host(self)
    return made if torch.device(device).type == "cpu" else made.to(device=device)


def _moved(self: Tree, device: Device = None, non_blocking: bool = False) -> Tree:
    """Return the storage on the device: `storage.jax()`."""
    return self.to(device=NAME if device is None else device, non_blocking=non_blocking)


def _refuse_sharing(self: object, *_: object, **__: object) -> Tree:
    raise RuntimeError("a jax storage cannot be shared between processes; send tensor.cpu() instead")


def _swap(self: DeviceStorage, other: DeviceStorage) -> None:
    if not _ours(other):
        raise RuntimeError(f"cannot swap the data of a jax storage with that of a storage on {other.device}")
    self.array, other.array = other.array, self.array


def _byteswap(self: DeviceStorage, size: torch.dtype | int) -> None:
    width = size.itemsize if isinstance(size, torch.dtype) else size
    if width > 1:
        replace(self, content(self).reshape(-1, width)[:, ::-1].reshape(-1))


def _read_file(self: DeviceStorage, *args: Any) -> Tree:
    staging = Storage(_nbytes(self))
    staging._set_from_file(*args)
    return _copy(self, staging)


def _no_address(self: DeviceStorage, *_: object) -> Tree:
    raise RuntimeError("a jax storage has no address that could be set: JAX owns its memory")


_METHODS: dict[str, Function] = {
    "nbytes": _nbytes,
    "__len__": _nbytes,
    "data_ptr": _data_ptr,
    "__getitem__": _getitem,
    "__setitem__": lambda self, index, value: replace(self, content(self).at[index].set(np.uint8(value))),
    "fill_": _fill,
    "copy_": _copy,
    "new": lambda self: new_storage(jnp.zeros(0, jnp.uint8)),
    "resize_": _resize,
    "clone": lambda self: new_storage(self.array),
    "tolist": lambda self: np.asarray(content(self)).tolist(),
    "cpu": host,
    "to": _to,
    "is_shared": lambda self: False,
    "share_memory_": _refuse_sharing,
    "_share_fd_cpu_": _refuse_sharing,
    "_share_filename_cpu_": _refuse_sharing,
    "_write_file": lambda self, *args: host(self)._write_file(*args),
    "_set_from_file": _read_file,
    "_swap_data_ptr_": _swap,
    "_byteswap": _byteswap,
    "byteswap": _byteswap,
    "_resize_with_addr_": _no_address,
}
_CROSSING: dict[str, Callable[..., bool]] = {
    "copy_": lambda source, *_, **__: _ours(source),
    "to": lambda *, device, **_: torch.device(device).type == NAME,
}
"""Methods of other storages that are diverted too, by their arguments."""
_originals: dict[str, Function] = {}


def _ours(of: DeviceStorage) -> bool:
    return "array" in of.__dict__


def _diverted(name: str, ours: Function) -> Function:
    """Return a method that is ours for storages of the device, and where one of the other argument is meant."""
    original, crosses = getattr(Storage, name), _CROSSING.get(name)
    _originals[name] = original

    @functools.wraps(original)
    def method(self: DeviceStorage, *args: Tree, **kwargs: Tree) -> Tree:
        mine = "array" in self.__dict__ or (crosses is not None and crosses(*args, **kwargs))
        return (ours if mine else original)(self, *args, **kwargs)

    return method


def _new(cls: type[torch.UntypedStorage], *args: Tree, **kwargs: Tree) -> Tree:
    """Make `torch.UntypedStorage(...)`: zeros of a size, or bytes, where the device is this one."""
    device = kwargs.get("device")
    if device is None or torch.device(device).type != NAME:
        return StorageBase.__new__(cls, *args, **kwargs)
    if len(args) > 1 or set(kwargs) != {"device"}:
        raise TypeError("torch.UntypedStorage() on the jax device takes a size in bytes, or a sequence of bytes")
    given = args[0] if args else 0
    made = guarded(jnp.zeros if isinstance(given, int) else jnp.asarray)
    return new_storage(made(given, jnp.uint8))


def _new_shared(cls: type[torch.UntypedStorage], size: int, *, device: torch.device | str | int = "cpu") -> Tree:
    if torch.device(device).type == NAME:
        _refuse_sharing(cls)
    return _originals["_new_shared"](size, device=device)


def install() -> bool:
    """Replace the methods, once a process; return whether the fallback allocator is in place."""
    for name, ours in _METHODS.items():
        if hasattr(Storage, name):  # torch 2.12 brought _swap_data_ptr_, 2.13 _resize_with_addr_
            setattr(Storage, name, _diverted(name, guarded(ours)))
    _originals["_new_shared"] = Storage._new_shared
    for name, method in {"_new_shared": classmethod(_new_shared), "__new__": staticmethod(_new)}.items():
        setattr(Storage, name, method)
    for kind in (Storage, torch.TypedStorage):  # torch.Tensor has it from PyTorch
        setattr(kind, "is_jax", property(lambda self: self.device.type == NAME))  # noqa: B010
        setattr(kind, "jax", _moved)  # noqa: B010
    address = torch.Tensor.data_ptr

    @functools.wraps(address)
    def data_ptr(self: torch.Tensor) -> int:
        if self.is_cpu or self.device.type != NAME or not self.numel() or not _ours(base := storage_of(self)):
            return address(self)
        return int(base._cdata + self.storage_offset() * self.element_size())

    torch.Tensor.data_ptr = data_ptr  # type: ignore[assignment, method-assign]
    return use_meta_allocator()
