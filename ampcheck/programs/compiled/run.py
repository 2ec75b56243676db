"""Random small programs with regions, run eagerly and compiled: both must give the same dtypes, values and state.

A program is text: TorchScript reads it, and people paste it into reports. What compilers are known to do otherwise is
kept out of the programs by construction, see `CompilerPrograms`; each of those has a case of rule limits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from hypothesis import assume

from ampcheck.checks.compiled import ProgramOutcome, compare_programs, refusal, run_program, within
from ampcheck.checks.program import Needed, report, written
from ampcheck.compilers.kinds import COMPILERS, quiet, source_of_making
from ampcheck.devices.base import Device
from ampcheck.observe.closeness import rounding_bound
from ampcheck.observe.isolation import reset
from ampcheck.programs.compiled.strategies import FUZZED, CompiledProgram, CompilerPrograms, programs
from ampcheck.programs.search import Search
from ampcheck.spec.torch_dtypes import DTYPES
from ampcheck.tools.lint import defined

NIGHTLY = 600
ROUNDINGS = 4
"""By how many roundings of the lowest dtype that occurs a compiler that runs other kernels may be off."""


class Fuzzer:
    """Compares programs on one compiler. `compared` counts the results that were compared with eager mode's."""

    def __init__(self, device: Device, compiler: str, search: Search = Search()) -> None:  # noqa: B008  # frozen
        self.device, self.compiler, self._make = device, FUZZED[compiler], COMPILERS[compiler].make
        self.search = search
        self.compared = 0

    def difference(self, program: CompiledProgram) -> str | None:
        """Describe how the compiled program differs from the eager one in a sentence, or return None."""
        own = {self.device.type: self.device.default_amp}
        reset(own)
        try:
            with quiet():
                return self._difference(program)
        finally:
            reset(own)

    def _difference(self, program: CompiledProgram) -> str | None:
        want = self._run(_defined(program.text), program)
        assume(want.error is None)  # matrices of two dtypes, and singular ones
        try:
            with self._ambient(program):
                compiled = self._make(_defined(program.text), self._inputs()).call
        except Exception as error:  # a compiler may raise anything
            return refusal(error, None, "the program")[0]
        for turn in ("first", "second"):
            got = self._run(compiled, program)
            self.compared += len(want.outputs)
            host = self.device.host
            pairs = [(host(x), host(y)) for x, y in zip(got.outputs, want.outputs, strict=False)]
            found = compare_programs(got, want, f"the {turn} call")
            if found := found or within("result", pairs, partial(_near, program, self.compiler), f"the {turn} call"):
                return found[0]
        return None

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        values = torch.tensor([[0.1, 0.7], [0.3, 1.3]]), torch.tensor([[1.1, 0.2], [0.6, 0.9]])
        return tuple(value.to(self.device.type) for value in values)

    def _ambient(self, program: CompiledProgram) -> AbstractContextManager[object]:
        return self.device.autocast(program.ambient) if program.ambient else nullcontext()

    def _run(self, call: Callable[..., object], program: CompiledProgram) -> ProgramOutcome:
        return run_program(call, self._inputs, torch.no_grad(), self._ambient(program), self.device.type, False)

    def explore(self) -> tuple[str, CompiledProgram] | None:
        """Return the difference on the smallest random program that has one, and that program; None without one."""
        drawn, examples = programs(self.compiler, self.device), self.compiler.examples
        return self.search.first_difference(self.difference, drawn, examples=examples, nightly=NIGHTLY)


def _defined(text: str) -> Callable[..., Any]:
    made = defined.module("program")
    whole = f"import torch\nimport torch.nn.functional as F\n\n{text}"
    defined.keep(f"{made.__name__}.py", whole)
    defined.run(whole, f"{made.__name__}.py", made)
    function: Callable[..., Any] = made.program
    return function


def _near(program: CompiledProgram, compiler: CompilerPrograms, want: torch.Tensor) -> float:
    """Return how far results of a compiler may be from eager mode's."""
    return rounding_bound(want, [lowest(program)], 0 if compiler.exact else ROUNDINGS)


def lowest(program: CompiledProgram) -> torch.dtype:
    """Return the lowest dtype that occurs in a program."""
    low = program.ambient or "autocast" in program.text or "bfloat16" in program.text
    return torch.bfloat16 if low else torch.float32


_RUN = """\
def inputs():
    values = [[0.1, 0.7], [0.3, 1.3]], [[1.1, 0.2], [0.6, 0.9]]
    return tuple(torch.tensor(x).to({device!r}) for x in values)

def run(call):
    return run_program(call, inputs, torch.no_grad(), {region}, {device!r}, False)

want = run(program)
try:
    with {region}:
        compiled = {made}
except Exception as error:
    report("compiling", refusal(error, None, "the program"))
    raise SystemExit
for turn in ("first", "second"):
    got = run(compiled)
    pairs = [(x.cpu(), y.cpu()) for x, y in zip(got.outputs, want.outputs)]
    near = lambda want: rounding_bound(want, [{lowest}], {roundings})
    found = compare_programs(got, want, f"the {{turn}} call")
    report(f"the {{turn}} call", found or within("result", pairs, near, f"the {{turn}} call"))"""


def text_of(program: CompiledProgram, compiler: str, device: Device) -> str:
    """Return a program in plain torch, eagerly and compiled, which prints what a case prints."""
    how, made = source_of_making(compiler, "program", "inputs()")
    region = f"torch.autocast({device.type!r}, dtype={DTYPES[program.ambient]})" if program.ambient else "nullcontext()"
    roundings = 0 if FUZZED[compiler].exact else ROUNDINGS
    made = _RUN.format(
        device=device.type, region=region, made=f"{made}.call", lowest=lowest(program), roundings=roundings
    )
    needed: list[Needed] = [how, nullcontext, run_program, compare_programs, refusal, within, rounding_bound, report]
    return written(device, (), needed, ["import torch.nn.functional as F", program.text.rstrip(), made])
