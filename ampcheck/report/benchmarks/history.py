"""The benchmark runs of a site: files put together by run group, what changed between two, alerts and steps over all.

A series is a variant of a group. `compare.js` sorts any two run groups the same way, from intervals; here the two
newest are compared with the two-run test of `ampcheck.bench.core.statistics`, which needs raw samples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

from ampcheck.bench.core.machine import identity
from ampcheck.bench.core.model import Group, VariantResult
from ampcheck.bench.core.statistics import BOUNDS, Samples, TimingComparison, compare_runs
from ampcheck.bench.core.table import INVALID
from ampcheck.bench.run import alerts, exports
from ampcheck.bench.run.alerts import Alert, RunFigures
from ampcheck.bench.run.runfile import SCHEMA, BenchRun, read
from ampcheck.report.conformance.data import WORDS
from ampcheck.report.history import grouped, header_of, names, together
from ampcheck.runner.record import counted

CAP = 400
"""A site holds this many run groups at most."""


@dataclass(frozen=True, slots=True)
class RunGroup:
    """The benchmark files of one occasion: they start close to each other and have no group in common.

    `name`: its name in addresses. `groups` by key. `source`: the run that each group is of.
    """

    name: str
    runs: tuple[BenchRun, ...]
    groups: Mapping[str, Group]
    source: Mapping[str, BenchRun]

    @property
    def started(self) -> str:
        """The start of its first file."""
        return min(str(run.header.get("started", "")) for run in self.runs)

    @property
    def note(self) -> str:
        """Say what is wrong with the ends of its files, "" if nothing."""
        return "; ".join(note for run in self.runs if (note := exports.incomplete(run)))

    @property
    def torch(self) -> str:
        """Its torch version."""
        return str(self.runs[0].header.get("versions", {}).get("torch", ""))

    def result(self, key: str, variant: str) -> VariantResult | None:
        """Return a variant's result, None where the run group does not have it."""
        group = self.groups.get(key)
        return group.variant(variant) if group else None

    def samples(self) -> exports.Samples:
        """Return the raw samples of its files."""
        return {key: variants for run in self.runs for key, variants in exports.samples(run.path).items()}


@dataclass(frozen=True, slots=True)
class BenchHistory:
    """The run groups of a site, newest first. `left_out`: how many older files are not in it."""

    run_groups: tuple[RunGroup, ...] = ()
    left_out: int = 0

    @property
    def newest(self) -> RunGroup | None:
        """The run group the site is about, None without any."""
        return self.run_groups[0] if self.run_groups else None

    @property
    def latest(self) -> RunGroup | None:
        """Every group from the newest run group that has it: devices are seldom all measured at once."""
        if not self.run_groups:
            return None
        source = {key: run for run_group in reversed(self.run_groups) for key, run in run_group.source.items()}
        runs = {id(run): run for run in source.values()}
        newest_first = sorted(runs.values(), key=lambda run: str(run.header.get("started", "")), reverse=True)
        groups = {key: run.groups[key] for key, run in source.items()}
        return RunGroup(self.run_groups[0].name, tuple(newest_first), groups, source)

    @property
    def previous(self) -> RunGroup | None:
        """The run group that the newest is compared with: of the earlier ones with a group in common, the latest.

        A complete one with at least half of the newest run group's groups is preferred.
        """
        if not self.run_groups:
            return None
        mine = self.run_groups[0].groups.keys()

        def rank(run_group: RunGroup) -> tuple[bool, bool]:
            return not run_group.note, 2 * len(run_group.groups.keys() & mine) >= len(mine)

        return max((g for g in self.run_groups[1:] if g.groups.keys() & mine), key=rank, default=None)


def is_bench(path: Path) -> bool:
    """Return whether to read a file as a benchmark file: its header says so, or it lies in a folder named "bench".

    A file without a readable header in such a folder is then refused as a benchmark file, not as a run file.
    """
    header = header_of(path)
    if "schema" in header:
        return str(header["schema"]).startswith(SCHEMA.partition("-")[0])
    return path.parent.name == "bench"


def load(paths: Sequence[Path], cap: int = CAP) -> BenchHistory:
    """Read the newest benchmark files and merge those of one run group; no files are no run groups.

    Raises UsageError for a file that is not a benchmark file or holds what cannot have been measured.
    """
    kept, left_out = grouped(paths, read, _same_run_group, cap)
    made = []
    starts = [min(str(part.header.get("started", "")) for part in parts) for parts in kept]
    for parts, name in zip(reversed(kept), names(reversed(starts)), strict=True):
        source = {key: run for run in parts for key in run.groups}
        made.append(RunGroup(name, tuple(parts), {key: run.groups[key] for key, run in source.items()}, source))
    return BenchHistory(tuple(reversed(made)), left_out)


def valid(variant: VariantResult | None) -> bool:
    """Return whether a variant's figures are of what its name says."""
    return variant is not None and variant.verdict not in INVALID and variant.seconds is not None


def usable(variant: VariantResult) -> bool:
    """Return whether a variant has a speed that can be drawn."""
    return valid(variant) and variant.verdict != "unstable" and variant.speed is not None


def order(group: Group) -> tuple[str, str, int, str, str, str]:
    """Return the place of a group among others: by family, along its sizes, then by device."""
    return (group.family, group.base, group.size, group.workload, group.device, group.compiler)


def _same_run_group(parts: Sequence[BenchRun], run: BenchRun) -> bool:
    torch = {part.header.get("versions", {}).get("torch") for part in (*parts, run)}
    close = together(part.header for part in (*parts, run))
    return close and len(torch) == 1 and not any(part.groups.keys() & run.groups.keys() for part in parts)


# ---- what changed between two run groups, series by series

KINDS: dict[str, str] = WORDS["change"]
"""The groups that changes are sorted into, in the order they are shown."""

_DECIDED = ("slower", "same", "faster")
_UNTESTED = TimingComparison("")


@dataclass(frozen=True, slots=True)
class SpeedChange:
    """A series in two run groups. `found`: what the test says of its time, whose verdict is "" where there is none.

    Its ratio is the earlier time over the later, so above 1 it became faster.
    """

    key: str
    variant: str
    kind: str
    group: Group
    before: VariantResult | None
    after: VariantResult | None
    found: TimingComparison = _UNTESTED

    @property
    def worse(self) -> bool:
        """Return whether it is slower, no longer valid, or of a worse verdict than before."""
        if self.kind == "flipped" and self.before and self.after:
            return _DECIDED.index(self.after.verdict) < _DECIDED.index(self.before.verdict)
        return self.kind in ("lost", "slower")


def changes(before: RunGroup, after: RunGroup) -> list[SpeedChange]:
    """Return every series of either run group, by kind and how far its time moved; tested where both have samples."""
    raw = before.samples(), after.samples()
    every = [group for run_group in (before, after) for group in run_group.groups.values()]
    series = {(group.key, variant.name): group for group in every for variant in group.variants}
    found = []
    for (key, variant), group in series.items():
        one, two = before.result(key, variant), after.result(key, variant)
        sides = [side.get(key, {}).get(variant, []) for side in raw]
        found.append(_change(key, variant, group, one, two, sides))
    order = list(KINDS)

    def place(change: SpeedChange) -> tuple[int, float, str, str]:
        moved = change.found.ratio if change.kind in ("slower", "faster") else None
        return order.index(change.kind), -abs(math.log(moved or 1)), change.key, change.variant

    return sorted(found, key=place)


def _change(
    key: str, variant: str, group: Group, one: VariantResult | None, two: VariantResult | None, sides: Sequence[Samples]
) -> SpeedChange:
    if one is None or two is None:
        return SpeedChange(key, variant, "new" if one is None else "gone", group, one, two)
    if not (valid(one) and valid(two)):
        kind = "lost" if valid(one) else "regained" if valid(two) else "rest"
        return SpeedChange(key, variant, kind, group, one, two)
    found = _tested(group, one, two, sides)
    flipped = one.verdict != two.verdict and one.verdict in _DECIDED and two.verdict in _DECIDED
    kind = "flipped" if flipped else found.verdict if found.verdict in ("slower", "faster") else "rest"
    return SpeedChange(key, variant, kind, group, one, two, found)


def _tested(group: Group, one: VariantResult, two: VariantResult, sides: Sequence[Samples]) -> TimingComparison:
    """Compare the times of two run groups; where samples are missing, by the middle 90 % of each.

    Where a run group has no such range, as an estimate has none, the bound around its value takes its place.
    """
    bound = BOUNDS.get(group.kind, BOUNDS["op"])
    if all(sides) and not group.estimate:
        found = compare_runs(sides[0], sides[1], bound)
        if found.ratio is not None:
            return found
    before, after = one.seconds or 0.0, two.seconds or 0.0  # what is valid has them
    slower = (two.low or after / (1 + bound)) > (one.high or before * (1 + bound))
    faster = (two.high or after * (1 + bound)) < (one.low or before / (1 + bound))
    verdict = "slower" if slower else "faster" if faster else "same"
    return TimingComparison(verdict, ratio=before / after if after else None)


# ---- alerts and steps, device by device


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
            out.append((device, Alert("not measured", sentence, own[-1].started, new=False)))
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
    parts += [counted(threads, "thread")] if threads else []
    parts += [model] if model != found.get("model") else []
    return ", ".join(part for part in parts if part) + f" ({header.get('identity') or identity(found)})"


def _run_group(run_group: RunGroup, device: str) -> RunFigures:
    groups = {key: group for key, group in run_group.groups.items() if group.device == device}
    header = run_group.source[next(iter(groups))].header
    measured = [(group.key, v) for group in groups.values() for v in group.variants if not group.estimate]
    values = {f"{key}/{variant.name}": variant.seconds if valid(variant) else None for key, variant in measured}
    versions = {str(name): str(version) for name, version in header.get("versions", {}).items()}
    return RunFigures(run_group.name, values, machine(header, device), versions)


def _steps(name: str, figures: Sequence[tuple[str, float]]) -> list[BenchStep]:
    values = [value for _, value in figures]
    logs = [math.log(value) for value in values]
    key, _, variant = name.rpartition("/")
    found, before = [], ""
    for end in range(alerts.RECENT + alerts.ENOUGH, len(values) + 1):
        start = max(0, end - alerts.RECENT - alerts.BASELINE)
        change = median(logs[end - alerts.RECENT : end]) - median(logs[start : end - alerts.RECENT])
        # The rule asks for more than this, and most run groups do not even reach it.
        move = alerts.moved(values[start:end]) if abs(change) > math.log1p(alerts.SMALLEST) else None
        if move is not None and move.direction != before:
            text = f"{move.direction}: {move.ratio:.2f}× the speed before"
            found.append(BenchStep(key, variant, figures[end - move.since][0], text))
        before = move.direction if move else ""
    return found
