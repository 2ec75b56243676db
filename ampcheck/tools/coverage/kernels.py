"""The registered autocast kernels that op cases enter, shown by a recorder put in place of each kernel.

The recorder notes its key and overload and goes on with the kernel it replaced, so behaviour is unchanged. PyTorch's
own lists are run under the same recorder for comparison (`upstream_lists`): on the CPU for real, on the other keys with
fake tensors.

`torch.library` cannot name AutocastMTIA and AutocastMAIA (pytorch/pytorch#183689), so their kernels cannot be replaced.
On MTIA an overload counts where autocast's work is seen: a cast, a filled-in dtype, another overload or a refusal, none
of which happens without the kernel.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import islice

import torch
from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.call import plan
from ampcheck.checks.cases import op_cases
from ampcheck.checks.forward import watch
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.observe.kernel_override import recording, replaceable
from ampcheck.observe.recorder import Observation
from ampcheck.spec.casting import APPENDED, POLICIES
from ampcheck.spec.torch_private import registered


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


def by_suite(devices: Iterable[Device], progress: Callable[[str], None] = lambda text: None) -> list[Entered]:
    """Run op cases of every policy on each device until each overload was entered, or all its cases are through.

    Raises UsageError for a device whose key no policies are registered under.
    """
    out = []
    for device in devices:
        registered = registrations(device)
        keys = [device.key] if replaceable(device.key) else []
        chosen = [o for o in samples.catalogue() if device.policies().get(o) in POLICIES]
        _warm_up(device, chosen)
        with recording(keys) as entered:
            acted = {o for o in chosen if _enters(device, o, entered)}
        progress(f"{device.name}: {len(acted)} overloads entered")
        out.append(Entered(device.key, registered, frozenset(acted & registered)))
    return out


def registrations(device: Device) -> frozenset[str]:
    """Return the overloads registered under a device's key. Raises UsageError where there are none."""
    found = registered(device.key)
    if not found:
        raise UsageError(f"no autocast policies are registered under {device.key}, the key of device {device.name!r}")
    return found


def _warm_up(device: Device, overloads: Iterable[str]) -> None:
    """Call each op once by a name in Python: deprecated ops warn once, and where only C++ called them, on stderr."""
    with warnings.catch_warnings(), device.activate():
        warnings.simplefilter("ignore")
        for overload in overloads:
            op = samples.catalogue()[overload]
            named = {"" if n == 0 else s.name for n, s in enumerate(op.samples) if s.call != "aten"}
            cases = op_cases(device, device.policies()[overload], only=overload)
            for case in islice((case for case in cases if case.sample in named), 1):
                watch(case, device, plan(case, device))


def _enters(device: Device, overload: str, entered: set[tuple[str, str]]) -> bool:
    for case in op_cases(device, device.policies()[overload], only=overload):
        with device.activate(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            todo = plan(case, device)
            seen = watch(case, device, todo)
        if (device.key, overload) in entered:
            return True
        if not replaceable(device.key) and _acted(seen, overload, todo.dtype_given):
            return True
    return False


def _acted(seen: Observation, overload: str, dtype_given: str | None) -> bool:
    """Return whether an observation shows something only the autocast kernel of the overload does."""
    if seen.error is not None and "autocast" in str(seen.error):
        return True
    call = seen.of(overload)
    if call is None:
        return overload in APPENDED and seen.of(APPENDED[overload]) is not None
    return call.dtype_kwarg != dtype_given or any(leaf.given != leaf.got for leaf in call.leaves)


def fields(rows: Mapping[str, tuple[Entered, Entered]]) -> list[dict[str, object]]:
    """Return what the suite and PyTorch's lists entered on each device as JSON data."""
    return [
        {
            "device": device,
            "key": mine.key,
            "registered": len(mine.registered),
            "entered": sorted(mine.entered),
            "missed": mine.missed,
            "entered_by_pytorch": sorted(theirs.entered),
            "missed_by_pytorch": theirs.missed,
        }
        for device, (mine, theirs) in rows.items()
    ]


def table(rows: Mapping[str, tuple[Entered, Entered]]) -> str:
    """Write what the suite and PyTorch's lists entered on each device as text."""
    headers = [
        "device",
        "dispatch key",
        "registered",
        "entered by this suite",
        "by PyTorch's lists",
        "missed by this suite",
    ]
    body = [
        [
            device,
            mine.key,
            len(mine.registered),
            len(mine.entered),
            len(theirs.entered),
            ", ".join(mine.missed) or "none",
        ]
        for device, (mine, theirs) in rows.items()
    ]
    parts = [f"Autocast kernels entered, torch {torch.__version__}", tabulate(body, headers=headers), ""]
    for device, (_, theirs) in rows.items():
        if theirs.missed:
            what = ", ".join(theirs.missed) if theirs.entered else f"all {len(theirs.missed)}: no list is run on it"
            parts.append(f"PyTorch's lists miss on {device}: {what}")
    return "\n".join(parts)
