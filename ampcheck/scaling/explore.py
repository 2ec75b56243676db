"""Look for a program on which a device's GradScaler and the model differ."""

from __future__ import annotations

from time import monotonic

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings

from ampcheck import seeds
from ampcheck.checks import CheckFailure, one_line
from ampcheck.devices.base import Device
from ampcheck.scaling.render import render
from ampcheck.scaling.run import Run
from ampcheck.scaling.steps import Program
from ampcheck.scaling.strategies import programs

EXAMPLES = 40
NIGHTLY = 2000
SHRINKING = 5.0
"""For how many seconds a smaller program is looked for."""


class Explorer:
    """Draws programs for a device, runs each, and compares.

    `nightly`: draw `NIGHTLY` instead of `EXAMPLES` programs, from `seed`, or where that is None from the day's date.
    Not nightly, the programs are always the same; see `ampcheck.seeds`.
    """

    def __init__(self, device: Device, *, nightly: bool = False, seed: str | int | None = None) -> None:
        self.device = device
        self.nightly = nightly
        self.seed = seeds.of_programs(nightly, seed)
        self.compared = 0
        """How many values were held against the model so far."""

    def difference(self, program: Program) -> str | None:
        """How torch differs from the model on a program, in a sentence, or None."""
        run = Run(program, self.device.type)
        try:
            return run.difference()
        except Exception as error:  # a call on the scaler is caught where it is made
            return f"running the program raised {one_line(error)}; expected it to run"
        finally:
            self.compared += run.compared

    def script(self, program: Program) -> str:
        """A program in plain torch."""
        return render(program, self.device)

    def explore(self, *, orderly: bool, fused: bool = True, sparse: bool = True) -> tuple[str, Program] | None:
        """The difference on the smallest drawn program that has one, and that program; None where there is none.

        `orderly`, `fused`, `sparse`: as for `ampcheck.scaling.strategies.programs`.
        """
        found: dict[Program, str] = {}
        first = 0.0

        def attempt(program: Program) -> None:
            nonlocal first
            # Out of time for a smaller one: only what was found stays a finding.
            if (not found or monotonic() - first < SHRINKING) and (difference := self.difference(program)):
                first = first or monotonic()
                found[program] = difference
            if program in found:
                # Again last in the order, for Hypothesis runs the smallest one at the end.
                found[program] = found.pop(program)
                raise CheckFailure([found[program]])

        options = settings(
            max_examples=NIGHTLY if self.nightly else EXAMPLES,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            options(hypothesis.seed(self.seed)(given(programs(fused, sparse, orderly))(attempt)))()
        except CheckFailure:
            program, sentence = list(found.items())[-1]
            return f"{sentence} (found with --hypothesis-seed={self.seed})" if self.nightly else sentence, program
        return None
