"""What was measured of each op, the file that keeps it between runs, and the Markdown page of the figures."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ampcheck.runner.summarize import write_whole

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
    rows = msgspec.json.encode([row for _, row in sorted(book.items())])
    write_whole(path, msgspec.json.format(rows, indent=1), "file of coverage rows")


def read(path: Path) -> Book:
    """Read the rows that `write` kept; none without a file. Raises ValueError if it holds something else."""
    if not path.exists():
        return {}
    try:
        return {(row.way, row.op): row for row in msgspec.json.decode(path.read_bytes(), type=list[Row])}
    except msgspec.MsgspecError as error:
        raise ValueError(f"{path} holds no coverage rows: {error}") from None


_TITLES = {"jax": '`torch.device("jax")`', "torchax": "torchax"}

_HEAD = Path(__file__).with_suffix(".md").read_text(encoding="utf-8")

OTHERS = (Path(__file__).parent / "others.md").read_text(encoding="utf-8")
"""What the tests of other projects expect and the device does otherwise; tried by hand."""


def page(book: Book, *, versions: dict[str, str], limit: int, rtol: float, atol: float) -> str:
    """Return the page. `versions` has "torch", "jax" and "torchax"."""
    refused = sum(row.refused for (way, _), row in book.items() if way == "jax")
    parts = [_HEAD.format(**versions, limit=limit, rtol=rtol, atol=atol, refused=refused), _totals(book)]
    parts += [_failing(measured(book, "jax")), OTHERS]
    parts.append(_every(book))
    return "\n".join(parts)


def totals(rows: Sequence[Row]) -> tuple[int, int, int, int]:
    """Count samples, those that agree, ops, and those of which every sample agrees."""
    return sum(r.run for r in rows), sum(r.agreeing for r in rows), len(rows), sum(r.whole for r in rows)


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none measured"


def _totals(book: Book) -> str:
    figures = [totals(measured(book, way)) for way in WAYS]
    lines = [
        "## Totals\n",
        "| | " + " | ".join(_TITLES[way] for way in WAYS) + " |",
        "|---|" + "---:|" * len(WAYS),
        "| samples that agree | " + " | ".join(_share(f[1], f[0]) for f in figures) + " |",
        "| ops of which every sample agrees | " + " | ".join(_share(f[3], f[2]) for f in figures) + " |",
    ]
    return "\n".join(lines) + "\n"


def cell(text: str) -> str:
    """Escape a text for a cell of a table."""
    return text.replace("|", "\\|").replace("<", "&lt;").replace("\n", " ")


def brief(reason: str) -> str:
    """Return a reason for a table: its first sentence, cut where it is long."""
    first = reason.split(". ")[0]
    return cell(first if len(first) <= 160 else f"{first[:157]}...")


def _failing(rows: Sequence[Row]) -> str:
    failing = [r for r in rows if not r.whole]
    lines = ["## Ops that do not fully agree on the device\n"]
    if not failing:
        return "\n".join([*lines, "None.\n"])
    lines += ["| op | samples | agree | the first reason |", "|---|---:|---:|---|"]
    lines += [f"| {cell(r.op)} | {r.run} | {r.agreeing} | {brief(r.reason)} |" for r in failing]
    return "\n".join(lines) + "\n"


def _every(book: Book) -> str:
    lines = [
        "## Every op\n",
        "| op | samples | agree on the device | agree with torchax | torchax's first reason |",
        "|---|---:|---:|---:|---|",
    ]
    for row in measured(book, "jax"):
        other = book.get(("torchax", row.op))
        theirs = f"{other.agreeing} of {other.run}" if other is not None and other.run else "not measured"
        reason = brief(other.reason) if other is not None else ""
        lines.append(f"| {cell(row.op)} | {row.run} | {row.agreeing} | {theirs} | {reason} |")
    return "\n".join(lines) + "\n"
