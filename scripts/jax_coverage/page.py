"""The Markdown page of the figures."""

from collections.abc import Sequence
from pathlib import Path

from scripts.jax_coverage.records import WAYS, Book, Row, measured

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
