"""Tensors over several JAX devices: a mesh, where parameters lie on it, and batches split over it.

For PyTorch there is one device, `jax:0`; how an array is spread is JAX's `NamedSharding`, and XLA puts the
communication into the program. `jit`, eager ops and `torch.compile` take such tensors as they are.
"""

import math
import re
from collections.abc import Mapping, Sequence

import jax
import numpy as np
import torch
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import mesh_sharding, meshes, over, wrap

Axes = Sequence["str | tuple[str, ...] | None"]
"""For each dimension of a tensor, the mesh axis (or axes) it is split over; None, or nothing, where it is not."""


def make_mesh(axes: Mapping[str, int], devices: Sequence[jax.Device] | None = None) -> Mesh:
    """Make a mesh of JAX devices, e.g. `make_mesh({"data": 4, "model": 2})`, of this process's unless others are given.

    Raises ValueError where the axes want more devices than there are.
    """
    found = list(jax.local_devices() if devices is None else devices)
    wanted = math.prod(axes.values())
    if wanted > len(found):
        raise ValueError(f"a mesh of {dict(axes)} needs {wanted} devices; there are {len(found)}")
    return Mesh(np.array(found[:wanted]).reshape(tuple(axes.values())), tuple(axes))


def place(tensor: torch.Tensor, mesh: Mesh, axes: Axes = ()) -> torch.Tensor:
    """Make a new tensor of the values of a CPU or jax tensor, spread over the mesh; without axes, whole on each device.

    Raises ValueError for an axis that the mesh lacks, or a dimension that cannot be split evenly.
    """
    axes = tuple(axes)
    if len(axes) > tensor.dim():
        raise ValueError(f"{len(axes)} axes {axes} were given for a tensor of shape {list(tensor.shape)}")
    for dim, axis in enumerate(axes):
        names = axis if isinstance(axis, tuple) else () if axis is None else (axis,)
        unknown = [name for name in names if name not in mesh.shape]
        if unknown:
            raise ValueError(f"the mesh {dict(mesh.shape)} has no axis {unknown[0]!r}")
        parts = math.prod(mesh.shape[name] for name in names)
        if tensor.shape[dim] % parts:
            raise ValueError(
                f"dimension {dim} of a tensor of shape {list(tensor.shape)} cannot be split over {parts} devices "
                f"({axis})"
            )
    source = transfer.values(tensor.detach()) if tensor.device.type == "jax" else transfer.to_numpy(tensor)
    meshes.add(mesh)
    return wrap(over(source, NamedSharding(mesh, PartitionSpec(*axes))))


def shard(
    module: torch.nn.Module, mesh: Mesh, rules: Sequence[tuple[str, Axes]] = ()
) -> dict[str, tuple[str | tuple[str, ...] | None, ...]]:
    """Spread a module's parameters and buffers over the mesh in place; returns the axes each got, by name.

    A rule is a regular expression and axes; the first whose expression is found in the name (`re.search`) decides, and
    without one the tensor is whole on every device. Call it before the optimizer has state. Raises ValueError as
    `place` does, and for a rule that no name fits.
    """
    chosen: dict[str, tuple[str | tuple[str, ...] | None, ...]] = {}
    used: set[int] = set()
    named = [*module.named_parameters(), *module.named_buffers()]
    placed: list[tuple[torch.Tensor, torch.Tensor]] = []
    for name, tensor in named:
        index = next((i for i, (expression, _) in enumerate(rules) if re.search(expression, name)), None)
        axes: Axes = () if index is None else rules[index][1]
        used |= set() if index is None else {index}
        chosen[name] = tuple(axes)
        placed.append((tensor, place(tensor, mesh, axes)))
    for i, (expression, _) in enumerate(rules):
        if i not in used:
            raise ValueError(f"the rule {expression!r} decides for none of {[name for name, _ in named]}")
    for tensor, spread in placed:  # only now, when every rule was found to fit: an error leaves the module as it was
        tensor.data = spread
    return chosen


def shard_batch(tensor: torch.Tensor, mesh: Mesh, axis: str | tuple[str, ...] = "data", dim: int = 0) -> torch.Tensor:
    """Return a new tensor whose dimension `dim` is split over a mesh axis. Raises ValueError as `place` does."""
    return place(tensor, mesh, (None,) * (dim % tensor.dim()) + (axis,))


def axes_of(tensor: torch.Tensor) -> tuple[str | tuple[str, ...] | None, ...] | None:
    """Return how a device tensor's array is spread: its `PartitionSpec` as a tuple; None on one device."""
    sharding = mesh_sharding(transfer.values(tensor.detach()))
    return None if sharding is None else tuple(sharding.spec)


__all__ = ["Axes", "Mesh", "axes_of", "make_mesh", "place", "shard", "shard_batch"]
