"""Compare the autocast lists of device types: PyTorch's tables, vendors' lists, devices and C++ source."""

import csv
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from textwrap import shorten, wrap

import torch
from tabulate import tabulate

from ampcheck.devices.base import Device
from ampcheck.devices.registry import known, promised, unusable
from ampcheck.errors import UsageError, unknown
from ampcheck.observe.dispatcher import UNKNOWN
from ampcheck.spec.case import RULES
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.policies import KEY_OF, KEYS, TABLES, rows, table
from ampcheck.tools.explain import resolve

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
        lists = read_cpp(Path(found[1]))
        key = found[2] or "".join(lists)
        if key not in lists:
            there = ", ".join(f"{found[1]}:{key}" for key in lists) or "no autocast list"
            raise UsageError(f"which list of {found[1]} to compare is not clear; it has {there}")
        return AutocastList(name, f"{found[1]}, {key}", lists[key])
    kind, vendors = name.lower().removeprefix("autocast"), _vendors()
    if kind in KEY_OF:
        return AutocastList(kind, f"PyTorch's table of {KEY_OF[kind]}", dict(table(KEY_OF[kind], version)))
    if name in vendors:
        return vendors[name]
    if name not in devices:
        raise unknown("autocast list", name, dict.fromkeys([*KEY_OF, *vendors, *devices, "FILE.cpp"]))
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
    sources = [f"{one.name} is {one.source}" for one in lists if one.name not in KEY_OF]
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
    texts = {"counts": counts.rstrip(), "policies": policies, "found": found.rstrip(), "by_op": by_op(lists, "github")}
    page = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")
    return page.format(command=command, version=version, first=lists[0].name, **texts)


# ---- C++ source that registers lists with the macros of PyTorch's ATen/autocast_mode.h
_CASTS = {"lower_precision_fp": "downcast", "fp32": "upcast", "promote": "promote"}
_CASTS |= {"fp32_set_opt_dtype": "optdtype", "fp32_append_dtype": "append"}
_POLICY = rf"(?:{'|'.join(_CASTS)})"
_DEPTH = 6
"""How deep macros are expanded in one another; one that names itself would be expanded for ever."""
_IGNORED = re.compile(r'("(?:\\.|[^"\\])*")|//[^\n]*|/\*.*?\*/|^[ \t]*#[ \t]*if 0\b.*?^[ \t]*#[ \t]*e\w+', re.S | re.M)
_DEFINE = re.compile(r"^[ \t]*#[ \t]*define[ \t]+(\w+)\(([^)]*)\)(.*)$", re.M)
_BLOCK = re.compile(r"TORCH_LIBRARY_IMPL\(\s*(\w+)\s*,\s*(\w+)\s*,\s*\w+\s*\)")
_REGISTRATION = re.compile(
    rf"\bKERNEL\w*\(\s*(?:[\w:]+::\w+,\s*)?(?P<op>\w+)(?:\s*,\s*(?P<overload>\w+))?\s*,\s*(?P<policy>{_POLICY})\s*\)"
    rf'|\bKERNEL\w*\([^";]*?"(?P<name>[\w.]+)"[^;"]*?,\s*(?P<cast>{_POLICY})\s*\)'
    r'|\bm\.impl\([^"]*"(?:aten::)?(?P<impl>[\w.]+)"(?P<kernel>[^;]*);'
    r"|\b(?P<macro>_?[A-Z][A-Z0-9_]{3,})\("
)


def read_cpp(path: Path) -> dict[str, dict[str, str]]:
    """Return the policy of each aten overload that a file registers, by autocast dispatch key.

    Macros are those of the file and, for the AT_FORALL_ lists, of the installed torch's header. A kernel of the file's
    own is `UNKNOWN`, unless its name says that it bans the op. Both sides of an `#if` are read, but for `#if 0`.
    Raises UsageError for a file that cannot be read, or that registers by a macro that is not understood.
    """
    try:
        text = _plain(path.read_text(encoding="utf-8", errors="replace"))
    except OSError as error:
        raise UsageError(f"the C++ source {path} cannot be read: {error.strerror}") from error
    header = _plain((Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8"))
    macros = {name: (given, body) for name, given, body in _DEFINE.findall(header) if name.startswith("AT_FORALL")}
    for name, given, body in _DEFINE.findall(text):
        if not name.startswith("KERNEL") or re.search(rf"\b{_POLICY}\b", body):
            macros[name] = given, body
    call = re.compile(rf"\b({'|'.join(macros)})\(([^()]*)\)")
    text = _DEFINE.sub("", text)
    for _ in range(_DEPTH):
        text = call.sub(lambda found: _expanded(*macros[found[1]], found[2]), text)
    _, *parts = _BLOCK.split(text)
    out: dict[str, dict[str, str]] = {}
    for library, key, body in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        if library == "aten" and key.startswith("Autocast"):
            block, *_ = re.split(r"^\s*\}", body, maxsplit=1, flags=re.M)
            out.setdefault(key, {}).update(_registered(block, path))
    return out


def _plain(text: str) -> str:
    """Return C++ without comments and continued lines."""
    return _IGNORED.sub(lambda found: found[1] or " ", re.sub(r"\\\r?\n", " ", text))


def _expanded(given: str, body: str, args: str) -> str:
    names = [name.strip() for name in given.split(",")]
    values = dict(zip(names, args.split(","), strict=False)) | ({"__VA_ARGS__": args} if names == ["..."] else {})
    return re.sub(r"\w+", lambda word: values.get(word[0], word[0]), body)


def _registered(body: str, path: Path) -> Iterator[tuple[str, str]]:
    for found in _REGISTRATION.finditer(body):
        if found["impl"]:
            cast = re.search(rf"\bCastPolicy::({_POLICY})\b", found["kernel"])
            own = "banned" if re.search(r"_(banned|not_supported)\b", found["kernel"]) else UNKNOWN
            yield found["impl"], _CASTS[cast[1]] if cast else own
        elif found["macro"]:
            raise UsageError(
                f"{path} registers by the macro {found['macro']}, which cannot be read; what can be is "
                "m.impl, PyTorch's KERNEL_ macros and its AT_FORALL_ lists"
            )
        else:
            name = found["name"] or ".".join(filter(None, (found["op"], found["overload"])))
            yield name, _CASTS[found["policy"] or found["cast"]]
