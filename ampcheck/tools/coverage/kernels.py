"""The registered autocast kernels that op cases enter, shown by a recorder put in place of each kernel.

The recorder notes its key and overload and goes on with the kernel it replaced, so behaviour is unchanged. PyTorch's
own lists (`torch.testing._internal.autocast_test_lists`, run by `test/test_autocast.py`, `test/test_cuda.py` and
`test/test_xpu.py`) are run under the same recorder for comparison, each entry as those files call it, as a function of
a module and as a method: on the CPU for real, on the other keys with fake tensors. The files' tests of recurrent nets
are no lists and are not run.

`torch.library` cannot name AutocastMTIA and AutocastMAIA (pytorch/pytorch#183689), so their kernels cannot be replaced.
On MTIA an overload counts where autocast's work is seen: a cast, a filled-in dtype, another overload or a refusal, none
of which happens without the kernel.
"""

import tomllib
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.cases import op_cases, plan
from ampcheck.checks.forward import watch
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import recording, replaceable
from ampcheck.observe.recorder import Observation
from ampcheck.register.torch_private import nn_functions
from ampcheck.samples.torch_testing import internal
from ampcheck.spec.casting import APPENDED, POLICIES
from ampcheck.spec.torch_private import registered
from ampcheck.tools.torch_private import linalg_functions


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
    with warnings.catch_warnings(action="ignore"), device.activate():
        for overload in overloads:
            op = samples.catalogue()[overload]
            named = {"" if n == 0 else s.name for n, s in enumerate(op.samples) if s.call != "aten"}
            cases = op_cases(device, device.policies()[overload], only=overload)
            for case in islice((case for case in cases if case.sample in named), 1):
                watch(case, device, plan(case, device))


def _enters(device: Device, overload: str, entered: set[tuple[str, str]]) -> bool:
    for case in op_cases(device, device.policies()[overload], only=overload):
        with device.activate(), warnings.catch_warnings(action="ignore"):
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
    headers = ["device", "dispatch key", "registered", "entered by this suite", "by PyTorch's lists"]
    body = []
    for device, (mine, theirs) in rows.items():
        sizes = map(len, (mine.registered, mine.entered, theirs.entered))
        body.append([device, mine.key, *sizes, ", ".join(mine.missed) or "none"])
    table = tabulate(body, headers=[*headers, "missed by this suite"])
    parts = [f"Autocast kernels entered, torch {torch.__version__}", table, ""]
    for device, (_, theirs) in rows.items():
        if theirs.missed:
            what = ", ".join(theirs.missed) if theirs.entered else f"all {len(theirs.missed)}: no list is run on it"
            parts.append(f"PyTorch's lists miss on {device}: {what}")
    return "\n".join(parts)


_PLACES: dict[str, object] = {"torch": torch, "nn": nn_functions, "linalg": linalg_functions, "methods": None}

_LISTS = tomllib.loads(Path(__file__).with_name("walked.toml").read_text(encoding="utf-8"))["lists"]
"""What PyTorch's files do with the rows of each list, by device type."""
_XPU_LEFT_OUT = ("gru_cell", "lstm_cell")  # test_xpu.py names them as not implemented there


@dataclass(frozen=True, slots=True)
class ListedCall:
    """One call of a list: a function of `module` and a method of Tensor, whichever there are, in a region of `amp`."""

    op: str
    args: tuple[object, ...]
    kwargs: dict[str, object]
    module: object
    amp: str

    def run(self, device: Device) -> None:
        """Call it both ways, each in a new region; a kernel that refuses was entered all the same."""
        with device.autocast(self.amp), suppress(Exception):
            if self.module is not None and hasattr(self.module, self.op):
                getattr(self.module, self.op)(*self.args, **self.kwargs)
        with device.autocast(self.amp), suppress(Exception):
            if hasattr(torch.Tensor, self.op):
                getattr(self.args[0], self.op)(*self.args[1:], **self.kwargs)


def entries(device: Device) -> list[ListedCall]:
    """Return the calls PyTorch's files make on a device's type; none where no file runs the lists on it.

    The device must be entered. Raises UsageError where this torch has no such lists.
    """
    if device.type not in _LISTS:
        return []
    module = internal("autocast_test_lists")
    made = module.AutocastCPUTestLists if device.type == "cpu" else module.AutocastTestLists
    with torch.random.fork_rng(devices=[]):  # they draw their values as they are made
        torch.manual_seed(0)
        lists = made(torch.device(device.type))
    out: list[ListedCall] = []
    for name, third in _LISTS[device.type].items():
        if not hasattr(lists, name):
            raise UsageError(f"the autocast lists of torch {torch.__version__} have no list {name}")
        for row in getattr(lists, name):
            out += _entries(row, _PLACES.get(name.partition("_")[0]), third, device.type)
    return out


def _entries(row: tuple[Any, ...], module: object, third: str, device_type: str) -> Iterator[ListedCall]:
    op, args, *rest = row
    if third == "fp16 arguments":
        yield ListedCall(op, args, {}, module, "bf16")
        yield ListedCall(op, rest[0], {}, module, "fp16")
        return
    if third == "skip" and rest and (rest[0] or device_type == "xpu"):
        return
    if device_type == "xpu" and op in _XPU_LEFT_OUT:
        return
    kwargs = rest[0] if third == "kwargs" and rest else {}
    where = rest[0] if third == "module" else module
    for amp in ("bf16", "fp16") if device_type == "cpu" or third == "skip" else ("fp16",):
        yield ListedCall(op, args, kwargs, where, amp)


def by_upstream_lists(devices: Iterable[Device], progress: Callable[[str], None] = lambda text: None) -> list[Entered]:
    """Run PyTorch's own lists on each device and say which registered overloads they entered.

    Raises UsageError where this torch has no such lists, and for a device as `ampcheck.tools.coverage.kernels.by_suite`
    does.
    """
    out = []
    for device in devices:
        registered = registrations(device)
        with device.activate():
            calls = entries(device)
            if calls and not replaceable(device.key):
                raise UsageError(f"the kernels of {device.key} cannot be replaced by a recorder")
            with warnings.catch_warnings(action="ignore"):  # calling deprecated ops is what the lists do
                for call in calls:  # C++ warns once a process, past Python where a recorder made the call
                    call.run(device)
                with recording([device.key] if calls else []) as entered:
                    for call in calls:
                        call.run(device)
        own = frozenset(overload for key, overload in entered if key == device.key)
        progress(f"{device.name}: PyTorch's lists make {len(calls)} calls and enter {len(own)} overloads")
        out.append(Entered(device.key, registered, own))
    return out
