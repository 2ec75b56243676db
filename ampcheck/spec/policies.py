"""The policy of every registered overload, per dispatch key and torch version.

The tables lie beside this file, one CSV per torch minor version: `key,overload,policy,builds,verified,source`. `builds`
names the library a build must have ("cudnn", "miopen"), else empty. `verified`: "run" where the casts were seen on that
version, "dispatcher" where its dispatcher lists the registration, "source" where it was read only (in the sources, or
in the headers and symbols of a published wheel), "assumed" where it could not be read and is taken over from the newest
table. `source` names the place of the registration in PyTorch. `tests/spec/test_policies.py` holds the installed
version's table against the live dispatcher.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cache
from pathlib import Path

from ampcheck.spec.casting import POLICIES

TABLES = Path(__file__).parent / "tables"

KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastMTIA", "AutocastMAIA")
"""The dispatch keys PyTorch registers policies for; AutocastPrivateUse1, XLA, HPU and IPU have none."""


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """One registration: `policy` is one of `ampcheck.spec.casting.POLICIES`."""

    key: str
    overload: str
    policy: str
    builds: str
    verified: str
    source: str


COLUMNS = tuple(field.name for field in fields(PolicyRow))
VERIFIED = ("run", "dispatcher", "source", "assumed")

_MINOR = re.compile(r"(\d+)\.(\d+)(?!\d)")


def versions() -> tuple[str, ...]:
    """The torch minor versions that have a table, oldest first, e.g. ("2.11", "2.12", "2.13")."""
    found = [p.stem.removeprefix("torch-") for p in TABLES.glob("torch-*.csv")]
    return tuple(sorted(found, key=numbers))


def closest(torch_version: str) -> str:
    """The table for a torch version such as "2.13.0+cpu": its own, else the newest one older than it, else the oldest.

    Raises ValueError for a text that does not start with two numbers.
    """
    wanted = numbers(torch_version)
    known = versions()
    older = [v for v in known if numbers(v) <= wanted]
    return older[-1] if older else known[0]


def minor(torch_version: str) -> str:
    """The minor version of a torch version: "2.13" of "2.13.0+cpu". Raises ValueError like `closest`."""
    return ".".join(map(str, numbers(torch_version)))


def numbers(version: str) -> tuple[int, int]:
    """Major and minor as numbers, so that 2.9 comes before 2.11; "2.14.0a0+git1" and "2.14a0" are both 2.14."""
    match = _MINOR.match(version)
    if not match:
        raise ValueError(f"{version!r} is not a torch version such as '2.13.0+cpu'")
    return int(match[1]), int(match[2])


@cache
def rows(version: str) -> tuple[PolicyRow, ...]:
    """Every row of the table of a torch minor version.

    Raises ValueError where there is no such table, or where a row is malformed, names an unknown key, policy or
    `verified`, or repeats an earlier one; the sentence names the file and the line.
    """
    path = TABLES / f"torch-{version}.csv"
    if not path.exists():
        raise ValueError(f"no policy table for torch {version}; there are {', '.join(versions())}")
    out: dict[tuple[str, str], PolicyRow] = {}
    with path.open(newline="", encoding="utf-8") as file:
        reader = csv.reader(file)
        if tuple(next(reader, ())) != COLUMNS:
            raise ValueError(f"{path.name}: the first line must be {','.join(COLUMNS)}")
        for line in reader:
            where = f"{path.name} line {reader.line_num}"
            if len(line) != len(COLUMNS):
                raise ValueError(f"{where} has {len(line)} fields instead of {len(COLUMNS)}")
            row = PolicyRow(*line)
            _check(row, where)
            if out.setdefault((row.key, row.overload), row) is not row:
                raise ValueError(f"{where} repeats {row.key} {row.overload}")
    return tuple(out.values())


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


@cache
def table(key: str, version: str, builds: tuple[str, ...] = ()) -> Mapping[str, str]:
    """The policy of each overload registered under a dispatch key, in every build and in those with these libraries.

    E.g. `table("AutocastCPU", "2.13")["mm"]` is "downcast". Raises ValueError like `rows`.
    """
    found = (row for row in rows(version) if row.key == key and (not row.builds or row.builds in builds))
    return {row.overload: row.policy for row in found}
