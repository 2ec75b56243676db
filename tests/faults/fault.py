"""What a planted fault is."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

from ampcheck.spec.ids import rule_of

Plant = Callable[[], AbstractContextManager[object]]
"""Breaks a promise while what it returns is entered."""

_SUITES = Path(__file__).resolve().parents[2] / "suites"


@dataclass(frozen=True)
class Fault:
    """A promise that this process's torch breaks while `plant()` is entered, and keeps again afterwards.

    `name`: says what is wrong. `rule`: the rule broken, whose file in `suite` must go red. `options`: the slice of that
    file to run, as pytest options. `says`: what a red case's message must mention: the op, or the state and its values.
    `scenario`: the scenario whose case must say it, where not any case of the slice may.
    """

    name: str
    rule: str
    plant: Plant
    says: tuple[str, ...]
    options: tuple[str, ...]
    suite: str = "eager"
    scenario: str = ""

    @property
    def slice(self) -> tuple[str, ...]:
        """The pytest arguments that select its cases."""
        files = (_SUITES / self.suite).glob(f"test_{self.rule}*.py")
        return (*sorted(str(file) for file in files if rule_of(file.stem) == self.rule), *self.options)

    def seen_by(self, scenario: str, says: str) -> Fault:
        """The same fault, which a scenario must catch in bf16; of another rule it is called `suite/rule/scenario`."""
        suite, rule, name = scenario.split("/") if "/" in scenario else (self.suite, self.rule, scenario)
        return replace(
            self,
            name=f"{self.name}-by-{name}",
            rule=rule,
            says=(says,),
            options=("--device=cpu", "--amp-dtype=bf16", "-k", f"test_{name}["),
            suite=suite,
            scenario=name,
        )

    def on_jax(self, only: str = "") -> Fault:
        """The same fault in the slice of the jax device; `only` narrows the slice as `-k` does."""
        *options, last = (option.replace("--device=cpu", "--device=jax") for option in self.options)
        return replace(self, options=(*options, f"({last}) and {only}" if only else last))
