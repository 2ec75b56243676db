"""Mutate autocast kernels: a policy dropped or exchanged, and each relation of a result to the promised one broken."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import get_kernel

from ampcheck.devices.base import Device
from ampcheck.observe.dispatcher import replaceable, replaced
from ampcheck.observe.recorder import map_tensors, overload
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard
from ampcheck.spec.policies import closest, table
from ampcheck.spec.torch_private import registered


def _spread_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values with twice the strides; one of a single element stays."""
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return tensor
    # No op that has a policy, `torch.stack` for one: it may be the one that is changed.
    return tensor.unsqueeze(-1).expand(*tensor.shape, 2).contiguous().select(-1, 0)


def _of_numbers(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda t: change(t) if t.is_floating_point() or t.is_complex() else t


QUARTER = "values off by a quarter"
RESULTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    QUARTER: _of_numbers(lambda t: t * 1.25),
    "a dimension too many": lambda t: t.unsqueeze(0),
    "wrong strides": _spread_out,
    "wrong dtype": _of_numbers(lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64)),
}
"""By change, what becomes of each tensor that a kernel returns; the tensor itself where the change leaves it alone."""
DROPPED, CHANGED, WITHOUT = "policy dropped", "another policy", "argument dropped: "


@dataclass(frozen=True, slots=True)
class KernelMutant:
    """A change of the autocast kernel of an overload, under the key of a device. `policy`: the one that it has."""

    device: str
    type: str
    key: str
    overload: str
    policy: str
    change: str


def generate(devices: Sequence[Device]) -> Iterator[KernelMutant]:
    """Yield every mutant of the policies of some devices; results are changed on those that have values."""
    for device in devices:
        if replaceable(device.key):
            kernels = registered(device.key)
            for name, policy in table(device.key, closest(torch.__version__)).items():
                if name in kernels:
                    optional = [WITHOUT + a.name for a in overload(name)._schema.arguments if a.has_default_value()]
                    changes = [DROPPED, CHANGED, *([*RESULTS, *optional] if policy != "banned" else ())]
                    for change in changes if device.has_values else [each for each in changes if each != QUARTER]:
                        yield KernelMutant(device.name, device.type, device.key, name, policy, change)


@contextmanager
def injected(mutant: KernelMutant) -> Iterator[list[bool]]:
    """Replace the kernel. Yields a list that says of each of its tensors, as they come, whether it was changed."""
    felt: list[bool] = []
    with replaced([(mutant.key, mutant.overload, _wrong(mutant, felt))]):
        yield felt


def _wrong(mutant: KernelMutant, felt: list[bool]) -> Callable[..., Any]:
    key = DispatchKeySet(getattr(DispatchKey, mutant.key))
    kernel, op = get_kernel(f"aten::{mutant.overload}", mutant.key), overload(mutant.overload)

    def other(tensor: torch.Tensor) -> torch.Tensor:
        if not tensor.is_floating_point() or tensor.dtype == torch.float64 or tensor.device.type != mutant.type:
            return tensor
        low = mutant.policy not in ("downcast", "banned")
        return tensor.to(torch.get_autocast_dtype(mutant.type) if low else torch.float32)

    def run(keyset: DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if mutant.change in RESULTS:
            change = RESULTS[mutant.change]

            def changed(tensor: torch.Tensor) -> torch.Tensor:
                made = change(tensor)
                felt.append(made is not tensor)
                return made

            return map_tensors(kernel.call_boxed(keyset, *args, **kwargs), changed)
        if mutant.change.startswith(WITHOUT):
            given = dict(zip((argument.name for argument in op._schema.arguments), args, strict=False)) | kwargs
            dropped = next(a for a in op._schema.arguments if WITHOUT + a.name == mutant.change)
            value, default = given.get(dropped.name, dropped.default_value), dropped.default_value
            felt.append(isinstance(value, torch.Tensor) or value != default)
            return kernel.call_boxed(keyset, **given | {dropped.name: dropped.default_value})
        felt.append(True)
        with ExcludeDispatchKeyGuard(key):
            if mutant.change == DROPPED:
                return op(*args, **kwargs)
            return op(*map_tensors(args, other), **map_tensors(kwargs, other))

    return run
