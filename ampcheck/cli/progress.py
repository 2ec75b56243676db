"""The progress of a run as a user sees it, and an estimate of its time."""

import csv
import sys
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from ampcheck.errors import UsageError
from ampcheck.runner.record import RED, Run, cause_of, counted, first_line, read
from ampcheck.runner.summarize import RunRecorder

_EVERY = (0.2, 30.0)
"""Seconds between two lines: on a terminal, where the line is written over, and elsewhere."""
_NAMED = 3
"""How many causes have their first red case named as it comes; the end of the run names all of them."""
DURATIONS = Path(__file__).with_name("durations.csv")
"""How long the cases of each rule take on each device and by each compiler on a machine with two cores."""
_LEAST_SECONDS = 0.0008
"""What every case takes beside its own work: pytest's part, and its line of the run file."""
_ASSUMED = 0.1
"""The share of a run that its forecast takes as run already, at the usual pace."""
_LONG = 60
"""Seconds of a run on the usual machine from which it is worth saying so."""
_ALIKE = 0.9
"""The share of a run's cases that an earlier run must have to tell how long this one will take."""
_LOOKED_AT = 20
"""How many run files are looked at for that, the newest first."""


def earlier(folder: Path, cases: Collection[str]) -> Run | None:
    """Return the newest complete run in a folder that has nearly all of the cases; None where there is no such run."""
    dated = []
    for path in folder.glob("*.jsonl"):
        with suppress(OSError):  # it was removed since
            dated.append((path.stat().st_mtime, path))
    for _, path in sorted(dated, reverse=True)[:_LOOKED_AT]:
        with suppress(UsageError):  # a damaged file is for `ampcheck report` to tell
            run = read(path)
            common = sum(1 for key in cases if key in run.results)
            if run.footer is not None and common and common >= _ALIKE * len(cases):
                return run
    return None


Cases = Mapping[str, Mapping[str, str]]
"""The fields of each case of a run, by key."""


def weights(cases: Cases, run: Run | None) -> dict[str, float]:
    """Return each case's seconds in an earlier run; for a case that it lacks, the mean of its kind (`usual_seconds`).

    Where the earlier run has none of that kind either, that is the mean on the machine that `DURATIONS` is of, and
    that of the CPU for a device that was not measured there.
    """
    means = usual_seconds()
    found: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    for result in run.results.values() if run is not None else ():
        found[result.device, f"{result.suite}/{result.rule}", result.compiler].append(result.seconds)
    means |= {place: fmean(seconds) for place, seconds in found.items()}
    usual = fmean(means.values())
    out = {}
    for key, case in cases.items():
        place = case.get("device", ""), key.rpartition("/")[0], case.get("compiler", "")
        mean = means.get(place, means.get(("cpu", *place[1:]), usual))
        out[key] = (run.results[key].seconds if run is not None and key in run.results else mean) + _LEAST_SECONDS
    return out


def usual_seconds() -> dict[tuple[str, str, str], float]:
    """Return the mean seconds of a case by device, rule and compiler, as `scripts/durations.py` measured them."""
    with DURATIONS.open(encoding="utf-8", newline="") as file:
        return {(row["device"], row["rule"], row["compiler"]): float(row["seconds"]) for row in csv.DictReader(file)}


def forecast(run: Run, cases: Cases, processes: int) -> float:
    """Return the seconds that the cases will take in so many processes, by a complete earlier run that has most.

    The earlier run's time is divided among its cases in proportion to the seconds of each.
    """
    seconds = float((run.footer or {}).get("seconds", 0.0)) * int(run.header.get("processes", 1))
    whole = sum(result.seconds + _LEAST_SECONDS for result in run.results.values())
    return seconds * sum(weights(cases, run).values()) / whole / processes if whole else seconds / processes


def remaining(elapsed: float, done: float, total: float, processes: int) -> float | None:
    """Return the seconds left after `elapsed` seconds of so many processes for `done` of `total` seconds of cases.

    The pace of this machine shows as the run goes on: at first it is taken for that of the machine that the seconds
    are of. None while nothing is done.
    """
    assumed = _ASSUMED * total
    return (total - done) * (elapsed * processes + assumed) / (done + assumed) / processes if done > 0 else None


def spoken(seconds: float) -> str:
    """Return a time in words, no more exact than a forecast can be."""
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


class Progress:
    """Writes to stderr how far something is: on a terminal over the line before, elsewhere a line each."""

    def __init__(self) -> None:
        self._over = sys.stderr.isatty()
        self._begun = time.monotonic()

    def text(self, text: str) -> None:
        """Show a line."""
        print(f"\r\033[K{text}" if self._over else text, end="" if self._over else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Leave the cursor at the start of a line."""
        if self._over:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


class RunProgress(Progress):
    """Shows how far a run is, and prints the devices and the first red cases to stdout as they come.

    `folder`: where earlier run files are, to tell how long this run will take.
    """

    def __init__(self, recorder: RunRecorder, folder: Path) -> None:
        super().__init__()
        self._recorder = recorder
        self._folder = folder
        self._every = _EVERY[0] if self._over else _EVERY[1]
        self._last = self._begun
        self._taken = 0
        self._causes: set[str] = set()
        self._told = False
        self._left: dict[str, float] = {}
        self._total = 0.0

    def show(self) -> None:
        """Show what is new."""
        recorder = self._recorder
        if recorder.begun and not self._told:
            self._told = True
            self._begin()
        new = recorder.log[self._taken :]
        self._taken += len(new)
        for result in new:
            self._left.pop(result.key, None)
            if result.status in RED:
                cause = cause_of(result)
                if cause not in self._causes and len(self._causes) < _NAMED:
                    self._causes.add(cause)
                    super().end()
                    print(first_line(f"{result.status}: {result.key}: {result.message}"), flush=True)
        now = time.monotonic()
        if recorder.cases and now - self._last >= self._every:
            self._last = now
            text = f"{len(recorder.results)} of {len(recorder.cases)} cases, {recorder.red()} red, "
            text += f"{recorder.seconds:.0f} s"
            left = sum(self._left.values())
            eta = remaining(now - self._begun, self._total - left, self._total, recorder.processes)
            self.text(text + (f", about {spoken(eta)} left" if eta else ""))

    def end(self) -> None:
        """Show what came last, and leave the cursor at the start of a line."""
        self.show()
        super().end()

    def _begin(self) -> None:
        recorder = self._recorder
        for line in recorder.lines:
            print(line, flush=True)
        if not recorder.cases:
            return
        run = earlier(self._folder, recorder.cases)
        cases, processes = len(recorder.cases), recorder.processes
        left = {key: case for key, case in recorder.cases.items() if key not in recorder.results}  # of a resumed run
        self._left = weights(left, run)
        self._total = sum(self._left.values())
        text = f"{counted(cases, 'case')} in {processes} process{'es' if processes > 1 else ''}"
        if run is not None:
            text += f"; about {spoken(forecast(run, recorder.cases, processes))}, going by {run.path.name}"
        elif self._total / processes > _LONG:
            text += f"; usually about {spoken(self._total / processes)}"
        print(text, flush=True)
