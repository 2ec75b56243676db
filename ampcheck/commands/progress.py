"""What a user sees while a run goes on."""

from __future__ import annotations

import sys
import time

from ampcheck.compare import first_line
from ampcheck.results import RED
from ampcheck.runner.causes import of
from ampcheck.supervisor.outcome import Outcome

_EVERY = (0.2, 30.0)
"""Seconds between two lines: on a terminal, where the line is written over, and elsewhere."""
_NAMED = 3
"""How many causes have their first red case named as it comes; the end of the run names all of them."""


class Progress:
    """Writes to stderr how far a run is, and to stdout the devices and the first red cases as they come."""

    def __init__(self, outcome: Outcome) -> None:
        self._outcome = outcome
        self._over = sys.stderr.isatty()
        self._every = _EVERY[0] if self._over else _EVERY[1]
        self._last = time.monotonic()
        self._taken = 0
        self._red = 0
        self._causes: set[str] = set()
        self._told = False

    def show(self) -> None:
        """Show what is new."""
        outcome = self._outcome
        if outcome.begun and not self._told:
            self._told = True
            for line in outcome.lines:
                print(line, flush=True)
        new = outcome.log[self._taken :]
        self._taken += len(new)
        for result in new:
            if result.status in RED:
                self._red += 1
                cause = of(result)
                if cause not in self._causes and len(self._causes) < _NAMED:
                    self._causes.add(cause)
                    self._wipe()
                    print(first_line(f"{result.status}: {result.key}: {result.message}"), flush=True)
        now = time.monotonic()
        if outcome.begun and now - self._last >= self._every:
            self._last = now
            text = f"{len(outcome.results)} of {len(outcome.cases)} cases, {self._red} red, {outcome.seconds:.0f} s"
            print(f"\r{text}" if self._over else text, end="" if self._over else "\n", file=sys.stderr, flush=True)

    def end(self) -> None:
        """Show what came last, and leave the cursor at the start of a line."""
        self.show()
        self._wipe()

    def _wipe(self) -> None:
        if self._over:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
