"""What the pages of benchmarks are filled with: plain values, so that templates only lay them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ampcheck.bench import table
from ampcheck.bench.model import ArmResult, Group
from ampcheck.report import bench_plots, bench_scaling
from ampcheck.report.bench_changes import KINDS, Change
from ampcheck.report.bench_data import color, variants
from ampcheck.report.bench_nights import Bench, BenchHistory, valid
from ampcheck.report.bench_steps import listed
from ampcheck.report.bench_verdicts import SHOWN

NAV = {
    "Results": "bench.html",
    "Accuracy": "bench_accuracy.html",
    "Roofline": "bench_roofline.html",
    "Scaling": "bench_scaling.html",
    "Devices": "bench_devices.html",
    "History": "bench_history.html",
    "Compare": "bench_compare.html",
}
EXPORTS = {
    "bench.csv": "CSV",
    "bench.md": "Markdown summary",
    "bench_pytest.json": "pytest-benchmark",
    "bench_smaller_is_better.json": "github-action-benchmark",
}
"""Files beside the pages; those of one night that has several files are of its newest."""

Row = dict[str, Any]


def results(history: BenchHistory, changed: Sequence[Change]) -> dict[str, Any]:
    """The first page: what changed, alerts, then every workload with its arms side by side."""
    night, before = history.newest, history.previous
    assert night is not None
    other = variants(history)
    groups = [_group(group, other) for _, group in sorted(night.groups.items(), key=lambda item: _order(item[1]))]
    kinds = Counter(change.kind for change in changed)
    shown = [change for change in changed if change.kind != "rest"]
    named = {"a": before.name, "b": night.name} if before else {}
    return {
        "groups": groups,
        "before": before,
        "changed": [_changed(change) for change in shown],
        "kinds": {kind: (kinds[kind], meaning) for kind, meaning in KINDS.items()},
        "alerts": listed(history),
        "compare_href": "bench_compare.html#" + urlencode(named),
        "counts": Counter(arm["verdict"].name for group in groups for arm in group["arms"]),
        "exports": EXPORTS,
        "conditions": [(run.path.name, _said(run.header), run.note) for run in night.runs],
        **_choices(night.groups.values()),
    }


def accuracy(history: BenchHistory) -> dict[str, Any]:
    """Speed against error: a plot a device, and the same numbers as a table."""
    return _plotted(history, _accuracy_dots, "accuracy", "Speed beside the baseline against the error")


def roofline(history: BenchHistory) -> dict[str, Any]:
    """Flops per second against flops per byte: a plot a device, and the same numbers as a table."""
    return _plotted(history, _roofline_dots, "roofline", "Flops per second against flops per byte")


def scaling(history: BenchHistory) -> dict[str, Any]:
    """Per base the curves over size, with where autocast starts to pay."""
    night = history.newest
    assert night is not None
    other = variants(history)
    axes = bench_scaling.axes(night.groups)
    return {
        "axes": [
            {
                "axis": axis,
                "curves": [
                    {
                        "curve": curve,
                        "color": color(curve.arm, other),
                        "again": curve.arm.endswith("-again"),
                        "at": {point.size: point for point in curve.points},
                    }
                    for curve in axis.curves
                ],
                "plot": [
                    {
                        "name": curve.arm,
                        "color": color(curve.arm, other),
                        "points": [[p.size, p.speed, p.low, p.high] for p in curve.points],
                    }
                    for curve in axis.curves
                ],
            }
            for axis in axes
        ],
        "device_names": sorted({axis.device for axis in axes}),
        "executor_names": sorted({axis.executor for axis in axes}),
        "families": sorted({axis.family for axis in axes}),
    }


def devices(history: BenchHistory) -> dict[str, Any]:
    """A row for each workload, executor and arm, a column for each device in the order of the alphabet."""
    night = history.newest
    assert night is not None
    other = variants(history)
    names = sorted({group.device for group in night.groups.values()})
    rows: dict[tuple[str, str, str], Row] = {}
    for group in sorted(night.groups.values(), key=_order):
        for arm in group.arms:
            key = (group.workload, group.executor, arm.name)
            row = rows.setdefault(key, {"workload": group.workload, "executor": group.executor, "cells": {}})
            row |= {"arm": arm.name, "family": group.family, "color": color(arm.name, other)}
            row["cells"][group.device] = {**_arm(group, arm, other), "estimate": group.estimate}
    ordered = [rows[key] for key in sorted(rows, key=lambda key: key[:2])]  # arms stay in the order of their group
    return {"rows": ordered, **_choices(night.groups.values()), "arm_names": sorted({row["arm"] for row in ordered})}


def summary(history: BenchHistory) -> dict[str, Any] | None:
    """What other pages say of the benchmarks, None without any."""
    night = history.newest
    if night is None:
        return None
    return {
        "started": night.started,
        "torch": night.torch,
        "note": night.note,
        "workloads": len(night.groups),
        "nights": len(history.nights),
        "left_out": history.left_out,
        "estimates": any(group.estimate for group in night.groups.values()),
    }


def _group(group: Group, other: Sequence[str]) -> Row:
    return {
        "group": group,
        "arms": [_arm(group, arm, other) for arm in group.arms],
        "text": " ".join((group.key, group.family, group.policy, *(arm.name for arm in group.arms))).lower(),
    }


def _arm(group: Group, arm: ArmResult, other: Sequence[str]) -> Row:
    base = group.arms[0]
    return {
        "name": arm.name,
        "color": color(arm.name, other),
        "again": arm.name.endswith("-again"),
        "verdict": SHOWN[arm.verdict],
        "valid": valid(arm),
        "reason": arm.reason,
        "time": table.seconds(arm.seconds),
        "range": f"{table.seconds(arm.low)} to {table.seconds(arm.high)}" if arm.low and arm.high else "",
        "base": table.seconds(base.seconds),
        "base_name": base.name,
        "base_valid": valid(base),
        "ratio": table.ratio(arm),
        "error": table.error(arm.error),
        "memory": table.memory(arm.memory),
        "proof": arm.proof,
        "rounds": arm.rounds,
        "processes": arm.processes,
    }


def _changed(change: Change) -> Row:
    one, two = change.before, change.after
    reason = (two and two.reason) or ""
    return {
        "change": change,
        "before": SHOWN[one.verdict] if one else None,
        "after": SHOWN[two.verdict] if two else None,
        "times": (table.seconds(one and one.seconds), table.seconds(two and two.seconds)),
        "ratios": (table.ratio(one) if one else table.NONE, table.ratio(two) if two else table.NONE),
        "tested": _sentence(change),
        "reason": reason if change.kind in ("lost", "new") else "",
        "history_href": "bench_history.html#" + urlencode({"q": change.key}),
    }


def _sentence(change: Change) -> str:
    """What the test of two nights says, e.g. "slower: 0.91× [0.90, 0.92] of the speed before, p = 0.002"."""
    if not change.words:
        return ""
    ratio = "" if change.ratio is None else f": {change.ratio:.3g}×"
    if change.low is not None and change.high is not None:
        ratio += f" [{change.low:.3g}, {change.high:.3g}]"
    p = " (intervals compared)" if change.p is None else f", p = {change.p:.2g}"
    return f"{change.words}{ratio} of the speed before{p}" if ratio else change.words


def _plotted(history: BenchHistory, dots: Any, name: str, what: str) -> dict[str, Any]:
    """A section for each device, alphabetically: its plot, the rows behind it, and how many arms have no place in it."""
    night = history.newest
    assert night is not None
    other = variants(history)
    sections = []
    for number, device in enumerate(sorted({group.device for group in night.groups.values()})):
        members = sorted((g for g in night.groups.values() if g.device == device), key=_order)
        ceilings = _ceilings(night, device) if name == "roofline" else {}
        rows, left = dots(members, other)
        drawn = ""
        if rows and bench_plots.available():
            points = [row["dot"] for row in rows]
            text = f"{what}: {len(points)} arms on {device}; the table below has the same numbers"
            drawing = f"{name}{number}"
            if name == "roofline":
                drawn = bench_plots.roofline(drawing, points, ceilings, text)
            else:
                drawn = bench_plots.scatter(drawing, points, text)
        legend = {row["arm"]: row["dot"].color for row in rows}
        kinds = sorted({row["dot"].kind for row in rows})
        estimate = any(row["dot"].estimate for row in rows)
        section = {"device": device, "svg": drawn, "rows": rows, "left": left, "legend": legend, "kinds": kinds}
        shown = {name: table.count(v, "B/s" if name == "bandwidth" else "FLOP/s") for name, v in ceilings.items()}
        sections.append({**section, "estimate": estimate, "ceilings": shown})
    return {"sections": sections, "missing": "" if bench_plots.available() else bench_plots.MISSING}


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
            title = f"{table.label(group)} {group.executor} {arm.name}: {table.ratio(arm)}, error {table.error(arm.error)}"
            dot = bench_plots.Dot(
                arm.error, arm.speed or 1.0, color(arm.name, other), title, group.kind, group.estimate
            )
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
            dot = bench_plots.Dot(*place, color(arm.name, other), title, group.kind, group.estimate)
            numbers = {"rate": rate, "intensity": f"{arm.intensity:.3g}", "moved": table.count(arm.bytes_per_second, "B/s")}
            share = "" if arm.share is None else f"{arm.share:.0%} of the peak"
            rows.append({"group": group, "arm": arm.name, "dot": dot, **numbers, "share": share, **_numbers(arm)})
    return rows, left


def _numbers(arm: ArmResult) -> Row:
    return {
        "ratio": table.ratio(arm),
        "error": table.error(arm.error),
        "time": table.seconds(arm.seconds),
        "verdict": SHOWN[arm.verdict],
    }


def _ceilings(night: Bench, device: str) -> dict[str, float]:
    """What the night's files say of a device's peaks; a precision's peak that only its arms' shares tell, from these."""
    found: dict[str, float] = {}
    for run in night.runs:
        for name, value in dict(run.header.get("ceilings", {}).get(device) or {}).items():
            if isinstance(value, (int, float)) and value > 0:
                found[str(name)] = float(value)
    for group in night.groups.values():
        for arm in group.arms if group.device == device else ():
            if arm.share and arm.flops_per_second and valid(arm):
                found.setdefault(arm.name, arm.flops_per_second / arm.share)
    return found


def _choices(groups: Iterable[Group]) -> dict[str, Any]:
    """What the filters of a page offer."""
    groups = list(groups)
    return {
        "device_names": sorted({group.device for group in groups}),
        "executor_names": sorted({group.executor for group in groups}),
        "families": sorted({group.family for group in groups}),
    }


def _said(header: Mapping[str, Any]) -> str:
    """A file's mode, versions, machine and devices in one line."""
    parts = [str(header.get("mode", ""))]
    parts += [f"{name} {value}" for name, value in header.get("versions", {}).items()]
    parts += [f"{name}: {value}" for part in ("machine", "devices") for name, value in header.get(part, {}).items()]
    return ", ".join(part for part in parts if part)


def _order(group: Group) -> tuple[str, str, int, str, str, str]:
    return (group.family, group.base, group.size, group.workload, group.device, group.executor)
