"""The rules of the linter, and what one report says."""

from __future__ import annotations

from dataclasses import asdict, dataclass

_DOCUMENT = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/JIT-AUTOCAST.md"
_PASS = "https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/passes/autocast.cpp"
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


_ALL = (
    LintRule(
        "decorator",
        "a function decorated with autocast is scripted",
        "runs the function in the region",
        "is refused when it is compiled",
        "put `with torch.autocast(...):` around the function's body",
        False,
        _DOCUMENT,
    ),
    LintRule(
        "enabled-not-constant",
        "`enabled` is not a constant",
        "switches the region on or off at each call",
        "raises at the first call",
        "write a region for each case in an if statement, or choose before the scripted function is called",
        False,
        _DOCUMENT,
    ),
    LintRule(
        "dtype-not-constant",
        "`dtype` is not a constant",
        "runs the region in the dtype of each call",
        "runs it in the dtype of the region around its first call",
        "write a region for each dtype in an if statement",
        True,
        _PASS,
    ),
    LintRule(
        "device-not-constant",
        "the device type is not a constant",
        "opens the region on the device type of each call",
        "raises at the first call",
        "write the device type as a string",
        False,
        _PASS,
    ),
    LintRule(
        "bound",
        "the region's object is bound with `as` and used",
        "enters the object again",
        "raises at the first call",
        "write `torch.autocast(...)` at each with statement",
        False,
        _DOCUMENT,
    ),
    LintRule(
        "object-elsewhere",
        "the with statement enters an object that this function has not just made",
        "enters the object",
        "is refused",
        "write `torch.autocast(...)` in the with statement",
        False,
        _DOCUMENT,
    ),
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
        "disabled-in-script",
        "a scripted region is disabled",
        "runs the body without autocast",
        "runs it in autocast if the caller is in a region",
        "cast the inputs in the body, or disable autocast around the call",
        True,
        _DOCUMENT,
    ),
    LintRule(
        "dtype-in-script",
        "a scripted region has a dtype other than the device type's default",
        "runs the body in that dtype",
        "runs it in the caller's dtype if the caller is in a region",
        "open the region around the call of the scripted function",
        True,
        _DOCUMENT,
    ),
    LintRule(
        "unsupported-dtype",
        "the region's dtype is none that the device type's regions have",
        "warns and runs the body without autocast",
        "casts to it",
        "write torch.bfloat16 or torch.float16",
        True,
        _AMP,
    ),
    LintRule(
        "device-in-script",
        "a scripted region is on a device type that TorchScript's autocast does not know",
        "autocasts the body",
        "fails an internal assertion, or does not autocast",
        "open the region around the call of the scripted function",
        True,
        _PASS,
    ),
    LintRule(
        "policies-in-script",
        "an op has another policy in TorchScript",
        "runs the op by the list of the region's device type",
        "runs it by a list of its own",
        "call `torch._C._jit_set_autocast_mode(False)` and open the region around the call, or cast in the body",
        True,
        "https://github.com/pytorch/pytorch/issues/75956",
    ),
    LintRule(
        "left-to-python",
        "a function that TorchScript does not inline is called in a scripted region",
        "autocasts the callee",
        "runs it without autocast",
        "open the region in the callee",
        True,
        _PASS,
    ),
    LintRule(
        "query-in-script",
        "the autocast state is asked for",
        "answers with the state of the call",
        "refuses the call, answers without the scripted regions, or ends the process where autocast is on",
        "ask before the scripted function is called, and pass the answer",
        True,
        _PASS,
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
        "lost-in-trace",
        "a traced region is disabled, or has another dtype",
        "runs the body as the region says",
        "runs it in the caller's region, because tracing keeps no regions",
        "cast the inputs in the body, or open the region around the call of the traced program",
        True,
        _DOCUMENT,
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
    LintRule(
        "traced-callee",
        "a traced function with a disabled region is called in a region",
        "runs the callee's region without autocast",
        "autocasts it, because tracing dropped the region",
        "script the callee, or call it outside of regions",
        True,
        _DOCUMENT,
    ),
    LintRule(
        "scripted-callee",
        "a scripted function is called in a region of a traced program",
        "autocasts the callee",
        "runs it without autocast, because tracing dropped the region",
        "open the region in the scripted function, or around the call of the traced program",
        True,
        _DOCUMENT,
    ),
    LintRule(
        "trace-under-autocast",
        "torch.jit.trace is called in a region that keeps casts of weights",
        "casts the weights at each call",
        "fails, or holds weights in the lower precision as constants",
        "add `cache_enabled=False` to the region",
        True,
        "https://github.com/pytorch/pytorch/issues/84092",
    ),
)

RULES = {rule.id: rule for rule in _ALL}
"""Every rule of the static linter by its id."""


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
