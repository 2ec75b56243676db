"""Make a kernel of a PrivateUse1 backend wrong in many ways, check each, and run the program that the check writes.

python tests/reproduce/wrong_ways.py   prints, for each way, what the check says and what its program prints, as JSON
"""

from __future__ import annotations

import contextlib
import io
import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.library import Library

sys.path.insert(0, str(Path(__file__).parents[1] / "backends"))

import partial
from partial import BACKEND, NAME

from ampcheck.checks.backward import BackwardCheck
from ampcheck.checks.base import Check
from ampcheck.checks.forward import ForwardCheck
from ampcheck.errors import Broken
from ampcheck.spec.case import Case

DEVICE = partial.DEVICES[0]
FORWARD = Case("eager", "downcast", "mm", "", "fp32", "fp16", NAME, NAME)
BACKWARD = Case("autograd", "downcast", "mm", "", "fp32-grad", "fp16", NAME, NAME)

Wrong = Callable[..., torch.Tensor]
inside = False
"""Whether the kernel is called by autocast's own one."""


def raising(error: Exception) -> Wrong:
    def kernel(op: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        raise error

    return kernel


WAYS: dict[str, Wrong] = {
    "strides": lambda op, x, y: op(x, y).t().contiguous().t(),
    "shape": lambda op, x, y: op(x, y)[:1],
    "dtype": lambda op, x, y: op(x, y).double(),
    "values": lambda op, x, y: op(x, y) * 1.5,
    "an exception": raising(IndexError("a bug\nof two lines")),
    "large values": lambda op, x, y: op(x, y).clamp(-10, 10),
}
"""What is wrong, and a kernel that is wrong so: in a region alone, and everywhere, which makes the op broken."""


@contextmanager
def autocast_kernel(kernel: Callable[..., Any]) -> Iterator[None]:
    """Give the op another kernel under autocast's key."""
    library = Library("aten", "IMPL")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it replaces one
        library.impl("mm", kernel, "AutocastPrivateUse1", allow_override=True)
    try:
        yield
    finally:
        library._destroy()


def _below(x: torch.Tensor, y: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    global inside
    keys = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)
    with torch._C._ExcludeDispatchKeyGuard(keys):
        inside = True
        try:
            return torch.mm(x.to(dtype), y.to(dtype))
        finally:
            inside = False


def noting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Do what autocast does, and let the kernel know."""
    return _below(x, y, torch.float16)


def not_casting(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Cast to no lower precision."""
    return _below(x, y, torch.float32)


def raising_early(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Raise before the op's kernel is called."""
    raise IndexError("early")


def found(check: Check, case: Case) -> dict[str, Any]:
    """Return what a check says of a case, and what its program prints."""
    status = "fail"
    try:
        differences = check.run(case, DEVICE)
    except Broken as broken:
        status, differences = "broken", broken.differences
    program = check.program(case, DEVICE, "\n".join(differences), ("partial",))
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        exec(compile(program, "program", "exec"), {"__name__": "__main__"})
    return {
        "status": status if differences else "pass",
        "differences": differences,
        "printed": printed.getvalue(),
        "lines": len(program.splitlines()),
        "names ampcheck": "ampcheck" in program,
    }


def main() -> dict[str, dict[str, Any]]:
    """Check the op in every way."""
    out = {"right": found(ForwardCheck(), FORWARD), "right gradient": found(BackwardCheck(), BACKWARD)}
    for name, kernel in (("what it receives", not_casting), ("an early exception", raising_early)):
        with autocast_kernel(kernel):
            out[f"{name} in a region"] = found(ForwardCheck(), FORWARD)
            out[f"gradient: {name} in a region"] = found(BackwardCheck(), BACKWARD)
    for name, wrong in WAYS.items():
        for where in ("in a region", "everywhere"):

            def mutant(op: Any, *given: Any, wrong: Wrong = wrong, where: str = where) -> torch.Tensor:
                made: torch.Tensor = wrong(op, *given) if inside or where == "everywhere" else op(*given)
                return made

            BACKEND.mutants["mm"] = mutant
            with autocast_kernel(noting):
                out[f"{name} {where}"] = found(ForwardCheck(), FORWARD)
                if name in ("values", "an exception"):
                    out[f"gradient: {name} {where}"] = found(BackwardCheck(), BACKWARD)
            BACKEND.mutants.clear()
    return out


if __name__ == "__main__":
    print(json.dumps(main()))
