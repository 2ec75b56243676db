"""What the pages with plots are filled with: a section for each device, with the numbers behind its plot."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from ampcheck.bench.core import table
from ampcheck.bench.core.model import ArmResult, Group
from ampcheck.report.benchmarks import plots
from ampcheck.report.benchmarks.data import color, variants
from ampcheck.report.benchmarks.run_groups import BenchHistory, RunGroup, order, valid
from ampcheck.report.benchmarks.verdicts import SHOWN

Row = dict[str, Any]
Dots = Callable[[Sequence[Group], Sequence[str]], tuple[list[Row], int]]
"""From a device's groups and the names of variants to rows with a dot each, and how many arms have no place."""


def accuracy(history: BenchHistory) -> dict[str, Any]:
    """Speed against error: a plot a device, and the same numbers as a table."""
    return _plotted(history, _accuracy_dots, "accuracy", "Speed beside the baseline against the error")


def roofline(history: BenchHistory) -> dict[str, Any]:
    """Flops per second against flops per byte: a plot a device, and the same numbers as a table."""
    return _plotted(history, _roofline_dots, "roofline", "Flops per second against flops per byte")


def _plotted(history: BenchHistory, dots: Dots, name: str, what: str) -> dict[str, Any]:
    """A section for each device, alphabetically: its plot, the rows behind it, how many arms have no place in it."""
    night = history.latest
    assert night is not None
    other = variants(history)
    sections = []
    for number, device in enumerate(sorted({group.device for group in night.groups.values()})):
        members = sorted((g for g in night.groups.values() if g.device == device), key=order)
        ceilings = _ceilings(night, device) if name == "roofline" else {}
        rows, left = dots(members, other)
        drawn = ""
        if rows and plots.available():
            points = [row["dot"] for row in rows]
            text = f"{what}: {len(points)} arms on {device}; the table below has the same numbers"
            drawing = f"{name}{number}"
            if name == "roofline":
                drawn = plots.roofline(drawing, points, ceilings, text)
            else:
                drawn = plots.scatter(drawing, points, text)
        legend = {row["arm"]: row["dot"].color for row in rows}
        kinds = sorted({row["dot"].kind for row in rows})
        estimate = any(row["dot"].estimate for row in rows)
        source = [str(run.header.get("ceilings_source", {}).get(device, "")) for run in night.runs]
        section = {"device": device, "svg": drawn, "rows": rows, "left": left, "legend": legend, "kinds": kinds}
        shown = {name: table.count(v, "B/s" if name == "bandwidth" else "FLOP/s") for name, v in ceilings.items()}
        sections.append({**section, "estimate": estimate, "ceilings": shown, "source": next(filter(None, source), "")})
    return {"sections": sections, "missing": "" if plots.available() else plots.MISSING}


def _accuracy_dots(members: Sequence[Group], other: Sequence[str]) -> tuple[list[Row], int]:
    rows, left = [], 0
    for group in members:
        for arm in group.arms:
            if arm.verdict == "first" or arm.name.endswith("-again"):
                continue
            usable = valid(arm) and arm.verdict != "unstable" and arm.speed is not None
            if not usable or not arm.error or arm.error == float("inf"):
                left += 1
                continue
            title = (
                f"{table.label(group)} {group.executor} {arm.name}: {table.ratio(arm)}, error {table.error(arm.error)}"
            )
            dot = plots.Dot(arm.error, arm.speed or 1.0, color(arm.name, other), title, group.kind, group.estimate)
            rows.append({"group": group, "arm": arm.name, "dot": dot, **_numbers(arm)})
    return rows, left


def _roofline_dots(members: Sequence[Group], other: Sequence[str]) -> tuple[list[Row], int]:
    rows, left = [], 0
    for group in members:
        for arm in group.arms:
            if arm.name.endswith("-again") or not group.flops:
                continue
            if not valid(arm) or not arm.flops_per_second or not arm.intensity:
                left += 1
                continue
            rate = table.count(arm.flops_per_second, "FLOP/s")
            title = f"{table.label(group)} {group.executor} {arm.name}: {rate} at {arm.intensity:.3g} FLOP/B"
            place = (arm.intensity, arm.flops_per_second)
            dot = plots.Dot(*place, color(arm.name, other), title, group.kind, group.estimate)
            numbers = {
                "rate": rate,
                "intensity": f"{arm.intensity:.3g}",
                "moved": table.count(arm.bytes_per_second, "B/s"),
            }
            rows.append(
                {"group": group, "arm": arm.name, "dot": dot, **numbers, "share": table.share(arm), **_numbers(arm)}
            )
    return rows, left


def _numbers(arm: ArmResult) -> Row:
    return {
        "ratio": table.ratio(arm),
        "error": table.error(arm.error),
        "time": table.seconds(arm.seconds),
        "verdict": SHOWN[arm.verdict],
    }


def _ceilings(night: RunGroup, device: str) -> dict[str, float]:
    """What the night's files say of a device's peaks; where they say nothing, what its arms' shares of them tell."""
    found: dict[str, float] = {}
    for run in night.runs:
        for name, value in dict(run.header.get("ceilings", {}).get(device) or {}).items():
            if isinstance(value, (int, float)) and value > 0:
                found.setdefault(str(name), float(value))
    for group in () if found else night.groups.values():
        for arm in group.arms if group.device == device else ():
            if arm.share and arm.flops_per_second and valid(arm):
                found.setdefault(arm.name, arm.flops_per_second / arm.share)
    return found
