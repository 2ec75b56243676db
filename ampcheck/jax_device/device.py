"""Which device, and what it is: the parts of `torch.jax` that ask of nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import torch

from ampcheck.jax_device.annotations import NAME, Device, Kernel, Tree
from ampcheck.jax_device.storage.memory import memory_stats


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


def properties(device: Device = None) -> Properties:
    """Return what JAX says of the device. Errors: as `index_of`."""
    index_of(device)
    found = jax.local_devices()[0]
    total = memory_stats().get("bytes_limit")
    return Properties(found.device_kind, found.platform, found.id, found.process_index, total)


def capability(device: Device = None) -> tuple[int, int]:
    """Return the CUDA compute capability of a GPU. Raises RuntimeError where JAX's device has none."""
    index_of(device)
    found = str(getattr(jax.local_devices()[0], "compute_capability", ""))
    major, _, minor = found.partition(".")
    if not (major.isdigit() and minor.isdigit()):
        raise RuntimeError(f"a {jax.local_devices()[0].platform} device has no compute capability")
    return int(major), int(minor)


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
