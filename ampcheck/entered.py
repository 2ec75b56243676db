"""Which registered autocast kernels the op cases really enter, shown by a recorder put in place of each kernel.

The recorder notes its key and overload and goes on with the kernel it replaced, so behaviour is unchanged. PyTorch's
own lists are run under the same recorder for comparison (`ampcheck.upstream`): on the CPU for real, on the other keys
with fake tensors.

`torch.library` cannot name AutocastMTIA and AutocastMAIA (pytorch/pytorch#183689), so their kernels cannot be replaced.
On MTIA an overload counts where autocast's work is seen: a cast, a filled-in dtype, another overload or a refusal, none
of which happens without the kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch.library import Library, get_kernel

from ampcheck import ops
from ampcheck.cases import op_cases
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.observe import Observation
from ampcheck.spec.casting import APPENDED, POLICIES
from ampcheck.verdict import plan, watch


def replaceable(key: str) -> bool:
    """Whether a recorder can be put in place of the kernels of a dispatch key.

    Not of a backend's own Python kernels: torch.library neither calls a replacement of one as it should nor puts it
    back.
    """
    return key in ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS")


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
def recording(keys: Iterable[str]) -> Iterator[set[tuple[str, str]]]:
    """Put a recorder in place of every registered kernel of the keys; gives the (key, overload) pairs entered."""
    entered: set[tuple[str, str]] = set()
    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # Replacing a kernel warns, once for each of them; here it is the purpose, and undone at the end.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            for key in keys:
                for overload in _registered(key):
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
    """Run op cases of every policy on each device until each overload was entered, or all its cases are through.

    Raises UsageError for a device whose key no policies are registered under.
    """
    out = []
    for device in devices:
        registered = registrations(device)
        keys = [device.key] if replaceable(device.key) else []
        chosen = [o for o in ops.catalogue() if device.policies().get(o) in POLICIES]
        _warm_up(device, chosen)
        with recording(keys) as entered:
            acted = {o for o in chosen if _enters(device, o, entered)}
        progress(f"{device.name}: {len(acted)} overloads entered")
        out.append(Entered(device.key, registered, frozenset(acted & registered)))
    return out


def registrations(device: Device) -> frozenset[str]:
    """The overloads registered under a device's key. Raises UsageError where there are none."""
    found = _registered(device.key)
    if not found:
        raise UsageError(f"no autocast policies are registered under {device.key}, the key of device {device.name!r}")
    return found


def _registered(key: str) -> frozenset[str]:
    # Not `ampcheck.dispatcher.live_registrations`, which knows PyTorch's own keys and not those of other backends.
    names: list[str] = torch._C._dispatch_get_registrations_for_dispatch_key(key)
    return frozenset(name.removeprefix("aten::") for name in names if name.startswith("aten::"))


def _warm_up(device: Device, overloads: Iterable[str]) -> None:
    """Call each op once by a name in Python: deprecated ops warn once, and where only C++ called them, on stderr."""
    with warnings.catch_warnings(), device.running():
        warnings.simplefilter("ignore")
        for overload in overloads:
            op = ops.catalogue()[overload]
            named = {"" if n == 0 else s.name for n, s in enumerate(op.samples) if s.call != "aten"}
            cases = op_cases(device, device.policies()[overload], only=overload)
            for case in islice((case for case in cases if case.sample in named), 1):
                watch(case, device, plan(case, device))


def _enters(device: Device, overload: str, entered: set[tuple[str, str]]) -> bool:
    for case in op_cases(device, device.policies()[overload], only=overload):
        with device.running(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            todo = plan(case, device)
            seen = watch(case, device, todo)
        if (device.key, overload) in entered:
            return True
        if not replaceable(device.key) and _acted(seen, overload, todo.dtype_given):
            return True
    return False


def _acted(seen: Observation, overload: str, dtype_given: str | None) -> bool:
    """Whether an observation shows something only the autocast kernel of the overload does."""
    if seen.error is not None and "autocast" in str(seen.error):
        return True
    call = seen.of(overload)
    if call is None:
        return overload in APPENDED and seen.of(APPENDED[overload]) is not None
    return call.dtype_kwarg != dtype_given or any(leaf.given != leaf.got for leaf in call.leaves)
