"""Benchmark files: a header, what each process measured, a line per group made of that, a footer. Never rewritten.

A file without footer was interrupted; its groups are made again from what was measured until then.
"""

import dataclasses
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from msgspec import convert

from ampcheck.bench.core.model import AA, Group, Rounds
from ampcheck.bench.run import ceilings
from ampcheck.bench.run.summary import by_estimate, compare_with_default, judge_again, share, summarize
from ampcheck.errors import UsageError
from ampcheck.runner import record as records

SCHEMA, OLDER = "bench-3", ("bench-2", "bench-1")
_NAMES = {
    "executor": "compiler",
    "arms": "variants",
    "proof": "precision_check",
    "machinery": "overhead",
    "-again": AA,
    "equal arms": "equal variants",
    "A/A arm": "A/A baseline",
}
"""Names in files of `OLDER`: fields, kinds and families as a whole; the end of a variant's name; words of a reason."""
_OLD = re.compile(r"^(?:executor|arms|proof|machinery)$|-again$|equal arms|A/A arm")
WHAT = "benchmark file"


@dataclass(slots=True)
class BenchRun:
    """A benchmark file that was read: its groups by key. `note` says what is wrong with its end, "" if nothing.

    `header` has `started` (UTC), `command`, `mode` ("quick" or "full"), `versions`, `machine` (cores, threads, model,
    isa), `devices` (name → description), and by group key what of its workload the results do not repeat.
    """

    path: Path
    header: dict[str, Any]
    groups: dict[str, Group]
    footer: dict[str, Any] | None
    note: str


class BenchWriter:
    """Writes a benchmark file; what each process measured is on disk when `rounds` returns."""

    def __init__(self, path: Path, header: Mapping[str, Any]) -> None:
        self._file = records.JsonlWriter(path, WHAT, {"schema": SCHEMA, **header})
        self.path = path

    def rounds(self, measured: Rounds) -> None:
        """Append what a process measured of a group."""
        self._file.put("rounds", dataclasses.asdict(measured))

    def close(self, groups: Iterable[Group], footer: Mapping[str, Any]) -> None:
        """Append the groups and the footer."""
        for group in groups:
            self._file.put("group", {"group": _filled(group)})
        self._file.close(footer)


def lines_of(path: Path) -> records.Lines:
    """Read the lines of a benchmark file, with the names of `SCHEMA`. Raises UsageError as `read` does."""
    lines = records.read_lines(path, WHAT, SCHEMA, ("rounds", "group"), older=OLDER)
    if lines.header["schema"] in OLDER:
        lines.body = [(number, _renamed(line)) for number, line in lines.body]
    return lines


def rounds_of(path: Path) -> list[Rounds]:
    """Return what each process measured. Raises UsageError as `read` does."""
    lines = [line for _, line in lines_of(path).body if line["kind"] == "rounds"]
    return [Rounds(**{name: value for name, value in line.items() if name != "kind"}) for line in lines]


def read(path: Path) -> BenchRun:
    """Read a benchmark file. Raises UsageError for another file, another schema, or damage before its last line."""
    lines = lines_of(path)
    for name in ("versions", "machine", "devices", "ceilings"):
        if not isinstance(lines.header.get(name, {}), dict):
            raise UsageError(f"{path}: {name} in the header is not an object")
    sources = lines.header.get("ceilings_source") or {}
    published = {one.source for _, one in ceilings.read()}
    groups: dict[str, Group] = {}
    rounds: list[Rounds] = []
    for number, line in lines.body:
        values = {name: value for name, value in line.items() if name != "kind"}
        try:
            if line["kind"] == "group":
                group = convert({"family": "", **values["group"]}, Group)  # a workload of another version has none
                _of_this_version(group, sources.get(group.device) in published)
                groups[group.key] = group
            else:
                rounds.append(Rounds(**values))
        except (KeyError, TypeError, ValueError) as error:
            raise UsageError(f"{path}, line {number}: not a {line['kind']} line: {error}") from error
    if lines.footer is None:
        groups = {group.key: group for group in summarize(rounds)} | groups
    return BenchRun(path, lines.header, groups, lines.footer, lines.note)


def _filled(group: Group) -> dict[str, Any]:
    """Return the group without the fields that say nothing."""
    line = {name: value for name, value in dataclasses.asdict(group).items() if value not in (None, "", 0, False)}
    line["variants"] = [
        {name: value for name, value in v.items() if value is not None and value != ""} for v in line["variants"]
    ]
    return line


def _renamed(value: Any) -> Any:
    """Return a value of a line of `OLDER`, nested or not, with the names of `SCHEMA`."""
    if isinstance(value, dict):
        return {_renamed(name): _renamed(inner) for name, inner in value.items()}
    if isinstance(value, str):
        return _OLD.sub(lambda found: _NAMES[found[0]], value)
    return [_renamed(inner) for inner in value] if isinstance(value, list) else value


def _of_this_version(group: Group, published: bool) -> None:
    """Give a group of an earlier version what this one says of the same figures; the file stays as it is.

    `published`: whether the ceilings of its device are published ones.
    """
    judge_again(group)
    for variant in group.variants:
        if variant.share is not None:
            share(variant, variant.share, "published" if published else "measured")
    if group.estimate and all(not variant.default_verdict for variant in group.variants):
        compare_with_default(group, by_estimate)
