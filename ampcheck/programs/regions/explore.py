"""Look for a program on which a device and the model differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import monotonic

from hypothesis import assume
from hypothesis.strategies import SearchStrategy

from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import CheckFailure, one_line
from ampcheck.programs.regions.execute import facts, run
from ampcheck.programs.regions.model import compare, known_bugs_hit, model
from ampcheck.programs.regions.render import render
from ampcheck.programs.regions.steps import Program
from ampcheck.programs.search import search
from ampcheck.runner.record import seed_of_programs

EXAMPLES = 30
NIGHTLY = 1500
SHRINKING = 2.0
"""For how many seconds a smaller program is looked for."""


def second(device: Device) -> Device:
    """Return a device of another type to use beside one in its programs: the CPU, or for the CPU a virtual one."""
    return Cpu() if device.type != "cpu" else next(d for d in DEVICES if d.type == "xpu")


class RegionExplorer:
    """Draws programs over a device and a second one, runs each, and compares.

    `nightly`: draw `NIGHTLY` instead of `EXAMPLES` programs, from `seed`, or where that is None from the day's date.
    Not nightly, the programs are always the same; see `ampcheck.runner.record.seed_of_programs`.
    """

    def __init__(self, device: Device, *, nightly: bool = False, seed: str | int | None = None) -> None:
        self.devices = (device, second(device))
        self.facts = facts(self.devices)
        self.nightly = nightly
        self.seed = seed_of_programs(nightly, seed)
        self.compared = 0
        """How many states, dtypes and casts were compared with the model so far."""

    def difference(self, program: Program) -> str | None:
        """Describe how torch differs from the model on a program in a sentence, or return None."""
        want = model(program, self.facts)
        self.compared += len(want)
        try:
            got = run(program, self.devices)
        except Exception as error:  # only torch's own: what a program is to raise, `run` notes
            return f"running the program raised {one_line(error)}; expected it to run"
        return compare(got, want)

    def script(self, program: Program) -> str:
        """A program in plain torch, or a comment where plain torch does not see the kernels of a device."""
        if not self.devices[0].observes_composite_ops:
            return f"# A dispatch mode does not see the kernels of {self.devices[0].name}: run it with the pytest line."
        return render(program, self.devices)

    def explore(self, strategy: Callable[[Sequence[str]], SearchStrategy[Program]]) -> tuple[str, Program] | None:
        """Return the difference on the smallest random program that has one, and that program; None without one.

        Programs that meet a known deviation of PyTorch are left out.
        """
        found: dict[Program, str] = {}
        first = 0.0

        def attempt(program: Program) -> None:
            nonlocal first
            # Out of time for a smaller one: only what was found stays a finding.
            if not found or monotonic() - first < SHRINKING:
                assume(not known_bugs_hit(program, self.facts))
                if difference := self.difference(program):
                    first = first or monotonic()
                    found[program] = difference
            if program in found:
                # Again last in the order, for Hypothesis runs the smallest one at the end.
                found[program] = found.pop(program)
                raise CheckFailure([found[program]])

        examples = NIGHTLY if self.nightly else EXAMPLES
        try:
            search(attempt, strategy([device.type for device in self.devices]), self.seed, examples)
        except CheckFailure:
            program, sentence = list(found.items())[-1]
            return f"{sentence} (found with --hypothesis-seed={self.seed})" if self.nightly else sentence, program
        return None
