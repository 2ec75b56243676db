"""Which devices there are: PyTorch's own, virtual ones, entry points, and modules named on the command line."""

import os
import re
import traceback
import warnings
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from difflib import get_close_matches
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TypeVar

import torch

from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.cuda import Cuda
from ampcheck.devices.emulated import DEVICES as EMULATED
from ampcheck.devices.jax import Jax
from ampcheck.devices.torchax import DEVICES as TORCHAX
from ampcheck.devices.virtual import DEVICES as VIRTUAL
from ampcheck.errors import UsageError, unknown
from ampcheck.observe.blame import owner
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.observe.torch_private import schema_of
from ampcheck.register.torch_private import backend_name, op_names
from ampcheck.spec.case import RULES
from ampcheck.spec.casting import APPENDED, FLOATING, LOW, POLICIES
from ampcheck.spec.policies import rows, versions

GROUP = "ampcheck.devices"
_REQUIRED = ("name", "token", "type", "key")
_TOKEN = re.compile(r"[A-Za-z0-9_.]+")
_KEYS = {name: f"Autocast{name.upper()}" for name in ("cpu", "cuda", "xpu", "mps", "mtia", "maia", "xla", "hpu", "ipu")}
"""The autocast dispatch keys of the device types that have their own; all others use PrivateUse1's."""
_ASSIGNABLE = (*POLICIES, "fallthrough", UNKNOWN)
_LONG = 500
_T = TypeVar("_T")
_warned: dict[str, None] = {}

_OWN = (Cpu(), Cuda(), Jax(), *EMULATED, *VIRTUAL, *TORCHAX)
OWN = frozenset(device.name for device in _OWN)
"""The names of the devices that this package brings."""


def known(modules: Sequence[str] = ()) -> dict[str, Device]:
    """Return every device by its name on the command line, whether or not this machine has it.

    `modules`: what `--device-module` named; each defines `DEVICES`, a sequence of `Device`. An entry point of the group
    `ampcheck.devices` names a `Device`, or a sequence of them. Raises UsageError for one that cannot be used.
    """
    out: dict[str, Device] = {}
    _add(out, _OWN, "ampcheck")
    for point in entry_points(group=GROUP):
        _add(out, loaded(f"entry point {point.name}", point.load), f"entry point {point.name}")
    for module in modules:
        origin = f"device module {module}"
        _add(out, loaded(origin, lambda: import_module(module).DEVICES), origin)  # noqa: B023  # called at once
    return out


def select(names: Sequence[str], modules: Sequence[str] = ()) -> list[Device]:
    """Return the devices of those names; without names, every one this machine has but those tested on request alone,
    and those that share no process with another of them.

    Raises UsageError for a name that is unknown, or that this machine does not have, for a device that `unusable`
    refuses, for devices of one type that different backends bring, and for those that share no process.
    """
    devices = _usable(names, modules)
    if not names:
        devices = [device for device in devices if not _crowding(device, devices)]
    backends: dict[str, Device] = {}
    for device in devices:
        if other := _crowding(device, devices):
            raise UsageError(f"devices {device.name!r} and {other!r} cannot be tested in one run: {_ONE}")
        first = backends.setdefault(device.type, device)
        if first.backend != device.backend:
            raise UsageError(
                f"devices {first.name!r} and {device.name!r} cannot be tested in one run: both are of type "
                f"{device.type!r}, and a process has one backend of a type; run them one after the other"
            )
    return devices


def groups(names: Sequence[str], modules: Sequence[str] = (), *, on_request: bool = False) -> list[list[str]]:
    """Divide the names of the devices that `select` would return into those that one process can have.

    `on_request`: without names, those that are tested on request alone are among them.

    The CPU and the virtual devices are together; each accelerator with values has a process of its own, and so has each
    further backend. For what is loaded changes what PyTorch does elsewhere: autograd has threads for it, without which
    a process that was forked has no backward pass, and PrivateUse1 has its name. Raises UsageError as `select` does,
    but not for two backends of a type.
    """
    found: dict[str, list[str]] = {}
    devices = _usable(names, modules, on_request=on_request)
    for device in devices:
        alone = device.has_values and device.type != "cpu"
        found.setdefault(device.backend or (device.name if alone else ""), []).append(device.name)
    return list(found.values())


_ONE = "PyTorch has one accelerator in a process; run them one after the other, or by ampcheck run"


def _crowding(device: Device, devices: Iterable[Device]) -> str:
    """Return the name of one of some devices whose process a device does not share, or ""."""
    if not device.lone:
        return ""
    return next((other.name for other in devices if other.has_values and other.key == "AutocastPrivateUse1"), "")


def _usable(names: Sequence[str], modules: Sequence[str], *, on_request: bool = False) -> list[Device]:
    """Return the devices of those names, all of which must be usable; without names, those to test."""
    devices = named(names, modules)
    if not names:
        return [device for device in devices if (on_request or not device.on_request) and unusable(device) is None]
    for device in devices:
        if reason := unusable(device):
            raise UsageError(f"device {device.name!r} cannot be used here: {reason}")
    return devices


def named(names: Sequence[str], modules: Sequence[str] = ()) -> list[Device]:
    """Return the devices of those names, or every one, whether or not this machine has it.

    Raises UsageError for a name that is unknown.
    """
    devices = known(modules)
    for name in names:
        if name not in devices:
            raise unknown("device", name, devices)
    return [devices[name] for name in dict.fromkeys(names or devices)]


def absent(modules: Sequence[str] = (), tested: Collection[str] = ()) -> dict[str, str]:
    """Return why each device that a run without names does not test is left out, by name.

    `tested`: the names of those on request alone that it tests.
    """
    found, usable = {}, []
    for name, device in known(modules).items():
        try:
            reason = unusable(device)
        except UsageError as error:
            reason = str(error)
        if reason:
            found[name] = reason
        elif device.on_request and name not in tested:
            found[name] = f"a run has it where it is named, or where no option chooses cases: {device.on_request}"
        else:
            usable.append(device)
    for device in usable:
        if device.name not in tested and (other := _crowding(device, usable)):
            found[device.name] = f"{other} is in this process, and {_ONE}"
    return found


def unusable(device: Device) -> str | None:
    """Say why this machine cannot test a device, in a sentence; None where it can.

    Raises UsageError where `unavailable` or `policies` raises, or returns what cannot be used.
    """
    reason = _asked(device, "unavailable", device.unavailable)
    if reason is not None and not isinstance(reason, str):
        raise UsageError(f"device {device.name!r}: unavailable() returned {reason!r}; it returns a sentence, or None")
    if not reason:
        promised(device)
    return reason or None


def promised(device: Device) -> Mapping[str, str]:
    """Return a device's policies. Raises UsageError where `policies` raises, or returns what cannot be used."""
    policies = _asked(device, "policies", device.policies)
    if not isinstance(policies, Mapping):
        what = f"policies() returned a {type(policies).__name__}; expected a mapping of overloads to policies"
        raise UsageError(f"device {device.name!r}: {what}")
    wrong = [text for overload, policy in policies.items() if (text := _promise_fault(overload, policy))]
    if wrong:
        more = f" ({len(wrong) - 1} more promises are wrong)" if wrong[1:] else ""
        raise UsageError(f"device {device.name!r}: policies() promises {wrong[0]}{more}")
    return policies


def lacking(device: Device) -> list[str]:
    """Return the overloads that a device promises and this torch lacks; they are those of another torch's table."""
    return sorted(overload for overload in device.policies() if not exists(overload))


@contextmanager
def backend_code(origin: str) -> Iterator[None]:
    """Run code of a backend outside of every case: its warnings are kept for `warned` and never raised."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        try:
            yield
        finally:
            for warning in found:
                text = str(warning.message).strip().partition("\n")[0]
                where = f"{warning.filename}:{warning.lineno}"
                _warned.setdefault(f"{origin} warned: {warning.category.__name__}: {text} ({where})")


def warned() -> list[str]:
    """Return every warning that backends gave outside of the cases so far, a sentence each."""
    return list(_warned)


def _asked(device: Device, name: str, method: Callable[[], _T]) -> _T:
    try:
        with backend_code(f"device {device.name!r}"):
            return method()
    except (Exception, SystemExit) as error:  # a third party's code can raise anything
        raise UsageError(f"device {device.name!r}: {name}() raised {told(error)}") from error


def _promise_fault(overload: object, policy: object) -> str:
    """Return what is wrong with one promise, as the rest of a sentence; "" for nothing."""
    if not isinstance(overload, str) or not (exists(overload) or overload in _listed()):
        name = str(overload).removeprefix("aten::")
        packet = [other for other in _overloads() if other.partition(".")[0] == name.partition(".")[0]]
        close = get_close_matches(name, packet, 1, 0.0) or get_close_matches(name, _overloads(), 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"a policy for {overload!r}, and torch {torch.__version__} has no such overload of aten{hint}"
    if policy not in _ASSIGNABLE:
        close = get_close_matches(str(policy), POLICIES, 1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        return f"the policy {policy!r} for {overload!r}; there are {', '.join(POLICIES)}{hint}"
    if policy == "append" and overload not in APPENDED:
        return f"the policy 'append' for {overload!r}; there are overloads with a dtype for {', '.join(APPENDED)}"
    return ""


@cache
def exists(overload: str) -> bool:
    """Return whether this torch has an overload of aten."""
    packet, _, variant = overload.partition(".")
    try:
        schema_of(f"aten::{packet}", variant)
    except RuntimeError:
        return False
    return True


@cache
def _listed() -> frozenset[str]:
    """Return every overload of a policy table, whatever torch it is of."""
    return frozenset(row.overload for version in versions() for row in rows(version))


@cache
def _overloads() -> tuple[str, ...]:
    """Return every overload of aten in this torch, those with a policy first."""
    names = {name.removeprefix("aten::") for name in op_names() if name.startswith("aten::")}
    return (*sorted(_listed() & names), *sorted(names - _listed()))


def told(error: BaseException) -> str:
    """Tell an exception in one line, with the frame of the backend that raised it."""
    text = " ".join(str(error).split())
    if text.startswith("Could not run 'aten::"):  # the dispatcher goes on with every key and file that it knows
        text = text.partition(". ")[0]
    text = text if len(text) <= _LONG else f"{text[:_LONG]} ..."
    where = _raised_in(error)
    return f"{type(error).__name__}{': ' * bool(text)}{text}{f' ({where})' if where else ''}"


def loaded(origin: str, load: Callable[[], object]) -> object:
    """Return what code of a backend loads. Raises UsageError with what it raised."""
    try:
        with backend_code(origin):
            return load()
    except (Exception, SystemExit) as error:  # anything a third party's import can raise is this one message
        raise UsageError(f"{origin} cannot be loaded as a device: {told(error)}{_taken(error)}") from error


def _taken(error: BaseException) -> str:
    """Return what to add where a backend could not name PrivateUse1, since another one did."""
    name = backend_name()
    if name == "privateuseone" or "privateuse1_backend() has already been set" not in str(error):
        return ""
    return (
        f"; PrivateUse1 is {name!r} in this process already, and a process has one such backend: load the backends "
        "in separate runs"
    )


def _faults(device: Device) -> str:
    """Return what is wrong with a device's attributes, as the rest of a sentence about it; "" for nothing."""
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
    if device.key != (key := _KEYS.get(device.type, "AutocastPrivateUse1")):
        return f"has the key {device.key!r}; the autocast dispatch key of device type {device.type!r} is {key!r}"
    return ""


def _add(out: dict[str, Device], found: object, origin: str) -> None:
    if isinstance(found, type) and issubclass(found, Device):
        found = loaded(origin, found)
    items: Iterable[object] = found if isinstance(found, (tuple, list)) else (found,)
    for device in items:
        if not isinstance(device, Device):
            raise UsageError(f"{origin} gives {device!r}, which is not an ampcheck.devices.Device")
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


def _raised_in(error: BaseException) -> str:
    """Name the innermost frame outside of ampcheck and torch: "file.py:12 in function"; "" where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{short(error.filename)}:{error.lineno}"
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        ours = owner(frame.filename) in ("ampcheck", "torch") or "importlib" in Path(frame.filename).parts
        if not ours and not frame.filename.startswith("<"):
            return f"{short(frame.filename)}:{frame.lineno} in {frame.name}"
    return ""


def short(path: str) -> str:
    """Return a path as seen from the current folder, where it lies there."""
    return path.removeprefix(os.getcwd() + os.sep)
