"""Compare the autocast lists of device types: PyTorch's tables, vendors' lists, devices and C++ source."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten, wrap

from tabulate import tabulate

from ampcheck.devices.base import Device
from ampcheck.devices.registry import known, promised, unusable
from ampcheck.errors import UsageError, unknown
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.policies import KEYS, TABLES, rows, table
from ampcheck.spec.rules import RULES
from ampcheck.tools import cpp_lists
from ampcheck.tools.explain import resolve

TYPES = {key.removeprefix("Autocast").lower(): key for key in KEYS}
_SOURCE = re.compile(r"(.+\.(?:c|cc|cpp|cxx|cu|cuh|h|hpp|inc|mm))(?::(\w+))?")
MEANING = {
    "downcast": "cast to the region's dtype",
    "upcast": "cast to float32",
    "optdtype": "dtype=float32 filled in",
    "append": "run by its overload with dtype=float32",
    "promote": "cast to the widest dtype",
    "banned": "refused",
    "fallthrough": "left as given",
    UNKNOWN: "given a kernel of its own",
}
"""What a policy does to an op, in a few words."""


@dataclass(frozen=True, slots=True)
class AutocastList:
    """The policy of each overload in a list, and where the list is written."""

    name: str
    source: str
    policies: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ListDifference:
    """Overloads that have one policy in the `reference`, the first list, and another one in some other `lists`."""

    lists: tuple[str, ...]
    reference: str
    first: str
    other: str
    overloads: tuple[str, ...]

    def __str__(self) -> str:
        where = f"{MEANING[self.first]} on {self.reference}, {MEANING[self.other]} on {', '.join(self.lists)}"
        return f"{where} ({len(self.overloads)})"


def load(names: Sequence[str], version: str, modules: Sequence[str] = ()) -> list[AutocastList]:
    """Return the lists of device types, vendors, devices and C++ files. Raises UsageError for any other name."""
    devices = known(modules)
    return [_load(name, version, devices) for name in dict.fromkeys(names)]


def _load(name: str, version: str, devices: Mapping[str, Device]) -> AutocastList:
    if found := _SOURCE.fullmatch(name):
        lists = cpp_lists.read(Path(found[1]))
        key = found[2] or "".join(lists)
        if key not in lists:
            there = ", ".join(f"{found[1]}:{key}" for key in lists) or "no autocast list"
            raise UsageError(f"which list of {found[1]} to compare is not clear; it has {there}")
        return AutocastList(name, f"{found[1]}, {key}", lists[key])
    kind, vendors = name.lower().removeprefix("autocast"), _vendors()
    if kind in TYPES:
        return AutocastList(kind, f"PyTorch's table of {TYPES[kind]}", dict(table(TYPES[kind], version)))
    if name in vendors:
        return vendors[name]
    if name not in devices:
        raise unknown("autocast list", name, dict.fromkeys([*TYPES, *vendors, *devices, "FILE.cpp"]))
    device = devices[name]
    policies = promised(device)
    if device.key in KEYS or unusable(device):
        return AutocastList(name, "promised by the device", dict(policies))
    with device.activate():
        listed, source = device.listed()
    return AutocastList(name, source, dict(listed))


def _vendors() -> dict[str, AutocastList]:
    out: dict[str, AutocastList] = {}
    with (TABLES / "vendor_lists.csv").open(newline="", encoding="utf-8") as file:
        for line in csv.DictReader(file):
            found = out.setdefault(line["list"], AutocastList(line["list"], line["source"]))
            found.policies.update(dict.fromkeys(line["overloads"].split(), line["policy"]))
    return out


def narrow(lists: Sequence[AutocastList], op: str | None, policy: str | None) -> list[AutocastList]:
    """Keep the overloads of an op, or those that have a policy in some list. Raises UsageError for an unknown one."""
    if policy is not None and policy not in POLICIES:
        raise unknown("policy", policy, POLICIES)
    keep = {o for one in lists for o, found in one.policies.items() if policy in (None, found)}
    if op is not None:
        keep = {o for o in keep if op in (o, o.partition(".")[0])} or keep & {*resolve(op).overloads}
    return [replace(one, policies={o: found for o, found in one.policies.items() if o in keep}) for one in lists]


def differences(lists: Sequence[AutocastList]) -> list[ListDifference]:
    """Return the differences from the first list, the largest first; lists that differ alike share one."""
    found: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    first = lists[0].policies
    for one in lists[1:]:
        groups: dict[tuple[str, str], list[str]] = {}
        for overload in sorted(first.keys() | one.policies.keys()):
            pair = first.get(overload, "fallthrough"), one.policies.get(overload, "fallthrough")
            groups.setdefault(pair, []).append(overload)
        for pair, overloads in groups.items():
            if pair[0] != pair[1]:
                found.setdefault((*pair, tuple(overloads)), []).append(one.name)
    out = [ListDifference(tuple(names), lists[0].name, *group) for group, names in found.items()]
    return sorted(out, key=lambda difference: -len(difference.overloads))


def _folded(overloads: Sequence[str]) -> str:
    """Fold the overloads of one op to `sum (2)`, and four ops or more of one family to `fft_* (14)`."""
    ops = [overload.partition(".")[0] for overload in overloads]
    families = Counter(op.lstrip("_").partition("_")[0] for op in set(ops))
    named = Counter(f"{f}_*" if families[f := op.lstrip("_").partition("_")[0]] > 3 else op for op in ops)
    shown = sorted(named.items(), key=lambda item: (-item[1], item[0].startswith("_")))
    return ", ".join(name if count == 1 else f"{name} ({count})" for name, count in shown)


def _counts(lists: Sequence[AutocastList]) -> list[str]:
    """Return a sentence a list: how many overloads there are, with which policies, and how many differ."""
    out, first = [], lists[0].policies
    for one in lists:
        found = Counter(one.policies.values())
        by_policy = ", ".join(f"{found[policy]} {policy}" for policy in (*POLICIES, UNKNOWN) if found[policy])
        other = sum(first[overload] != one.policies[overload] for overload in first.keys() & one.policies.keys())
        missing, extra = len(first.keys() - one.policies.keys()), len(one.policies.keys() - first.keys())
        against = ((missing, "missing"), (extra, "extra"), (other, "with another policy"))
        differs = ", ".join(f"{count} {what}" for count, what in against if count) or "the same"
        out.append(f"{one.name}: {len(one.policies)} ({by_policy or 'none'}); {differs}")
    out[0] = out[0].removesuffix("; the same")
    return out


def by_op(lists: Sequence[AutocastList], style: str = "plain") -> str:
    """Return a table of the policy that each overload has in each list."""
    overloads = sorted({overload for one in lists for overload in one.policies})
    body = [[overload, *(one.policies.get(overload, "-") for one in lists)] for overload in overloads]
    return tabulate(body, headers=["overload", *(one.name for one in lists)], tablefmt=style)


def text(lists: Sequence[AutocastList], version: str, *, whole: bool) -> Iterator[str]:
    """Yield counts, then differences, cut to a screen of 24 lines and 100 columns unless the `whole` is asked for."""
    if not any(one.policies for one in lists):
        yield "These lists have no policy for it: its tensors are left as given. ampcheck explain says what it does."
        return
    sources = [f"{one.name} is {one.source}" for one in lists if one.name not in TYPES]
    head = [line for full in (*_counts(lists), *sources) for line in wrap(full, 100, subsequent_indent="  ")]
    yield from (f"Overloads under autocast in torch {version}, compared with {lists[0].name}:", "", *head, "")
    lines = [f"{difference}: {_folded(difference.overloads)}" for difference in differences(lists)]
    wrapped = [line for full in lines for line in wrap(full, 100, subsequent_indent="  ", break_on_hyphens=False)]
    room = max(20 - len(head), 1)
    if whole or len(wrapped) <= room:
        yield from wrapped or ["The lists agree."]
    else:
        yield from (shorten(line, 100, placeholder=" …") for line in lines[:room])
        yield f"In all {len(lines)} groups of differences; --policy POLICY, --op OP and --markdown show all of them."


def markdown(lists: Sequence[AutocastList], version: str) -> str:
    """Return a page: counts and sources, differences with every overload, the policies of each overload."""
    command = f"ampcheck lists {' '.join(one.name for one in lists)} --torch {version} --markdown"
    counts = "".join(f"- {count}. Source: {one.source}\n" for one, count in zip(lists, _counts(lists), strict=True))
    built = (row for row in rows(version) if row.builds)
    counts += "".join(f"- {o.key} also has `{o.overload}` ({o.policy}) in builds with {o.builds}\n" for o in built)
    policies = "".join(f"- {policy}: {RULES[policy].sentence}\n" for policy in POLICIES)
    found = "".join(f"- {one}: {', '.join(f'`{o}`' for o in one.overloads)}\n" for one in differences(lists))
    return f"""\
# Autocast across devices

<!-- Generated by `{command}`; do not edit. -->

What autocast does to each op in torch {version}, by device type: search this page for the op. An overload is a
signature of an op, and has one of the policies below. A region is the body of `with torch.autocast(…)`; eligible are
the floating-point tensors on its device, but for float64.

{policies}
An overload without a policy (-) is left as given; the parts of a composite op follow their own policies.

## By op

{by_op(lists, "github")}

## The lists

How many overloads a list has, and how it differs from that of {lists[0].name}:

{counts.rstrip()}

## Differences

{found.rstrip()}
"""
