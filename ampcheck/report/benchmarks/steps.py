"""Alerts and steps of a site's run groups, device by device, and what else changed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from ampcheck.bench.core.machine import identity
from ampcheck.bench.run import alerts
from ampcheck.bench.run.alerts import Alert, RunFigures
from ampcheck.report.benchmarks.run_groups import BenchHistory, RunGroup, valid


@dataclass(frozen=True, slots=True)
class BenchStep:
    """A series that reached a new level: since which run group, and how its speed compares."""

    key: str
    variant: str
    run_group: str
    text: str


def by_device(history: BenchHistory) -> dict[str, list[RunFigures]]:
    """Return the figures of each device's run groups in the order of time. A series is named `key/variant`.

    What is not valid has no figure, and what never was valid is left out: a variant that a device cannot run has not
    gone missing. Estimates are left out: a compiler's figure has no noise.
    """
    found: dict[str, list[RunFigures]] = {}
    for run_group in reversed(history.run_groups):
        for device in sorted({group.device for group in run_group.groups.values()}):
            found.setdefault(device, []).append(_run_group(run_group, device))
    for own in found.values():
        ever = {name for run in own for name, value in run.values.items() if value is not None}
        own[:] = [replace(run, values={n: v for n, v in run.values.items() if n in ever}) for run in own]
    return dict(sorted(found.items()))


def listed(history: BenchHistory) -> list[tuple[str, Alert]]:
    """Every alert of the newest run group with its device, those about machines and series first."""
    out = []
    for device, own in by_device(history).items():
        if history.newest and own[-1].started != history.newest.name:
            sentence = f"{device} was not measured in the newest run group, the last time was {own[-1].started}"
            out.append((device, Alert("not measured", sentence, since=own[-1].started, new=False)))
        else:
            out += [(device, alert) for alert in alerts.alerts(own)]
    return sorted(out, key=lambda item: alerts.KINDS.index(item[1].kind))


def steps(history: BenchHistory) -> list[BenchStep]:
    """Return each move of a series to a new level by the rule of alerts, over the whole history."""
    found = []
    for own in by_device(history).values():
        for machine in dict.fromkeys(run.machine for run in own):
            mine = [run for run in own if run.machine == machine]
            for name in dict.fromkeys(name for run in mine for name in run.values):
                figures = [(run.started, v) for run in mine if (v := run.values.get(name)) is not None]
                found += _steps(name, figures)
    return found


def conditions(history: BenchHistory) -> dict[str, list[tuple[str, str]]]:
    """Return each device's run groups whose machine or versions are not those before, and what changed."""
    return {device: alerts.marks(own) for device, own in by_device(history).items()}


def machine(header: Mapping[str, Any], device: str) -> str:
    """Name what a device's figures depend on: the machine by its identity, threads, and the device's model."""
    found = header.get("machine", {})
    about = header.get("devices", {}).get(device, {})
    model = about.get("model", "") if isinstance(about, dict) else str(about)
    threads = header.get("threads", found.get("threads", ""))
    parts = [str(found.get("model", "unnamed")), f"{found['cores']} cores" if "cores" in found else ""]
    parts += [f"{threads} threads" if threads else "", model if model != found.get("model") else ""]
    return ", ".join(part for part in parts if part) + f" ({header.get('identity') or identity(found)})"


def _run_group(run_group: RunGroup, device: str) -> RunFigures:
    groups = {key: group for key, group in run_group.groups.items() if group.device == device}
    header = run_group.source[next(iter(groups))].header
    values = {
        f"{key}/{variant.name}": variant.seconds if valid(variant) else None
        for key, group in groups.items()
        if not group.estimate
        for variant in group.variants
    }
    versions = {str(name): str(version) for name, version in header.get("versions", {}).items()}
    return RunFigures(run_group.name, values, machine(header, device), versions)


def _steps(name: str, figures: Sequence[tuple[str, float]]) -> list[BenchStep]:
    values = [value for _, value in figures]
    logs = [math.log(value) for value in values]
    key, _, variant = name.rpartition("/")
    found, before = [], 0
    for end in range(alerts.RECENT + alerts.ENOUGH, len(values) + 1):
        start = max(0, end - alerts.RECENT - alerts.BASELINE)
        change = median(logs[end - alerts.RECENT : end]) - median(logs[start : end - alerts.RECENT])
        # The rule asks for more than this, and most run groups do not even reach it.
        move = alerts.moved(values[start:end]) if abs(change) > math.log1p(alerts.SMALLEST) else None
        way = 0 if move is None else 1 if move.ratio > 1 else -1
        if move is not None and way != before:
            word = "faster" if way > 0 else "slower"
            found.append(
                BenchStep(key, variant, figures[end - move.since][0], f"{word}: {move.ratio:.2f}× the speed before")
            )
        before = way
    return found
