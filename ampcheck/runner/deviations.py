"""Known differences between a device and the specification: data beside the device, each with its reason and link.

    [[deviation]]
    id = "promote-mixed-low"
    cases = ["promote/*-bf16-fp16-*"]
    but = ["promote/stack-*"]
    devices = ["cpu", "virtual:cuda"]
    kind = "deviation"
    reason = "promote refuses a lower precision other than the region's dtype."
    link = "https://github.com/pytorch/pytorch/pull/191125"
    raises = "Unexpected floating ScalarType"
    torch = ">=2.11"
    libraries = { jax = ">=0.10" }
    lacks = "mkldnn_rnn_layer bf16"
    added = "2026-11-20"

`cases` are globs over `rule/id`, or `jit/rule/id` for cases that a compiler runs; `but`, which may be left out, are
globs of those that are not meant. `kind`: "deviation" (expected to fail), "fault" (the same, and the fault is the
device's own), "unsupported" (the device lacks it) or "flaky". `raises` is a regular expression. Every difference of a
case must match that of an entry, and every entry that speaks of a case must describe one of its differences.

`devices`, `libraries` and `lacks` may be left out. The entry then applies on the devices of those names alone, where
these packages are installed in these versions, and on processors that have no kernel for this op and dtype
(`ampcheck.devices.cpu.lacks`). What a file of PyTorch's own says is inherited by devices of other packages, whatever
`devices` says: a case may fail there as described, and may pass.
`link` is a URL, or "unreported" for one that `docs/findings` holds with its reproduction.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache, cached_property
from glob import escape
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import lacks
from ampcheck.devices.registry import OWN
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import compiled
from ampcheck.spec.policies import KEYS
from ampcheck.spec.torch_dtypes import DTYPES

SHARED = Path(__file__).parents[1] / "devices" / "deviations.toml"
"""Deviations of PyTorch itself, on more than one device."""

KERNELS = SHARED.with_name("kernels.toml")
"""Deviations of PyTorch's autocast kernels; a backend with its own Python kernels does not inherit them."""

JIT = SHARED.with_name("jit_deviations.toml")
"""Deviations of PyTorch's compilers. Their cases are written `jit/rule/id`, so that no other suite's are meant."""

_ROOT = Path(__file__).parents[2]
KINDS = ("deviation", "fault", "unsupported", "flaky")
_TEXT = ("id", "kind", "reason", "link", "raises", "torch", "added")
_OPTIONAL = ("but", "devices", "libraries", "lacks")


@dataclass(frozen=True)
class Deviation:
    """One entry of a deviations file, with the name of that file.

    `inherited`: whether it is PyTorch's, on a device of another package, or of a part of the case.
    """

    id: str
    cases: tuple[str, ...]
    kind: str
    reason: str
    link: str
    raises: str
    torch: str
    added: str
    but: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    libraries: tuple[tuple[str, str], ...] = ()
    lacks: str = ""
    file: str = field(default="", compare=False)
    inherited: bool = field(default=False, compare=False)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return _any(self.cases)

    @cached_property
    def _left_out(self) -> re.Pattern[str]:
        return _any(self.but)

    @property
    def may_pass(self) -> bool:
        """Return whether a case that it speaks of may pass, too."""
        return self.inherited or self.kind == "flaky"

    def covers(self, name: str) -> bool:
        """Tell whether it speaks of the case `rule/id`."""
        return self._pattern.match(name) is not None and not (self.but and self._left_out.match(name))

    def explains(self, difference: str) -> bool:
        """Tell whether a difference is one that it describes."""
        return re.search(self.raises, difference) is not None

    def applies(self) -> bool:
        """Tell whether its conditions hold here: the versions of torch and of other packages, and the processor."""
        own = SpecifierSet(self.torch, prereleases=True).contains(torch.__version__.split("+")[0])
        if not own or not all(_installed(*library) for library in self.libraries):
            return False
        return not self.lacks or lacks(*self.lacks.split())


def after_deviations(
    status: str, differences: Sequence[str], entries: Sequence[Deviation]
) -> tuple[str, str, tuple[Deviation, ...]]:
    """Judge a case by the deviations that speak of it.

    Args:
        status: what became of the case, without deviations.
        differences: each thing that was not as promised; what the case raised is one.
        entries: the deviations that speak of the case.

    Returns:
        The status to show, the reason for it, and the deviations that it is about.
    """
    strict = tuple(entry for entry in entries if not entry.may_pass)
    if status == "pass" and strict:
        return "fixed", _stale(strict, "the case passes now"), strict
    if status not in ("fail", "broken") or not entries or not differences:
        return status, "", ()
    for difference in differences:
        if not any(entry.explains(difference) for entry in entries):
            return status, f"no deviation of this case ({_ids(entries)}) describes: {difference}", tuple(entries)
    found = tuple(entry for entry in entries if any(map(entry.explains, differences)))
    shown = "unsupported" if all(entry.kind == "unsupported" for entry in found) else "deviation"
    stale = tuple(entry for entry in strict if entry not in found)
    if stale and shown == "deviation":  # what the device lacks cannot show whether the rest is still so
        return "fixed", _stale(stale, "the case fails in other ways alone"), stale
    return shown, " ".join(f"{entry.reason} {entry.link}" for entry in found), found


def _stale(entries: Sequence[Deviation], because: str) -> str:
    files = ", ".join(dict.fromkeys(entry.file for entry in entries))
    return f"deviation {_ids(entries)} is stale: {because} ({files})"


def _ids(entries: Sequence[Deviation]) -> str:
    return ", ".join(repr(entry.id) for entry in entries)


def _any(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob) for glob in globs))


def load(path: Path, names: Collection[str] | None = None) -> list[Deviation]:
    """Read the deviations of a file that apply here, whatever the device. Raises UsageError where it is malformed.

    `names`: every device that an entry may name. Without it, no name is refused.
    """
    try:
        entries = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"the deviations file {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the deviations file {path} is not valid TOML: {error}") from error
    unknown = [key for key in entries if key != "deviation"]
    if unknown or not isinstance(entries.get("deviation", []), list):
        raise UsageError(f"{path}: expected [[deviation]] tables only, found {', '.join(unknown) or 'another form'}")
    out = [_entry(path, number, raw) for number, raw in enumerate(entries.get("deviation", []), 1)]
    here = [deviation for deviation in out if deviation.applies()]
    ids = [deviation.id for deviation in here]
    for deviation in out:
        if ids.count(deviation.id) > 1:
            raise UsageError(f"{path}: deviation {deviation.id!r} is in the file more than once")
        if names is not None and (unknown := [name for name in deviation.devices if name not in names]):
            where = f"{path}: deviation {deviation.id!r}"
            raise UsageError(f"{where}: there is no device named {unknown[0]!r}; there are {', '.join(names)}")
    return here


def _installed(package: str, wanted: str) -> bool:
    """Tell whether a package is installed in a version of a range."""
    try:
        return SpecifierSet(wanted, prereleases=True).contains(version(package))
    except PackageNotFoundError:
        return False


@cache
def _packages() -> frozenset[str]:
    """Name every package that is installed, and every one that an installed package asks for."""
    asked = (requirement for found in distributions() for requirement in found.requires or ())
    names = [*(found.name for found in distributions()), *(re.split(r"[^\w.-]", text, maxsplit=1)[0] for text in asked)]
    return frozenset(canonicalize_name(name) for name in names if name)


def _entry(path: Path, number: int, raw: object) -> Deviation:
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: deviation {number} is not a table")
    where = f"{path}: deviation {raw.get('id', number)!r}"
    for key in _TEXT:
        if not isinstance(raw.get(key), str) or not str(raw[key]).strip():
            raise UsageError(f"{where} has no {key}")
    if extra := set(raw) - {*_TEXT, "cases", *_OPTIONAL}:
        raise UsageError(f"{where} has unknown fields: {', '.join(sorted(extra))}")
    for key in ("cases", *({"but"} & set(raw))):
        globs = raw.get(key)
        if not isinstance(globs, list) or not globs or not all(isinstance(c, str) and "/" in c for c in globs):
            raise UsageError(f'{where}: {key} must be a list of globs of the form "rule/id"')
    devices = raw.get("devices", ["any"])
    if not isinstance(devices, list) or not devices or not all(isinstance(name, str) for name in devices):
        raise UsageError(f'{where}: devices must be a list of names, as in ["cpu", "virtual:cuda"]')
    if raw["kind"] not in KINDS:
        raise UsageError(f"{where}: kind is {raw['kind']!r}; it is one of {', '.join(KINDS)}")
    condition = raw.get("lacks", "")
    if condition:
        op, _, dtype = str(condition).partition(" ")
        if op not in samples.catalogue() or dtype not in DTYPES:
            raise UsageError(f'{where}: lacks is {condition!r}; it is an op and a dtype, as in "mkldnn_rnn_layer bf16"')
    link = str(raw["link"])
    if link != "unreported" and not link.startswith("https://"):
        raise UsageError(f'{where}: link is {link!r}; it is a URL or "unreported"')
    try:
        re.compile(str(raw["raises"]))
    except re.error as error:
        raise UsageError(f"{where}: raises is not a regular expression: {error}") from error
    _check_range(where, "torch", raw["torch"])
    libraries = raw.get("libraries", {})
    if not isinstance(libraries, dict):
        raise UsageError(f'{where}: libraries must be a table of version ranges, as in {{ jax = ">=0.10" }}')
    for name, wanted in libraries.items():
        _check_range(where, f"libraries.{name}", wanted)
        if not path.is_relative_to(SHARED.parent) and canonicalize_name(name) not in _packages():
            raise UsageError(
                f"{where}: libraries names {name!r}, which is not installed and which no installed package asks for"
            )
    text: dict[str, Any] = {key: str(raw[key]) for key in _TEXT}
    return Deviation(
        **text,
        cases=tuple(raw["cases"]),
        but=tuple(raw.get("but", ())),
        devices=tuple(raw.get("devices", ())),
        libraries=tuple(libraries.items()),
        lacks=str(condition),
        file=_shown(path),
    )


def _check_range(where: str, key: str, wanted: object) -> None:
    """Raise UsageError unless a field is a version range."""
    try:
        SpecifierSet(wanted if isinstance(wanted, str) else "none")
    except InvalidSpecifier as error:
        raise UsageError(f"{where}: {key} is not a version range: {wanted!r}") from error


def _distinct(deviations: list[Deviation]) -> list[Deviation]:
    """Return the deviations of one device as they are. Raises UsageError where two files use one id."""
    first: dict[str, Deviation] = {}
    for deviation in deviations:
        if (other := first.setdefault(deviation.id, deviation)) is not deviation:
            raise UsageError(f"{deviation.file}: deviation {deviation.id!r} is in {other.file} already")
    return deviations


def _shown(path: Path) -> str:
    """Return a file's name for people: this package's own files without the folder it is installed in."""
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else str(path)


class KnownDeviations:
    """The deviations that apply to some devices, looked up by case.

    Args:
        devices: the devices.
        extra: further deviations files, for each of them.
        names: every device that a file may name. Without it, no name is refused.
    """

    def __init__(
        self, devices: Iterable[Device], extra: Iterable[Path] = (), names: Collection[str] | None = None
    ) -> None:
        self._devices = {device.name: device for device in devices}
        shared, kernels = [*load(SHARED, names), *load(JIT, names)], load(KERNELS, names)
        third = [d for path in dict.fromkeys(extra) for d in load(path, names)]
        self._by_device: dict[str, list[Deviation]] = {}
        self._if_compiled: dict[str, list[Deviation]] = {}
        for device in self._devices.values():
            own = load(device.deviations, names) if device.deviations else []
            of_kernels = _on(device, kernels)
            entries = [*named(device, own), *(_on(device, shared) if device.region == "torch.autocast" else ())]
            self._by_device[device.name] = _distinct(
                [*entries, *(of_kernels if device.key in KEYS else ()), *named(device, third)]
            )
            self._if_compiled[device.name] = of_kernels if device.key not in KEYS and device.name not in OWN else []

    def of(self, device: str, name: str, parts: Collection[str] = ()) -> list[Deviation]:
        """Return the deviations that speak of the case `rule/id` on a device.

        `parts`: the names of cases that make calls of this one alone. Where a deviation speaks of one of them, the case
        may fail so and may pass.
        """
        found = _about(self._by_device.get(device, ()), name, parts)
        of_kernels = _about(self._if_compiled.get(device, ()), name, parts)
        # A backend may register its kernels as late as its first case.
        return [*found, *of_kernels] if of_kernels and compiled(self._devices[device].key) else found

    def all(self) -> list[Deviation]:
        """Return every deviation once."""
        return list(dict.fromkeys(d for found in self._by_device.values() for d in found))

    def stale(self, names: Iterable[str], *, unjudged: Iterable[Path] = ()) -> list[str]:
        """Return a sentence for each glob that matches none of the cases `rule/id`.

        `unjudged`: files that speak of devices whose cases are not among the names, too.
        """
        by_rule = defaultdict(list)
        for name in names:
            by_rule[name.partition("/")[0]].append(name)
        left_out = {_shown(path) for path in unjudged}
        out = []
        for deviation in self.all():
            if deviation.file in left_out:
                continue
            tokens = {d.token for d in self._devices.values() if d.name in deviation.devices}
            for glob in deviation.cases:
                matches = re.compile(translate(glob)).match
                rule = glob.partition("/")[0]
                among = by_rule.get(rule, ()) if rule == escape(rule) else chain.from_iterable(by_rule.values())
                if not any(matches(name) and (not tokens or name.rpartition("-")[2] in tokens) for name in among):
                    out.append(f"{deviation.file}: deviation {deviation.id!r}: no case matches {glob!r}")
        return out


def _about(entries: Iterable[Deviation], name: str, parts: Collection[str]) -> list[Deviation]:
    found = ((entry, entry.covers(name)) for entry in entries)
    return [
        entry if itself else replace(entry, inherited=True)
        for entry, itself in found
        if itself or any(map(entry.covers, parts))
    ]


def named(device: Device, entries: Iterable[Deviation]) -> list[Deviation]:
    """Return the entries that name a device or no device at all."""
    return [entry for entry in entries if not entry.devices or device.name in entry.devices]


def _on(device: Device, entries: Iterable[Deviation]) -> list[Deviation]:
    """Return PyTorch's own entries as they apply to a device.

    A device of another package inherits each of them. Its author can mend none, and may have kernels that are right.
    """
    return named(device, entries) if device.name in OWN else [replace(entry, inherited=True) for entry in entries]
