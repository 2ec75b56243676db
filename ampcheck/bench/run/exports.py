"""Results for other programs: pytest-benchmark's JSON, CSV, a Markdown job summary, github-action-benchmark's JSON.

What is invalid or was not measured is in the CSV and the summary with its reason, and in neither JSON: those formats
have no place for a verdict, so a number in them counts as a measurement.
"""

import csv
import dataclasses
import io
import json
import statistics
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from ampcheck.bench.core import table
from ampcheck.bench.core.model import ESTIMATED, Group, OverheadWorkload, VariantResult
from ampcheck.bench.run.runfile import BenchRun, rounds_of
from ampcheck.bench.run.variants import select
from ampcheck.errors import UsageError
from ampcheck.runner.summarize import markdown

_GROUP = ("workload", "family", "kind", "device", "compiler", "policy", "base", "size", "flops", "samples", "estimate")
_VARIANT = tuple(field.name for field in dataclasses.fields(VariantResult))

Samples = dict[str, dict[str, list[list[float]]]]
"""Samples in seconds of one call, a list a process, by group key and variant."""


def samples(path: Path) -> Samples:
    """Return the raw samples of a benchmark file. Raises UsageError as `runfile.read` does."""
    found: Samples = {}
    for measured in rounds_of(path):
        for variant, values in measured.samples.items():
            if values:
                found.setdefault(measured.key, {}).setdefault(variant, []).append(values)
    return found


def incomplete(run: BenchRun) -> str:
    """Say why a run is not complete, "" where it is.

    Estimates are not repeated, so a group of them is whole or absent, and more time would not change it. A run of
    nothing else has all it was to have where each group that it was asked for is there, whenever it was ended.
    """
    asked = _estimates(run)
    if asked:
        missing = [key for key in asked if key not in run.groups]
        verb = "is" if len(missing) == 1 else "are"
        return f"{len(missing)} of {len(asked)} estimates {verb} missing: {', '.join(missing)}" if missing else ""
    return run.note or ("the run was interrupted" if (run.footer or {}).get("interrupted") else "")


def _estimates(run: BenchRun) -> list[str]:
    """Return the keys of the groups that a run was to estimate; empty where it was to measure, too, or nobody can tell.

    The header has them; in older files they follow from the devices and the command.
    """
    header = run.header
    asked = [str(key) for key in header.get("groups", ())]
    devices = [str(name) for name in header.get("devices", ())]
    if not all(name.startswith(ESTIMATED) for name in (*asked, *devices)):
        return []
    if asked or not devices or "command" not in header:
        return asked
    words = " ".join(map(str, header["command"])).replace("--filter=", "--filter ").split()
    filters = [value for option, value in pairwise(words) if option == "--filter"]
    try:
        chosen = select(filters, header.get("mode") == "quick", heavy=True)
    except UsageError:  # this version does not know the workload
        return []
    return [f"{name}/jit/{w.name}" for name in devices for w in chosen if not isinstance(w, OverheadWorkload)]


def pytest_benchmark_json(run: BenchRun) -> str:
    """Return the run as pytest-benchmark saves one, for `pytest-benchmark compare`.

    A benchmark per variant, grouped by `device/compiler/workload`, of the raw samples in the run's file; the paired
    ratio is in `extra_info`. Estimates have no samples, so they are left out like what is invalid; `left_out` lists
    both.
    """
    raw = samples(run.path)
    benchmarks, left_out = [], []
    for group in run.groups.values():
        for variant in group.variants:
            values = [value for process in raw.get(group.key, {}).get(variant.name, []) for value in process]
            if variant.verdict in table.INVALID or group.estimate or not values:
                why = "an estimate" if group.estimate else variant.reason or variant.verdict
                left_out.append({"name": f"{group.key}/{variant.name}", "reason": why})
            else:
                benchmarks.append(_benchmark(group, variant, values))
    return _json(
        {
            "machine_info": {**run.header.get("machine", {}), "versions": run.header.get("versions", {})},
            "commit_info": run.header.get("commit", {}),
            "benchmarks": benchmarks,
            "datetime": run.header.get("started", ""),
            "version": str(run.header.get("versions", {}).get("ampcheck", "")),
            "left_out": left_out,
        }
    )


def as_csv(run: BenchRun) -> str:
    """Return a row per variant with every field of it and of its group, and the first variant's seconds."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("started", *_GROUP, "variant", "baseline", "baseline_seconds", *_VARIANT[1:], "note"))
    for group in run.groups.values():
        for variant in group.variants:
            first = group.variants[0]
            mine = [getattr(variant, name) for name in _VARIANT]
            head = [getattr(group, name) for name in _GROUP]
            beside = (first.name, first.seconds)
            writer.writerow((run.header.get("started", ""), *head, mine[0], *beside, *mine[1:], group.note))
    return out.getvalue()


def as_markdown(run: BenchRun) -> str:
    """Return the run as a job summary: counts by verdict, each variant beside its baseline, reasons below."""
    variants = [(group, variant) for group in run.groups.values() for variant in group.variants]
    verdicts = Counter(variant.verdict for _, variant in variants if variant.verdict != "first")
    said = ", ".join(f"{amount} {verdict}" for verdict, amount in sorted(verdicts.items())) or "nothing was measured"
    started = run.header.get("started", "at an unknown time")
    lines = ["## ampcheck benchmarks", "", f"{len(run.groups)} workloads, {markdown(str(started))}: {said}."]
    if note := incomplete(run):
        lines += ["", f"**Incomplete:** {markdown(note)}."]
    rows = []
    for group, variant in variants:
        if variant.verdict != "first":
            name, *numbers = table.cells(variant)
            base = f"{group.variants[0].name} {table.time(group.variants[0])}"
            cells = (table.label(group), group.device, group.compiler, name, base, *numbers)
            rows.append("| " + " | ".join(map(markdown, cells)) + " |")
    if variants:
        heads = (*table.HEADINGS[:4], "baseline", "variant's time", *table.HEADINGS[5:])
        sides = "| --- | --- | --- | --- | ---: | ---: | ---: | --- | ---: |"
        lines += ["", f"| {' | '.join(heads)} |", sides, *rows]
    told = [
        f"- {markdown(group.key)}: {markdown(line)}" for group in run.groups.values() for line in table.reasons(group)
    ]
    if told:
        lines += ["", "### Reasons and notes", "", *told]
    return "\n".join(lines) + "\n"


def smaller_is_better(run: BenchRun) -> str:
    """Return the run for github-action-benchmark's `customSmallerIsBetter`: an entry per valid variant, in seconds.

    `range` is the half width of the middle 90 % of the samples; `extra` names verdict, ratio and baseline.
    """
    entries: list[dict[str, Any]] = []
    for group in run.groups.values():
        for variant in group.variants:
            base = group.variants[0]
            if variant.seconds is None or variant.verdict in table.INVALID:
                continue
            name = f"{group.key}/{variant.name}{' (estimate)' if group.estimate else ''}"
            entry: dict[str, Any] = {"name": name, "unit": "s", "value": variant.seconds}
            if variant.low is not None and variant.high is not None:
                entry["range"] = f"± {(variant.high - variant.low) / 2:.3g}"
            extra = ["baseline" if variant.verdict == "first" else f"verdict: {variant.verdict}"]
            if variant.verdict != "first":
                extra.append(f"speed: {table.ratio(variant)} beside {base.name} ({table.time(base)})")
            extra += [f"error: {table.error(variant.error)}"] if variant.error is not None else []
            entry["extra"] = "\n".join(extra)
            entries.append(entry)
    return _json(entries)


def _benchmark(group: Group, variant: VariantResult, values: Sequence[float]) -> dict[str, Any]:
    name = f"{group.workload}[{variant.name}-{group.device}-{group.compiler}]"
    extra = {name: value for name in _VARIANT[1:] if (value := getattr(variant, name)) not in (None, "")}
    return {
        "group": group.key,
        "name": name,
        "fullname": f"{group.key}/{variant.name}",
        "params": {"variant": variant.name, "device": group.device, "compiler": group.compiler},
        "param": f"{variant.name}-{group.device}-{group.compiler}",
        "extra_info": {**extra, "family": group.family, "policy": group.policy, "baseline": group.variants[0].name},
        "options": {"disable_gc": False, "timer": "perf_counter", "warmup": True},
        "stats": _stats(sorted(values)),
    }


def _stats(data: Sequence[float]) -> dict[str, Any]:
    """pytest-benchmark's statistics of sorted samples; quartiles are interpolated."""
    size = len(data)
    mean = statistics.fmean(data)
    deviation = statistics.stdev(data) if size > 1 else 0.0
    q1, median, q3 = statistics.quantiles(data, n=4, method="inclusive") if size > 1 else (data[0],) * 3
    fences = q1 - 1.5 * (q3 - q1), q3 + 1.5 * (q3 - q1)
    low, high = bisect_left(data, fences[0]), bisect_right(data, fences[1])
    far, out = sum(1 for value in data if abs(value - mean) > deviation), low + size - high
    found = {"min": data[0], "max": data[-1], "mean": mean, "stddev": deviation, "rounds": size, "iterations": 1}
    found |= {"median": median, "iqr": q3 - q1, "q1": q1, "q3": q3, "ld15iqr": data[low], "hd15iqr": data[high - 1]}
    found |= {"ops": size / sum(data), "total": sum(data), "iqr_outliers": out, "stddev_outliers": far}
    return {**found, "outliers": f"{far};{out}"}


def _json(value: Any) -> str:
    return json.dumps(value, indent=1, ensure_ascii=False) + "\n"
