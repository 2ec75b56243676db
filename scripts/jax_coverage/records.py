"""What was measured of each op, and the file that keeps it between runs."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

WAYS = ("jax", "torchax")
"""Whose figures: this project's device, and torchax's tensors under its default environment."""


@dataclass(slots=True)
class Row:
    """One op measured one way.

    `reasons`: of each sample why it does not agree with the CPU, "" where it does. `refused`: samples that the CPU
    itself does not compute, which are left out.
    """

    op: str
    way: str
    reasons: list[str] = field(default_factory=list)
    refused: int = 0

    @property
    def run(self) -> int:
        """Samples that were measured."""
        return len(self.reasons)

    @property
    def agreeing(self) -> int:
        """Samples whose result was the CPU's."""
        return self.reasons.count("")

    @property
    def whole(self) -> bool:
        """Return whether every sample agrees."""
        return not any(self.reasons)

    @property
    def reason(self) -> str:
        """Why the first sample that does not agree does not; "" if all do."""
        return next(filter(None, self.reasons), "")


Book = dict[tuple[str, str], Row]
"""All rows, by way and op."""


def measured(book: Book, way: str) -> list[Row]:
    """Return the rows of one way that have samples, by op."""
    return [row for (own, _), row in sorted(book.items()) if own == way and row.run]


def write(book: Book, path: Path) -> None:
    """Keep the rows in a JSON file; an interrupt leaves the old file or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(f".{os.getpid()}.tmp")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode([row for _, row in sorted(book.items())]), indent=1))
    beside.replace(path)


def read(path: Path) -> Book:
    """Read the rows that `write` kept; none without a file. Raises ValueError if it holds something else."""
    if not path.exists():
        return {}
    try:
        return {(row.way, row.op): row for row in msgspec.json.decode(path.read_bytes(), type=list[Row])}
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} holds no coverage rows: {error}") from None
