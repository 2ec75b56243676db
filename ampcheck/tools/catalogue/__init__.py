"""The catalogue of mistakes in programs that use mixed precision: what `ampcheck doctor` looks for, in `rules.toml`.

Importing this package imports no torch.
"""

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
        example: a program with the mistake. See `mended` for its comments.
    """

    id: str
    name: str
    sentence: str
    why: str
    instead: str
    source: str
    costs: str
    found: tuple[str, ...]
    example: str

    @property
    def wrong(self) -> str:
        """Return the example as a user writes it, with the mistake."""
        return "".join(line[1:] for line in as_diff(self.example).splitlines(keepends=True) if line[0] != "+")

    @property
    def right(self) -> str:
        """Return the example without the mistake."""
        return mended(self.example)


def as_diff(program: str) -> str:
    """Return a program with the mistake and its mend as a diff, without headers.

    A line that ends in `# wrong` is left out of the mended program, and a comment `# right: CODE` is a line of it.
    """
    out = []
    for line in program.splitlines():
        wrong, right = line.removesuffix("  # wrong"), line.partition("# right: ")
        out.append(f"+{right[0]}{right[2]}" if right[1] else f"{' ' if wrong == line else '-'}{wrong}")
    return "\n".join(out) + "\n"


def mended(program: str) -> str:
    """Return a program without the mistake that its comments mark."""
    return "".join(line[1:] for line in as_diff(program).splitlines(keepends=True) if line[0] != "-")


def _read() -> dict[str, MistakeRule]:
    rules = tomllib.loads((Path(__file__).with_name("rules.toml")).read_text(encoding="utf-8"))
    return {name: MistakeRule(name=name, **{**rule, "found": tuple(rule["found"])}) for name, rule in rules.items()}


RULES = _read()
"""Every rule by its name, in the order of ids."""
