"""Choose the runs of a site: read run files newest first, merge those of one run group, keep no more than a cap."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from ampcheck.errors import UsageError
from ampcheck.runner.record import Run, read
from ampcheck.runner.summarize import devices, merge, unfinished

R = TypeVar("R")

CAP = 20
"""A site holds this many runs at most; it says how many older ones are left out."""

TOGETHER = timedelta(hours=12)
"""Files that start within this time of each other and have nothing in common are parts of one run group."""


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
        """The run that the newest is compared with: of the earlier ones with a case and a device in common, the latest.

        One of the same torch release goes first, then one that was not interrupted, then one that has at least half of
        the newest run's cases: a short run in between must not hide what regressed.
        """
        mine, ours = self.newest.results.keys(), set(devices(self.newest))

        def rank(run: Run) -> tuple[bool, bool, bool]:
            half = 2 * len(run.results.keys() & mine) >= len(mine)
            return torch_release(run) == torch_release(self.newest), not unfinished(run), half

        usable = [run for run in self.runs[1:] if run.results.keys() & mine and set(devices(run)) & ours]
        return max(usable, key=rank, default=None)


def load(paths: Sequence[Path], cap: int = CAP) -> History:
    """Read the newest run files and merge those of one run group.

    Args:
        paths: run files in any order; one that is named twice counts once.
        cap: the largest number of runs.

    Raises UsageError for no files and for one that is not a run file of this schema.
    """
    if not paths:
        raise UsageError("there is no run file to make a site of: `pytest suites` writes one")
    groups, left_out = grouped(paths, read, _same_run_group, cap)
    return History(tuple(merge(parts) for parts in groups), left_out)


def grouped(
    paths: Sequence[Path], read: Callable[[Path], R], same: Callable[[Sequence[R], R], bool], cap: int
) -> tuple[list[list[R]], int]:
    """Read files, newest first, and put those of one occasion together. Returns the groups, and how many are left.

    Args:
        same: whether a run belongs to the runs of a group.
        cap: the largest number of groups.
    """
    distinct = {path.resolve(): path for path in paths}.values()
    newest_first = sorted(distinct, key=lambda path: (str(header_of(path).get("started", "")), path.name), reverse=True)
    groups: list[list[R]] = []
    for number, path in enumerate(newest_first):
        run = read(path)
        if groups and same(groups[-1], run):
            groups[-1].append(run)
        elif len(groups) == cap:
            return groups, len(newest_first) - number
        else:
            groups.append([run])
    return groups, 0


def expected(run: Run) -> int:
    """Return the number of cases that a run was to have."""
    return max(int(run.header.get("cases", 0)), len(run.results))


def ran(run: Run) -> int:
    """Return the number of cases that a run has a result of."""
    return sum(count for status, count in run.counts().items() if status != "missing")


def virtual(run: Run) -> set[str]:
    """Return the devices of a run that have no values."""
    return {device["name"] for device in run.header.get("devices", []) if not device.get("has_values", True)}


def torch_release(run: Run) -> str:
    """Return the torch version of a run without its build, e.g. "2.13.0"."""
    return str(run.header.get("versions", {}).get("torch", "")).partition("+")[0]


def stale(run: Run) -> list[str]:
    """Return the run's sentences about deviations that match no case."""
    return list((run.footer or {}).get("stale", []))


def reproduced(run: Run) -> dict[str, str]:
    """Return the outcome of running red cases' plain torch lines, in words behind "it", by the case's key."""
    return dict((run.footer or {}).get("reproduced", {}))


def header_of(path: Path) -> dict[str, object]:
    """Return a run file's first line alone; {} where it is unreadable, which `read` then says."""
    try:
        with path.open(encoding="utf-8") as file:
            header = json.loads(file.readline())
    except (OSError, ValueError):
        return {}
    return header if isinstance(header, dict) else {}


def names(starts: Iterable[str]) -> list[str]:
    """Return a name for each run, oldest first, that addresses can hold and that later sites give it again.

    That is when it started, and a number behind it for the second run of that time.
    """
    seen: Counter[str] = Counter()
    out = []
    for start in starts:
        seen[start] += 1
        out.append(start if start and seen[start] == 1 else f"{start}~{seen[start]}")
    return out


def together(headers: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether runs with these headers all began within `TOGETHER`; not where one does not say when."""
    try:
        begun = [datetime.fromisoformat(str(header.get("started", ""))) for header in headers]
        return max(begun) - min(begun) < TOGETHER
    except (ValueError, TypeError):  # no time, or only some of them name their zone
        return False


def _same_run_group(parts: Sequence[Run], run: Run) -> bool:
    done = {key for part in parts for key, result in part.results.items() if result.status != "missing"}
    mine = {key for key, result in run.results.items() if result.status != "missing"}
    alike = len({torch_release(part) for part in (*parts, run)}) == 1
    close = together(part.header for part in (*parts, run))
    return close and alike and bool(done) and bool(mine) and not done & mine
