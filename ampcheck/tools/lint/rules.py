"""What a rule of the linter and one report say, and the rules that hold for every compiler."""

from __future__ import annotations

from dataclasses import asdict, dataclass

_DOCUMENT = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md"
_AMP = "https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast"
_CONTEXTS = "https://github.com/pytorch/pytorch/issues/62043"
_EXPORT = "https://docs.pytorch.org/docs/2.13/export.html"

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


GENERAL = (
    LintRule(
        "entered-twice",
        "a region's object is entered inside itself",
        "leaves autocast on after the outer region",
        "may put the state back, or is refused",
        "make a new object for each with statement",
        True,
        _DOCUMENT,
    ),
    LintRule(
        "query-frozen",
        "the autocast state is asked for",
        "answers with the state of each call",
        "keeps the answer it had when the program was compiled",
        "compile one program for each state",
        True,
        _EXPORT,
    ),
    LintRule(
        "state-change",
        "the autocast state is set by a function",
        "sets the state at each call",
        "refuses the call, or drops it after it has changed the state of the process that compiles",
        "use `with torch.autocast(...):`",
        True,
        _AMP,
    ),
    LintRule(
        "lost-in-fx",
        "a program with a region is traced symbolically",
        "runs the body in the region",
        "runs it without, because the graph holds no regions",
        "open the region around the call of the traced module, or use torch.export",
        True,
        _CONTEXTS,
    ),
    LintRule(
        "frozen",
        "an option of a region is not a constant",
        "takes the option's value at each call",
        "keeps the value it had when the program was compiled",
        "compile one program for each value",
        True,
        _EXPORT,
    ),
    LintRule(
        "default-dtype",
        "a region names no dtype",
        "takes the dtype of the region around it, at each call",
        "keeps the dtype it had when the program was traced or exported, or a scripted one was first called",
        "give the region its dtype",
        True,
        _EXPORT,
    ),
    LintRule(
        "custom-fwd",
        "the forward of an autograd function is decorated with custom_fwd",
        "casts and disables autocast in its forward wherever the caller is in a region",
        "does in every state what custom_fwd did in the state it was compiled in",
        "compile one program for each state, or put `with torch.autocast(..., enabled=False):` into the forward",
        True,
        _EXPORT,
    ),
)
"""The rules that are not TorchScript's alone."""


@dataclass(frozen=True, slots=True, order=True)
class Diagnostic:
    """One report: where, under which rule, and what differs. `line` and `column` count from 1; 0 where unknown.

    `compiler`: a key of `LINTED`. `silent`: whether PyTorch itself says nothing.
    """

    file: str
    line: int
    column: int
    rule: str
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

    def fields(self) -> dict[str, object]:
        """Its fields by name, for JSON."""
        return asdict(self)
