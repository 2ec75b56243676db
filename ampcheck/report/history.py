"""Which runs a site shows: run files read newest first, the files of one night merged, no more than a cap."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from pathlib import Path

from ampcheck.compare import devices, interrupted, merge
from ampcheck.errors import UsageError
from ampcheck.results import RED, Run, read

CAP = 20
"""How many runs a site holds; older ones are left out, and the site says so."""

NIGHT = timedelta(hours=12)
"""Run files that start within this time of each other and share no case are parts of one run."""


@dataclass(frozen=True, slots=True)
class History:
    """The runs of a site, newest first. `left_out`: how many older run files are not in it."""

    runs: tuple[Run, ...]
    left_out: int

    @property
    def newest(self) -> Run:
        """The run the site is about."""
        return self.runs[0]

    @property
    def previous(self) -> Run | None:
        """What the newest run is compared with: the latest earlier one with common cases, of the same torch if any."""
        usable = [
            run
            for run in self.runs[1:]
            if run.results.keys() & self.newest.results.keys() and set(devices(run)) & set(devices(self.newest))
        ]
        same = [run for run in usable if torch_release(run) == torch_release(self.newest)]
        return next(iter(same or usable), None)


def load(paths: Sequence[Path], tokens: Mapping[str, str], cap: int = CAP) -> History:
    """Read the newest run files and merge those of one night.

    Args:
        paths: run files in any order; one that is named twice counts once.
        tokens: the device name of each token that ids use.
        cap: the largest number of runs.

    Raises UsageError for no files and for one that is no run file of this schema.
    """
    distinct = {path.resolve(): path for path in paths}
    if not distinct:
        raise UsageError("there is no run file to make a site of: `pytest suites` writes one")
    newest_first = sorted(distinct.values(), key=lambda path: (_started(path), path.name), reverse=True)
    nights: list[list[Run]] = []
    read_so_far = 0
    for path in newest_first:
        run = _named(read(path), tokens)
        if nights and _same_night(nights[-1], run):
            nights[-1].append(run)
        elif len(nights) == cap:
            break
        else:
            nights.append([run])
        read_so_far += 1
    return History(tuple(merge(parts) for parts in nights), len(newest_first) - read_so_far)


def expected(run: Run) -> int:
    """How many cases a run was to have."""
    return max(int(run.header.get("cases", 0)), len(run.results))


def ran(run: Run) -> int:
    """How many cases a run has a result of."""
    return sum(count for status, count in run.counts().items() if status != "missing")


def virtual(run: Run) -> set[str]:
    """The devices of a run that have no values."""
    return {device["name"] for device in run.header.get("devices", []) if not device.get("has_values", True)}


def torch_release(run: Run) -> str:
    """The torch version of a run without its build, e.g. "2.13.0"."""
    return str(run.header.get("versions", {}).get("torch", "")).partition("+")[0]


def stale(run: Run) -> list[str]:
    """The run's sentences about deviations that match no case."""
    return list((run.footer or {}).get("stale", []))


def is_red(run: Run) -> bool:
    """Whether something in the run needs a person."""
    return interrupted(run) or bool(stale(run)) or any(run.counts()[status] for status in RED)


def _started(path: Path) -> str:
    """When a run began, from its first line alone; "" where it is unreadable, which `read` then says."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return ""
    return str(header.get("started", "")) if isinstance(header, dict) else ""


def _same_night(parts: Iterable[Run], run: Run) -> bool:
    done = {key for part in parts for key, result in part.results.items() if result.status != "missing"}
    mine = {key for key, result in run.results.items() if result.status != "missing"}
    begun = [_time(part) for part in (*parts, run)]
    known = [time for time in begun if time is not None]
    close = len(known) == len(begun) and max(known) - min(known) < NIGHT
    alike = len({torch_release(part) for part in (*parts, run)}) == 1
    return close and alike and bool(done) and bool(mine) and not done & mine


def _time(run: Run) -> datetime | None:
    try:
        return datetime.fromisoformat(str(run.header.get("started", "")))
    except ValueError:
        return None


def _named(run: Run, tokens: Mapping[str, str]) -> Run:
    """Results known by their id alone (missing, crashed workers) have the device's token; give them its name."""
    names = set(devices(run))
    found = dict(tokens)
    for result in run.results.values():
        if result.device in names:
            found[result.id.rpartition("-")[2]] = result.device
    for key, result in run.results.items():
        if result.device not in names and result.device in found:
            run.results[key] = replace(result, device=found[result.device])
    return run
