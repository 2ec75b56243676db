"""The record of a GradScaler's step: whether it was taken, and which gradients were not finite where it was not."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True, slots=True)
class Culprit:
    """A parameter whose gradient was not finite when it was checked: its name, and how many of its elements were what.

    Of a sparse gradient the elements it holds are counted.
    """

    name: str
    inf: int
    nan: int
    elements: int

    def __str__(self) -> str:
        bad = ", ".join(f"{count} {what}" for count, what in ((self.inf, "inf"), (self.nan, "nan")) if count)
        return f"{self.name} ({bad} of {self.elements})"


_TOLD = 2
"""How many parameters are named after the first one: a nan early in the backward pass reaches every one after it."""

Skip: TypeAlias = tuple[float, tuple[Culprit, ...]]


class WatchedStep:
    """One `scaler.step(optimizer)`. `number`: from 1 on, over all optimizers of the watch. `optimizer`: its name."""

    def __init__(self, number: int, optimizer: str, settle: Callable[[], Skip | None] | None) -> None:
        self.number = number
        self.optimizer = optimizer
        self._settle = settle
        self._skip: Skip | None = None

    def _skipped(self) -> Skip | None:
        if self._settle is not None:
            self._skip, self._settle = self._settle(), None
        return self._skip

    @property
    def taken(self) -> bool:
        """Return whether the parameters were updated. With a fused optimizer the first call waits for the device."""
        return self._skipped() is None

    @property
    def scale(self) -> float | None:
        """The scale at a step that was skipped; None for one that was taken."""
        skip = self._skipped()
        return skip[0] if skip else None

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """The parameters whose gradients were not finite, in the order in which the backward pass reached them.

        Gradients that came from no backward pass since the watch began come last, in the optimizer's order.
        """
        skip = self._skipped()
        return skip[1] if skip else ()

    def __str__(self) -> str:
        if self.taken:
            return f"step {self.number} of {self.optimizer} was taken"
        first, *others = [str(culprit) for culprit in self.culprits] or ["no gradient of its own"]
        more = f" and {len(others) - _TOLD} more" if len(others) > _TOLD else ""
        then = f", then in {', '.join(others[:_TOLD])}{more}" if others else ""
        return f"step {self.number} of {self.optimizer} was skipped at scale {self.scale:g}: first in {first}{then}"
