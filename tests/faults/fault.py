"""What a planted fault is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A promise that this process's torch breaks while `plant()` is entered, and keeps again afterwards.

    `name`: says what is wrong. `rule`: the rule broken, whose file in `suite` must go red. `options`: the slice of that
    file to run, as pytest options. `says`: what a red case's message must mention: the op, or the state and its values.
    """

    name: str
    rule: str
    plant: Callable[[], AbstractContextManager[object]]
    says: tuple[str, ...]
    options: tuple[str, ...]
    suite: str = "eager"

    @property
    def slice(self) -> tuple[str, ...]:
        """The pytest arguments that select its cases."""
        return (f"suites/{self.suite}/test_{self.rule}.py", *self.options)
