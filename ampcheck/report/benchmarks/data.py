"""Pack the run groups of benchmarks as JSON: times, ratios and errors of each series as integers of logarithms.

`bench_app.js` is the other half of this module: it decodes what this encodes. A number is kept to 0.05 %.
"""

import math
import re
from collections.abc import Iterable, Sequence
from itertools import groupby

from ampcheck.bench.core import statistics
from ampcheck.bench.core.model import AA, PRECISIONS, Group
from ampcheck.bench.run import alerts
from ampcheck.report.benchmarks.history import BenchHistory, RunGroup, SpeedChange, conditions, machine, steps
from ampcheck.report.conformance.data import VERDICTS, Interner, letters

SCALE = 1000
"""Integers are this many times the natural logarithm."""

LETTERS = {name: verdict.letter for name, verdict in VERDICTS.items()}
_DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_COLORS = 12
_GROUP = ("key", "workload", "family", "kind", "device", "compiler", "estimate")


def color(variant: str, others: Sequence[str]) -> int:
    """Return a variant's colour number, the same on every page: its precision's, else its place among the others."""
    name = variant.removesuffix(AA)
    known = list(PRECISIONS)
    if name in known:
        return known.index(name)
    left = _COLORS - len(known)
    return len(known) + (list(others).index(name) % left if name in others else 0)


def extra_names(history: BenchHistory) -> list[str]:
    """Return the names of variants that are not precisions, sorted."""
    names = {variant.name for g in history.run_groups for group in g.groups.values() for variant in group.variants}
    return sorted({name.removesuffix(AA) for name in names} - set(PRECISIONS))


def series(history: BenchHistory) -> dict[tuple[str, str], Group]:
    """Return every series by group key and variant, with its newest group; sorted by key, variants as in the group."""
    found: dict[tuple[str, str], Group] = {}
    for run_group in history.run_groups:
        for key, group in run_group.groups.items():
            for variant in group.variants:
                found.setdefault((key, variant.name), group)
    return dict(sorted(found.items(), key=lambda item: _natural(item[0][0])))


def _natural(text: str) -> list[tuple[int, str]]:
    """Return a sort key that puts mm-64 before mm-1024."""
    return [(int(part), "") if part.isdecimal() else (0, part) for part in re.split(r"(\d+)", text)]


def pack(values: Iterable[int | None]) -> str:
    """Integers as text: differences in base 64, five bits a digit, lowest first; "." and a count for absent ones."""
    out: list[str] = []
    last = 0
    for absent, same in groupby(values, key=lambda value: value is None):
        if absent:
            out += [".", _variable(sum(1 for _ in same))]
            continue
        for value in same:
            assert value is not None
            step, last = value - last, value
            out.append(_variable(step * 2 if step >= 0 else -step * 2 - 1))
    return "".join(out)


def data(history: BenchHistory, tested: Sequence[SpeedChange]) -> dict[str, object]:
    """Return the content of `bench_data.js`, run groups in the order of time.

    `tested`: the results of the two-run test of the newest run group and the one it is compared with.
    """
    run_groups = history.run_groups[::-1]
    every = series(history)
    other = extra_names(history)
    keys = list(dict.fromkeys(key for key, _ in every))
    places = {key: number for number, key in enumerate(keys)}
    numbers = {one: number for number, one in enumerate(every)}
    reasons, machines = Interner(), Interner()
    named = {run_group.name: number for number, run_group in enumerate(run_groups)}
    groups = {key: group for (key, _), group in every.items()}
    return {
        "scale": SCALE,
        "verdicts": {letter: name for name, letter in LETTERS.items()},
        "bounds": statistics.BOUNDS,
        "runs": [_run_group(run_group, machines) for run_group in run_groups],
        "alerts": {name.lower(): getattr(alerts, name) for name in ("RECENT", "ENOUGH", "BASELINE", "SMALLEST")},
        "groups": [{name: getattr(groups[key], name) for name in _GROUP} for key in keys],
        "series": [
            {"g": places[key], "variant": variant, "color": color(variant, other)}
            | _columns(run_groups, key, variant, reasons)
            for key, variant in every
        ],
        "reasons": reasons.texts,
        "marks": [[numbers[step.key, step.variant], named[step.run_group], step.text] for step in steps(history)],
        "conditions": {
            device: [[named[run_group], text] for run_group, text in found]
            for device, found in conditions(history).items()
        },
        "pair": [named[g.name] for g in (history.previous, history.newest) if g] if tested else [],
        "tested": {
            numbers[change.key, change.variant]: [
                found.verdict,
                *map(_short, (found.ratio, found.low, found.high, found.p)),
            ]
            for change in tested
            if (found := change.found).verdict
        },
    }


def _run_group(run_group: RunGroup, machines: Interner) -> dict[str, object]:
    header = run_group.runs[0].header
    source = {group.device: run_group.source[key].header for key, group in run_group.groups.items()}
    return {
        "name": run_group.name,
        "started": run_group.started,
        "torch": run_group.torch,
        "mode": str(header.get("mode", "")),
        "note": run_group.note,
        "machines": {device: machines(machine(header, device)) for device, header in source.items()},
    }


def _columns(run_groups: Sequence[RunGroup], key: str, variant: str, reasons: Interner) -> dict[str, str]:
    results = [run_group.result(key, variant) for run_group in run_groups]

    def column(name: str) -> list[int | None]:
        return [_log(getattr(result, name, None)) for result in results]

    def beside(middles: Sequence[int | None], name: str) -> list[int | None]:  # distances, which are small
        return [None if a is None or b is None else b - a for a, b in zip(middles, column(name), strict=True)]

    times, speeds = column("seconds"), column("speed")
    columns = {
        "seconds": times,
        "low": beside(times, "low"),
        "high": beside(times, "high"),
        "speed": speeds,
        "speedLow": beside(speeds, "speed_low"),
        "speedHigh": beside(speeds, "speed_high"),
        "error": column("error"),
        "reason": [reasons(result.reason) if result and result.reason else None for result in results],
    }
    packed = {name: pack(column) for name, column in columns.items() if any(v is not None for v in column)}
    return {**packed, "verdict": letters((result.verdict if result else "" for result in results), LETTERS)}


def _log(value: float | None) -> int | None:
    """Return a number as an integer; zero and infinity as logarithms that come back as such."""
    if value is None:
        return None
    if value in (0, math.inf):
        return (-SCALE if value == 0 else SCALE) * 1000
    return round(math.log(value) * SCALE)


def _variable(value: int) -> str:
    out = ""
    while True:
        value, digit = value >> 5, value & 31
        out += _DIGITS[digit | 32 if value else digit]
        if not value:
            return out


def _short(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")
