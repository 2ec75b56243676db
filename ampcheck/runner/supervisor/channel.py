"""The child's side: which cases are its own, and the events it writes for the supervisor.

Events are JSON objects, a line each, with a `kind`: `refused` (bad input, with the sentence), `preflight` (a step
of it begins, or "" for its end), `header` (what was collected), `repro` (how to reproduce a case that ended an earlier
child), `start` and `case` (a case begins; its result), then `footer`, or `broken` where pytest stopped by itself.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zlib import crc32

import pytest

if TYPE_CHECKING:
    from ampcheck.runner.collect import Collector
    from ampcheck.runner.judge import Judge


@dataclass(frozen=True, slots=True)
class WorkerPlan:
    """What a child is to do.

    `events`: the file it appends events to. `share`: it runs the cases of share number `share`, from 0, of `shares`, of
    fewer where each would have less than `least` cases. `done`: node ids to leave out. `describe`: node ids to send a
    `repro` event for. `parent`: the supervisor's process id.
    """

    events: str
    share: int
    shares: int
    least: int
    done: tuple[str, ...]
    describe: tuple[str, ...]
    parent: int

    def write(self, path: Path) -> None:
        """Write it where `read` finds it."""
        path.write_text(json.dumps(asdict(self)), encoding="utf-8")

    @staticmethod
    def read(path: Path) -> WorkerPlan:
        """Return the plan that `write` wrote."""
        raw = json.loads(path.read_text(encoding="utf-8"))
        return WorkerPlan(**{**raw, "done": tuple(raw["done"]), "describe": tuple(raw["describe"])})

    def processes(self, cases: int) -> int:
        """Return how many shares so many cases are divided into."""
        return max(1, min(self.shares, cases // self.least)) if self.least else self.shares

    def mine(self, node: str, processes: int) -> bool:
        """Return whether a node id is of this child's share: by its name, so no child depends on another's order."""
        return crc32(node.encode()) % processes == self.share


class Channel:
    """Takes results as `RunLog` does, and sends them to the supervisor."""

    def __init__(self, plan: WorkerPlan) -> None:
        self._plan = plan
        self._skip = frozenset(plan.done)
        self._processes = plan.shares
        self._file = open(plan.events, "a", encoding="utf-8", buffering=1)  # noqa: SIM115  # open until the process ends

    def choose(self, items: list[pytest.Item]) -> list[pytest.Item]:
        """Return the items of this child's share that are not done yet."""
        self._processes = count = self._plan.processes(len(items))
        return [item for item in items if self._plan.mine(item.nodeid, count) and item.nodeid not in self._skip]

    @property
    def first(self) -> bool:
        """Return whether no earlier child ran cases of this share."""
        return not self._skip

    def preflight(self, step: str) -> None:
        """Say that a step of the preflight begins, e.g. "device 'cpu': add"; "" for its end."""
        self._put("preflight", {"step": step})

    def refused(self, message: str) -> None:
        """Say that the user's input cannot be used."""
        self._put("refused", {"message": message})

    def collected(
        self, collector: Collector, judge: Judge, config: pytest.Config, items: list[pytest.Item], deselected: int
    ) -> None:
        """Say what all children together have to run, and how to reproduce the cases the plan asks about."""
        from ampcheck.runner import runlog

        found = collector.found(items)
        cases = runlog.expected(config, found, collector.choice)
        fields = {
            "header": {**runlog.header(config, cases, datetime.now(UTC)), "processes": self._processes},
            "lines": [*runlog.header_lines(config), *filter(None, [collector.chosen]), *collector.choice.gone(found)],
            "cases": cases,
            "deselected": deselected,
            "stale": collector.stale(),
        }
        self._put("header", fields)
        wanted = set(self._plan.describe)
        for item in items:
            if item.nodeid in wanted:
                self._put("repro", {"fields": judge.details(item, "")})

    def start(self, node: str) -> None:
        """Say that a case begins. Ends the process where nobody listens any more."""
        if os.getppid() != self._plan.parent:
            os._exit(1)
        self._put("start", {"node": node})

    def take(self, report: pytest.TestReport) -> None:
        """Send the result a report carries."""
        raw = getattr(report, "ampcheck", None)
        if raw is not None:
            self._put("case", {"result": {name: value for name, value in raw.items() if value != ""}})

    def finish(self, exitstatus: int) -> None:
        """Say how pytest ended."""
        done = (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED, pytest.ExitCode.NO_TESTS_COLLECTED)
        self._put("footer" if exitstatus in done else "broken", {"status": int(exitstatus)})

    def _put(self, kind: str, fields: Mapping[str, Any]) -> None:
        self._file.write(json.dumps({"kind": kind, **fields}, separators=(",", ":")) + "\n")
