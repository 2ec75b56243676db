"""The policy of every registered overload, per dispatch key and torch version.

The tables lie beside this file, one CSV per torch minor version: `key,overload,policy,builds,verified,source`. `builds`
names the library a build must have ("cudnn", "miopen"), else empty. `verified`: "run" where the casts were seen on that
version, "dispatcher" where its dispatcher lists the registration, "source" where it was read only. `source` says where the
registration stands in PyTorch. `tests/test_spec_policies.py` holds the newest table against the live dispatcher.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ampcheck.spec.casting import POLICIES

TABLES = Path(__file__).parent / "tables"

KEYS = ("AutocastCPU", "AutocastCUDA", "AutocastXPU", "AutocastMPS", "AutocastMTIA", "AutocastMAIA")
"""The dispatch keys PyTorch registers policies for; AutocastPrivateUse1, XLA, HPU and IPU have none."""


@dataclass(frozen=True, slots=True)
class Row:
    """One registration: `policy` is one of `ampcheck.spec.casting.POLICIES`."""

    key: str
    overload: str
    policy: str
    builds: str
    verified: str
    source: str


def versions() -> tuple[str, ...]:
    """The torch minor versions that have a table, oldest first, e.g. ("2.11", "2.12", "2.13")."""
    found = [p.stem.removeprefix("torch-") for p in TABLES.glob("torch-*.csv")]
    return tuple(sorted(found, key=lambda v: tuple(map(int, v.split(".")))))


def closest(torch_version: str) -> str:
    """The table for a torch version such as "2.13.0+cpu": its own, else the newest one older than it, else the oldest."""
    wanted = tuple(int(part) for part in torch_version.split("+")[0].split(".")[:2])
    known = versions()
    older = [v for v in known if tuple(map(int, v.split("."))) <= wanted]
    return older[-1] if older else known[0]


@cache
def rows(version: str) -> tuple[Row, ...]:
    """Every row of the table of a torch minor version. Raises ValueError where there is none or a row is malformed."""
    path = TABLES / f"torch-{version}.csv"
    if not path.exists():
        raise ValueError(f"no policy table for torch {version}; there are {', '.join(versions())}")
    with path.open(newline="") as file:
        out = tuple(Row(**line) for line in csv.DictReader(file))
    for row in out:
        if row.policy not in POLICIES or row.key not in KEYS:
            raise ValueError(f"{path.name}: {row.key} {row.overload} has policy {row.policy!r}")
    return out


@cache
def table(key: str, version: str) -> Mapping[str, str]:
    """The policy of each overload that every build registers under a dispatch key, e.g. `table("AutocastCPU", "2.13")["mm"]`."""
    return {row.overload: row.policy for row in rows(version) if row.key == key and not row.builds}
