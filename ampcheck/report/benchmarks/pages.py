"""What the pages of benchmarks are filled with: plain values, so that templates only lay them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any
from urllib.parse import urlencode

from ampcheck.bench.core import table
from ampcheck.bench.core.model import ArmResult, Group
from ampcheck.bench.run.exports import incomplete
from ampcheck.report.benchmarks.changes import KINDS, SpeedChange
from ampcheck.report.benchmarks.data import color, variants
from ampcheck.report.benchmarks.run_groups import BenchHistory, RunGroup, order, valid
from ampcheck.report.benchmarks.scaling import axes as scaling_axes
from ampcheck.report.benchmarks.steps import listed
from ampcheck.report.benchmarks.verdicts import SHOWN

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


def results(history: BenchHistory, changed: Sequence[SpeedChange]) -> dict[str, Any]:
    """The first page: what changed, alerts, then every workload with its arms side by side."""
    night, before, newest = history.latest, history.previous, history.newest
    assert night is not None
    assert newest is not None
    other = variants(history)
    groups = [
        _group(group, older(history, night, key), other)
        for key, group in sorted(night.groups.items(), key=lambda item: order(item[1]))
    ]
    kinds = Counter(change.kind for change in changed)
    shown = [change for change in changed if change.kind != "rest"]
    named = {"a": before.name, "b": newest.name} if before else {}
    return {
        "groups": groups,
        "before": before,
        "changed": [_changed(change) for change in shown],
        "kinds": {kind: (kinds[kind], meaning) for kind, meaning in KINDS.items()},
        "alerts": listed(history),
        "compare_href": "bench_compare.html#" + urlencode(named),
        "counts": Counter(arm["verdict"].name for group in groups for arm in group["arms"]),
        "exports": EXPORTS,
        "conditions": [(run.path.name, _said(run.header), incomplete(run)) for run in night.runs],
        **_choices(night.groups.values()),
    }


def scaling(history: BenchHistory) -> dict[str, Any]:
    """Per base the curves over size, with where autocast starts to pay."""
    night = history.latest
    assert night is not None
    other = variants(history)
    axes = scaling_axes(night.groups)
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
    night = history.latest
    assert night is not None
    other = variants(history)
    rows: dict[tuple[str, str, str], Row] = {}
    for group in sorted(night.groups.values(), key=order):
        since = older(history, night, group.key)
        for arm in group.arms:
            key = (group.workload, group.executor, arm.name)
            row = rows.setdefault(key, {"workload": group.workload, "executor": group.executor, "cells": {}})
            row |= {
                "arm": arm.name,
                "family": group.family,
                "color": color(arm.name, other),
                "order": order(group)[:4],
            }
            row["cells"][group.device] = {**_arm(group, arm, other), "estimate": group.estimate, "older": since}
    ordered = sorted(rows.values(), key=lambda row: (row["order"], row["executor"]))  # arms stay as in their group
    return {"rows": ordered, **_choices(night.groups.values()), "arm_names": sorted({row["arm"] for row in ordered})}


def summary(history: BenchHistory) -> dict[str, Any] | None:
    """What other pages say of the benchmarks, None without any."""
    night, latest = history.newest, history.latest
    if night is None or latest is None:
        return None
    return {
        "started": night.started,
        "torch": night.torch,
        "note": night.note,
        "workloads": len(latest.groups),
        "nights": len(history.nights),
        "left_out": history.left_out,
        "estimates": any(group.estimate for group in latest.groups.values()),
    }


def older(history: BenchHistory, shown: RunGroup, key: str) -> str:
    """The day a group was measured, where that was before the newest night, else ""."""
    newest = history.newest
    if newest is not None and key in newest.groups:
        return ""
    return str(shown.source[key].header.get("started", "an unknown night")).partition("T")[0]


def _group(group: Group, since: str, other: Sequence[str]) -> Row:
    return {
        "group": group,
        "older": since,
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
        "time": table.time(arm),
        "range": f"{table.seconds(arm.low)} to {table.seconds(arm.high)}" if arm.low and arm.high else "",
        "base": table.seconds(base.seconds),
        "base_name": base.name,
        "base_valid": valid(base),
        "ratio": table.ratio(arm),
        "default": table.default_ratio(arm),
        "error": table.error(arm.error),
        "memory": table.memory(arm.memory),
        "proof": arm.proof,
        "rounds": arm.rounds,
        "processes": arm.processes,
    }


def _changed(change: SpeedChange) -> Row:
    one, two = change.before, change.after
    reason = (two and two.reason) or ""
    return {
        "change": change,
        "before": SHOWN[one.verdict] if one else None,
        "after": SHOWN[two.verdict] if two else None,
        "times": (table.seconds(one.seconds if one else None), table.seconds(two.seconds if two else None)),
        "ratios": (table.ratio(one) if one else table.NONE, table.ratio(two) if two else table.NONE),
        "tested": _sentence(change),
        "reason": reason if change.kind in ("lost", "new") else "",
        "history_href": "bench_history.html#" + urlencode({"q": change.key}),
    }


def _sentence(change: SpeedChange) -> str:
    """What the test of two nights says, e.g. "slower: 0.91× [0.90, 0.92] of the speed before, p = 0.002"."""
    if not change.words:
        return ""
    ratio = "" if change.ratio is None else f": {change.ratio:.3g}×"
    if change.low is not None and change.high is not None:
        ratio += f" [{change.low:.3g}, {change.high:.3g}]"
    p = " (intervals compared)" if change.p is None else f", p = {change.p:.2g}"
    return f"{change.words}{ratio} of the speed before{p}" if ratio else change.words


def _choices(groups: Iterable[Group]) -> dict[str, Any]:
    """What the filters of a page offer."""
    groups = list(groups)
    return {
        "device_names": sorted({group.device for group in groups}),
        "executor_names": sorted({group.executor for group in groups}),
        "families": sorted({group.family for group in groups}),
    }


def _plain(value: Any) -> str:
    """A value of a header without the marks of a programming language."""
    if isinstance(value, dict):
        return " ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _said(header: Mapping[str, Any]) -> str:
    """A file's mode, versions, machine and devices in one line."""
    parts = [str(header.get("mode", ""))]
    parts += [f"{name} {value}" for name, value in header.get("versions", {}).items()]
    parts += [
        f"{name}: {_plain(value)}" for part in ("machine", "devices") for name, value in header.get(part, {}).items()
    ]
    return ", ".join(part for part in parts if part)
