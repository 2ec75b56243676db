"""Excuse cases that differ from the specification in a known way: deviations files, data beside the device.

docs/contributing.md, "Add a known deviation", has an entry with every field and says what it excuses. `cases` and `but`
are globs over `rule/id`, or `jit/rule/id` for cases that a compiler runs; `raises` is a regular expression, in which
`{low}` is the dtype of the case's region, in any spelling, and `{other}` the other lower precision. What a file of
PyTorch's own says is inherited by devices of other packages: a case may fail there as described, and may pass.

An entry of kind "baseline" excuses red cases of one run in later runs, as long as they are red in the same way. It has
no reason and no conditions, and `cases` are keys, `suite/rule/id`:

    [[deviation]]
    kind = "baseline"
    cases = ["eager/downcast/mm-fp32-fp16-mydevice"]
    status = "fail"
    differences = ["argument 0 of aten::mm was given as fp32 and reached the kernel as fp32; expected fp16"]
"""

import json
import math
import re
import tomllib
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from fnmatch import translate
from functools import cache, cached_property, lru_cache
from glob import escape
from heapq import heapify, heappop, heappush
from importlib.metadata import PackageNotFoundError, distributions, version
from itertools import chain, combinations
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import torch
from msgspec import Meta, ValidationError, convert
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from ampcheck import samples
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import lacks
from ampcheck.devices.registry import OWN, known
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import compiled
from ampcheck.runner.record import BASELINE, RED, Result, Run, cause_of, counted, first_line, normalised, varying
from ampcheck.spec.case import check_key
from ampcheck.spec.policies import KEYS
from ampcheck.spec.torch_dtypes import DTYPES

SHARED = Path(__file__).parents[1] / "devices" / "deviations.toml"
"""Deviations of PyTorch itself, on more than one device."""

KERNELS = SHARED.with_name("kernels.toml")
"""Deviations of PyTorch's autocast kernels; a backend with its own Python kernels does not inherit them."""

JIT = SHARED.with_name("jit_deviations.toml")
"""Deviations of PyTorch's compilers. Their cases are written `jit/rule/id`, so that no other suite's are meant."""

_ROOT = Path(__file__).parents[2]
KINDS = ("deviation", "fault", "unsupported", "flaky", "baseline")
EXCUSED_BY_BASELINE = tuple(status for status in RED if status != "missing")
"""What a case of a baseline can be: a case that did not run was not seen to fail in any way."""

_SPELLINGS = {"fp16": r"(?:torch\.float16|fp16|(?:c10::)?Half)", "bf16": r"(?:torch\.bfloat16|bf16|(?:c10::)?BFloat16)"}
"""What messages call the lower precisions."""

Text = Annotated[str, Meta(pattern=r"\S", description="a text")]
Globs = Annotated[
    tuple[Annotated[str, Meta(pattern="/")], ...],
    Meta(min_length=1, description='a list of globs of the form "rule/id"'),
]


@dataclass(frozen=True)
class Deviation:
    """One entry of a deviations file, with the name of that file.

    `inherited`: whether it is PyTorch's, on a device of another package, or of a part of the case. `status`: of kind
    "baseline", what its cases are; `raises` is then their message, without what varies from run to run.
    """

    id: Text
    cases: Globs
    kind: Annotated[str, Meta(pattern=f"^({'|'.join(KINDS)})$", description=f"one of {', '.join(KINDS)}")]
    reason: Text
    link: Annotated[str, Meta(pattern="^(unreported$|https://)", description='a URL or "unreported"')]
    raises: Text
    torch: Text
    added: Text
    but: Globs = ()
    devices: Annotated[
        tuple[str, ...], Meta(min_length=1, description='a list of names, as in ["cpu", "virtual:cuda"]')
    ] = ()
    libraries: Annotated[
        tuple[tuple[str, str], ...], Meta(description='a table of version ranges, as in { jax = ">=0.10" }')
    ] = ()
    lacks: Annotated[str, Meta(description='an op and a dtype, as in "mkldnn_rnn_layer bf16"')] = ""
    most: Annotated[
        tuple[tuple[str, Annotated[float, Meta(ge=0)]], ...],
        Meta(description="a table of numbers from 0 on for named groups of raises, as in { off = 0.02 }"),
    ] = ()
    file: str = field(default="", compare=False)
    inherited: bool = field(default=False, compare=False)
    status: str = ""

    @cached_property
    def _rules(self) -> frozenset[str] | None:
        """Return the rules of its cases; None where a glob matches cases of several."""
        rules = frozenset(glob.partition("/")[0] for glob in self.cases)
        return None if any(rule != escape(rule) for rule in rules) else rules

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
        if self._rules is not None and name.partition("/")[0] not in self._rules:
            return False  # before a pattern is made, which takes long for a thousand of them
        return self._pattern.match(name) is not None and not (self.but and self._left_out.match(name))

    def in_region(self, amp: str) -> "Deviation":
        """Return the entry as it is for cases in regions of a dtype, which `{low}` and `{other}` then name."""
        low, other = _SPELLINGS.get(amp, amp), _SPELLINGS["bf16" if amp == "fp16" else "fp16"]
        raises = self.raises.replace("{low}", low).replace("{other}", other)
        return self if raises == self.raises else replace(self, raises=raises)

    def explains(self, difference: str) -> bool:
        """Tell whether a difference is one that it describes, with no amount that is larger than it says."""
        found = list(re.finditer(self.raises, difference))
        return bool(found) and all(map(self._allows, found))

    def _allows(self, match: re.Match[str]) -> bool:
        found = match.groupdict()
        return all(found[name] is None or abs(number(found[name])) <= limit for name, limit in self.most)

    def exceeded(self, difference: str) -> str:
        """Say which amounts it allows, where a difference is as it describes but for these; else ""."""
        if self.explains(difference) or not re.search(self.raises, difference):
            return ""
        return f" (deviation {self.id!r}: at most {', '.join(f'{name} = {limit:g}' for name, limit in self.most)})"

    def applies(self) -> bool:
        """Tell whether its conditions hold here: the versions of torch and of other packages, and the processor."""
        own = SpecifierSet(self.torch, prereleases=True).contains(torch.__version__.split("+")[0])
        if not own or not all(_installed(*library) for library in self.libraries):
            return False
        return not self.lacks or lacks(*self.lacks.split())


def after_deviations(
    status: str, differences: Sequence[str], entries: Sequence[Deviation], message: str = ""
) -> tuple[str, str, tuple[Deviation, ...]]:
    """Judge a case by the entries that speak of it. Nothing else excuses a case.

    Args:
        status: what became of the case, without deviations.
        differences: each thing that was not as promised; what the case raised is one.
        entries: the entries that speak of the case.
        message: all of it as text, which entries of kind "baseline" describe; by default the differences.

    Returns:
        The status to show, the reason for it, and the deviations that it is about.
    """
    shown, why, found = _described_by(status, differences, [entry for entry in entries if entry.kind != "baseline"])
    said = _constant(shown, message or "\n".join(differences) or why)
    same = [entry for entry in entries if (entry.kind, entry.status, entry.raises) == ("baseline", shown, said)]
    if same:
        return "deviation", f"It was red in the same way before ({same[0].file}).", (same[0],)
    return shown, why, found


def _described_by(
    status: str, differences: Sequence[str], entries: Sequence[Deviation]
) -> tuple[str, str, tuple[Deviation, ...]]:
    strict = tuple(entry for entry in entries if not entry.may_pass)
    if status == "pass" and strict:
        return "fixed", _stale(strict, "the case passes now"), strict
    if status not in ("fail", "broken") or not entries or not differences:
        return status, "", ()
    for difference in differences:
        if not any(entry.explains(difference) for entry in entries):
            more = "".join(entry.exceeded(difference) for entry in entries)
            return status, f"no deviation of this case ({_ids(entries)}) describes: {difference}{more}", tuple(entries)
    found = tuple(entry for entry in entries if any(map(entry.explains, differences)))
    shown = "unsupported" if all(entry.kind == "unsupported" for entry in found) else "deviation"
    stale = tuple(entry for entry in strict if entry not in found)
    if stale and shown == "deviation":  # what the device lacks cannot show whether the rest is still so
        return "fixed", _stale(stale, "the case fails in other ways alone"), stale
    return shown, " ".join(f"{entry.reason} {entry.link}" for entry in found), found


def number(text: str) -> float:
    """Return the number that a text is; nan, which is within no bound, where it is none."""
    try:
        return float(text)
    except ValueError:
        return math.nan


_VARIES = re.compile(
    r"0x[0-9a-fA-F]+"  # an address
    r"|(?<![\w.])[-+]?(?:\d+\.\d*|\.\d+|\d+(?=e[-+]?\d))(?:e[-+]?\d+)?(?![\w.])"  # a measured value
    r"|(?<= is )\d+\b|(?<= to )\d+\b|(?<= most )\d+\b"  # one that was printed without a fraction
    r"|(?<=:)\d+\b"  # the line of a source file
)
"""What differs between two failures of one case that fails for one reason."""


def _constant(status: str, message: str) -> str:
    """Return what two failures of one case have in common where their reason is one."""
    if status in ("crash", "timeout"):
        message = message.partition("; it was in ")[0]  # a crash may be elsewhere
    return "\n".join(_VARIES.sub("…", line.rstrip()) for line in message.split("\n")).strip()


def _stale(entries: Sequence[Deviation], because: str) -> str:
    files = ", ".join(dict.fromkeys(entry.file for entry in entries))
    return f"deviation {_ids(entries)} is stale: {because} ({files})"


def _ids(entries: Sequence[Deviation]) -> str:
    return ", ".join(repr(entry.id) for entry in entries)


def _any(globs: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(translate(glob) for glob in globs))


def load(path: Path, names: Collection[str] | None = None, *, what: str = "deviations file") -> list[Deviation]:
    """Read the deviations of a file that apply here, whatever the device. Raises UsageError where it is malformed.

    Args:
        path: the file.
        names: every device that an entry may name. Without it, no name is refused.
        what: "baseline" for a file that may be a plain list, as `ampcheck waivers baseline` wrote before.
    """
    try:
        out = _entries(path, path.read_text(encoding="utf-8"), what)
    except OSError as error:
        raise UsageError(f"the {what} {path} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"the {what} {path} is not valid TOML: {error}") from error
    here = [deviation for deviation in out if deviation.applies()]
    ids = [deviation.id for deviation in here if deviation.kind != "baseline"]
    for deviation in out:
        if ids.count(deviation.id) > 1:
            raise UsageError(f"{path}: deviation {deviation.id!r} is in the file more than once")
        if names is not None and (unknown := [name for name in deviation.devices if name not in (*names, OTHERS)]):
            where = f"{path}: deviation {deviation.id!r}"
            raise UsageError(f"{where}: there is no device named {unknown[0]!r}; there are {', '.join(names)}")
    keys = Counter(key for deviation in out if deviation.kind == "baseline" for key in deviation.cases)
    if repeated := [key for key, count in keys.items() if count > 1]:
        raise UsageError(f"{path}: {repeated[0]} occurs in the baseline more than once")
    return here


@lru_cache(64)  # several devices share a file, and a command asks for each device
def _entries(path: Path, text: str, what: str) -> tuple[Deviation, ...]:
    """Return every entry of a file with a text, whether it applies here or not."""
    plain = what == "baseline" and not re.search(r"^\[\[", text, re.MULTILINE)
    entries = {"deviation": _of_list(path, text)} if plain else tomllib.loads(text)
    unknown = [key for key in entries if key != "deviation"]
    if unknown or not isinstance(entries.get("deviation", []), list):
        raise UsageError(f"{path}: expected [[deviation]] tables only, found {', '.join(unknown) or 'another form'}")
    return tuple(_entry(path, number, raw) for number, raw in enumerate(entries.get("deviation", []), 1))


_HEAD = re.compile(rf"(?P<key>\S+): (?P<status>{'|'.join(EXCUSED_BY_BASELINE)})")


def _of_list(path: Path, text: str) -> list[dict[str, Any]]:
    """Return the entries of a baseline that is a plain list: a line "suite/rule/id: STATUS", a line a difference."""
    found: list[dict[str, Any]] = []
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        if found and line.startswith("  -"):
            found[-1]["differences"].append(line[4:])
        elif head := _HEAD.fullmatch(line.rstrip()):
            found.append({"kind": "baseline", "cases": [head["key"]], "status": head["status"], "differences": []})
        else:
            raise UsageError(
                f'{path}, line {number}: expected "suite/rule/id: STATUS", with a STATUS of '
                f'{", ".join(EXCUSED_BY_BASELINE)}, or "  - " and a line of the failure'
            )
    return found


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


_EXPECTED = {
    name: next(meta.description for meta in kind.__metadata__ if isinstance(meta, Meta))
    for name, kind in get_type_hints(Deviation, include_extras=True).items()
    if hasattr(kind, "__metadata__")
}
"""What each field of an entry is, in words: the fields that a file may have."""


def _entry(path: Path, number: int, raw: object) -> Deviation:
    if not isinstance(raw, dict):
        raise UsageError(f"{path}: deviation {number} is not a table")
    where = f"{path}: deviation {raw.get('id', number)!r}"
    if raw.get("kind") == "baseline":
        return _baseline_entry(path, where, raw)
    if extra := set(raw) - set(_EXPECTED):
        raise UsageError(f"{where} has unknown fields: {', '.join(sorted(extra))}")
    tables = {name: [*raw[name].items()] for name in ("libraries", "most") if isinstance(raw.get(name), dict)}
    given = {**raw, **tables}
    try:
        entry = convert({**given, "file": shown_path(path)}, Deviation)
    except ValidationError as error:
        raise UsageError(f"{where} {_wrong(str(error), raw)}") from error
    op, _, dtype = entry.lacks.partition(" ")
    if entry.lacks and (op not in samples.catalogue() or dtype not in DTYPES):
        raise UsageError(f"{where}: lacks must be {_EXPECTED['lacks']}; it is {entry.lacks!r}")
    try:
        re.compile(entry.raises)
    except re.error as error:
        raise UsageError(f"{where}: raises is not a regular expression: {error}") from error
    if unnamed := [name for name, _ in entry.most if name not in re.compile(entry.raises).groupindex]:
        raise UsageError(f"{where}: most names {unnamed[0]!r}, and raises has no group (?P<{unnamed[0]}>...)")
    for field_name, wanted in (("torch", entry.torch), *((f"libraries.{n}", wanted) for n, wanted in entry.libraries)):
        try:
            SpecifierSet(wanted)
        except InvalidSpecifier as error:
            raise UsageError(f"{where}: {field_name} is not a version range: {wanted!r}") from error
    for name, _ in entry.libraries:
        if not path.is_relative_to(SHARED.parent) and canonicalize_name(name) not in _packages():
            raise UsageError(
                f"{where}: libraries names {name!r}, which is not installed and which no installed package asks for"
            )
    return entry


def _wrong(said: str, raw: dict[str, Any]) -> str:
    """Say what is wrong with an entry, from msgspec's sentence: "… missing required field `x`", "… - at `$.x[0]`"."""
    missing, place = re.search(r"required field `(\w+)`", said), re.search(r"at `\$\.(\w+)", said)
    name = (missing or place or ["", ""])[1]
    if missing or _EXPECTED[name] == "a text":
        return f"has no {name}"
    return f"is malformed: {name} must be {_EXPECTED[name]}; it is {raw[name]!r}"


def _baseline_entry(path: Path, where: str, raw: dict[str, Any]) -> Deviation:
    if extra := set(raw) - {"kind", "cases", "status", "differences"}:
        raise UsageError(f"{where} has unknown fields for kind baseline: {', '.join(sorted(extra))}")
    for key in ("cases", "differences"):
        if not isinstance(raw.get(key), list) or not all(isinstance(text, str) for text in raw[key]):
            raise UsageError(f"{where}: {key} must be a list of texts")
    status = raw.get("status")
    if status not in EXCUSED_BY_BASELINE:
        raise UsageError(f"{where}: status is {status!r}; it is one of {', '.join(EXCUSED_BY_BASELINE)}")
    return Deviation(
        id=f"{BASELINE}{status}",
        cases=tuple(map(check_key, raw["cases"])),
        kind="baseline",
        reason="",
        link="",
        raises=_constant(status, "\n".join(raw["differences"])),
        torch="",
        added="",
        file=shown_path(path),
        status=status,
    )


def _distinct(deviations: list[Deviation]) -> list[Deviation]:
    """Return the deviations of one device as they are. Raises UsageError where two files use one id."""
    first: dict[str, Deviation] = {}
    for deviation in deviations:
        if (other := first.setdefault(deviation.id, deviation)) is not deviation:
            raise UsageError(f"{deviation.file}: deviation {deviation.id!r} is in {other.file} already")
    return deviations


def shown_path(path: Path) -> str:
    """Return a file's name for people: this package's own files without the folder it is installed in."""
    return path.relative_to(_ROOT).as_posix() if path.is_relative_to(_ROOT) else str(path)


OTHERS = "others"
"""In `devices` of PyTorch's own files: no device of this package, so that those of other packages alone inherit it."""


class KnownDeviations:
    """The deviations that apply to some devices, looked up by case.

    Args:
        devices: the devices.
        extra: further deviations files, for each of them.
        names: every device that a file may name. Without it, no name is refused.
        baseline: a further file, which may be a plain list of red cases.
    """

    def __init__(
        self,
        devices: Iterable[Device],
        extra: Iterable[Path] = (),
        names: Collection[str] | None = None,
        *,
        baseline: Path | None = None,
    ) -> None:
        self._devices = {device.name: device for device in devices}
        shared, kernels = [*load(SHARED, names), *load(JIT, names)], load(KERNELS, names)
        third = [d for path in dict.fromkeys(extra) for d in load(path, names)]
        third += load(baseline, names, what="baseline") if baseline else []
        self._baseline = {key: entry for entry in third if entry.kind == "baseline" for key in entry.cases}
        third = [entry for entry in third if entry.kind != "baseline"]
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

    def baseline(self, key: str) -> list[Deviation]:
        """Return the entries of kind "baseline" that speak of the case `suite/rule/id`: one or none."""
        return [self._baseline[key]] if key in self._baseline else []

    def baselines(self) -> dict[str, list[str]]:
        """Return the cases of entries of kind "baseline" by file."""
        found: dict[str, list[str]] = {}
        for key, entry in self._baseline.items():
            found.setdefault(entry.file, []).append(key)
        return found

    def all(self) -> list[Deviation]:
        """Return every deviation once."""
        return list(dict.fromkeys(d for found in self._by_device.values() for d in found))

    def stale(
        self, names: Iterable[str], *, unjudged: Iterable[Path] = (), absent: Collection[str] = ()
    ) -> dict[str, list[str]]:
        """Return the globs of each deviation that match none of the cases `rule/id`, by the file and id of all judged.

        `unjudged`: files that speak of devices whose cases are not among the names, too. `absent`: tokens of devices
        that this run does not have, whose globs are not judged.
        """
        left_out = {shown_path(path) for path in unjudged}
        by_rule = defaultdict(list)
        for name in names:
            by_rule[name.partition("/")[0]].append(name)
        out: dict[str, list[str]] = {}
        for deviation in self.all():
            if deviation.file in left_out or deviation.inherited:
                continue
            unmatched = out.setdefault(f"{deviation.file}: deviation {deviation.id!r}", [])
            tokens = {d.token for d in self._devices.values() if d.name in deviation.devices}
            for glob in deviation.cases:
                if glob.rpartition("-")[2] in absent:
                    continue
                matches = re.compile(translate(glob)).match
                rule = glob.partition("/")[0]
                among = by_rule.get(rule, ()) if rule == escape(rule) else chain.from_iterable(by_rule.values())
                if not any(matches(name) and (not tokens or name.rpartition("-")[2] in tokens) for name in among):
                    unmatched.append(glob)
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
    So does CUDA what is said of the virtual and the emulated device for it, whose autocast and compilers are the same.
    """
    entries = list(entries)
    if device.name not in OWN:
        return [replace(entry, inherited=True) for entry in entries]
    devices = known()
    names = [name for name in (device.type, f"virtual:{device.type}", f"emulated:{device.type}") if name != device.name]
    twins = [] if device.name.startswith("virtual:") else [devices[name] for name in names if name in devices]
    if not twins:
        return named(device, entries)
    tokens = "|".join(re.escape(twin.token) for twin in twins)
    found = []
    for entry in entries:
        cases, but = (
            tuple(re.sub(f"-({tokens})$", f"-{device.token}", glob) for glob in globs)
            for globs in (entry.cases, entry.but)
        )
        if named(device, [entry]) and cases == entry.cases:
            found.append(replace(entry, but=but))
        elif any(named(one, [entry]) for one in (device, *twins)):
            found.append(replace(entry, inherited=True, devices=(), cases=cases, but=but))
    return found


# ---- entries for the failing cases of a run
#
# One entry a cause: which cases, which failure; why is for a person to say. An entry speaks of `rule/id` and so of
# every suite. Its globs match the failing cases of its cause and no other case of the run; its `raises` matches each of
# their differences. Its reason is left empty, which the loader refuses.

ENTRIES, GLOBS = 20, 20
"""How many entries are printed, and how many globs of each, unless all are asked for."""
_SHAPES = 6
"""How many kinds of differences one `raises` describes, unless a single case has more."""


@dataclass(frozen=True, slots=True)
class SuggestedEntry:
    """A suggested deviation. `message`: the first line of one of its failures; `count`: how many cases it is for."""

    id: str
    device: str
    cases: tuple[str, ...]
    raises: str
    message: str
    count: int


@dataclass(frozen=True, slots=True)
class Suggestion:
    """Entries, that for most cases first, and a sentence for each red case that none of them can speak of."""

    entries: tuple[SuggestedEntry, ...]
    left: tuple[str, ...]


def suggest(run: Run, devices: Collection[str] = ()) -> Suggestion:
    """Suggest entries for the failing cases of a run, of some devices or of all.

    Raises UsageError for a device of which the run has no case.
    """
    results = list(run.results.values())
    _check_devices(str(run.path), results, devices)
    mine = [result for result in results if not devices or result.device in devices]
    left = [
        f"{r.key}: {r.status}; only a failure can be a known deviation"
        for r in mine
        if r.status in ("broken", "error", "crash", "timeout")
    ]
    other = {result.name for result in results if result.status != "fail"}
    causes: dict[str, set[str]] = {}
    for result in results:
        causes.setdefault(result.name, set()).add(cause_of(result))
    groups: dict[tuple[str, str], list[Result]] = {}
    for result in (result for result in mine if result.status == "fail"):
        if result.deviation:
            left.append(f"{result.key}: deviation {result.deviation!r} speaks of it, but its raises does not match")
        elif result.name in other:
            left.append(
                f"{result.key}: the same case does not fail in another suite, and an entry speaks of every suite"
            )
        elif len(causes[result.name]) > 1:
            left.append(
                f"{result.key}: the same case fails otherwise in another suite, and the first entry would speak of both"
            )
        else:
            groups.setdefault((result.device, cause_of(result)), []).append(result)
    entries: list[SuggestedEntry] = []
    taken: Counter[str] = Counter()
    for (device, _), found in sorted(groups.items(), key=lambda group: (-len(group[1]), group[0])):
        raises, members = _described(found)
        left += [f"{r.key}: it has rarer differences than its entry describes" for r in found if r not in members]
        label = _label(members[0].rule, members[0].message)
        taken[label] += 1
        unique = label if taken[label] == 1 else f"{label}-{taken[label]}"
        first = members[0].message.partition("\n")[0]
        entries.append(SuggestedEntry(unique, device, _of_rules(members, results), raises, first, len(members)))
    return Suggestion(tuple(entries), tuple(left))


def _described(results: Sequence[Result]) -> tuple[str, list[Result]]:
    """Return a regular expression for the differences of results of one cause, and the results it describes wholly.

    It describes the commonest kinds of differences, that of at least one result.
    """
    alike: dict[frozenset[str], list[Result]] = {}
    for result in results:
        alike.setdefault(frozenset(_shape(parts) for parts in _parts(result)), []).append(result)
    shapes: set[str] = set()
    members: list[Result] = []
    for kinds, found in sorted(alike.items(), key=lambda item: -len(item[1])):
        if not members or len(shapes | kinds) <= _SHAPES:
            shapes |= kinds
            members += found
    lines: dict[str, list[list[str]]] = {}
    for result in members:
        for parts in _parts(result):
            lines.setdefault(_shape(parts), []).append(parts)
    return "|".join(map(_raises, lines.values())), members


def _of_rules(members: Sequence[Result], results: Iterable[Result]) -> tuple[str, ...]:
    """Return globs for cases of one device, rule by rule: those of most cases first, names of single cases last."""
    own = {member.name for member in members}
    rest = [result for result in results if result.name not in own]
    by_rule: dict[str, list[Result]] = {}
    for member in members:
        by_rule.setdefault(member.rule, []).append(member)
    found = [glob for _, wanted in sorted(by_rule.items()) for glob in globs(wanted, rest)]
    return tuple(sorted(found, key=lambda glob: "*" not in glob))


def as_toml(suggestion: Suggestion, run: Run, *, whole: bool = False) -> str:
    """Return the entries as a deviations file, which is refused until each has a reason.

    `whole`: print every entry and glob; otherwise the largest, and how many more there are.
    """
    torch = ".".join(str(run.header.get("versions", {}).get("torch", "2.11")).split("+")[0].split(".")[:2])
    parts = [
        f"# From {run.path.name}. Write the reason of each entry: a file with an empty one is refused.",
        '# link: where it is reported, or "unreported".',
    ]
    why: dict[str, list[str]] = {}
    for sentence in suggestion.left:
        key, _, reason = sentence.partition(": ")
        why.setdefault(reason, []).append(key)
    for reason, keys in why.items():
        such = f", such as {keys[0]}" if len(keys) > 1 else f": {keys[0]}"
        parts.append(f"# left out, {counted(len(keys), 'case')}{such}: {_one_line(reason)}")
    for entry in suggestion.entries if whole else suggestion.entries[:ENTRIES]:
        cases = entry.cases if whole else entry.cases[:GLOBS]
        more = len(entry.cases) - len(cases)
        parts += [
            "",
            f"# {entry.device}, cases: {entry.count}, such as: {first_line(_one_line(entry.message))}",
            "[[deviation]]",
            f"id = {_quoted(entry.id)}",
            "cases = [",
            *(f"    {_quoted(glob)}," for glob in cases),
            *([f"    # {counted(more, 'more glob')}: --all prints them"] if more else []),
            "]",
            'kind = "deviation"',
            'reason = ""',
            'link = "unreported"',
            f"raises = {_quoted(entry.raises)}",
            f'torch = ">={torch}"',
            f'added = "{date.today():%Y-%m-%d}"',
        ]
    if not suggestion.entries:
        parts.append("# No case fails that an entry could speak of.")
    rest = () if whole else suggestion.entries[ENTRIES:]
    if rest:
        count = counted(sum(entry.count for entry in rest), "case")
        parts += ["", f"# {counted(len(rest), 'more cause')} of {count}: --all prints them"]
    return "\n".join(parts) + "\n"


def globs(wanted: Sequence[Result], other: Iterable[Result]) -> tuple[str, ...]:
    """Return globs over `rule/id` that match every wanted case and no other, with as few stars as cover them.

    All wanted cases are of one rule and device. Greedy: the glob that covers most comes first, and of two that cover
    the same the one with fewer stars; a case that shares a glob with none stands there by its name.
    """
    rule, token = wanted[0].rule, _token(wanted[0])
    rivals = [result for result in other if result.rule == rule and _token(result) == token]
    rival_names = [result.name for result in rivals]
    covered: dict[str, set[str]] = {}
    for mask in _MASKS:
        taken = {_starred(result, mask) for result in rivals}
        for result in wanted:
            if (glob := _starred(result, mask)) not in taken:
                covered.setdefault(glob, set()).add(result.name)
    # How many cases a glob still adds only shrinks, so one that is best after a second look is the best of all.
    heap = [(-len(names), glob.count("*"), -len(glob), glob) for glob, names in covered.items() if len(names) > 1]
    heapify(heap)
    out: list[str] = []
    left = {result.name for result in wanted}
    while heap:
        gain, *rest, glob = heappop(heap)
        adds = len(covered[glob] & left)
        if adds < 2:
            continue
        if adds != -gain:
            heappush(heap, (-adds, *rest, glob))  # type: ignore[misc]  # the two numbers in between
        elif not any(map(re.compile(translate(glob)).match, rival_names)):  # a star also reaches across dashes
            out.append(glob)
            left -= covered[glob]
    return (*out, *sorted(left))


_FIELDS = 4
_MASKS = [mask for count in range(1, _FIELDS + 1) for mask in combinations(range(_FIELDS), count)]


def _starred(result: Result, mask: Collection[int]) -> str:
    """Return the name of a case with some of op, sample, inputs and region dtype starred; never the device."""
    head = result.id.removesuffix(f"-{_token(result)}")
    head = head.removesuffix(f"-{result.amp}").removesuffix(f"-{result.compiler}").removesuffix(f"-{result.inputs}")
    op, plus, sample = head.partition("+")
    fields = [op, plus + sample, result.inputs, result.amp]
    op, sample, inputs, amp = ("*" if place in mask else field for place, field in enumerate(fields))
    text = "-".join([op + sample, *filter(None, (inputs, result.compiler, amp)), _token(result)])
    while "**" in text or "*-*" in text:
        text = text.replace("**", "*").replace("*-*", "*")
    return f"{result.name.removesuffix(result.id)}{text}"


def _token(result: Result) -> str:
    return result.id.rpartition("-")[2]


def _parts(result: Result) -> list[list[str]]:
    """Return each line of a result's message in parts: text shared by all cases, and between it what varies."""
    out = []
    for line in result.message.splitlines() or [""]:
        parts, start = [], 0
        for match in varying(result.op).finditer(line):
            parts += [line[start : match.start()], match[0]]
            start = match.end()
        out.append([*parts, line[start:]])
    return out


def _shape(parts: Sequence[str]) -> str:
    """Return what lines of one kind share."""
    return "\0".join(parts[::2])


def _raises(lines: Sequence[Sequence[str]]) -> str:
    """Return a regular expression for some lines of one shape, in parts, with what they share spelled out."""
    columns = [set(column) for column in zip(*lines, strict=True)]
    return "".join(re.escape(one.pop()).replace(r"\ ", " ") if len(one) == 1 else ".+?" for one in columns)


def _label(rule: str, message: str) -> str:
    words: Iterable[str] = re.findall(r"[a-z]+", normalised(message.partition("\n")[0]).lower())
    return "-".join([rule, *list(words)[:4]])


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _quoted(text: str) -> str:
    """Return a TOML string: JSON's escapes are TOML's too, but TOML also wants DEL escaped."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


# ---- a baseline: the red cases of some runs, as they are
def as_baseline(run: Run, devices: Collection[str] = ()) -> str:
    """Return the red cases of a run, of some devices or of all, as a deviations file of kind "baseline".

    A case that an earlier baseline excuses is in it too. Raises UsageError for a device of which the run has no case.
    """
    sources = ", ".join(part["file"] for part in run.header.get("parts", [{"file": run.path.name}]))
    _check_devices(sources, run.results.values(), devices)
    alike: dict[tuple[str, str], list[str]] = {}
    for key, result in sorted(run.results.items()):
        status = result.deviation.removeprefix(BASELINE) if result.deviation.startswith(BASELINE) else result.status
        if status in EXCUSED_BY_BASELINE and (not devices or result.device in devices):
            alike.setdefault((status, result.message), []).append(key)
    count = sum(map(len, alike.values()))
    lines = [f"# from {sources}, {counted(count, 'red case')}{f'; {run.note}' if run.note else ''}"]
    for (status, message), keys in alike.items():
        lines += ["", "[[deviation]]", 'kind = "baseline"', *_list("cases", keys), f"status = {_quoted(status)}"]
        lines += _list("differences", message.split("\n"))
    return "\n".join(lines) + "\n"


def _list(name: str, texts: Iterable[str]) -> list[str]:
    return [f"{name} = [", *(f"    {_quoted(text)}," for text in texts), "]"]


def _check_devices(source: str, results: Iterable[Result], devices: Collection[str]) -> None:
    """Raise UsageError for a device of which no result is."""
    there = sorted({result.device for result in results})
    for name in devices:
        if name not in there:
            raise UsageError(f"{source} has no case of device {name!r}; it has {', '.join(there) or 'none'}")
