"""Fill the pages of benchmarks with plain values, so that templates only lay them out."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any
from urllib.parse import urlencode

from ampcheck.bench.core import table
from ampcheck.bench.core.model import AA, PRECISIONS, Group, VariantResult
from ampcheck.bench.run import exports
from ampcheck.bench.run.runfile import BenchRun
from ampcheck.report.benchmarks.data import color, extra_names
from ampcheck.report.benchmarks.history import (
    KINDS,
    BenchHistory,
    RunGroup,
    SpeedChange,
    listed,
    machine,
    order,
    usable,
    valid,
)
from ampcheck.report.conformance.data import VERDICTS

EXPORTS = {
    "bench.csv": ("CSV", exports.as_csv),
    "bench.md": ("Markdown summary", exports.as_markdown),
    "bench_pytest.json": ("pytest-benchmark", exports.pytest_benchmark_json),
    "bench_smaller_is_better.json": ("github-action-benchmark", exports.smaller_is_better),
}
"""Files beside the pages, by name; those of one run group that has several files are of its newest."""

Row = dict[str, Any]


def results(history: BenchHistory, changed: Sequence[SpeedChange]) -> dict[str, object]:
    """Return the page: speed, accuracy and memory device by device, scaling, changes and alerts, every workload."""
    run_group, before, newest = history.latest, history.previous, history.newest
    assert run_group is not None
    assert newest is not None
    other = extra_names(history)
    kinds = Counter(change.kind for change in changed)
    shown = [change for change in changed if change.kind != "rest"]
    named = {"what": "speeds", "a": before.name, "b": newest.name} if before else {}
    alerts = listed(history)
    bases = [change for change in changed if change.variant == change.group.variants[0].name and change.found.verdict]

    def colored(variant: str) -> int:
        return color(variant, other)

    def plot(curves: Iterable[Curve]) -> list[Row]:
        return [{"name": one.variant, "color": colored(one.variant), "points": one.points} for one in curves]

    return {
        "groups": sorted(run_group.groups.values(), key=order),
        "older": lambda group: older(history, run_group, group.key),
        "boards": boards(run_group, other),
        "axes": axes(run_group.groups),
        "before": before,
        "changed": shown,
        "tested": _sentence,
        "kinds": {kind: (kinds[kind], meaning) for kind, meaning in KINDS.items()},
        "alerts": alerts,
        "worse": [change for change in shown if change.worse],
        "slower_bases": (sum(change.found.verdict == "slower" for change in bases), len(bases)),
        "alarm": any(alert.kind == "machine" or alert.direction == "slower" for _, alert in alerts),
        "compare_href": "compare.html#" + urlencode(named),
        "exports": EXPORTS,
        "conditions": [(run.path.name, _said(run.header), exports.incomplete(run)) for run in run_group.runs],
        "verdicts": VERDICTS,
        "table": table,
        "valid": valid,
        "color": colored,
        "plot": plot,
    }


# ---- device by device

_LEAD = 12
"""How many workloads of a device are drawn before the others."""


@dataclass(frozen=True, slots=True)
class Scale:
    """A logarithmic axis from `low` to `high`, both of which are powers of `base`."""

    low: float
    high: float
    base: float

    def at(self, value: float) -> float:
        """Return the place of a value in percent of the width."""
        share = (math.log(value) - math.log(self.low)) / (math.log(self.high) - math.log(self.low))
        return round(100 * min(1.0, max(0.0, share)), 2)

    def ticks(self) -> list[tuple[float, str]]:
        """Return the place and the text of at most five ticks, of which one is at 1 where the axis has it."""
        first, last = (round(math.log(value, self.base)) for value in (self.low, self.high))
        step = math.ceil((last - first + 1) / 5)
        powers = [power for power in range(first, last + 1) if power % step == 0]
        return [(self.at(self.base**power), self._text(power)) for power in powers]

    def _text(self, power: int) -> str:
        return f"1/{self.base**-power:.0f}" if self.base == 2 and power < 0 else f"{self.base**power:.3g}"


def _scale(values: Iterable[float], base: float) -> Scale:
    logs = [math.log(value, base) for value in values if 0 < value < math.inf] or [0.0]
    logs += [0.0] if base == 2 else []  # an axis of ratios has 1
    low, high = math.floor(min(logs)), math.ceil(max(logs))
    return Scale(base**low, base ** max(high, low + 1), base)


def _lower(group: Group) -> list[VariantResult]:
    """Return the variants that autocast or TF32 makes, of a group whose first variant is float32."""
    first = group.variants[0]
    return [v for v in group.variants[1:] if v.name in PRECISIONS] if first.name in PRECISIONS else []


def boards(run_group: RunGroup, other: Sequence[str]) -> list[Row]:
    """Return for each device and compiler whose figures they are, a sentence a variant, and a row a workload."""
    members: dict[tuple[str, str], list[Group]] = {}
    # Training steps first, then ops from large to small.
    for group in sorted(
        run_group.groups.values(), key=lambda group: (group.kind != "step", -group.size, *order(group))
    ):
        if any(usable(variant) for variant in _lower(group)):
            members.setdefault((group.device, group.compiler), []).append(group)
    drawn = [(group, v) for found in members.values() for group in found for v in _lower(group) if usable(v)]
    scales = {
        # A wide interval of one workload must not press all others together: it goes on beyond the axis.
        "speed": _scale((v.speed for _, v in drawn if v.speed), 2),
        "error": _scale((v.error for _, v in drawn if v.error), 10),
        "memory": _scale((m for group, v in drawn if (m := _memory(group, v))), 2),
    }
    out = []
    for (device, compiler), groups in sorted(members.items(), key=lambda item: (item[1][0].estimate, item[0])):
        rows = [_row(group, scales, other) for group in groups]
        newest = max((run_group.source[group.key] for group in groups), key=lambda run: str(run.header.get("started")))
        out.append(
            {
                "device": device,
                "compiler": compiler,
                "estimate": any(group.estimate for group in groups),
                "whose": _whose(newest, device, groups[0].estimate),
                "sentences": _sentences(groups, other),
                "lead": rows[:_LEAD],
                "more": rows[_LEAD:],
                "ticks": {name: scale.ticks() for name, scale in scales.items()},
                "memory": any(row["memory"] for row in rows),
            }
        )
    return out


def _memory(group: Group, variant: VariantResult) -> float | None:
    base = group.variants[0].memory
    return variant.memory / base if base and variant.memory else None


def _row(group: Group, scales: Mapping[str, Scale], other: Sequence[str]) -> Row:
    about = {"workload": group.workload, "key": group.key, "estimate": group.estimate}
    row: Row = {**about, "speed": [], "error": [], "memory": []}
    for place, variant in enumerate(v for v in _lower(group) if usable(v)):
        memory = _memory(group, variant)
        for name, value, low, high, text in (
            ("speed", variant.speed, variant.speed_low, variant.speed_high, table.ratio(variant)),
            ("error", variant.error, None, None, table.error(variant.error)),
            ("memory", memory, None, None, f"{memory:.2f}×" if memory else ""),
        ):
            if not value or value == math.inf:
                continue
            scale = scales[name]
            start, end = scale.at(low or value), scale.at(high or value)
            beyond = (low or value) < scale.low or (high or value) > scale.high
            dot = {"at": scale.at(value), "from": start, "width": round(end - start, 2), "beyond": beyond}
            said = {"place": place, "color": color(variant.name, other), "text": f"{variant.name} {text}"}
            row[name].append({**dot, **said})
    row["lines"] = max(1, len(row["speed"]))
    return row


def _sentences(groups: Sequence[Group], other: Sequence[str]) -> list[Row]:
    """Say of each variant in how many workloads it is faster than float32, and how fast in the middle."""
    found: dict[str, list[VariantResult]] = {}
    for group in groups:
        for variant in filter(usable, _lower(group)):
            found.setdefault(variant.name, []).append(variant)
    out = []
    for name, members in found.items():
        speeds = [variant.speed or 1.0 for variant in members]
        verdicts = Counter(variant.verdict for variant in members)
        what = f"as fast in the median; faster in {verdicts['faster']} of {len(members)} workloads"
        what += f", slower in {verdicts['slower']}" if verdicts["slower"] else ""
        out.append({"name": name, "color": color(name, other), "middle": f"{median(speeds):.3g}×", "text": what})
    return out


def _whose(run: BenchRun, device: str, estimate: bool) -> str:
    """Say whose figures a file has, and of which machine: a reader's own, or ones that were published with ampcheck."""
    day = str(run.header.get("started", "an unknown day")).partition("T")[0]
    where = machine(run.header, device).rpartition(" (")[0]
    if "published" in run.path.parts:
        made = "estimated by a compiler" if estimate else "measured"
        return f"Published with ampcheck, not of your machine: {made} on {day} on {where}"
    return f"Your own run {run.path.name} of {day} on {where}"


def older(history: BenchHistory, shown: RunGroup, key: str) -> str:
    """Return the day a group was measured, where that was before the newest run group, else ""."""
    newest = history.newest
    if newest is not None and key in newest.groups:
        return ""
    return str(shown.source[key].header.get("started", "an unknown run group")).partition("T")[0]


def _sentence(change: SpeedChange) -> str:
    """Put the test of two run groups in words, e.g. "slower: 0.91× [0.90, 0.92] of the speed before, p = 0.002"."""
    found = change.found
    if found.ratio is None:
        return found.verdict
    p = " (intervals compared)" if found.p is None else f", p = {found.p:.2g}"
    return f"{found.verdict}: {table.interval(found.ratio, found.low, found.high)} of the speed before{p}"


def _plain(value: object) -> str:
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


# ---- ratios over size: where autocast starts to pay


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
