"""The search for a random program that fails."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import hypothesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.strategies import SearchStrategy

T = TypeVar("T")


def search(
    attempt: Callable[[T], None], strategy: SearchStrategy[T], seed: int, examples: int, *, shrink: bool = True
) -> None:
    """Call `attempt` with what a strategy draws, until it raises; then, to `shrink`, with ever smaller ones that do.

    Raises what the last attempt that failed did.
    """
    options = settings(
        max_examples=examples,
        database=None,
        deadline=None,
        phases=(Phase.generate, Phase.shrink) if shrink else (Phase.generate,),
        report_multiple_bugs=False,
        print_blob=False,
        suppress_health_check=list(HealthCheck),
    )
    options(hypothesis.seed(seed)(given(strategy)(attempt)))()
