"""Fill the pages with plots: a section for each device, with the numbers behind its plot."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from ampcheck.bench.core import table
from ampcheck.bench.core.model import AA, Group, VariantResult
from ampcheck.report.benchmarks import plots
from ampcheck.report.benchmarks.data import color, extra_names
from ampcheck.report.benchmarks.pages import SHOWN
from ampcheck.report.benchmarks.run_groups import BenchHistory, RunGroup, order, valid

Row = dict[str, Any]
Dots = Callable[[Sequence[Group], Sequence[str]], tuple[list[Row], int]]
"""From a device's groups and the names of variants to rows with a dot each, and how many variants have no place."""


def accuracy(history: BenchHistory) -> dict[str, object]:
    """Speed against error: a plot a device, and the same numbers as a table."""
    return _plotted(history, _accuracy_dots, "accuracy", "Speed beside the baseline against the error")


def roofline(history: BenchHistory) -> dict[str, object]:
    """Flops per second against flops per byte: a plot a device, and the same numbers as a table."""
    return _plotted(history, _roofline_dots, "roofline", "Flops per second against flops per byte")


def _plotted(history: BenchHistory, dots: Dots, name: str, what: str) -> dict[str, object]:
    """Return a section for each device: its plot, the rows behind it, the number of variants that are not in it."""
    run_group = history.latest
    assert run_group is not None
    other = extra_names(history)
    sections = []
    for number, device in enumerate(sorted({group.device for group in run_group.groups.values()})):
        members = sorted((g for g in run_group.groups.values() if g.device == device), key=order)
        ceilings = _ceilings(run_group, device) if name == "roofline" else {}
        rows, left = dots(members, other)
        drawn = ""
        if rows and plots.available():
            points = [row["dot"] for row in rows]
            text = f"{what}: {len(points)} variants on {device}; the table below has the same numbers"
            drawing = f"{name}{number}"
            if name == "roofline":
                drawn = plots.roofline(drawing, points, ceilings, text)
            else:
                drawn = plots.scatter(drawing, points, text)
        legend = {row["variant"]: row["dot"].color for row in rows}
        kinds = sorted({row["dot"].kind for row in rows})
        estimate = any(row["dot"].estimate for row in rows)
        source = [str(run.header.get("ceilings_source", {}).get(device, "")) for run in run_group.runs]
        section = {"device": device, "svg": drawn, "rows": rows, "left": left, "legend": legend, "kinds": kinds}
        shown = {name: table.count(v, "B/s" if name == "bandwidth" else "FLOP/s") for name, v in ceilings.items()}
        sections.append({**section, "estimate": estimate, "ceilings": shown, "source": next(filter(None, source), "")})
    return {"sections": sections, "missing": "" if plots.available() else plots.MISSING}


def _accuracy_dots(members: Sequence[Group], other: Sequence[str]) -> tuple[list[Row], int]:
    rows, left = [], 0
    for group, variant in _variants(members):
        if variant.verdict == "first":
            continue
        usable = valid(variant) and variant.verdict != "unstable" and variant.speed is not None
        if not usable or not variant.error or variant.error == float("inf"):
            left += 1
            continue
        text = f"{table.ratio(variant)}, error {table.error(variant.error)}"
        rows.append(_row(group, variant, (variant.error, variant.speed or 1.0), text, other))
    return rows, left


def _roofline_dots(members: Sequence[Group], other: Sequence[str]) -> tuple[list[Row], int]:
    rows, left = [], 0
    for group, variant in _variants(members):
        if not group.flops:
            continue
        if not valid(variant) or not variant.flops_per_second or not variant.intensity:
            left += 1
            continue
        rate, intensity = table.count(variant.flops_per_second, "FLOP/s"), f"{variant.intensity:.3g}"
        place = (variant.intensity, variant.flops_per_second)
        numbers = {"rate": rate, "intensity": intensity, "moved": table.count(variant.bytes_per_second, "B/s")}
        row = _row(group, variant, place, f"{rate} at {intensity} FLOP/B", other)
        rows.append({**row, **numbers, "share": table.share(variant)})
    return rows, left


def _variants(members: Sequence[Group]) -> Iterator[tuple[Group, VariantResult]]:
    """Yield the variants of groups without their A/A baselines."""
    return ((group, v) for group in members for v in group.variants if not v.name.endswith(AA))


def _row(group: Group, variant: VariantResult, place: tuple[float, float], text: str, other: Sequence[str]) -> Row:
    title = f"{table.label(group)} {group.compiler} {variant.name}: {text}"
    dot = plots.Dot(*place, color(variant.name, other), title, group.kind, group.estimate)
    return {"group": group, "variant": variant.name, "dot": dot, **_numbers(variant)}


def _numbers(variant: VariantResult) -> Row:
    return {
        "ratio": table.ratio(variant),
        "error": table.error(variant.error),
        "time": table.seconds(variant.seconds),
        "verdict": SHOWN[variant.verdict],
    }


def _ceilings(run_group: RunGroup, device: str) -> dict[str, float]:
    """Return a device's peaks from the run group's files, else from its variants' shares of them."""
    found: dict[str, float] = {}
    for run in run_group.runs:
        for name, value in dict(run.header.get("ceilings", {}).get(device) or {}).items():
            if isinstance(value, (int, float)) and value > 0:
                found.setdefault(str(name), float(value))
    for group in () if found else run_group.groups.values():
        for variant in group.variants if group.device == device else ():
            if variant.share and variant.flops_per_second and valid(variant):
                found.setdefault(variant.name, variant.flops_per_second / variant.share)
    return found
