"""Random small programs with regions, run eagerly and compiled: both must give the same dtypes, values and state.

A program is text: TorchScript reads it, and people paste it into reports. What compilers are known to do otherwise is
kept out of the programs by construction, see `CompilerPrograms`; each of those has a case of rule limits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from hypothesis import assume

from ampcheck.checks.program import written
from ampcheck.compilers.kinds import COMPILERS, quiet, source_of_making
from ampcheck.devices.base import Device
from ampcheck.errors import one_line
from ampcheck.observe.closeness import alike, identical
from ampcheck.observe.isolation import reset
from ampcheck.observe.recorder import tensors
from ampcheck.observe.torch_private import pytree
from ampcheck.programs.compiled.strategies import FUZZED, CompiledProgram, programs
from ampcheck.programs.search import Search
from ampcheck.spec.torch_dtypes import DTYPES, name_of
from ampcheck.tools.lint import defined
from ampcheck.tools.lint.record import state
from ampcheck.tools.lint.reproduce import CHECK

NIGHTLY = 600
_Outcome = tuple[list[torch.Tensor], object]


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
        assume(not isinstance(want, Exception))  # matrices of two dtypes, and singular ones
        assert isinstance(want, tuple)
        try:
            with self._ambient(program):
                compiled = self._make(_defined(program.text), self._inputs()).call
        except Exception as error:  # a compiler may raise anything
            return f"compiling raised {one_line(error)}"
        for turn in ("first", "second"):
            got = self._run(compiled, program)
            if isinstance(got, Exception):
                return f"the {turn} call raised {one_line(got)}; eager mode runs it"
            if found := self._compared(got, want, program):
                return f"{found} in the {turn} call"
        return None

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        values = torch.tensor([[0.1, 0.7], [0.3, 1.3]]), torch.tensor([[1.1, 0.2], [0.6, 0.9]])
        return tuple(value.to(self.device.type) for value in values)

    def _ambient(self, program: CompiledProgram) -> AbstractContextManager[object]:
        return self.device.autocast(program.ambient) if program.ambient else nullcontext()

    def _run(self, call: Callable[..., Any], program: CompiledProgram) -> _Outcome | Exception:
        try:
            with torch.no_grad(), self._ambient(program):
                outputs = list(tensors(call(*self._inputs())))
                return outputs, state(self.device.type)
        except Exception as error:  # a program may raise anything
            return error

    def _compared(self, got: _Outcome, want: _Outcome, program: CompiledProgram) -> str | None:
        self.compared += len(want[0])
        dtypes = [[name_of(x.dtype) for x in run[0]] for run in (got, want)]
        if dtypes[0] != dtypes[1]:
            return f"dtypes {dtypes[0]}; expected {dtypes[1]}"
        if got[1] != want[1]:
            return f"state {got[1]}; expected {want[1]}"
        for place, (a, b) in enumerate(zip(got[0], want[0], strict=True)):
            x, y = self.device.host(a), self.device.host(b)
            if not (identical(x, y) or (not self.compiler.exact and alike(x, y, _bound(program)))):
                return f"result {place} is {x.tolist()}; expected {y.tolist()}"
        return None

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


_LOOSE = 4


def _bound(program: CompiledProgram) -> float:
    """Return some roundings of the lowest dtype that occurs, for another compiler rounds elsewhere."""
    low = program.ambient or "autocast" in program.text or "bfloat16" in program.text
    return _LOOSE * torch.finfo(torch.bfloat16 if low else torch.float32).eps


_RUN = """\
def inputs():
    values = [[0.1, 0.7], [0.3, 1.3]], [[1.1, 0.2], [0.6, 0.9]]
    return tuple(torch.tensor(x).to({device!r}) for x in values)

def run(call):
    with torch.no_grad(), {region}:
        try:
            out = tree_leaves(call(*inputs()))
        except Exception as error:
            out = [error]
        state = torch.is_autocast_enabled({device!r}), torch.get_autocast_dtype({device!r})
    return [x for x in out if isinstance(x, (torch.Tensor, Exception))], state

def facts(out):
    return [(x.dtype, x.shape) if isinstance(x, torch.Tensor) else repr(x) for x in out]"""
_COMPARED = """\
with {region}:
    compiled = {made}
for turn in ("first", "second"):
    (want, after), (got, state) = run(program), run(compiled)
    check(f"dtypes and shapes that the {{turn}} call gives", facts(got), facts(want))
    check(f"state after the {{turn}} call", state, after)
    for place, (x, y) in enumerate(zip(got, want)):
        if facts([x]) == facts([y]) and isinstance(x, torch.Tensor):
            right = torch.allclose(x.cpu().double(), y.cpu().double(), {bound}, {bound}, equal_nan=True)
            print("ok  " if right else "FAIL", f"result {{place}} of the {{turn}} call | got", x, "| expected", y)"""


def text_of(program: CompiledProgram, compiler: str, device: Device) -> str:
    """Return a program in plain torch, eagerly and compiled, which prints what a case prints."""
    how, made = source_of_making(compiler, "program", "inputs()")
    region = f"torch.autocast({device.type!r}, dtype={DTYPES[program.ambient]})" if program.ambient else "nullcontext()"
    bound = 0.0 if FUZZED[compiler].exact else _bound(program)
    blocks = [
        "import torch.nn.functional as F",
        program.text.rstrip(),
        CHECK,
        _RUN.format(device=device.type, region=region),
        _COMPARED.format(region=region, made=f"{made}.call", bound=bound),
    ]
    return written(device, (), [how, nullcontext, pytree.tree_leaves], blocks)
