"""The supervisor: starts children, follows them, and turns the death of one into the result of one case."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ampcheck.errors import HarnessError, UsageError
from ampcheck.runner import causes
from ampcheck.runner.results import Result, unmeasured
from ampcheck.runner.supervisor.channel import WorkerPlan
from ampcheck.runner.supervisor.child import Child
from ampcheck.runner.supervisor.ended import RunOutcome

START_LIMIT = 600.0
"""Seconds a child may take to collect the suites."""

PREFLIGHT_LIMIT = 60.0
"""Seconds a step of the preflight may take at least: a backend's libraries are loaded in it."""

END_LIMIT = 600.0  # freeing thousands of compiled programs takes minutes on a busy machine
"""Seconds a child may take to end after its last case."""

_POLL = 0.03

_REFUSED = re.compile(r"^ERROR: (.+)", re.MULTILINE)
"""How pytest says that it cannot use its command line, such as the expression behind -k."""


@dataclass(slots=True)
class _Share:
    """One share of the cases and the child that runs it now. `current`: the case that began last in this child."""

    number: int
    child: Child
    since: float
    done: set[str] = field(default_factory=set)
    current: str = ""
    answered: bool = False
    collected: bool = False
    preflight: str = ""
    """The device and step of the preflight that goes on; "" before and after it."""
    ended: str = ""
    pending: Result | None = None
    """A case that ended an earlier child, kept until it is known how to reproduce it."""


class Supervisor:
    """Runs the suites in `processes` children side by side.

    Args:
        arguments: of pytest.
        env: of the children.
        outcome: where results go.
        processes: how many children there are at most.
        least: start fewer children where each would have fewer cases than this; the first one then counts the cases
            before the others start. 0 starts all of them at once.
        timeout: seconds a case may take.
        max_red: stop when this many cases are red; 0 for no limit.
        tick: called often, to show progress.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        env: Mapping[str, str],
        outcome: RunOutcome,
        *,
        processes: int = 1,
        least: int = 0,
        timeout: float = 120.0,
        max_red: int = 0,
        tick: Callable[[], None] = lambda: None,
    ) -> None:
        self._arguments = arguments
        self._env = env
        self._outcome = outcome
        self._processes = processes
        self._least = least
        self._timeout = timeout
        self._max_red = max_red
        self._tick = tick
        self._shares: list[_Share] = []
        self._started = 0
        self._folder = Path()

    def run(self) -> None:
        """Run every case to an end.

        Raises UsageError where a child refuses the user's input, HarnessError where one fails outside of every case.
        Whatever is raised, KeyboardInterrupt included, what was measured until then has been taken.
        """
        with TemporaryDirectory(prefix="ampcheck-") as folder:
            self._folder = Path(folder)
            try:
                self._open(1 if self._least else self._processes)
                while open_shares := [share for share in self._shares if share.ended != "footer"]:
                    for share in open_shares:
                        self._follow(share)
                    self._tick()
                    if self._max_red and self._outcome.count_red() >= self._max_red:
                        break
                    time.sleep(_POLL)
            finally:
                self._stop()

    def _open(self, count: int) -> None:
        """Start children until there are `count`."""
        for number in range(len(self._shares), count):
            self._shares.append(_Share(number, self._start(number), time.monotonic()))

    def _start(self, number: int, done: Sequence[str] = (), describe: Sequence[str] = ()) -> Child:
        self._started += 1
        stem = self._folder / str(self._started)
        events = stem.with_suffix(".jsonl")
        plan = stem.with_suffix(".json")
        shares = (number, self._processes, self._least)
        WorkerPlan(str(events), *shares, tuple(done), tuple(describe), os.getpid()).write(plan)
        command = [*self._arguments, f"--supervised={plan}"]
        return Child(command, self._env, events, stem.with_suffix(".log"))

    def _stop(self) -> None:
        for share in self._shares:
            share.child.kill()
        for share in self._shares:
            for event in share.child.events():
                if event["kind"] in ("case", "repro"):
                    self._take(share, event)
            self._release(share)
            share.child.close()

    # ---- one look at one child

    def _follow(self, share: _Share) -> None:
        status = share.child.status  # before the events, so that none is written after the last look at them
        self._drain(share)
        if share.ended == "footer":
            self._finished(share)
        elif status is not None:
            self._dead(share, "error" if share.ended == "broken" else "crash", share.child.how())
        elif time.monotonic() - share.since > self._limit(share):
            self._hung(share)

    def _hung(self, share: _Share) -> None:
        before = share.current, share.answered
        share.child.abort()
        self._drain(share)
        if share.ended == "footer":
            self._finished(share)
        elif (share.current, share.answered) != before:
            self._dead(share, "crash", share.child.how())  # it went on just as it was ended; the next case pays for it
        else:
            self._dead(share, "timeout", f"nothing happened for {self._limit(share):g} s{share.child.where()}")

    def _limit(self, share: _Share) -> float:
        if share.collected:
            return self._timeout
        return max(self._timeout, PREFLIGHT_LIMIT) if share.preflight else START_LIMIT

    def _drain(self, share: _Share) -> None:
        for event in share.child.events():
            share.since = time.monotonic()
            self._take(share, event)

    def _take(self, share: _Share, event: dict[str, Any]) -> None:
        kind = event["kind"]
        if kind == "refused":
            raise UsageError(event["message"])
        if kind == "header":
            share.collected, share.preflight = True, ""
            if not self._outcome.begun:
                self._outcome.begin(event)
            self._open(event["header"]["processes"])
        elif kind == "preflight":
            share.preflight = event["step"]
        elif kind == "repro" and share.pending is not None:
            fields = {name: value for name, value in event["fields"].items() if name in ("pytest", "torch")}
            share.pending = replace(share.pending, **fields)
            self._release(share)
        elif kind == "start":
            share.current, share.answered = event["node"], False
        elif kind == "case":
            share.answered = True
            share.done.add(share.current)
            self._outcome.take(Result(**event["result"]))
        elif kind in ("footer", "broken"):
            share.ended = kind

    def _release(self, share: _Share) -> None:
        if share.pending is not None:
            self._outcome.take(share.pending)
            share.pending = None

    # ---- a child that ended, or has to

    def _finished(self, share: _Share) -> None:
        """End a child that ran all its cases; it still has to end well."""
        self._release(share)
        deadline = time.monotonic() + END_LIMIT
        while share.child.status is None and time.monotonic() < deadline:
            time.sleep(_POLL)
        if share.child.status is None:
            share.child.abort()
            self._outcome.notes.append(f"a process did not end within {END_LIMIT:g} s of its last case")
        elif share.child.status not in (0, 1, 5):  # pytest's codes for passed, failed and nothing to do
            self._outcome.notes.append(f"a process ended after its last case with {share.child.how()}")
        elif share.child.status == 1 and not self._outcome.failed:
            self._outcome.notes.append(f"pytest failed outside of every case: {_tail(share.child.printed())}")

    def _dead(self, share: _Share, status: str, how: str) -> None:
        """Give the case that a child died under its result, and the others a fresh child."""
        if not share.current:
            if share.preflight:
                ended = how if status == "timeout" else f"the process ended with {how}"
                raise UsageError(f"preflight of {share.preflight}: {ended}; ampcheck onboard shows every step")
            if refused := _REFUSED.search(share.child.printed()):
                raise UsageError(refused[1])
            raise HarnessError(f"a process that runs the suites ended with {how}\n{_tail(share.child.printed(), 30)}")
        self._release(share)
        message = how if status == "timeout" else f"the process ended with {how}"
        if share.answered:
            message = f"after the case: {message}"
        elif status == "error":
            message = f"pytest stopped: {_tail(share.child.printed())}"
        share.done.add(share.current)
        case = self._outcome.nodes[share.current]
        brief = message.partition("; it was in ")[0]
        share.pending = unmeasured(
            case,
            status,
            message=message,
            cause=causes.text(status, brief, case["rule"], where=share.child.frame()),
            seconds=round(time.monotonic() - share.since, 3),
        )
        share.child.kill()
        share.child.close()
        share.child = self._start(share.number, sorted(share.done), [share.current])
        share.since, share.current, share.answered = time.monotonic(), "", False
        share.collected, share.ended = False, ""


def _tail(printed: str, lines: int = 3) -> str:
    """Return the last lines of what a process printed."""
    return "\n".join([line for line in printed.splitlines() if line.strip()][-lines:])
