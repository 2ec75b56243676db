"""How much memory the device holds, as far as JAX says; and what `torch.accelerator` asks of it.

JAX keeps statistics of GPU and TPU memory and none of the CPU's. There, what is allocated is the bytes of the live
arrays, counted at each call, and what nobody recorded (a peak, a limit) is an error.
"""

from __future__ import annotations

import warnings

import jax
import torch
from torch.library import Library

from ampcheck.jax_device.annotations import Device
from ampcheck.jax_device.dtypes import TO_JAX
from ampcheck.jax_device.torch_private import C

_library = Library("aten", "IMPL")


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


def synchronize(device: Device = None) -> None:
    """Wait until all work given to the device is done; raise what an unfinished computation ended with."""
    jax.effects_barrier()
    for array in jax.live_arrays():
        if not array.is_deleted():
            array.block_until_ready()


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


def install() -> None:
    """Let `torch.accelerator` ask this module. PyTorch would look for a C++ allocator, which the device has not.

    PyTorch takes a PrivateUse1 device as the accelerator whatever else there is, so these serve no other device.
    """
    for name, function in {
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
    for function in (max_memory_allocated, max_memory_reserved):  # PyTorch's say 0 for what nobody recorded
        for module in (torch.accelerator, torch.accelerator.memory):
            setattr(module, function.__name__, function)
    _library.impl("_pin_memory", _pin_memory, "CPU")  # PyTorch's own wants an allocator of pinned memory
