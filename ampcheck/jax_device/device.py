"""Which device, what it is and how much memory it holds, its stream and its events.

JAX keeps statistics of GPU and TPU memory and none of the CPU's. There, what is allocated is the bytes of the live
arrays, counted at each call, and what nobody recorded (a peak, a limit) is an error. JAX orders the work on a device by
itself, so there is one stream, and one waits for all.

PyTorch asks C++ hooks for the generator, the stream and the event of a device, which a device made in Python cannot
provide or whose methods raise. So the names of these classes in `torch` are given to classes that make the device's own
objects where those are asked for.
"""

import contextlib
import itertools
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jax
import torch
from torch.library import Library

from ampcheck.jax_device.annotations import NAME, Device, Function, Kernel, Tree
from ampcheck.jax_device.dtypes import TO_JAX
from ampcheck.jax_device.storage.arrays import guarded
from ampcheck.jax_device.torch_private import C, CGenerator


class _OfAnyDevice(type(CGenerator)):  # type: ignore[misc]  # the generator's class has a metaclass
    """Make PyTorch's objects or the device's, by the device asked for; both are instances, and so are subclasses'."""

    _theirs: type
    _ours: Function
    _default: str

    def __call__(cls, *args: Tree, **kwargs: Tree) -> Tree:
        if "_theirs" not in vars(cls):  # a subclass that somebody derived
            return super().__call__(*args, **kwargs)
        asked = args[0] if args else kwargs.get("device", cls._default)
        # An index, and no device at all, mean the accelerator, which a PrivateUse1 device is whatever else there is.
        ours = asked is None or isinstance(asked, int) or torch.device(asked).type == "jax"
        return (cls._ours if ours else cls._theirs)(*args, **kwargs)

    def __instancecheck__(cls, instance: Any) -> bool:
        return isinstance(instance, cls._theirs) if "_theirs" in vars(cls) else super().__instancecheck__(instance)

    def __subclasscheck__(cls, subclass: type) -> bool:
        return issubclass(subclass, cls._theirs) if "_theirs" in vars(cls) else super().__subclasscheck__(subclass)


def replace(theirs: type, ours: Function, default: str | None) -> None:
    """Replace a class of the namespace `torch`, once a process.

    Args:
        theirs: PyTorch's class.
        ours: what makes the device's objects; it takes the same arguments.
        default: the device that is meant where none is given; None is the accelerator.
    """
    name = theirs.__name__
    members = {"__module__": "torch", "_theirs": theirs, "_ours": staticmethod(ours), "_default": default}
    setattr(torch, name, _OfAnyDevice(name, (theirs,), members))


def memory_stats(device: Device = None) -> dict[str, int]:
    """Return JAX's statistics of the device, in bytes and counts, under JAX's names; none on the CPU."""
    return dict(jax.local_devices()[0].memory_stats() or {})


def memory_allocated(device: Device = None) -> int:
    """Return bytes in use: JAX's figure, or the bytes of the live arrays where it has none."""
    stats = memory_stats()
    if "bytes_in_use" in stats:
        return stats["bytes_in_use"]
    return sum(array.nbytes for array in jax.live_arrays() if not array.is_deleted())


def _recorded(name: str) -> int:
    stats = memory_stats()
    if name not in stats:
        raise RuntimeError(f"JAX records no {name} for its {jax.local_devices()[0].platform} devices")
    return stats[name]


def max_memory_allocated(device: Device = None) -> int:
    """Return the most bytes ever in use. Raises RuntimeError where JAX does not record it (CPU)."""
    return _recorded("peak_bytes_in_use")


def memory_reserved(device: Device = None) -> int:
    """Return bytes that JAX holds, in use or not: its pool, or what is allocated where it has none."""
    return memory_stats().get("pool_bytes") or memory_allocated()


def max_memory_reserved(device: Device = None) -> int:
    """Return the most bytes that JAX ever held. Raises RuntimeError where JAX does not record it."""
    return _recorded("peak_pool_bytes")


def mem_get_info(device: Device = None) -> tuple[int, int]:
    """Return bytes free and bytes in all of what JAX may use. Raises RuntimeError where JAX knows no limit (CPU)."""
    limit = _recorded("bytes_limit")
    return limit - memory_allocated(), limit


def empty_cache() -> None:
    """Do nothing: JAX gives no way to return its pool's memory."""


def reset_peak_memory_stats(device: Device = None) -> None:
    """Raise RuntimeError: JAX's figures cannot be reset."""
    raise RuntimeError("JAX's memory statistics cannot be reset")


@guarded
def synchronize(device: Device = None) -> None:
    """Wait until all work given to the device is done; raise what an unfinished computation ended with."""
    jax.effects_barrier()
    jax.block_until_ready([array for array in jax.live_arrays() if not array.is_deleted()])


def _nested(index: int) -> dict[str, dict[str, dict[str, int]]]:
    stats = memory_stats()
    allocated = {"current": memory_allocated(), "peak": stats.get("peak_bytes_in_use")}
    reserved = {"current": memory_reserved(), "peak": stats.get("peak_pool_bytes")}
    figures = {"allocated_bytes": allocated, "reserved_bytes": reserved}
    return {name: {"all": {k: v for k, v in of.items() if v is not None}} for name, of in figures.items()}


def _pin_memory(self: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    if device is not None and device.type != "jax":
        raise RuntimeError(f"cannot pin memory for {device}: the accelerator of this process is the jax device")
    warnings.warn(
        "JAX gives out no pinned memory: pin_memory makes an ordinary copy; leave it out", UserWarning, stacklevel=2
    )
    return self.clone()


def index_of(given: Device) -> int:
    """Return the index of a device, given as one, by name or by index; None is the current one.

    Raises RuntimeError for any but the one device, ValueError for a device of another type.
    """
    if given is None:
        return 0
    if isinstance(given, str):
        given = torch.device(given)
    if isinstance(given, torch.device):
        if given.type != NAME:
            raise ValueError(f"Expected a jax device, but got: {given}")
        given = given.index or 0
    if given not in (0, -1):
        raise RuntimeError(f"invalid device ordinal {given}: there is one jax device, jax:0")
    return 0


class device:  # named as torch.cuda.device is
    """Context manager: the device is the current one inside; there is one. Errors: as `index_of`."""

    def __init__(self, device: Device = None) -> None:
        self.idx = index_of(device)
        self.prev_idx = -1

    def __enter__(self) -> None:
        self.prev_idx = 0

    def __exit__(self, *_: object) -> None:
        pass


class device_of(device):
    """Context manager: the device of a tensor is the current one inside."""

    def __init__(self, obj: torch.Tensor) -> None:
        super().__init__(obj.device if obj.device.type == NAME else None)


@dataclass(frozen=True)
class Properties:
    """What JAX says of the device."""

    name: str
    platform: str
    index: int
    process_index: int
    total_memory: int | None
    """Bytes that JAX may use; None where it knows no limit (CPU)."""


def get_device_properties(device: Device = None) -> Properties:
    """Return what JAX says of the device. Errors: as `index_of`."""
    index_of(device)
    found = jax.local_devices()[0]
    total = memory_stats().get("bytes_limit")
    return Properties(found.device_kind, found.platform, found.id, found.process_index, total)


def get_device_capability(device: Device = None) -> tuple[int, int]:
    """Return the CUDA compute capability of a GPU. Raises RuntimeError where JAX's device has none."""
    index_of(device)
    found = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    major, _, minor = found.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise RuntimeError(f"a {jax.local_devices()[0].platform} device has no compute capability")
    return int(major), int(minor)


def is_available() -> bool:
    """Return whether JAX has a device to compute on."""
    return bool(jax.local_devices())


def is_initialized() -> bool:
    """Return True: JAX starts its backend by itself."""
    return True


def init() -> None:
    """Do nothing: JAX starts its backend by itself."""


def device_count() -> int:
    """Return one: several JAX devices are one PyTorch device, over which tensors are sharded by a mesh."""
    return 1


def current_device() -> int:
    """Return the index of the one device."""
    return 0


def set_device(device: Device) -> None:
    """Raise RuntimeError for any device but the only one."""
    index_of(device)


def get_device_name(device: Device = None) -> str:
    """Return the name of the kind of device, e.g. "cpu", "NVIDIA H200" or "TPU v5e"."""
    return get_device_properties(device).name


def placed(compute: Kernel) -> Kernel:
    """Return the kernel of an overload with a `device` argument, where it names the device itself or another one.

    `torch.zeros_like(x, device="cpu")` comes to the device of x; what it computes there is then moved.
    """

    def kernel(*args: Tree, **kwargs: Tree) -> Tree:
        given = kwargs.get("device")
        if given is None or given.type == NAME:
            if given is not None and given.index:
                index_of(given)
            return compute(*args, **kwargs)
        return compute(*args, **{**kwargs, "device": torch.device(NAME)}).to(given)

    return kernel


_ids = itertools.count(1)


class Stream(torch.Stream):
    """The one stream of the device: `torch.jax.Stream`, and what `torch.Stream("jax")` makes."""

    def __new__(cls, device: Device = None, priority: int = 0, **_: object) -> "Stream":
        index_of(device)
        made: Stream = super().__new__(cls, device="jax:0")
        return made

    def synchronize(self) -> None:
        """Wait until all work is done."""
        synchronize()

    def query(self) -> bool:
        """Return whether all work is done: always, after it was waited for, as JAX cannot tell otherwise."""
        synchronize()
        return True

    def wait_stream(self, stream: torch.Stream | None) -> None:
        """Do nothing: there is one stream."""

    def wait_event(self, event: torch.Event) -> None:
        """Do nothing: there is one stream."""

    def record_event(self, event: torch.Event | None = None) -> torch.Event:
        """Record `event`, or a new one, and return it."""
        made = DeviceEvent() if event is None else event
        made.record(self)
        return made


class DeviceEvent(torch.Event):
    """A moment in the stream: `torch.jax.Event`, and what `torch.Event("jax")` makes.

    Recording it waits for the work before it, because JAX keeps no times of its own.
    """

    def __new__(cls, device: Device = None, enable_timing: bool = False, **_: object) -> "DeviceEvent":
        # torch.jax.Event takes enable_timing first, as torch.cuda.Event does; torch.Event takes a device first.
        if not isinstance(device, bool):
            index_of(device)
        made: DeviceEvent = super().__new__(cls, device="jax", enable_timing=enable_timing or device is True)
        return made

    def __init__(self, device: Device = None, enable_timing: bool = False, **_: object) -> None:
        self._timed = enable_timing or device is True
        self._id = 0
        self._at = 0.0

    @property
    def event_id(self) -> int:  # type: ignore[override]
        """Return a number that no other recording has; 0 before the first one."""
        return self._id

    def record(self, stream: torch.Stream | None = None) -> None:
        """Wait for all work, and remember when it was done."""
        synchronize()
        self._id, self._at = next(_ids), time.perf_counter()

    def synchronize(self) -> None:
        """Do nothing: `record` waited already."""

    def wait(self, stream: torch.Stream | None = None) -> None:
        """Do nothing: `record` waited already."""

    def query(self) -> bool:
        """Return whether the work before it is done: it is, once recorded."""
        return True

    def elapsed_time(self, end_event: Tree) -> float:
        """Return milliseconds from this event to `end_event`. Raise ValueError if one was not recorded or not timed."""
        if not (self._timed and end_event._timed and self._id and end_event._id):
            raise ValueError("elapsed_time wants two recorded events made with enable_timing=True")
        return float(end_event._at - self._at) * 1000.0

    def __repr__(self) -> str:
        return f"torch.jax.Event(enable_timing={self._timed}, event_id={self._id})"


@cache
def current_stream(device: Device = None) -> Stream:
    """Return the only stream. Errors: as `index_of`."""
    return Stream(device)


@contextlib.contextmanager
def stream(given: torch.Stream | None) -> Iterator[None]:
    """Make the stream the current one inside; there is only one."""
    yield


_library = Library("aten", "IMPL")


def install() -> None:
    """Replace `torch.Stream` and `torch.Event`, and what `torch.accelerator` asks, once a process.

    PyTorch's own functions take any index and look for a C++ allocator, which the device has not, and its objects of
    the device raise where they are waited for. PyTorch takes a PrivateUse1 device as the accelerator whatever else is
    there, so these serve no other device.
    """
    replace(torch.Stream, Stream, None)
    replace(torch.Event, DeviceEvent, None)
    for name, function in {
        "_accelerator_getStream": current_stream,
        "_accelerator_setDeviceIndex": index_of,
        "_accelerator_exchangeDevice": index_of,
        "_accelerator_isAllocatorInitialized": lambda: True,
        "_accelerator_emptyCache": empty_cache,
        "_accelerator_emptyHostCache": lambda: None,
        "_accelerator_getDeviceStats": _nested,
        "_accelerator_getMemoryInfo": mem_get_info,
        "_accelerator_resetAccumulatedStats": reset_peak_memory_stats,
        "_accelerator_resetPeakStats": reset_peak_memory_stats,
        "_accelerator_synchronizeDevice": synchronize,
        "_accelerator_getDeviceCapability": lambda index: {"supported_dtypes": set(TO_JAX)},
    }.items():
        if hasattr(C, name):
            setattr(C, name, function)
    for most in (max_memory_allocated, max_memory_reserved):  # PyTorch's say 0 for what nobody recorded
        for module in (torch.accelerator, torch.accelerator.memory):
            setattr(module, most.__name__, most)
    _library.impl("_pin_memory", _pin_memory, "CPU")  # PyTorch's own wants an allocator of pinned memory
