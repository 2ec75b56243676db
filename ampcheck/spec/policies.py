"""Tell the policy of every registered overload, per dispatch key and torch version.

`tables/policies.csv` has one row for each registration, with the torch minor versions `since` and `until` which it
exists; `tables/releases.csv` names the minor versions that were read, and where.

`builds` names the library a build must have ("cudnn", "miopen"), else empty. `verified`: "run" where the casts were
seen, "dispatcher" where the dispatcher lists the registration, "source" where it was read only, "assumed" where it
could not be read and is taken over from the version before. Versions that differ follow: "dispatcher; source 2.13".
`source` names the place in PyTorch. `tests/spec/test_policies.py` compares the installed version with the dispatcher.
"""

import csv
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ampcheck.spec import versioned
from ampcheck.spec.casting import POLICIES

TABLES = Path(__file__).parent / "tables"

KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastMTIA", "AutocastMAIA")
"""The dispatch keys PyTorch registers policies for; AutocastPrivateUse1, XLA, HPU and IPU have none."""

KEY_OF = {key.removeprefix("Autocast").lower(): key for key in KEYS}
"""The same by device type."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One registration in one version: `policy` is one of `ampcheck.spec.casting.POLICIES`."""

    key: str
    overload: str
    policy: str
    builds: str
    verified: str
    source: str


COLUMNS = ("key", "overload", "policy", "builds", "since", "until", "verified", "source")
RELEASES = ("torch", "read")
VERIFIED = ("run", "dispatcher", "source", "assumed")

_MINOR = re.compile(r"(\d+)\.(\d+)(?!\d)")


def versions() -> tuple[str, ...]:
    """Return the torch minor versions that the table covers, oldest first, e.g. ("2.11", "2.12", "2.13")."""
    return tuple(releases())


def closest(torch_version: str) -> str:
    """Return the version to use for a torch such as "2.13.0+cpu": its own, else the newest older, else the oldest one.

    Raises ValueError for a text that does not start with two numbers.
    """
    wanted = numbers(torch_version)
    known = versions()
    older = [v for v in known if numbers(v) <= wanted]
    return older[-1] if older else known[0]


def minor(torch_version: str) -> str:
    """Return the minor version of a torch version: "2.13" of "2.13.0+cpu". Raises ValueError like `closest`."""
    return ".".join(map(str, numbers(torch_version)))


def numbers(version: str) -> tuple[int, int]:
    """Return major and minor as numbers, so that 2.9 is before 2.11; "2.14.0a0+git1" and "2.14a0" are both 2.14."""
    match = _MINOR.match(version)
    if not match:
        raise ValueError(f"{version!r} is not a torch version such as '2.13.0+cpu'")
    return int(match[1]), int(match[2])


def releases() -> Mapping[str, str]:
    """Return, for each minor version that the table covers, where it was read, oldest first."""
    return _releases(TABLES)


def rows(version: str) -> tuple[PolicyRow, ...]:
    """Return every registration in a torch minor version, sorted by key and overload.

    Raises ValueError where the table does not cover the version, or where a row is malformed, names an unknown key,
    policy or `verified`, or repeats an earlier one; the sentence names the file and the line.
    """
    found = _rows(TABLES).get(version)
    if found is None:
        raise ValueError(f"no policy table for torch {version}; there are {', '.join(versions())}")
    return found


def table(key: str, version: str, builds: tuple[str, ...] = ()) -> Mapping[str, str]:
    """Return the policy of each overload registered under a dispatch key, in all builds and those with these libraries.

    E.g. `table("AutocastCPU", "2.13")["mm"]` is "downcast". Raises ValueError like `rows`.
    """
    return _table(TABLES, key, version, builds)


def forget() -> None:
    """Read the tables again when they are next asked for; call it after they were written."""
    for cached in (_releases, _rows, _table):
        cached.cache_clear()


# The folder is an argument of what is cached, so that another one given as TABLES is read at once.


@cache
def _releases(folder: Path) -> Mapping[str, str]:
    with (folder / "releases.csv").open(newline="", encoding="utf-8") as file:
        first, *lines = csv.reader(file)
    if tuple(first) != RELEASES:
        raise ValueError(f"releases.csv: the first line must be {','.join(RELEASES)}")
    return dict(sorted(((minor(line[0]), line[1]) for line in lines), key=lambda line: numbers(line[0])))


@cache
def _rows(folder: Path) -> Mapping[str, tuple[PolicyRow, ...]]:
    found: dict[str, dict[tuple[str, str], PolicyRow]] = {version: {} for version in _releases(folder)}
    for line in versioned.read(folder / "policies.csv", COLUMNS, tuple(found)):
        default, others = _verified(line)
        for version in line.versions:
            row = PolicyRow(**{**line.fields, "verified": others.get(version, default)})
            _check(row, line.where)
            if found[version].setdefault((row.key, row.overload), row) is not row:
                raise ValueError(f"{line.where} repeats {row.key} {row.overload}")
    return {version: tuple(rows[place] for place in sorted(rows)) for version, rows in found.items()}


@cache
def _table(folder: Path, key: str, version: str, builds: tuple[str, ...]) -> Mapping[str, str]:
    found = (row for row in rows(version) if row.key == key and (not row.builds or row.builds in builds))
    return {row.overload: row.policy for row in found}


def _verified(line: versioned.Line) -> tuple[str, dict[str, str]]:
    """Return how most versions of a line were verified, and how the others were."""
    default, *exceptions = line.fields["verified"].split("; ")
    others: dict[str, str] = {}
    for exception in exceptions:
        level, *named = exception.split(" ")
        others.update(dict.fromkeys(named, level))
    if unknown := [version for version in others if version not in line.versions]:
        raise ValueError(f"{line.where}: verified names torch {unknown[0]}, which the line does not hold for")
    return default, others


def _check(row: PolicyRow, where: str) -> None:
    if not row.overload:
        raise ValueError(f"{where} names no overload")
    for what, value, known in (
        ("key", row.key, KEYS),
        ("policy", row.policy, POLICIES),
        ("verified", row.verified, VERIFIED),
    ):
        if value not in known:
            raise ValueError(f"{where}: {row.overload} has {what} {value!r}; known: {', '.join(known)}")


def covered(torch_version: str) -> bool:
    """Return whether this torch version's minor version, e.g. of "2.13.1+cpu", has a table.

    Raises ValueError for a text that does not start with two numbers.
    """
    return minor(torch_version) in versions()


def drift(registrations: Mapping[str, Collection[str]], version: str) -> list[str]:
    """Every difference between some registrations and the table of a torch minor version, one sentence each.

    The tables say what PyTorch registered when they were written. On a version that has a table a difference is an
    error of the table; on a newer one it is news. `ampcheck.observe.dispatcher` gives the registrations of this build.

    Args:
        registrations: per dispatch key, the aten overloads registered, without the namespace. A key that is not in it
            is not compared.
        version: the table's minor version, e.g. "2.13".

    Returns: the sentences, ordered by key; none where they agree. A row with a `builds` value may be registered or not.
    Raises ValueError where there is no such table.
    """
    known = rows(version)
    out = []
    for key in sorted(registrations):
        live = set(registrations[key])
        listed = {row.overload for row in known if row.key == key}
        required = {row.overload for row in known if row.key == key and not row.builds}
        out += [
            f"{key} registers aten::{name}, which the table of torch {version} does not list"
            for name in sorted(live - listed)
        ]
        out += [
            f"{key} does not register aten::{name}, which the table of torch {version} lists"
            for name in sorted(required - live)
        ]
    return out
