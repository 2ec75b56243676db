"""What a supervised run has found so far, and the files it is kept in."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ampcheck.runner import causes, summary
from ampcheck.runner.results import RED, Result, RunWriter, unmeasured
from ampcheck.runner.supervisor import junit
from ampcheck.runner.supervisor.baseline import Baseline


class RunOutcome:
    """The results of one run. Each is in the run file when `take` returns; the JUnit file is written at the end.

    `command`: what the user typed. `run_file`, `junit_file`: where the files go, None for no file; `run_file` must not
    exist yet. `baseline`: the red cases that do not make the run red.
    """

    def __init__(
        self,
        command: Sequence[str],
        run_file: Path | None,
        junit_file: Path | None,
        baseline: Baseline | None = None,
    ) -> None:
        self.results: dict[str, Result] = {}
        self.log: list[Result] = []
        """Every result in the order it came."""
        self.cases: Mapping[str, Mapping[str, str]] = {}
        """The fields of each case that are known before it runs, by key."""
        self.nodes: Mapping[str, Mapping[str, str]] = {}
        """The same by node id."""
        self.lines: list[str] = []
        self.stale: list[str] = []
        self.notes: list[str] = []
        """What went wrong outside of every case."""
        self.reproduced: dict[str, str] = {}
        """What came of running the plain torch lines of some red cases, by their keys."""
        self.failed = False
        """Whether a case was red before the baseline was looked at."""
        self.baseline = baseline
        self.run_file = run_file
        self.junit_file = junit_file
        self._command = list(command)
        self._clock = time.monotonic()
        self.ended: float | None = None
        """When the last case ended, on the same clock as `time.monotonic`."""
        self.deselected = 0
        self._header: dict[str, Any] = {}
        self._writer: RunWriter | None = None
        self.complete = False
        """Whether every case has a result."""
        self._red: set[str] = set()

    @property
    def processes(self) -> int:
        """Return how many processes run the cases."""
        return int(self._header.get("processes", 1))

    @property
    def begun(self) -> bool:
        """Return whether the cases are known, and the run file is there."""
        return bool(self._header)

    @property
    def seconds(self) -> float:
        """Return the time since the run was begun, up to `ended`."""
        return (self.ended or time.monotonic()) - self._clock

    def begin(self, event: Mapping[str, Any]) -> None:
        """Take the first `header` event. Raises UsageError where the run file cannot be written."""
        self._header = {**event["header"], "command": self._command}
        self.cases = event["cases"]
        self.nodes = {case["node"]: case for case in self.cases.values() if "node" in case}
        self.lines, self.stale = event["lines"], event["stale"]
        self.deselected = event["deselected"]
        if self.cases and self.run_file is not None:
            self._writer = RunWriter(self.run_file, self._header)

    def take(self, result: Result) -> None:
        """Keep a result, as a known deviation where the baseline has it. Of a case that has two, the later counts."""
        if result.status in RED:
            self.failed = True
            if self.baseline is not None:
                result = self.baseline.judged(result)
        self.results[result.key] = result
        (self._red.add if result.status in RED else self._red.discard)(result.key)
        self.log.append(result)
        if self._writer is not None:
            self._writer.add(result)

    def finish(self) -> None:
        """Write what is missing, and the footer."""
        for key, case in self.cases.items():
            if key not in self.results:
                self.take(unmeasured(case, "missing", cause=causes.MISSING))
        if self._writer is not None:
            further = {"notes": self.notes, "reproduced": self.reproduced}
            footer = {"seconds": round(self.seconds, 3), "stale": self.stale}
            self._writer.close({**footer, **{name: value for name, value in further.items() if value}})
        self.complete = True

    def write_junit(self) -> None:
        """Write the JUnit file of what there is. Raises UsageError where that cannot be done."""
        if self.junit_file is None:
            return
        started = str(self._header["started"])
        junit.write(
            self.junit_file,
            list(self.results.values()),
            started=started,
            seconds=self.seconds,
            stale=[*self.stale, *self.notes],
            reproduced=self.reproduced,
        )

    @property
    def summary_file(self) -> Path | None:
        """Return the Markdown summary, beside the run file."""
        return summary.beside(self.run_file) if self.run_file else None

    def write_summary(self) -> None:
        """Write the Markdown summary of the results so far. Raises UsageError where that cannot be done."""
        if self.summary_file is not None:
            about = [*self.stale, *self.notes]
            results = list(self.results.values())
            text = summary.as_markdown(results, self.ran(), about, self.reproduced, whole=self.complete)
            summary.write(self.summary_file, text)

    def red(self) -> list[Result]:
        """Return the results that make the run fail."""
        return [result for result in self.results.values() if result.status in RED]

    def count_red(self) -> int:
        """Return how many cases are red so far."""
        return len(self._red)

    def ran(self) -> str:
        """Return how much ran, in a sentence."""
        return summary.ran(self.results.values(), len(self.cases), self.deselected, self.seconds)
