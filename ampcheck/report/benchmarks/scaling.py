"""Ratios over size: for each family's axis of sizes, where autocast starts to pay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampcheck.bench.core.model import Group, VariantResult
from ampcheck.report.benchmarks.run_groups import usable


@dataclass(frozen=True, slots=True)
class Point:
    """A size, and the speed of a variant there beside its baseline, with its interval where one is known."""

    size: int
    speed: float
    low: float | None = None
    high: float | None = None


@dataclass(slots=True)
class Curve:
    """A variant along the sizes of a base on a device. `left_out`: sizes that have no valid ratio."""

    variant: str
    points: list[Point]
    left_out: list[int]

    @property
    def sentence(self) -> str:
        """Say from which size on it pays."""
        return crossover(self.points)


@dataclass(slots=True)
class Axis:
    """A `base` on a device through a compiler, its variants as curves. `estimate`: no clock measured them."""

    base: str
    family: str
    device: str
    compiler: str
    baseline: str
    estimate: bool
    sizes: list[int]
    curves: list[Curve]


def axes(groups: Mapping[str, Group]) -> list[Axis]:
    """Every base that has more than one size, by base, device and compiler."""
    found: dict[tuple[str, str, str], list[Group]] = {}
    for group in groups.values():
        if group.base and group.size > 0:
            found.setdefault((group.base, group.device, group.compiler), []).append(group)
    return [_axis(sorted(members, key=lambda g: g.size)) for _, members in sorted(found.items()) if len(members) > 1]


def crossover(points: Sequence[Point]) -> str:
    """From which size on the speed stays at 1 or above, between two sizes interpolated in the logarithms of both."""
    if len(points) < 2:
        return "fewer than two sizes have a valid ratio"
    points = sorted(points, key=lambda point: point.size)
    below = [place for place, point in enumerate(points) if point.speed < 1]
    if not below:
        return f"from the smallest size on ({points[0].size})"
    last = below[-1]
    if last == len(points) - 1:
        if len(below) == len(points):
            return f"never up to {points[-1].size}"
        again = ", ".join(str(point.size) for point in points if point.speed >= 1)
        return f"not at {points[-1].size}, the largest size; it pays at {again}"
    size = crossing(points[last], points[last + 1])
    earlier = [str(point.size) for point in points[:last] if point.speed >= 1]
    return f"from about {size:.3g} on" + (f" (and already at {', '.join(earlier)})" if earlier else "")


def crossing(before: Point, after: Point) -> float:
    """Return the size between two where the speed reaches 1, on a straight line in the logarithms of size and speed."""
    low, high = math.log(before.speed), math.log(after.speed)
    share = -low / (high - low)
    return math.exp(math.log(before.size) + share * (math.log(after.size) - math.log(before.size)))


def _axis(members: Sequence[Group]) -> Axis:
    some = members[0]
    names = dict.fromkeys(variant.name for group in members for variant in group.variants if variant.verdict != "first")
    baseline = some.variants[0].name
    curves = []
    for name in names:
        results = [(group.size, group.variant(name)) for group in members]
        points = [_point(size, variant) for size, variant in results if variant is not None and usable(variant)]
        left = [size for size, variant in results if variant is None or not usable(variant)]
        curves.append(Curve(name, points, left))
    estimate = any(group.estimate for group in members)
    sizes = [group.size for group in members]
    return Axis(some.base, some.family, some.device, some.compiler, baseline, estimate, sizes, curves)


def _point(size: int, variant: VariantResult) -> Point:
    assert variant.speed is not None
    return Point(size, variant.speed, variant.speed_low, variant.speed_high)
