"""A limitation as a case: a program, and whether it acts compiled as in eager mode or is refused with a reason."""

import tomllib
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ampcheck.checks.program import expression, written
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.samples.describe import TensorArg
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.lint import defined
from ampcheck.tools.lint.compare import check_scripted
from ampcheck.tools.lint.record import differences, refusal
from ampcheck.tools.lint.rules import RULES, Diagnostic
from ampcheck.tools.lint.static import lint_source

_TABLE = tomllib.loads(Path(__file__).with_name("limits.toml").read_text(encoding="utf-8"))


@dataclass(frozen=True)
class Limit:
    """A limitation.

    `text`: what defines `program`, of two matrices; in it {device}, {dtype} and {other} are replaced by the scenario's.
    `finds`: the rules under which the linter must report the program; none for one that compilers do right.
    `says`: what a refusal must say, as PyTorch's way to tell of the limitation.
    `dynamic`: whether `check_scripted` must report it; None where it must if the linter must.
    """

    compiler: str
    text: str
    finds: tuple[str, ...] = ()
    says: str = ""
    dynamic: bool | None = None

    def source(self, device: Device, dtype: torch.dtype, other: torch.dtype) -> str:
        """Return the program and its compilation, without imports."""
        text = self.text.strip("\n")
        for name, value in {"{device}": repr(device.type), "{dtype}": str(dtype), "{other}": str(other)}.items():
            text = text.replace(name, value)
        return f"{text}\n\n{_TABLE['compilation'][self.compiler]}\n"


def _as_module(text: str) -> str:
    """Make the program the forward of a module, as export takes modules."""
    head, _, body = text.strip("\n").rpartition("def program(a, b):\n")
    decorator = head.splitlines()[-1] if head.rstrip().endswith(")") and head.splitlines()[-1].startswith("@") else ""
    head = head[: len(head) - len(decorator) - 1] if decorator else head
    lines = [decorator, "def forward(self, a, b):", *body.splitlines()]
    inner = "\n".join(f"    {line}" for line in lines if line)
    return f"{head}class Program(torch.nn.Module):\n{inner}\n\nprogram = Program()\n"


def limits(compiler: str) -> dict[str, Limit]:
    """Return the limitations of a compiler, by name, as limits.toml has them."""
    found = {}
    for name, row in _TABLE[compiler].items():
        text = row["text"] if "text" in row else _TABLE["shared"][row["of"]]
        text = _as_module(text) if compiler in ("export", "strict") else text
        found[name] = Limit(compiler, text, tuple(row.get("finds", ())), row.get("says", ""), row.get("dynamic"))
    return found


_IMPORTS = "import torch\nimport torch.nn.functional as F\nfrom typing import Optional\n\n"


class Made:
    """A limit's program, defined; `compiled` is None where compiling was refused with `error`."""

    def __init__(self, limit: Limit, name: str, amp: DeviceAmp) -> None:
        self.inputs = amp.rand(2, 2), amp.rand(2, 2)
        self.text = _IMPORTS + limit.source(amp.device, amp.dtype, amp.other)
        self.file = f"{name}-{limit.compiler}-{name_of(amp.dtype)}.py"
        defined.keep(self.file, self.text)
        module = defined.module("limit", {"a": self.inputs[0], "b": self.inputs[1]})
        head, _, last = self.text.rstrip("\n").rpartition("\n")
        defined.run(head, self.file, module)
        self.program: Any = module.program
        self.compiled: Any = None
        self.error: Exception | None = None
        try:
            defined.run(last, self.file, module)
            self.compiled = module.compiled
        except Exception as error:  # a compiler may raise anything
            self.error = error


@contextmanager
def _told() -> Iterator[None]:
    """Ignore the warnings that eager mode gives of a region."""
    with quiet():
        warnings.filterwarnings("ignore", message=r"In \w+ autocast", category=UserWarning)
        warnings.filterwarnings("ignore", message=r".*should not be instantiated", category=DeprecationWarning)
        warnings.filterwarnings("ignore", message=r"User provided device_type", category=UserWarning)
        yield


def check(amp: DeviceAmp, limit: Limit, name: str) -> None:
    """Note where the compiled program does another thing than the eager one, and no clear message says so."""
    with _told():
        made = Made(limit, name, amp)
        if made.error is not None:
            amp.assert_equal("what compiling gives", *refusal(made.error, limit.says))
            return
        regions = (amp.dtype, amp.other)
        for what, got, want in differences(made.program, made.compiled, made.inputs, amp.type, regions, limit.says):
            amp.assert_equal(what, got, want)


def check_found(amp: DeviceAmp, limit: Limit, name: str) -> None:
    """Note where the linter, or `check_scripted`, misses the limit, or reports a program that is compiled right."""
    with _told():
        made = Made(limit, name, amp)
        reports = [one for one in lint_source(made.text, made.file, RULES) if isinstance(one, Diagnostic)]
        compiler = limit.compiler.replace("strict", "export")
        found = sorted({report.rule for report in reports if report.compiler == compiler or report.rule in limit.finds})
        amp.assert_equal("rules that the linter reports", found, sorted(limit.finds))
        unplaced = [str(report) for report in reports if report.line < 1 or report.column < 1 or not report.instead]
        amp.assert_equal("reports without a line, a column or advice", unplaced, [])
        if limit.compiler == "strict":
            return
        seen = check_scripted(made.program, *made.inputs, compilers=(limit.compiler,))
        wanted = bool(limit.finds) if limit.dynamic is None else limit.dynamic
        amp.assert_equal("whether check_scripted finds a difference", bool(seen), wanted)
        lost = [str(report) for report in seen if report.file != made.file or report.line < 1]
        amp.assert_equal("differences without a line of the program", lost, [])


def of_limit(limit: Limit, amp: DeviceAmp) -> str:
    """Write a limit in plain torch that prints `ok` or `FAIL` for each thing looked at, with what was expected."""
    a, b = (expression(TensorArg((2, 2), None, "unit", seed=n), "fp32", 0, amp.device)[0] for n in (1, 2))
    text, _, last = limit.source(amp.device, amp.dtype, amp.other).rstrip("\n").rpartition("\n")
    marks = {"F.": "import torch.nn.functional as F\n", "Optional[": "from typing import Optional\n"}
    imports = "".join(line for mark, line in marks.items() if mark in text)
    told = _TABLE["reproduction"]
    compared = told["compared"].format(compile=last, says=limit.says, type=amp.type, dtype=amp.dtype, other=amp.other)
    lines = [told["check"].rstrip("\n"), f"a = {a}\nb = {b}", imports + text.rstrip("\n"), compared]
    return written(amp.device, (), [differences, refusal], lines)
