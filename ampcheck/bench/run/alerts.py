"""Alerts over a history: each series has one figure in a run group.

A single run group is noisy, so the median of the last three measured run groups is compared with the median of the
thirty before them. They differ where the ratio is more than the larger of 5 % and 4σ/√3, σ being the series' own
spread. Simulated with 3 % of noise, that finds about nine of ten steps of 10 % within three run groups, with less than
one false alarm per series and year; a drift of 10 % a month is found in half of the series within that month. A step
is reported for about fifteen run groups, until it is half of the baseline.

Run groups of another machine are left out of a baseline, not compared with it: a machine that was never there before
starts with none, one that comes back goes on with its own.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, stdev

from ampcheck.errors import UsageError

RECENT = 3
BASELINE = 30

ENOUGH = 10
"""Fewer run groups before the recent ones do not make a baseline: their spread is known to a third at best."""

SMALLEST = 0.05
TOGETHER = 0.3
"""The machine is said to have moved where more than this share of the judged series did, the same way."""

FEWEST = 3
"""So many series have to move before it can be the machine; one of two says nothing about it."""

KINDS: tuple[str, ...] = ("machine", "series", "not measured", "not judged")
"""The subjects of alerts, in the order of a list: all series at once; one of them; series without a figure in the last
run group; series with too few run groups on this machine. The last two are never to be read as "no change"."""


@dataclass(frozen=True, slots=True)
class RunFigures:
    """One run group's figures: `values` by series, in seconds, None for what was not measured.

    `started`: UTC, in a form that sorts, e.g. ISO 8601. `machine`: its identity, whatever makes figures comparable.
    """

    started: str
    values: Mapping[str, float | None]
    machine: str
    versions: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Move:
    """A series that moved: `ratio` of speeds, above 1 being faster; `threshold` what it had to exceed, as a factor.

    `since`: how many of its run groups, counted from the last, are on the new level.
    """

    ratio: float
    threshold: float
    since: int

    @property
    def direction(self) -> str:
        """Return "slower" or "faster"."""
        return "faster" if self.ratio > 1 else "slower"


@dataclass(frozen=True, slots=True)
class Alert:
    """Something a reader has to know of the last run group.

    `kind`: one of `KINDS`. `sentence`: with what else changed about then, e.g. "torch 2.12.0 → 2.13.0 on 2026-05-03".
    `since`: the first run group of it. `new`: whether the run group before did not have it yet. `series`: "" where it
    is about several, which `members` lists. `ratio`: of speeds, now over before.
    """

    kind: str
    sentence: str
    since: str
    new: bool
    series: str = ""
    ratio: float | None = None
    members: tuple[str, ...] = ()

    @property
    def direction(self) -> str:
        """Return "slower", "faster", or "" where nothing moved."""
        return "" if self.ratio is None else "faster" if self.ratio > 1 else "slower"


def moved(values: Sequence[float]) -> Move | None:
    """Judge a series by its measured figures on one machine, oldest first; None where it did not move.

    Needs `RECENT + ENOUGH` figures, else None; the last `RECENT + BASELINE` count.
    """
    if len(values) < RECENT + ENOUGH:
        return None
    logs = [math.log(value) for value in values[-RECENT - BASELINE :]]
    before, now = logs[:-RECENT], logs[-RECENT:]
    middle = median(before)
    spread = _spread(before)
    threshold = max(math.log1p(SMALLEST), 4 * spread / math.sqrt(RECENT))
    change = median(now) - middle
    if abs(change) <= threshold:
        return None

    def residuals(part: Sequence[float]) -> float:
        middle = median(part)
        return sum(abs(value - middle) for value in part)

    # On the new level since the split in two with the least absolute residuals.
    since = min(range(1, len(logs)), key=lambda runs: residuals(logs[:-runs]) + residuals(logs[-runs:]))
    return Move(math.exp(-change), math.exp(threshold), since)


def marks(runs: Sequence[RunFigures]) -> list[tuple[str, str]]:
    """Return the start of each run group whose machine or versions are not those before, and what changed."""
    found = []
    for before, run in pairwise(runs):
        parts = [] if before.machine == run.machine else [f"machine {before.machine} → {run.machine}"]
        for name in sorted({*before.versions, *run.versions}):
            one, two = (side.versions.get(name, "absent") for side in (before, run))
            parts += [] if one == two else [f"{name} {one} → {two}"]
        if parts:
            found.append((run.started, ", ".join(parts)))
    return found


def alerts(runs: Sequence[RunFigures]) -> list[Alert]:
    """Return the alerts of the last run group, in the order of `KINDS`, the largest moves first.

    Where more than `TOGETHER` of the judged series move the same way, that is one alert about the machine; a series is
    then reported by itself only if it moved more than its threshold beyond the others. Raises UsageError where the
    run groups are not in order, or a figure is not a positive finite number.
    """
    if not runs:
        return []
    for earlier, run in pairwise(runs):
        if earlier.started >= run.started:
            raise UsageError(f"the run group of {run.started} follows that of {earlier.started}: they are not in order")
    for name, value, started in ((name, value, run.started) for run in runs for name, value in run.values.items()):
        if value is not None and not (math.isfinite(value) and value > 0):
            raise UsageError(f"{name} is {value:g} s in the run group of {started}, which no call can take")
    history = [run for run in runs if run.machine == runs[-1].machine]
    today, before = _movers(history), _movers(history[:-1])
    found: list[Alert] = []
    single = dict(today.moves)
    old = {(name, move.direction) for name, (move, _) in before.moves.items()}
    for way in ("slower", "faster"):
        if group := today.together(way):
            shift = median(math.log(move.ratio) for move, _ in group.values())
            starts = sorted(since for _, since in group.values())
            since, ratio = max(starts, key=starts.count), math.exp(shift)
            sentence = (
                f"{len(group)} of {len(today.judged)} series are {way} together since {since}, {ratio:.2f} × their "
                f"former speed: it is the machine, or something that all of them use{_changes(since, runs)}"
            )
            new, members = not before.together(way), tuple(sorted(group))
            found.append(Alert("machine", sentence, since, new, ratio=ratio, members=members))
            for name, (move, _) in group.items():
                if abs(math.log(move.ratio) - shift) <= math.log(move.threshold):
                    del single[name]
    for name, (move, since) in sorted(single.items(), key=lambda item: -abs(math.log(item[1][0].ratio))):
        noise = f"below {move.threshold:.2f}" if move.ratio > 1 else f"above {1 / move.threshold:.2f}"
        speed = f"{move.ratio:.2f} × its former speed, where noise stays {noise} ×"
        sentence = f"{name} is {move.direction} since {since}: {speed}{_changes(since, runs)}"
        found.append(Alert("series", sentence, since, (name, move.direction) not in old, name, move.ratio))
    return found + _not_measured(runs) + _not_judged(history, today.few, runs)


@dataclass(frozen=True, slots=True)
class _Movers:
    """The series with enough run groups, those without, and those that moved, each with the run group since when."""

    judged: list[str]
    few: list[str]
    moves: dict[str, tuple[Move, str]]

    def together(self, way: str) -> dict[str, tuple[Move, str]]:
        """Those that moved one way, if they are so many that it is the machine; else none."""
        group = {name: found for name, found in self.moves.items() if found[0].direction == way}
        return group if len(group) >= FEWEST and len(group) > TOGETHER * len(self.judged) else {}


def _movers(history: Sequence[RunFigures]) -> _Movers:
    """Judge the series that the last of these run groups measured."""
    found = _Movers([], [], {})
    for name in _measured(history[-1]) if history else []:
        figures = [(run.started, value) for run in history if (value := run.values.get(name)) is not None]
        if len(figures) < RECENT + ENOUGH:
            found.few.append(name)
            continue
        found.judged.append(name)
        move = moved([value for _, value in figures])
        if move is not None:
            found.moves[name] = (move, figures[-move.since][0])
    return found


def _measured(run: RunFigures) -> list[str]:
    return [name for name, value in run.values.items() if value is not None]


def _changes(since: str, runs: Sequence[RunFigures]) -> str:
    """Say what changed within a run group of that one; the split into levels can be off by one."""
    place = next(index for index, run in enumerate(runs) if run.started == since)
    near = runs[max(place - 2, 0) : place + 2]
    return "".join(f"; {what} on {started}" for started, what in marks(near))


def _some(names: Sequence[str]) -> str:
    """Return the first three names, and how many more there are."""
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _not_measured(runs: Sequence[RunFigures]) -> list[Alert]:
    """Series of the last month without a figure in the last run group, by the run group since when they have none."""
    gone: dict[str, list[str]] = {}
    window = runs[-BASELINE - 1 :]
    for name in sorted({name for run in window for name in run.values}.difference(_measured(runs[-1]))):
        had = [index for index, run in enumerate(window) if run.values.get(name) is not None]
        gone.setdefault(window[had[-1] + 1 if had else 0].started, []).append(name)
    found = []
    for since, names in sorted(gone.items(), reverse=True):
        verb = "was" if len(names) == 1 else "were"
        sentence = f"{len(names)} series {verb} not measured since {since}: {_some(names)}"
        found.append(Alert("not measured", sentence, since, since == runs[-1].started, members=tuple(names)))
    return found


def _not_judged(history: Sequence[RunFigures], few: Sequence[str], runs: Sequence[RunFigures]) -> list[Alert]:
    if not few:
        return []
    since = next(run.started for run in history if not set(few).isdisjoint(_measured(run)))
    has, are = ("has", "is") if len(few) == 1 else ("have", "are")
    sentence = (
        f"{len(few)} series {has} fewer than {RECENT + ENOUGH} run groups on {runs[-1].machine} and {are} not judged "
        f"yet: {_some(few)}{_changes(since, runs)}"
    )
    return [Alert("not judged", sentence, since, since == runs[-1].started, members=tuple(few))]


def _spread(logs: Sequence[float]) -> float:
    """Return the standard deviation without values beyond five robust ones from the median.

    The MAD of thirty run groups is off by a fifth, which would double the false alarms; the plain standard deviation
    would let a single burst hide what comes after it for a month.
    """
    middle = median(logs)
    limit = 5 * 1.4826 * median(abs(value - middle) for value in logs)
    kept = [value for value in logs if abs(value - middle) <= limit]
    return stdev(kept) if len(kept) > 1 else 0.0
