"""Add the installed torch to the policy table: `python -m scripts.release`.

Registrations are read from the dispatcher of the installed torch, and the lists that the GPU keys share from its header
`ATen/autocast_mode.h`. All else is taken over from the version before. A policy that neither says is asked for, and
given with `--policy`. Cases that passed (`--run`) turn "dispatcher" into "run". A registration that ended gets the
version before as `until`; one that began gets a line.
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from ampcheck.errors import UsageError
from ampcheck.spec import policies, versioned
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.policies import COLUMNS, KEYS, RELEASES, PolicyRow, minor, numbers, releases, rows, versions
from ampcheck.spec.torch_private import registered

HEADER = Path(torch.__file__).parent / "include/ATen/autocast_mode.h"

LISTS = {
    "AT_FORALL_LOWER_PRECISION_FP": "downcast",
    "AT_FORALL_FP32": "upcast",
    "AT_FORALL_FP32_SET_OPT_DTYPE": "optdtype",
    "AT_FORALL_PROMOTE": "promote",
}
"""The lists of the header by the policy of their ops. The one for `append` names functions, not overloads."""

_SHARED = ("AutocastCUDA", "AutocastXPU", "AutocastMTIA", "AutocastMAIA")
"""The keys whose registrations use the lists of the header."""
_LIST = re.compile(r"^#define (AT_FORALL_\w+)\(_\)((?:.*\\\n)*.*)", re.MULTILINE)
_ENTRY = re.compile(r"_\((\w+)(?:, (\w+))?\)")


@dataclass(frozen=True, slots=True)
class Release:
    """The policies of one torch minor version, and how they were found."""

    version: str
    """The minor version, e.g. "2.15"."""
    before: str
    """The minor version that it is compared with."""
    read: str
    """Where the registrations were read."""
    rows: tuple[PolicyRow, ...]
    differences: tuple[str, ...]
    questions: tuple[str, ...]


def listed(text: str) -> dict[str, tuple[str, str]]:
    """Return the policy and the list of each overload in the text of `autocast_mode.h`, by overload."""
    found = ((match[1], _ENTRY.finditer(match[2])) for match in _LIST.finditer(text) if match[1] in LISTS)
    return {".".join(filter(None, e.groups())): (LISTS[name], name) for name, entries in found for e in entries}


def release(
    torch_version: str,
    live: Mapping[str, Collection[str]],
    header: Mapping[str, tuple[str, str]],
    given: Mapping[str, str],
    passed: Collection[tuple[str, str]] = (),
) -> Release:
    """Find the policies of a torch version.

    Args:
        torch_version: e.g. "2.15.0+cpu".
        live: per dispatch key, the overloads registered, without the namespace.
        header: what `listed` returns; empty where there is no header.
        given: a policy by overload, or by "KEY:overload" for one key alone.
        passed: pairs of key and overload with a passing case of the overload's policy in a run of this version.

    Raises UsageError for a policy given to what is not registered, or for an unknown policy.
    """
    version = minor(torch_version)
    older = [v for v in versions() if numbers(v) < numbers(version)]
    before = older[-1] if older else versions()[0]
    last = {(row.key, row.overload): row for row in rows(before)}
    own = {(row.key, row.overload): row for row in rows(version)} if version in versions() else {}
    names = {f"{key}:{name}" for key in live for name in live[key]} | {name for key in live for name in live[key]}
    for name, policy in given.items():
        if name not in names:
            raise UsageError(f"--policy {name}={policy}: torch {torch_version} does not register {name}")
        if policy not in POLICIES:
            raise UsageError(f"--policy {name}={policy}: unknown policy; known: {', '.join(POLICIES)}")

    out, questions = [], []
    for key in sorted(live):
        for name in sorted({*live[key]} | {o for k, o in last if k == key and last[k, o].builds}):
            known = own.get((key, name)) or last.get((key, name))
            asked = given.get(f"{key}:{name}") or given.get(name)
            policy, place = _policy(key, name, asked, known, header)
            if not policy:
                questions.append(f"Which policy has {name} on {key}? --policy {name}=one of {', '.join(POLICIES)}")
                continue
            builds = known.builds if known else ""
            row = PolicyRow(key, name, policy, builds, "dispatcher", place)
            if known and known.policy == policy and (key, name) in own:
                row = known
            elif name not in live[key]:
                row = replace(row, verified="assumed")
            if (key, name) in passed:
                row = replace(row, verified="run")
            out.append(row)
    read = f"{torch_version}: dispatcher{' and include/ATen/autocast_mode.h' if header else ''}"
    return Release(version, before, read, tuple(out), tuple(changes(rows(before), out)), tuple(questions))


def changes(before: Iterable[PolicyRow], after: Iterable[PolicyRow]) -> list[str]:
    """Describe the differences between two tables, a sentence each, sorted by dispatch key."""
    old, new = ({(row.key, row.overload): row.policy for row in some} for some in (before, after))
    out = []
    for key, name in sorted(old.keys() | new.keys()):
        was, now = old.get((key, name)), new.get((key, name))
        if was is None:
            out.append(f"{key} gains {name} ({now})")
        elif now is None:
            out.append(f"{key} loses {name} ({was})")
        elif was != now:
            out.append(f"{key} changes {name} from {was} to {now}")
    return out


def _policy(
    key: str, name: str, given: str | None, known: PolicyRow | None, header: Mapping[str, tuple[str, str]]
) -> tuple[str, str]:
    """Return the policy of an overload, or "", and its place in PyTorch's sources."""
    if given:
        return given, "the policy by hand"
    if key in _SHARED and name in header:
        return header[name][0], f"aten/src/ATen/autocast_mode.h {header[name][1]}"
    return (known.policy, known.source) if known else ("", "")


def passing(lines: Iterable[str], torch_version: str, where: str) -> Iterator[tuple[str, str]]:
    """Yield key and overload of the passing cases of policies in a run file's lines.

    Raises UsageError for a file that is not a run file, and for a run of another torch.
    """
    try:
        header, *records = map(json.loads, lines)
        ran = header["versions"]["torch"]
        keys = {device["name"]: device["key"] for device in header["devices"]}
        passed = [r for r in records if r["kind"] == "case" and r["status"] == "pass" and r["rule"] in POLICIES]
        found = [(keys[r["device"]], r["op"]) for r in passed]
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{where} is not a complete run file: {type(error).__name__}: {error}") from error
    if minor(ran) != minor(torch_version):
        raise UsageError(f"{where} is of torch {ran}; the installed torch is {torch_version}")
    yield from found


def write(made: Release, folder: Path) -> Path:
    """Write the table with the versions known before and this one into a folder, and return its path."""
    tables = {version: rows(version) for version in versions()} | {made.version: made.rows}
    read = {**releases(), made.version: made.read}
    known = sorted(tables, key=numbers)
    path = folder / "policies.csv"
    versioned.write(path, COLUMNS, _lines({version: tables[version] for version in known}))
    versioned.write(folder / "releases.csv", RELEASES, [(version, read[version]) for version in known])
    policies.forget()
    return path


def _lines(tables: Mapping[str, Sequence[PolicyRow]]) -> Iterator[tuple[str, ...]]:
    """Yield the lines of the table of some versions, oldest first. A source is the one that was named last."""
    found = {version: {(row.key, row.overload): row for row in table} for version, table in tables.items()}
    promises = {v: {place: (row.policy, row.builds) for place, row in table.items()} for v, table in found.items()}
    for place, (policy, builds), held in versioned.ranges(promises):
        since, until = versioned.bounds(held, tuple(tables))
        levels = {version: found[version][place].verified for version in held}
        ((default, _), *others) = Counter(levels.values()).most_common()
        named = [f"{level} {' '.join(v for v in held if levels[v] == level)}" for level, _ in others]
        yield *place, policy, builds, since, until, "; ".join((default, *named)), found[held[-1]][place].source


def main(arguments: list[str] | None = None) -> int:
    """Write the table; return 1 where a person must answer a question first; the table then lacks that overload."""
    parser = argparse.ArgumentParser(prog="python -m scripts.release", description=__doc__)
    parser.add_argument("--policy", action="append", default=[], metavar="[KEY:]OVERLOAD=POLICY")
    parser.add_argument("--run", action="append", default=[], type=Path, metavar="FILE", help="a run of this torch")
    parser.add_argument("--output", type=Path, default=policies.TABLES, metavar="FOLDER", help="where to write")
    args = parser.parse_args(arguments)
    try:
        given = dict(one.split("=", 1) for one in args.policy)
    except ValueError:
        parser.error("--policy takes OVERLOAD=POLICY, such as mm=downcast")
    try:
        texts = {str(path): path.read_text(encoding="utf-8").splitlines() for path in args.run}
        passed = {pair for path, lines in texts.items() for pair in passing(lines, torch.__version__, path)}
        header = listed(HEADER.read_text(encoding="utf-8")) if HEADER.exists() else {}
        made = release(torch.__version__, {key: registered(key) for key in KEYS}, header, given, passed)
        path = write(made, args.output)
    except (OSError, UsageError) as error:
        parser.error(str(error))
    counts = ", ".join(f"{key} {sum(row.key == key for row in made.rows)}" for key in KEYS)
    print(f"{path}: {len(made.rows)} rows ({counts}); {sum(r.verified == 'run' for r in made.rows)} seen to cast")
    print(f"since torch {made.before}: " + ("nothing changed" if not made.differences else ""))
    for line in made.differences:
        print(f"  {line}")
    if made.questions:
        print("a person must answer; `ampcheck run --rule drift` says what each op does:")
        for line in made.questions:
            print(f"  {line}")
    return 1 if made.questions else 0


if __name__ == "__main__":
    sys.exit(main())
