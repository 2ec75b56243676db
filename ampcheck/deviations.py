"""Known differences between a device and the specification: data beside the device, each with its reason and link.

    [[deviation]]
    id = "promote-mixed-low"
    cases = ["promote/*-bf16-fp16-*"]
    kind = "deviation"
    reason = "promote refuses a lower precision other than the region's dtype."
    link = "https://github.com/pytorch/pytorch/pull/191125"
    raises = "Unexpected floating ScalarType"
    torch = ">=2.11"
    added = "2026-11-20"
    lacks = "mkldnn_rnn_layer bf16"

`cases` are globs over `rule/id`, or `jit/rule/id` for cases that an executor runs. `kind`: "deviation" (expected to
fail), "unsupported" (the device lacks it) or "flaky". `raises` is a regular expression that the failure must match, so
another failure of the same case stays red. `lacks` may be left out: an op and a dtype; the entry then applies only on
processors without such a kernel (`ampcheck.devices.cpu.lacks`).
`link` is a URL, or "unreported" for one that `docs/findings.md` holds with its reproduction.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property
from glob import escape
from itertools import chain
from pathlib import Path

import torch
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from ampcheck import ops
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import lacks
from ampcheck.errors import UsageError
from ampcheck.spec.policies import KEYS
from ampcheck.torch_dtypes import DTYPES

SHARED = Path(__file__).parent / "devices" / "deviations.toml"
"""Deviations of PyTorch itself, on more than one device."""

KERNELS = SHARED.with_name("kernels.toml")
"""Deviations of PyTorch's autocast kernels; a backend that brings its own kernels does not inherit them."""

JIT = SHARED.with_name("jit_deviations.toml")
"""Deviations of PyTorch's compilers. Their cases are written `jit/rule/id`, so that no other suite's are meant."""

KINDS = ("deviation", "unsupported", "flaky")
_TEXT = ("id", "kind", "reason", "link", "raises", "torch", "added")


@dataclass(frozen=True)
class Deviation:
    """One entry of a deviations file; `file` is where it stands."""

    id: str
    cases: tuple[str, ...]
    kind: str
    reason: str
    link: str
    raises: str
    torch: str
    added: str
    lacks: str = ""
    file: str = field(default="", compare=False)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(glob) for glob in self.cases))

    def covers(self, name: str) -> bool:
        """Whether it speaks of the case `rule/id`."""
        return self._pattern.match(name) is not None

    def explains(self, failure: str) -> bool:
        """Whether the failure text is the one it describes."""
        return re.search(self.raises, failure) is not None


def load(path: Path) -> list[Deviation]:
    """The deviations of a file that apply to this torch. Raises UsageError where the file is malformed."""
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
    ids = [deviation.id for deviation in out]
    for name in ids:
        if ids.count(name) > 1:
            raise UsageError(f"{path}: deviation {name!r} stands there more than once")
    version = torch.__version__.split("+")[0]
    return [d for d in out if SpecifierSet(d.torch, prereleases=True).contains(version) and _on_this_processor(d)]


def _on_this_processor(deviation: Deviation) -> bool:
    return not deviation.lacks or lacks(*deviation.lacks.split())


def _entry(path: Path, number: int, raw: object) -> Deviation:
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: deviation {number} is no table")
    where = f"{path}: deviation {raw.get('id', number)!r}"
    for key in _TEXT:
        if not isinstance(raw.get(key), str) or not str(raw[key]).strip():
            raise UsageError(f"{where} has no {key}")
    if extra := set(raw) - {*_TEXT, "cases", "lacks"}:
        raise UsageError(f"{where} has unknown fields: {', '.join(sorted(extra))}")
    cases = raw.get("cases")
    if not isinstance(cases, list) or not cases or not all(isinstance(c, str) and "/" in c for c in cases):
        raise UsageError(f'{where}: cases must be a list of globs of the form "rule/id"')
    if raw["kind"] not in KINDS:
        raise UsageError(f"{where}: kind is {raw['kind']!r}; it is one of {', '.join(KINDS)}")
    condition = raw.get("lacks", "")
    if condition:
        op, _, dtype = str(condition).partition(" ")
        if op not in ops.catalogue() or dtype not in DTYPES:
            raise UsageError(f'{where}: lacks is {condition!r}; it is an op and a dtype, as in "mkldnn_rnn_layer bf16"')
    link = str(raw["link"])
    if link != "unreported" and not link.startswith("https://"):
        raise UsageError(f'{where}: link is {link!r}; it is a URL or "unreported"')
    try:
        re.compile(str(raw["raises"]))
        SpecifierSet(str(raw["torch"]))
    except re.error as error:
        raise UsageError(f"{where}: raises is no regular expression: {error}") from error
    except InvalidSpecifier as error:
        raise UsageError(f"{where}: torch is no version range: {error}") from error
    fields = {key: str(raw[key]) for key in _TEXT}
    return Deviation(cases=tuple(cases), file=_shown(path), lacks=str(condition), **fields)


def _distinct(deviations: list[Deviation]) -> list[Deviation]:
    """The deviations of one device as they are. Raises UsageError where two files use one id."""
    first: dict[str, Deviation] = {}
    for deviation in deviations:
        if (other := first.setdefault(deviation.id, deviation)) is not deviation:
            raise UsageError(f"{deviation.file}: deviation {deviation.id!r} stands already in {other.file}")
    return deviations


def _shown(path: Path) -> str:
    """A file's name for people: this package's own files without the folder it is installed in."""
    root = Path(__file__).parent.parent
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


class Waivers:
    """The deviations that apply to some devices, looked up by case."""

    def __init__(self, devices: Iterable[Device], extra: Iterable[Path] = ()) -> None:
        devices = list(devices)
        shared, kernels = [*load(SHARED), *load(JIT)], load(KERNELS)
        third = [d for path in dict.fromkeys(extra) for d in load(path)]
        # A device's own come first: of a case that PyTorch's speak of too, its file knows more.
        self._by_device = {
            device.name: _distinct(
                [
                    *(load(device.deviations) if device.deviations else ()),
                    *(shared if device.region == "torch.autocast" else ()),
                    *(kernels if device.key in KEYS else ()),
                    *third,
                ]
            )
            for device in devices
        }

    def of(self, device: str, name: str) -> Deviation | None:
        """The deviation that speaks of the case `rule/id` on a device, or None."""
        return next((d for d in self._by_device.get(device, ()) if d.covers(name)), None)

    def all(self) -> list[Deviation]:
        """Every deviation once."""
        return list(dict.fromkeys(d for found in self._by_device.values() for d in found))

    def stale(self, names: Iterable[str], *, unjudged: Iterable[Path] = ()) -> list[str]:
        """A sentence for each glob that matches none of the cases `rule/id`.

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
            for glob in deviation.cases:
                matches = re.compile(translate(glob)).match
                rule = glob.partition("/")[0]
                among = by_rule.get(rule, ()) if rule == escape(rule) else chain.from_iterable(by_rule.values())
                if not any(map(matches, among)):
                    out.append(f"{deviation.file}: deviation {deviation.id!r}: no case matches {glob!r}")
        return out
