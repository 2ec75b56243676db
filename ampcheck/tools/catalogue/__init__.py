"""The catalogue of mistakes in programs that use mixed precision: what `ampcheck doctor` looks for, in `rules.toml`.

Importing this package imports no torch.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

COSTS = ("loss of the run", "wrong gradients", "lost accuracy", "lost time")
"""What a mistake costs, the dearest first."""


@dataclass(frozen=True, slots=True)
class MistakeRule:
    """One mistake.

    Attributes:
        id: "AMP001" and so on; a rule keeps its number.
        name: its name, in words.
        sentence: what is wrong.
        why: what follows from it.
        instead: what to write, a sentence without its full stop.
        source: where PyTorch says so.
        costs: one of `COSTS`.
        found: how it is found: "static" by reading files, "dynamic" by watching a run.
    """

    id: str
    name: str
    sentence: str
    why: str
    instead: str
    source: str
    costs: str
    found: tuple[str, ...]


def _read() -> dict[str, MistakeRule]:
    rules = tomllib.loads((Path(__file__).with_name("rules.toml")).read_text(encoding="utf-8"))
    return {name: MistakeRule(name=name, **{**rule, "found": tuple(rule["found"])}) for name, rule in rules.items()}


RULES = _read()
"""Every rule by its name, in the order of ids."""
