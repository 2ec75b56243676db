"""What a rule of the linter and one report say. The rules are in the files `rules.toml`."""

import ast
import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path

LINTED = {
    "script": "torch.jit.script",
    "traced": "torch.jit.trace",
    "fx": "torch.fx.symbolic_trace",
    "export": "torch.export.export",
}
"""The ways to compile a program that are looked at, and their names in reports."""


@dataclass(frozen=True, slots=True)
class LintRule:
    """One limitation. `silent`: whether PyTorch says nothing where it meets it.

    `eager` and `compiled` are what the eager and the compiled program do, `instead` what to write.
    """

    id: str
    what: str
    eager: str
    compiled: str
    instead: str
    silent: bool
    source: str


def _read(file: Path) -> dict[str, LintRule]:
    rules = tomllib.loads(file.read_text(encoding="utf-8"))
    return {name: LintRule(name, **fields) for name, fields in rules.items()}


_HERE = Path(__file__).parent
RULES = {**_read(_HERE / "torchscript" / "rules.toml"), **_read(_HERE / "rules.toml")}
"""Every rule of the static linter by its id."""


@dataclass(frozen=True, slots=True, order=True)
class _Placed:
    """A report's place and rule. `line` and `column` count from 1; 0 where unknown."""

    file: str
    line: int
    column: int
    rule: str

    def fields(self) -> dict[str, object]:
        """Its fields by name, for JSON."""
        return asdict(self)


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic(_Placed):
    """One report: where, under which rule, and what differs.

    `compiler`: a key of `LINTED`. `silent`: whether PyTorch itself says nothing.
    """

    compiler: str
    what: str
    eager: str
    compiled: str
    instead: str
    silent: bool

    def __str__(self) -> str:
        quietly = ", silently" if self.silent else ""
        return (
            f"{self.file}:{self.line}:{self.column}: {self.rule}: {self.what}. Eagerly PyTorch {self.eager}; "
            f"{LINTED[self.compiler]} {self.compiled}{quietly}. Instead: {self.instead}."
        )


def broken(name: str, file: str, node: ast.AST, compiler: str, what: str = "") -> Diagnostic:
    """Return the report of a rule that a node breaks. `what`: "" for the rule's own words."""
    rule, told = RULES[name], what or RULES[name].what
    return Diagnostic(file, *place(node), name, compiler, told, rule.eager, rule.compiled, rule.instead, rule.silent)


def place(node: ast.AST) -> tuple[int, int]:
    """Return the line and column of a node, from 1 on; 0 where it has none."""
    return getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1


@dataclass(frozen=True, slots=True, order=True)
class TrainingReport(_Placed):
    """A mistake in eager training code: where, which rule of the catalogue, what, and what to write instead."""

    id: str
    what: str
    why: str
    instead: str

    silent = True
    """PyTorch says nothing of most of them."""

    def __str__(self) -> str:
        what = self.what.rstrip(".")
        return f"{self.file}:{self.line}:{self.column}: {self.id} {self.rule}: {what}. Instead: {self.instead}."
