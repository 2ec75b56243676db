"""Search for a random program on which two sides differ."""

from argparse import Namespace
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

from ampcheck.errors import CheckFailure
from ampcheck.runner.record import seed_of_programs

P = TypeVar("P", bound=Hashable)

SHRINKING = 5.0
"""For how many seconds a smaller program is looked for."""


@dataclass(frozen=True, slots=True)
class Search:
    """The way a run draws programs: always the same ones, or in a `nightly` run from the seed that was `given`, or else
    from the day's date (`seed_of_programs`)."""

    nightly: bool = False
    given: str | int | None = None

    @classmethod
    def of(cls, option: Namespace) -> "Search":
        """Return what the options of a pytest run ask for."""
        return cls(bool(option.nightly), getattr(option, "hypothesis_seed", None))

    @property
    def seed(self) -> int:
        """Return the seed that programs are drawn from."""
        return seed_of_programs(self.nightly, self.given)

    def first_difference(
        self,
        difference: Callable[[P], str | None],
        programs: SearchStrategy[P],
        *,
        examples: int,
        nightly: int,
        smaller: Callable[[P], Iterable[P]] | None = None,
    ) -> tuple[str, P] | None:
        """Return the difference on the smallest program found that has one, and the program; None without one.

        `difference`: runs a program, and says in a sentence how its sides differ. `examples`, `nightly`: how many
        programs a run draws. `smaller`: programs to try once Hypothesis has found its
        smallest, which is no shorter than the strategy allows.
        """
        found: dict[P, str] = {}
        first = 0.0

        def attempt(program: P) -> None:
            nonlocal first
            # Out of time for a smaller program: only those that were found differ, so that Hypothesis comes to an end.
            if program not in found and (not found or monotonic() - first < SHRINKING):
                sentence = difference(program)
                if sentence:
                    first = first or monotonic()
                    found[program] = sentence
            if program in found:
                found[program] = found.pop(program)  # Hypothesis runs the smallest one last
                raise CheckFailure([found[program]])

        options = settings(
            max_examples=nightly if self.nightly else examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            options(hypothesis.seed(self.seed)(given(programs)(attempt)))()
        except CheckFailure:
            program, sentence = list(found.items())[-1]
            while smaller and monotonic() - first < 2 * SHRINKING:
                tried = ((difference(less), less) for less in smaller(program))
                less = next(((one, less) for one, less in tried if one), None)
                if less is None:
                    break
                sentence, program = less
            return f"{sentence} (found with --hypothesis-seed={self.seed})" if self.nightly else sentence, program
        return None
