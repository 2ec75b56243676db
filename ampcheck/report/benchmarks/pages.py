"""Fill the pages of benchmarks with plain values, so that templates only lay them out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from ampcheck.bench.core import table
from ampcheck.bench.core.model import AA, Group, VariantResult
from ampcheck.bench.run.exports import incomplete
from ampcheck.report.benchmarks.changes import KINDS, SpeedChange, listed
from ampcheck.report.benchmarks.data import color, extra_names
from ampcheck.report.benchmarks.run_groups import BenchHistory, RunGroup, order, valid
from ampcheck.report.benchmarks.scaling import Axis
from ampcheck.report.benchmarks.scaling import axes as scaling_axes

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
"""Files beside the pages; those of one run group that has several files are of its newest."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verdict as readers see it. `mark` is shown beside the colour, so that none is told by colour alone.

    `style`: the end of its CSS class.
    """

    name: str
    mark: str
    label: str
    meaning: str

    @property
    def style(self) -> str:
        """Its name as part of a CSS class."""
        return self.name.replace(" ", "-")


_ALL = (
    Verdict("slower", "▼", "slower", "The whole interval lies below 1 ± the bound and that of the A/A baseline."),
    Verdict("faster", "▲", "faster", "The whole interval lies above 1 ± the bound and that of the A/A baseline."),
    Verdict("same", "=", "same", "The whole interval lies where two equal variants may lie."),
    Verdict("ambiguous", "?", "ambiguous", "None of these, or the A/A baseline shows as much."),
    Verdict("unstable", "~", "unstable", "The spread is too wide to say anything."),
    Verdict("invalid", "✗", "invalid", "It was measured, but not in the precision it is named for, or not to its end."),
    Verdict("not measured", "∅", "not measured", "It could not be measured; the reason says why."),
    Verdict("first", "·", "baseline", "What the other variants of its group are compared with."),
)

SHOWN = {verdict.name: verdict for verdict in _ALL}
"""Every verdict of `ampcheck.bench.core.model.VERDICTS`, and "first", by name."""

Row = dict[str, Any]


def results(history: BenchHistory, changed: Sequence[SpeedChange]) -> dict[str, object]:
    """Return the first page: what changed, alerts, then every workload with its variants side by side."""
    run_group, before, newest = history.latest, history.previous, history.newest
    assert run_group is not None
    assert newest is not None
    other = extra_names(history)
    groups = [
        _group(group, older(history, run_group, key), other)
        for key, group in sorted(run_group.groups.items(), key=lambda item: order(item[1]))
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
        "counts": Counter(variant["verdict"].name for group in groups for variant in group["variants"]),
        "exports": EXPORTS,
        "conditions": [(run.path.name, _said(run.header), incomplete(run)) for run in run_group.runs],
        **_choices(run_group.groups.values()),
    }


def scaling(history: BenchHistory) -> dict[str, object]:
    """Per base the curves over size, with where autocast starts to pay."""
    run_group = history.latest
    assert run_group is not None
    other = extra_names(history)
    axes = scaling_axes(run_group.groups)
    shown = []
    for axis in axes:
        coloured = [(curve, color(curve.variant, other)) for curve in axis.curves]
        curves = [
            {"curve": c, "color": number, "aa": c.variant.endswith(AA), "at": {p.size: p for p in c.points}}
            for c, number in coloured
        ]
        plot = [
            {"name": c.variant, "color": number, "points": [[p.size, p.speed, p.low, p.high] for p in c.points]}
            for c, number in coloured
        ]
        shown.append({"axis": axis, "curves": curves, "plot": plot})
    return {"axes": shown, **_choices(axes)}


def devices(history: BenchHistory) -> dict[str, object]:
    """Return a row for each workload, compiler and variant, a column for each device in the order of the alphabet."""
    run_group = history.latest
    assert run_group is not None
    other = extra_names(history)
    rows: dict[tuple[str, str, str], Row] = {}
    for group in sorted(run_group.groups.values(), key=order):
        since = older(history, run_group, group.key)
        for variant in group.variants:
            key = (group.workload, group.compiler, variant.name)
            row = rows.setdefault(key, {"workload": group.workload, "compiler": group.compiler, "cells": {}})
            row |= {
                "variant": variant.name,
                "family": group.family,
                "color": color(variant.name, other),
                "order": order(group)[:4],
            }
            row["cells"][group.device] = {**_variant(group, variant, other), "estimate": group.estimate, "older": since}
    ordered = sorted(rows.values(), key=lambda row: (row["order"], row["compiler"]))  # variants stay as in their group
    return {
        "rows": ordered,
        **_choices(run_group.groups.values()),
        "variant_names": sorted({row["variant"] for row in ordered}),
    }


def summary(history: BenchHistory) -> dict[str, object] | None:
    """Return the figures about benchmarks on other pages, None without any."""
    run_group, latest = history.newest, history.latest
    if run_group is None or latest is None:
        return None
    return {
        "started": run_group.started,
        "torch": run_group.torch,
        "note": run_group.note,
        "workloads": len(latest.groups),
        "run_groups": len(history.run_groups),
        "left_out": history.left_out,
        "estimates": any(group.estimate for group in latest.groups.values()),
    }


def older(history: BenchHistory, shown: RunGroup, key: str) -> str:
    """Return the day a group was measured, where that was before the newest run group, else ""."""
    newest = history.newest
    if newest is not None and key in newest.groups:
        return ""
    return str(shown.source[key].header.get("started", "an unknown run group")).partition("T")[0]


def _group(group: Group, since: str, other: Sequence[str]) -> Row:
    return {
        "group": group,
        "older": since,
        "variants": [_variant(group, variant, other) for variant in group.variants],
        "text": " ".join((group.key, group.family, group.policy, *(v.name for v in group.variants))).lower(),
    }


def _variant(group: Group, variant: VariantResult, other: Sequence[str]) -> Row:
    base = group.variants[0]
    return {
        "name": variant.name,
        "color": color(variant.name, other),
        "aa": variant.name.endswith(AA),
        "verdict": SHOWN[variant.verdict],
        "valid": valid(variant),
        "reason": variant.reason,
        "time": table.time(variant),
        "range": f"{table.seconds(variant.low)} to {table.seconds(variant.high)}"
        if variant.low and variant.high
        else "",
        "base": table.seconds(base.seconds),
        "base_name": base.name,
        "base_valid": valid(base),
        "ratio": table.ratio(variant),
        "default": table.default_ratio(variant),
        "error": table.error(variant.error),
        "memory": table.memory(variant.memory),
        "precision_check": variant.precision_check,
        "rounds": variant.rounds,
        "processes": variant.processes,
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
    """Put the test of two run groups in words, e.g. "slower: 0.91× [0.90, 0.92] of the speed before, p = 0.002"."""
    if not change.words:
        return ""
    ratio = "" if change.ratio is None else f": {change.ratio:.3g}×"
    if change.low is not None and change.high is not None:
        ratio += f" [{change.low:.3g}, {change.high:.3g}]"
    p = " (intervals compared)" if change.p is None else f", p = {change.p:.2g}"
    return f"{change.words}{ratio} of the speed before{p}" if ratio else change.words


def _choices(groups: Iterable[Group | Axis]) -> dict[str, object]:
    """Return the choices of a page's filters."""
    groups = list(groups)
    return {
        "device_names": sorted({group.device for group in groups}),
        "compiler_names": sorted({group.compiler for group in groups}),
        "families": sorted({group.family for group in groups}),
    }


def _plain(value: Any) -> str:
    """Return a value of a header without the marks of a programming language."""
    if isinstance(value, dict):
        return " ".join(f"{name} {_plain(part)}" for name, part in value.items())
    return " ".join(map(str, value)) if isinstance(value, list) else str(value)


def _said(header: Mapping[str, Any]) -> str:
    """Return a file's mode, versions, machine and devices in one line."""
    parts = [str(header.get("mode", ""))]
    parts += [f"{name} {value}" for name, value in header.get("versions", {}).items()]
    parts += [
        f"{name}: {_plain(value)}" for part in ("machine", "devices") for name, value in header.get(part, {}).items()
    ]
    return ", ".join(part for part in parts if part)
