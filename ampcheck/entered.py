"""Which registered autocast kernels the op cases really enter, shown by a recorder put in place of each kernel.

The recorder notes its key and overload and goes on with the kernel it replaced, so behaviour is unchanged. PyTorch's own
lists are run under the same recorder for comparison: on the CPU for real, on the other keys with fake tensors.

`torch.library` cannot name AutocastMTIA and AutocastMAIA (pytorch/pytorch#183689), so their kernels cannot be replaced.
On MTIA an overload counts where autocast's work is seen: a cast, a filled-in dtype, another overload or a refusal, none
of which happens without the kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.library import Library, get_kernel

from ampcheck import ops
from ampcheck.cases import op_cases
from ampcheck.devices.base import Device
from ampcheck.dispatcher import live_registrations
from ampcheck.observe import Observation
from ampcheck.spec.casting import POLICIES
from ampcheck.verdict import plan, watch

REPLACEABLE = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")


@dataclass(frozen=True, slots=True)
class Entered:
    """The overloads registered under a key, and those of them that were entered."""

    key: str
    registered: frozenset[str]
    entered: frozenset[str]

    @property
    def missed(self) -> list[str]:
        """Registered overloads that were not entered."""
        return sorted(self.registered - self.entered)


@contextmanager
def recording(keys: Iterable[str] = REPLACEABLE) -> Iterator[set[tuple[str, str]]]:
    """Put a recorder in place of every registered kernel of the keys; gives the set of (key, overload) entered so far."""
    entered: set[tuple[str, str]] = set()
    library = Library("aten", "IMPL")
    registered = live_registrations()
    try:
        with warnings.catch_warnings():
            # Replacing a kernel warns, once for each of them; here it is the purpose, and undone at the end.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            for key in keys:
                for overload in registered[key]:
                    replacement = _recorder(key, overload, entered)
                    library.impl(overload, replacement, key, with_keyset=True, allow_override=True)
        yield entered
    finally:
        library._destroy()


def _recorder(key: str, overload: str, entered: set[tuple[str, str]]) -> Callable[..., Any]:
    kernel = get_kernel(f"aten::{overload}", key)

    def record(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        entered.add((key, overload))
        return kernel.call_boxed(keyset, *args, **kwargs)

    return record


def by_suite(devices: Iterable[Device], progress: Callable[[str], None] = lambda text: None) -> list[Entered]:
    """Run op cases of every policy on each device until each overload was entered, or all its cases are through."""
    out = []
    registered = live_registrations()
    for device in devices:
        keys = [device.key] if device.key in REPLACEABLE else []
        with recording(keys) as entered:
            acted = {o for o in ops.catalogue() if _enters(device, o, entered)}
        progress(f"{device.name}: {len(acted)} overloads entered")
        out.append(Entered(device.key, registered[device.key], frozenset(acted & registered[device.key])))
    return out


def _enters(device: Device, overload: str, entered: set[tuple[str, str]]) -> bool:
    policy = device.policies().get(overload)
    if policy not in POLICIES:
        return False
    for case in op_cases(device, policy, only=overload):
        with device.running():
            seen = watch(case, device, plan(case, device))
        if (device.key, overload) in entered:
            return True
        if device.key not in REPLACEABLE and _acted(seen, overload):
            return True
    return False


def _acted(seen: Observation, overload: str) -> bool:
    """Whether an observation shows something only the autocast kernel of the overload does."""
    if seen.error is not None and "autocast" in str(seen.error):
        return True
    call = seen.of(overload)
    if call is None:  # sent to another overload
        return bool(seen.kernels)
    return call.dtype_kwarg is not None or any(leaf.given != leaf.got for leaf in call.leaves)
