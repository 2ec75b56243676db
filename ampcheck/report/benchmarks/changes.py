"""Compare two run groups of benchmarks, series by series. A series is a variant of a group.

`bench_compare.js` sorts any two run groups the same way, from intervals; here the two newest are compared
with the two-run test of `ampcheck.bench.core.statistics`, which needs raw samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ampcheck.bench.core import statistics
from ampcheck.bench.core.model import Group, VariantResult
from ampcheck.report.benchmarks.run_groups import RunGroup, valid

KINDS = {
    "flipped": "another verdict beside its baseline",
    "lost": "valid before, not valid now",
    "regained": "not valid before, valid now",
    "new": "only in the later run",
    "gone": "only in the earlier run",
    "slower": "takes longer than before",
    "faster": "takes less time than before",
    "rest": "no change was found",
}
"""The groups that changes are sorted into, in the order they are shown."""

_DECIDED = ("slower", "faster", "same")


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A series in two run groups. `words`: what the test says of its time, e.g. "slower"; `p` as it has it.

    `ratio`: the earlier time over the later, so above 1 it became faster; with the interval of the two-run test.
    """

    key: str
    variant: str
    kind: str
    group: Group
    before: VariantResult | None
    after: VariantResult | None
    words: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None


def changes(before: RunGroup, after: RunGroup) -> list[SpeedChange]:
    """Return every series of either run group, by kind and how far its time moved; tested where both have samples."""
    raw = before.samples(), after.samples()
    keys = {
        (key, variant.name): group
        for run_group in (before, after)
        for key, group in run_group.groups.items()
        for variant in group.variants
    }
    found = []
    for (key, variant), group in keys.items():
        one, two = before.result(key, variant), after.result(key, variant)
        sides = [side.get(key, {}).get(variant, []) for side in raw]
        found.append(_change(key, variant, group, one, two, sides))
    order = list(KINDS)
    return sorted(found, key=lambda change: (order.index(change.kind), -_size(change), change.key, change.variant))


def _change(
    key: str,
    variant: str,
    group: Group,
    one: VariantResult | None,
    two: VariantResult | None,
    sides: Sequence[Sequence[Sequence[float]]],
) -> SpeedChange:
    if one is None or two is None:
        return SpeedChange(key, variant, "new" if one is None else "gone", group, one, two)
    if not (valid(one) and valid(two)):
        kind = "lost" if valid(one) else "regained" if valid(two) else "rest"
        return SpeedChange(key, variant, kind, group, one, two)
    words, numbers, p = _tested(group, one, two, sides)
    flipped = one.verdict != two.verdict and one.verdict in _DECIDED and two.verdict in _DECIDED
    kind = "flipped" if flipped else words if words in ("slower", "faster") else "rest"
    return SpeedChange(key, variant, kind, group, one, two, words, *numbers, p)


def _tested(
    group: Group, one: VariantResult, two: VariantResult, sides: Sequence[Sequence[Sequence[float]]]
) -> tuple[str, tuple[float | None, float | None, float | None], float | None]:
    """Compare the times of two run groups, with ratio and interval; by intervals where samples are missing."""
    bound = statistics.BOUNDS.get(group.kind, statistics.BOUNDS["op"])
    if all(sides) and not group.estimate:
        found = statistics.compare_runs(sides[0], sides[1], bound)
        if found.ratio is not None:
            return found.verdict, (found.ratio, found.low, found.high), found.p
    return by_intervals(one, two, bound), (ratio(one, two), None, None), None


def by_intervals(one: VariantResult, two: VariantResult, bound: float) -> str:
    """ "slower", "faster" or "same": whether the middle 90 % of the samples of two run groups are apart.

    Where a run group has no such range, as an estimate has none, `bound` around its value takes its place.
    """
    (low, high), (later_low, later_high) = (_range(variant, bound) for variant in (one, two))
    return "slower" if later_low > high else "faster" if later_high < low else "same"


def ratio(one: VariantResult, two: VariantResult) -> float | None:
    """Return the earlier time over the later."""
    return one.seconds / two.seconds if one.seconds and two.seconds else None


def _size(change: SpeedChange) -> float:
    """Return the distance that a time moved, where the change is about that; else 0."""
    return abs(math.log(change.ratio)) if change.ratio and change.kind in ("slower", "faster") else 0.0


def _range(variant: VariantResult, bound: float) -> tuple[float, float]:
    middle = variant.seconds or 0.0
    return variant.low or middle / (1 + bound), variant.high or middle * (1 + bound)
