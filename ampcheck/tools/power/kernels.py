"""Mutate autocast kernels: a policy dropped or exchanged, and each relation of a result to the promised one broken."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import Library, get_kernel

from ampcheck.devices.base import Device
from ampcheck.observe.kernel_override import replaceable
from ampcheck.observe.recorder import map_tensors, overload
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard
from ampcheck.spec.policies import closest, table
from ampcheck.spec.torch_private import registered


def _spread_out(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values with twice the stride."""
    return torch.stack([tensor, tensor], -1)[..., 0] if tensor.dim() else tensor


QUARTER = "values off by a quarter"
RESULTS: Mapping[str, Callable[[torch.Tensor], torch.Tensor]] = {
    QUARTER: lambda t: t * 1.25,
    "a dimension too many": lambda t: t.unsqueeze(0),
    "wrong strides": _spread_out,
    "wrong dtype": lambda t: t.to(torch.complex128 if t.is_complex() else torch.float64),
}
"""What becomes of a kernel's floating and complex results."""
DROPPED, CHANGED = "policy dropped", "another policy"


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
                    changes = [DROPPED, CHANGED, *(RESULTS if policy != "banned" else ())]
                    for change in changes if device.has_values else [each for each in changes if each != QUARTER]:
                        yield KernelMutant(device.name, device.type, device.key, name, policy, change)


@contextmanager
def injected(mutant: KernelMutant) -> Iterator[None]:
    """Replace the kernel."""
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # Replacing a kernel warns; here it is the purpose, and undone at the end.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            library.impl(mutant.overload, _wrong(mutant), mutant.key, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


def _wrong(mutant: KernelMutant) -> Callable[..., Any]:
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
            out = kernel.call_boxed(keyset, *args, **kwargs)
            return map_tensors(out, lambda t: change(t) if t.is_floating_point() or t.is_complex() else t)
        with ExcludeDispatchKeyGuard(key):
            if mutant.change == DROPPED:
                return op(*args, **kwargs)
            return op(*map_tensors(args, other), **map_tensors(kwargs, other))

    return run
