"""Measured samples as rows, and the file that keeps them between runs."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

WAYS = ("jax", "torchax")
"""Whose figures: this project's device, and torchax's tensors under its default environment."""


@dataclass(frozen=True, slots=True)
class Sample:
    """One sample of an op: its number among those OpInfo gives; why it does not agree with the CPU, "" if it does."""

    index: int
    reason: str = ""

    @property
    def agrees(self) -> bool:
        """Return whether the result was the CPU's."""
        return not self.reason


@dataclass(slots=True)
class Row:
    """One op measured one way. `refused`: samples that the CPU itself does not compute, which are left out."""

    op: str
    way: str
    samples: list[Sample] = field(default_factory=list)
    refused: int = 0

    @property
    def run(self) -> int:
        """Samples that were measured."""
        return len(self.samples)

    @property
    def agreeing(self) -> int:
        """Samples whose result was the CPU's."""
        return sum(s.agrees for s in self.samples)

    @property
    def whole(self) -> bool:
        """Return whether every sample agrees."""
        return self.agreeing == self.run

    @property
    def reason(self) -> str:
        """Why the first sample that does not agree does not; "" if all do."""
        return next((s.reason for s in self.samples if s.reason), "")


class Book:
    """All rows, by way and op."""

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self._rows = {(row.way, row.op): row for row in rows}

    def put(self, row: Row) -> None:
        """Add the row, in place of an older one of the same op and way."""
        self._rows[row.way, row.op] = row

    def get(self, way: str, op: str) -> Row | None:
        """Return the row of an op, or None if it was not measured that way."""
        return self._rows.get((way, op))

    def every(self, way: str) -> list[Row]:
        """Return the rows of one way, by op."""
        return sorted((r for r in self._rows.values() if r.way == way), key=lambda r: r.op)

    def rows(self, way: str) -> list[Row]:
        """Those that have samples."""
        return [r for r in self.every(way) if r.run]

    def write(self, path: Path) -> None:
        """Keep the rows in a JSON file; an interrupt leaves the old file or the new one."""
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps([asdict(row) for _, row in sorted(self._rows.items())], indent=0)
        beside = path.with_suffix(f".{os.getpid()}.tmp")
        beside.write_text(text, encoding="utf-8")
        beside.replace(path)

    @staticmethod
    def read(path: Path) -> Book:
        """Read the rows that `write` kept; none without a file. Raises ValueError if it holds something else."""
        if not path.exists():
            return Book()
        try:
            raw = json.loads(path.read_text(encoding="utf-8"))
            return Book(Row(**{**row, "samples": [Sample(**s) for s in row["samples"]]}) for row in raw)
        except (TypeError, KeyError, ValueError) as error:
            raise ValueError(f"{path} holds no coverage rows: {error}") from None
