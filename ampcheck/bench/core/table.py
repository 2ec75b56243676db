"""Results for people: numbers with units, and the table of a terminal. No number is shown without its verdict."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from ampcheck.bench.core.model import DEFAULT, ArmResult, Group

INVALID = ("invalid", "not measured")
"""The verdicts of arms whose figures say nothing about their precision."""

NONE = "–"
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (0.0, "ns"))
_HEADINGS = ("workload", "device", "executor", "arm", "time", "speed [95 %]", "verdict", "error")


def seconds(value: float | None) -> str:
    """A time in three digits and the unit that suits it, e.g. "1.25 ms"."""
    if value is None:
        return NONE
    size, unit = next((size, unit) for size, unit in _SECONDS if value >= 0.9995 * size)
    return f"{_three(value / (size or 1e-9))} {unit}"


def count(value: float | None, unit: str) -> str:
    """A quantity in three digits with a decimal prefix, e.g. `count(2.5e12, "FLOP/s")` is "2.50 TFLOP/s"."""
    if value is None:
        return NONE
    for size, prefix in ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= 0.9995 * size:
            return f"{_three(value / size)} {prefix}{unit}"
    return f"{_three(value)} {unit}"


def memory(value: float | None) -> str:
    """Bytes in three digits with a binary prefix, e.g. "1.50 MiB"."""
    if value is None:
        return NONE
    for power, prefix in ((3, "Gi"), (2, "Mi"), (1, "Ki")):
        if value >= 1024**power:
            return f"{_three(value / 1024**power)} {prefix}B"
    return f"{value:.0f} B"


def error(value: float | None) -> str:
    """A relative error in two digits, e.g. "2.9e-03"."""
    return NONE if value is None else "0" if value == 0 else f"{value:.1e}"


def ratio(arm: ArmResult) -> str:
    """The speed beside the first arm with its interval, e.g. "3.41× [3.38, 3.44]"; a dash where it says nothing.

    Of an arm that was given up, what it is at most: "≤ 0.0120×".
    """
    if arm.at_most is not None and arm.verdict == "not measured":
        return f"≤ {_three(arm.at_most)}×"
    if arm.speed is None or arm.verdict in (*INVALID, "first"):
        return NONE
    return _interval(arm.speed, arm.speed_low, arm.speed_high)


def default_ratio(arm: ArmResult) -> str:
    """The speed beside `fp32-default` and its verdict, e.g. "0.832× slower"; "" where the group has no such arm."""
    if arm.default_speed is None or not arm.default_verdict:
        return ""
    return f"{_interval(arm.default_speed, arm.default_low, arm.default_high)} {arm.default_verdict}"


def share(arm: ArmResult) -> str:
    """The share of the device's ceiling, e.g. "71% of the peak"; never one above 1, but that the ceiling was none."""
    return arm.ceiling or ("" if arm.share is None else f"{arm.share:.0%} of the peak")


def time(arm: ArmResult) -> str:
    """An arm's time; in brackets where it is not the time of what the arm's name says, "≥ 5.00 s" where it is a bound.

    A bound is of an arm that was given up: no call took less.
    """
    if arm.at_least is not None and arm.verdict == "not measured":
        return f"≥ {seconds(arm.at_least)}"
    shown = seconds(arm.seconds)
    return f"({shown})" if arm.verdict in INVALID and arm.seconds is not None else shown


def label(group: Group) -> str:
    """The workload's name, marked where its figures are estimates."""
    return group.workload + (" (estimate)" if group.estimate else "")


def reasons(group: Group) -> list[str]:
    """A sentence for each arm that has something to explain, the speeds beside the default, and the group's note."""
    lines = [f"{arm.name} {arm.verdict}: {arm.reason or 'no reason was given'}" for arm in group.arms if told(arm)]
    beside = ", ".join(f"{arm.name} {ratio}" for arm in group.arms if (ratio := default_ratio(arm)))
    if beside:
        lines.append(f"beside {DEFAULT}, which is float32 as the device computes it unless told otherwise: {beside}")
    return [" ".join(line.split()) for line in (*lines, group.note) if line]


def told(arm: ArmResult) -> bool:
    """Whether the arm's verdict needs its reason beside it."""
    return bool(arm.reason) or arm.verdict in INVALID


def table(groups: Iterable[Group]) -> str:
    """The groups as a table for a terminal: a row per arm, the first arm's time above those compared with it.

    Reasons and notes are in lines below their group; "(estimate)" follows a time that no clock measured.
    """
    rows: list[Sequence[str]] = []
    below: dict[int, list[str]] = {}
    for group in groups:
        for place, arm in enumerate(group.arms):
            where = (label(group), group.device, group.executor) if place == 0 else ("", "", "")
            rows.append((*where, arm.name, time(arm), ratio(arm), _verdict(arm), error(arm.error)))
        below[len(rows)] = [f"  └ {line}" for line in reasons(group)]
    if not rows:
        return "Nothing was measured."
    heading, rule, *lines = tabulate(rows, headers=_HEADINGS, disable_numparse=True).splitlines()
    for place, remarks in sorted(below.items(), reverse=True):
        lines[place:place] = remarks
    return "\n".join((heading, rule, *lines))


def _verdict(arm: ArmResult) -> str:
    return "baseline" if arm.verdict == "first" else arm.verdict


def _interval(value: float, low: float | None, high: float | None) -> str:
    interval = "" if low is None or high is None else f" [{_three(low)}, {_three(high)}]"
    return f"{_three(value)}×{interval}"


def _three(value: float) -> str:
    """Three significant digits without an exponent, e.g. "0.0123", "1.20", "345", "1234"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:.{min(digits, 9)}f}"
