"""Which devices there are: PyTorch's own, virtual ones, entry points, and modules named on the command line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import import_module
from importlib.metadata import entry_points

from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.devices.jax import Jax
from ampcheck.devices.torchax import DEVICES as TORCHAX
from ampcheck.devices.virtual import DEVICES as VIRTUAL
from ampcheck.errors import UsageError
from ampcheck.spec.dtypes import FLOATING, LOW
from ampcheck.spec.rules import RULES

GROUP = "ampcheck.devices"
_REQUIRED = ("name", "token", "type", "key")
_TOKEN = re.compile(r"[A-Za-z0-9_.]+")


_OWN = (Cpu(), Cuda(), Jax(), *VIRTUAL, *TORCHAX)
OWN = frozenset(device.name for device in _OWN)
"""The names of the devices that this package brings."""


def known(modules: Sequence[str] = ()) -> dict[str, Device]:
    """Every device by its name on the command line, whether or not this machine has it.

    `modules`: what `--device-module` named; each defines `DEVICES`, a sequence of `Device`. An entry point of the group
    `ampcheck.devices` names a `Device`, or a sequence of them. Raises UsageError for one that cannot be used.
    """
    out: dict[str, Device] = {}
    _add(out, _OWN, "ampcheck")
    for point in entry_points(group=GROUP):
        _add(out, _loaded(f"entry point {point.name}", point.load), f"entry point {point.name}")
    for module in modules:
        _add(out, _loaded(module, lambda m=module: import_module(m).DEVICES), f"device module {module}")
    return out


def select(names: Sequence[str], modules: Sequence[str] = ()) -> list[Device]:
    """The devices of those names; without names, every one this machine has but those tested on request alone.

    Raises UsageError for a name that is unknown, or that this machine does not have, and for devices of one type that
    different backends bring.
    """
    devices = named(names, modules)
    if not names:
        return [device for device in devices if not device.on_request and device.unavailable() is None]
    for device in devices:
        if reason := device.unavailable():
            raise UsageError(f"device {device.name!r} cannot be used here: {reason}")
    backends: dict[str, Device] = {}
    for device in devices:
        other = backends.setdefault(device.type, device)
        if other.backend != device.backend:
            raise UsageError(
                f"devices {other.name!r} and {device.name!r} cannot be tested in one run: both are of type "
                f"{device.type!r}, and a process has one backend of a type; run them one after the other"
            )
    return devices


def named(names: Sequence[str], modules: Sequence[str] = ()) -> list[Device]:
    """The devices of those names, or every one, whether or not this machine has it.

    Raises UsageError for a name that is unknown.
    """
    devices = known(modules)
    for name in names:
        if name not in devices:
            raise UsageError(f"there is no device named {name!r}; there are {', '.join(devices)}")
    return [devices[name] for name in dict.fromkeys(names or devices)]


def absent(modules: Sequence[str] = ()) -> dict[str, str]:
    """Why each device that a run without names does not test is left out, by name."""
    found = {}
    for name, device in known(modules).items():
        if reason := device.unavailable():
            found[name] = reason
        elif device.on_request:
            found[name] = f"it is tested where it is named: {device.on_request}"
    return found


def _loaded(origin: str, load: object) -> object:
    try:
        return load()  # type: ignore[operator]  # a function of no arguments, of an entry point or the lambda above
    except (Exception, SystemExit) as error:  # anything a third party's import can raise is this one message
        raise UsageError(f"{origin} cannot be loaded as a device: {type(error).__name__}: {error}") from error


def _faults(device: Device) -> str:
    """What is wrong with a device's attributes, as the rest of a sentence about it; "" for nothing."""
    missing = [name for name in _REQUIRED if not isinstance(getattr(device, name, None), str)]
    if missing:
        return f"does not set {', '.join(missing)}"
    if not _TOKEN.fullmatch(device.token):
        return f"has the id token {device.token!r}; it is made of letters, digits, _ and ."
    if word := next((word for word in (*FLOATING, *RULES) if word in device.token), None):
        return f"has the id token {device.token!r}, in which {word!r} occurs, so that -k {word} would select the device"
    if unknown := [dtype for dtype in (*device.amp_dtypes, device.default_amp) if dtype not in LOW]:
        return f"has the lower precision {unknown[0]!r}; there are {', '.join(LOW)}"
    if device.default_amp not in device.amp_dtypes:
        return f"has the default {device.default_amp!r}, which is not among its amp_dtypes"
    return ""


def _add(out: dict[str, Device], found: object, origin: str) -> None:
    if isinstance(found, type) and issubclass(found, Device):
        found = _loaded(origin, found)
    items: Iterable[object] = found if isinstance(found, (tuple, list)) else (found,)
    for device in items:
        if not isinstance(device, Device):
            raise UsageError(f"{origin} gives {device!r}, which is no ampcheck.devices.Device")
        if wrong := _faults(device):
            raise UsageError(f"{origin}: {type(device).__name__} {wrong}")
        for other in out.values():
            if device.name == other.name:
                raise UsageError(f"{origin} declares device {device.name!r}, which exists already")
            if device.token in other.token or other.token in device.token:
                raise UsageError(
                    f"{origin}: the id token {device.token!r} of {device.name!r} cannot be told from {other.token!r} "
                    f"of {other.name!r}"
                )
        out[device.name] = device
