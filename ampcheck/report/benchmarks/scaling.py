"""Ratios over size: for each family's axis of sizes, where autocast starts to pay."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ampcheck.bench.core.model import AA, Group, VariantResult
from ampcheck.report.benchmarks.run_groups import usable


@dataclass(frozen=True, slots=True)
class Curve:
    """A variant along the sizes of a base on a device. `at`: its valid results by size, smallest first."""

    variant: str
    at: Mapping[int, VariantResult]

    @property
    def sentence(self) -> str:
        """Say from which size on it pays."""
        return crossover({size: result.speed for size, result in self.at.items() if result.speed})

    @property
    def points(self) -> list[list[float | None]]:
        """Return each size with the speed there and its interval."""
        return [[size, one.speed, one.speed_low, one.speed_high] for size, one in self.at.items()]


def axes(groups: Mapping[str, Group]) -> list[tuple[list[Group], list[Curve]]]:
    """Return the groups and curves of every base that has more than one size, by base, device and compiler."""
    found: dict[tuple[str, str, str], list[Group]] = {}
    for group in sorted(groups.values(), key=lambda group: group.size):
        if group.base and group.size > 0:
            found.setdefault((group.base, group.device, group.compiler), []).append(group)
    return [(members, _curves(members)) for _, members in sorted(found.items()) if len(members) > 1]


def _curves(members: Sequence[Group]) -> list[Curve]:
    every = [variant for group in members for variant in group.variants]
    names = dict.fromkeys(v.name for v in every if v.verdict != "first" and not v.name.endswith(AA))
    results = {name: [(group.size, group.variant(name)) for group in members] for name in names}
    return [Curve(name, {size: one for size, one in of if one and usable(one)}) for name, of in results.items()]


def crossover(speeds: Mapping[int, float]) -> str:
    """From which size on the speed stays at 1 or above, between two sizes interpolated in the logarithms of both."""
    if len(speeds) < 2:
        return "fewer than two sizes have a valid ratio"
    sizes = sorted(speeds)
    pays = [size for size in sizes if speeds[size] >= 1]
    if not pays:
        return f"never up to {sizes[-1]}"
    if len(pays) == len(sizes):
        return f"from the smallest size on ({sizes[0]})"
    last = max(size for size in sizes if size not in pays)
    if last == sizes[-1]:
        return f"not at {last}, the largest size; it pays at {', '.join(map(str, pays))}"
    after = sizes[sizes.index(last) + 1]
    low, high = math.log(speeds[last]), math.log(speeds[after])
    size = last * (after / last) ** (-low / (high - low))
    earlier = ", ".join(str(size) for size in pays if size < last)
    return f"from about {size:.3g} on" + (f" (and already at {earlier})" if earlier else "")
