"""Results for people: numbers with units, and the table of a terminal. No number is shown without its verdict."""

import math
from collections.abc import Iterable, Sequence

from tabulate import tabulate

from ampcheck.bench.core.model import DEFAULT, Group, VariantResult

INVALID = ("invalid", "not measured")
"""The verdicts of variants whose figures say nothing about their precision."""

NONE = "–"
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "µs"), (1e-9, "ns"))
_DECIMAL = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, ""))
_BINARY = ((1024.0**3, "GiB"), (1024.0**2, "MiB"), (1024.0, "KiB"))
HEADINGS = ("workload", "device", "compiler", "variant", "time", "speed [95 %]", "verdict", "error")


def seconds(value: float | None) -> str:
    """Return a time in three digits and the unit that suits it, e.g. "1.25 ms"."""
    return NONE if value is None else _scaled(value, _SECONDS)


def count(value: float | None, unit: str) -> str:
    """Return a quantity in three digits with a decimal prefix, e.g. `count(2.5e12, "FLOP/s")` is "2.50 TFLOP/s"."""
    return NONE if value is None else _scaled(value, _DECIMAL) + unit


def memory(value: float | None) -> str:
    """Bytes in three digits with a binary prefix, e.g. "1.50 MiB"."""
    if value is not None and value < 1024:
        return f"{value:.0f} B"
    return NONE if value is None else _scaled(value, _BINARY)


def error(value: float | None) -> str:
    """Return a relative error in two digits, e.g. "2.9e-03"."""
    return NONE if value is None else "0" if value == 0 else f"{value:.1e}"


def ratio(variant: VariantResult) -> str:
    """Return the speed beside the first variant with its interval, e.g. "3.41× [3.38, 3.44]"; a dash without one.

    Of a variant that was given up, what it is at most: "≤ 0.0120×".
    """
    if variant.at_most is not None and variant.verdict == "not measured":
        return f"≤ {_three(variant.at_most)}×"
    if variant.speed is None or variant.verdict in (*INVALID, "first"):
        return NONE
    return interval(variant.speed, variant.speed_low, variant.speed_high)


def interval(value: float, low: float | None, high: float | None) -> str:
    """Return a speed with its interval where it has one, e.g. "3.41× [3.38, 3.44]"."""
    return f"{_three(value)}×" + ("" if low is None or high is None else f" [{_three(low)}, {_three(high)}]")


def default_ratio(variant: VariantResult) -> str:
    """Return the speed beside `fp32-default` and its verdict, e.g. "0.832× slower"; "" without such a variant."""
    if variant.default_speed is None or not variant.default_verdict:
        return ""
    return f"{interval(variant.default_speed, variant.default_low, variant.default_high)} {variant.default_verdict}"


def share(variant: VariantResult) -> str:
    """Return the share of the device's ceiling, e.g. "71% of the peak"; above 1, the ceiling that is exceeded."""
    return variant.ceiling or ("" if variant.share is None else f"{variant.share:.0%} of the peak")


def time(variant: VariantResult) -> str:
    """Return a variant's time; in brackets where it is not valid, "≥ 5.00 s" where it is a bound.

    A bound is of a variant that was given up: no call took less.
    """
    if variant.at_least is not None and variant.verdict == "not measured":
        return f"≥ {seconds(variant.at_least)}"
    shown = seconds(variant.seconds)
    return f"({shown})" if variant.verdict in INVALID and variant.seconds is not None else shown


def label(group: Group) -> str:
    """Return the workload's name, marked where its figures are estimates."""
    return group.workload + (" (estimate)" if group.estimate else "")


def reasons(group: Group) -> list[str]:
    """Return a sentence for each variant with a reason, the speeds beside the default, and the group's note."""
    lines = [f"{v.name} {v.verdict}: {v.reason or 'no reason was given'}" for v in group.variants if told(v)]
    beside = ", ".join(f"{variant.name} {ratio}" for variant in group.variants if (ratio := default_ratio(variant)))
    if beside:
        lines.append(f"beside {DEFAULT}, which is float32 as the device computes it unless told otherwise: {beside}")
    return [" ".join(line.split()) for line in (*lines, group.note) if line]


def told(variant: VariantResult) -> bool:
    """Return whether the variant's verdict needs its reason beside it."""
    return bool(variant.reason) or variant.verdict in INVALID


def table(groups: Iterable[Group]) -> str:
    """Return the groups as a table for a terminal: a row per variant, the first variant above the others.

    Reasons and notes are in lines below their group; "(estimate)" follows a time that no clock measured.
    """
    rows: list[Sequence[str]] = []
    below: dict[int, list[str]] = {}
    for group in groups:
        for place, variant in enumerate(group.variants):
            where = (label(group), group.device, group.compiler) if place == 0 else ("", "", "")
            rows.append((*where, *cells(variant)))
        below[len(rows)] = [f"  └ {line}" for line in reasons(group)]
    if not rows:
        return "Nothing was measured."
    heading, rule, *lines = tabulate(rows, headers=HEADINGS, disable_numparse=True).splitlines()
    for place, remarks in sorted(below.items(), reverse=True):
        lines[place:place] = remarks
    return "\n".join((heading, rule, *lines))


def cells(variant: VariantResult) -> tuple[str, str, str, str, str]:
    """Return a variant's name, time, speed, verdict and error."""
    verdict = "baseline" if variant.verdict == "first" else variant.verdict
    return variant.name, time(variant), ratio(variant), verdict, error(variant.error)


def _scaled(value: float, units: Sequence[tuple[float, str]]) -> str:
    """Return a value in the largest of some units that it reaches when rounded, else in the smallest."""
    size, unit = next((one for one in units if value >= 0.9995 * one[0]), units[-1])
    return f"{_three(value / size)} {unit}"


def _three(value: float) -> str:
    """Three significant digits without an exponent, e.g. "0.0123", "1.20", "345", "1234"."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(float(f"{value:.3g}")))))
    return f"{value:.{min(digits, 9)}f}"
