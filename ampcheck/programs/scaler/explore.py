"""Look for a program on which a device's GradScaler and the model differ."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from time import monotonic

from ampcheck.devices.base import Device
from ampcheck.errors import CheckFailure, one_line
from ampcheck.programs.scaler.render import render
from ampcheck.programs.scaler.run import ScalerRun
from ampcheck.programs.scaler.steps import ScalerProgram
from ampcheck.programs.scaler.strategies import programs
from ampcheck.programs.search import search
from ampcheck.runner.record import seed_of_programs

EXAMPLES = 50
COMPILED = 12
"""How many on a device that compiles each op for each set of shapes and dtypes."""
NIGHTLY = 2000
SHRINKING = 5.0
"""For how many seconds a smaller program is looked for."""


class ScalerExplorer:
    """Draws programs for a device, runs each, and compares.

    `nightly`: draw `NIGHTLY` programs, not `EXAMPLES` or `COMPILED`, from `seed`, or where that is None from the day's
    date. Not nightly, the programs are always the same; see `ampcheck.runner.record.seed_of_programs`.
    """

    def __init__(self, device: Device, *, nightly: bool = False, seed: str | int | None = None) -> None:
        self.device = device
        self.nightly = nightly
        self.seed = seed_of_programs(nightly, seed)
        self.compared = 0
        """How many values were compared with the model so far."""

    def difference(self, program: ScalerProgram) -> str | None:
        """Describe how torch differs from the model on a program in a sentence, or return None."""
        run = ScalerRun(program, self.device.type)
        try:
            return run.difference()
        except Exception as error:  # a call on the scaler is caught where it is made
            return f"running the program raised {one_line(error)}; expected it to run"
        finally:
            self.compared += run.compared

    def script(self, program: ScalerProgram) -> str:
        """A program in plain torch."""
        return render(program, self.device)

    def explore(self, *, orderly: bool, fused: bool = True, sparse: bool = True) -> tuple[str, ScalerProgram] | None:
        """Return the difference on a random program, made smaller, and that program; None without a difference.

        `orderly`, `fused`, `sparse`: as for `ampcheck.programs.scaler.strategies.programs`.
        """
        found: list[tuple[str, ScalerProgram]] = []

        def attempt(program: ScalerProgram) -> None:
            if difference := self.difference(program):
                found[:] = [(difference, program)]
                raise CheckFailure([difference])

        examples = NIGHTLY if self.nightly else EXAMPLES if self.device.database else COMPILED
        with suppress(CheckFailure):
            search(attempt, programs(fused, sparse, orderly), self.seed, examples, shrink=False)
        if not found:
            return None
        sentence, program = self._smaller(*found[0])
        return f"{sentence} (found with --hypothesis-seed={self.seed})" if self.nightly else sentence, program

    def _smaller(self, sentence: str, program: ScalerProgram) -> tuple[str, ScalerProgram]:
        """The same without the steps that the difference does not need; the last ones go first."""
        end = monotonic() + SHRINKING
        for place in reversed(range(len(program.steps))):
            without = replace(program, steps=program.steps[:place] + program.steps[place + 1 :])
            if monotonic() < end and (difference := self.difference(without)):
                sentence, program = difference, without
        return sentence, program
