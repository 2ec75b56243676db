"""Random small programs with regions, run eagerly and compiled: both must give the same dtypes, values and state.

A program is text: TorchScript reads it, and people paste it into reports. What compilers are known to do otherwise is
kept out of the programs by construction, see `CompilerPrograms`; each of those has a case of rule limits.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from hypothesis import assume
from hypothesis import strategies as st

from ampcheck.checks.compiled import ProgramOutcome, compare_programs, refusal, run_program, within
from ampcheck.checks.program import Needed, report, written
from ampcheck.compilers.kinds import COMPILERS, quiet, source_of_making
from ampcheck.devices.base import Device
from ampcheck.observe.closeness import rounding_bound
from ampcheck.observe.isolation import reset
from ampcheck.programs.regions import indented
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
            when, roundings = f"the {turn} call", 0 if self.compiler.exact else ROUNDINGS
            near = partial(rounding_bound, dtypes=[lowest(program)], roundings=roundings)
            found = compare_programs(got, want, when) or within("result", pairs, near, when)
            slopes = [
                (host(x), host(y))
                for x, y in zip(got.grads, want.grads, strict=False)
                if x is not None and y is not None
            ]
            if found := found or within("gradient", slopes, near, when):
                return found[0]
        return None

    def _inputs(self) -> tuple[torch.Tensor, ...]:
        values = torch.tensor([[0.1, 0.7], [0.3, 1.3]]), torch.tensor([[1.1, 0.2], [0.6, 0.9]])
        return tuple(value.to(self.device.type).requires_grad_(self.compiler.grads) for value in values)

    def _ambient(self, program: CompiledProgram) -> AbstractContextManager[object]:
        return self.device.autocast(program.ambient) if program.ambient else nullcontext()

    def _run(self, call: Callable[..., object], program: CompiledProgram) -> ProgramOutcome:
        grads, ambient = self.compiler.has_grads(program), self._ambient(program)
        return run_program(call, self._inputs, torch.set_grad_enabled(grads), ambient, self.device.type, grads)

    def explore(self) -> tuple[str, CompiledProgram] | None:
        """Return the difference on the smallest random program that has one, and that program; None without one."""
        drawn, examples = programs(self.compiler, self.device), self.compiler.examples
        if not self.device.database:  # each program of it takes long
            examples //= 4
        return self.search.first_difference(self.difference, drawn, examples=examples, nightly=NIGHTLY)


def _defined(text: str) -> Callable[..., Any]:
    made = defined.module("program")
    whole = f"import torch\nimport torch.nn.functional as F\n\n{text}"
    defined.keep(f"{made.__name__}.py", whole)
    defined.run(whole, f"{made.__name__}.py", made)
    function: Callable[..., Any] = made.program
    return function


def lowest(program: CompiledProgram) -> torch.dtype:
    """Return the lowest dtype that occurs in a program."""
    low = program.ambient or "autocast" in program.text or "bfloat16" in program.text
    return torch.bfloat16 if low else torch.float32


def text_of(program: CompiledProgram, compiler: str, device: Device) -> str:
    """Return a program in plain torch, eagerly and compiled, which prints what a case prints."""
    how, made = source_of_making(compiler, "program", "inputs()")
    region = f"torch.autocast({device.type!r}, dtype={DTYPES[program.ambient]})" if program.ambient else "nullcontext()"
    drawn = FUZZED[compiler]
    given: dict[str, object] = {"device": device.type, "region": region, "made": f"{made}.call"}
    given |= {"lowest": lowest(program), "roundings": 0 if drawn.exact else ROUNDINGS}
    run = Path(__file__).parent / "templates" / "compiled.txt"
    made = run.read_text(encoding="utf-8").format(**given, grads=drawn.grads, with_grads=drawn.has_grads(program))
    needed: list[Needed] = [how, nullcontext, run_program, compare_programs, refusal, within, rounding_bound, report]
    return written(device, (), needed, ["import torch.nn.functional as F", program.text.rstrip(), made])


_BOTH = (
    "torch.mm({0}, {1})",
    "{0} @ {1}",
    "F.linear({0}, {1})",
    "torch.relu({0})",
    "torch.tanh({0})",
    "torch.softmax({0}, 1)",
    "{0}.reshape(4).reshape(2, 2)",
)
# TorchScript's list has another policy for these on the CPU (pytorch#75956), and promotes sums and products always.
_LISTED = (
    "torch.exp({0})",
    "F.layer_norm({0}, [2, 2])",  # of two elements each would be 1 or -1, and its gradient nothing but rounding
    "torch.cumsum({0}, 1)",
    "torch.linalg.inv({0} + 2 * torch.eye(2, device={0}.device))",
    "{0} + {1}",
    "{0} * 2",
    "torch.pow({0}, 2)",
    "torch.cat([{0}, {1}])[:2]",
    "F.gelu({0})",
)
# An exported program asserts the dtype of what it casts, a wrong one in a region; see docs/findings,
# export-strict-metadata.
_CASTS = ("{0}.float()", "{0}.to(torch.bfloat16)")
# Tracing keeps a composite op whole and loses the casts of its parts (docs/findings, trace-loses-parts).
_COMPOSITE = (
    "torch.addmm({0}, {1}, {2})",  # TorchScript takes it apart, and rounds once more
    "torch.einsum('ij,jk->ik', {0}, {1})",
    "F.scaled_dot_product_attention({0}[None], {1}[None], {2}[None])[0]",
)


@dataclass(frozen=True)
class CompilerPrograms:
    """The programs for a compiler. `ops`: what programs for it are made of. `exact`: whether the same kernels run as
    eagerly.

    `one_dtype`: whether the regions of a program name one dtype, the same for all; see docs/findings,
    script-keeps-first-dtype and script-casts-float32-only. `inside`: the ops of programs that are called in a region.
    `grads`: whether gradients are compared, too. `examples`: how many programs a run draws that is not nightly.
    """

    ops: tuple[str, ...]
    exact: bool = True
    one_dtype: bool = False
    inside: tuple[str, ...] = ()
    grads: bool = False
    examples: int = 25

    def has_grads(self, program: CompiledProgram) -> bool:
        """Return whether its gradients are compared: a setting says in which of the regions around it they are made."""
        return self.grads and not program.ambient


FUZZED = {
    "script": CompilerPrograms((*_BOTH, "{0}.float()"), one_dtype=True, examples=60),
    "traced": CompilerPrograms(_BOTH + _LISTED + _CASTS, inside=_BOTH, examples=100),
    "dynamo": CompilerPrograms(_BOTH + _LISTED + _CASTS + _COMPOSITE, grads=True),
    "aot": CompilerPrograms(_BOTH + _LISTED + _CASTS + _COMPOSITE, exact=False, grads=True, examples=12),
    "export": CompilerPrograms(_BOTH + _LISTED + _COMPOSITE),
    "strict": CompilerPrograms(_BOTH + _LISTED + _COMPOSITE),
    "jaxjit": CompilerPrograms(_BOTH + _LISTED + _CASTS + _COMPOSITE, exact=False),
}
"""The compilers by the names their cases have."""


@dataclass(frozen=True)
class CompiledProgram:
    """`text` defines `program`. `ambient`: the dtype of the region it is called in; "" for none.

    A program that is called in a region contains none, because a compiled region does not change the caller's.
    """

    text: str
    ambient: str = ""


_Lines = tuple[str, ...]


@st.composite
def programs(draw: st.DrawFn, compiler: CompilerPrograms, device: Device) -> CompiledProgram:
    """Draw a program for a compiler: ops, regions that may nest, branches, loops and calls of a helper."""
    ambient = draw(st.sampled_from((*[""] * 6, *device.amp_dtypes)))
    ops = compiler.inside if ambient and compiler.inside else compiler.ops
    only = draw(st.sampled_from(device.amp_dtypes))
    count = iter(range(100))
    helpers: list[str] = []

    def call(known: list[str]) -> tuple[str, str]:
        name = f"v{next(count)}"
        chosen = [draw(st.sampled_from(known)) for _ in range(3)]
        return name, f"{name} = {draw(st.sampled_from(ops)).format(*chosen)}"

    def region(known: list[str], depth: int) -> _Lines:
        dtype = draw(st.sampled_from((only,) if compiler.one_dtype else ("", *device.amp_dtypes)))
        options = [repr(device.type), *([f"dtype={DTYPES[dtype]}"] if dtype else [])]
        options += ["enabled=False"] if draw(st.booleans()) else []
        return f"with torch.autocast({', '.join(options)}):", *indented(block(known, depth + 1))

    def pair(known: list[str], depth: int) -> _Lines:
        """Draw a region with a disabled one in it, and an op in each."""
        dtype = DTYPES[only if compiler.one_dtype else draw(st.sampled_from(device.amp_dtypes))]
        (outer, first), (inner, second) = call(known), call(known)
        known += [outer, inner]
        off = f"    with torch.autocast({device.type!r}, enabled=False):"
        return f"with torch.autocast({device.type!r}, dtype={dtype}):", f"    {first}", off, f"        {second}"

    def branch(known: list[str], depth: int) -> _Lines:
        name, first = call(known)
        _, second = call(known)
        other = f"{name} = {second.partition(' = ')[2]}"
        if draw(st.booleans()) and not ambient:  # one side in a region
            dtype = DTYPES[draw(st.sampled_from((only,) if compiler.one_dtype else device.amp_dtypes))]
            other = f"with torch.autocast({device.type!r}, dtype={dtype}): {other}"
        limit = draw(st.sampled_from((1, 3)))
        known.append(name)
        return f"if {known[0]}.size(0) > {limit}:", f"    {first}", "else:", f"    {other}"

    def loop(known: list[str], depth: int) -> _Lines:
        name = f"v{next(count)}"
        source = draw(st.sampled_from(known))
        step = draw(st.sampled_from(ops)).format(name, *(draw(st.sampled_from(known)) for _ in range(2)))
        known.append(name)
        return f"{name} = {source}", "for _ in range(2):", f"    {name} = {step}"

    def helper(known: list[str], depth: int) -> _Lines:
        own = ["x", "y"]
        lines = block(own, depth + 2)
        title = f"helper{len(helpers)}"
        helpers.append("\n".join((f"def {title}(x, y):", *indented(lines), f"    return {own[-1]}", "")))
        name = f"v{next(count)}"
        given = (draw(st.sampled_from(known)), draw(st.sampled_from(known)))
        known.append(name)
        return (f"{name} = {title}({given[0]}, {given[1]})",)

    def block(known: list[str], depth: int) -> _Lines:
        lines: list[str] = []
        nested: list[Callable[[list[str], int], _Lines]] = [branch, loop, helper] if depth < 3 else []
        if depth < 3 and not ambient:
            nested += [region, region, pair]
        if depth == 0 and not ambient:
            lines += draw(st.sampled_from((pair, region)))(known, depth)
        for _ in range(draw(st.integers(1, 3))):
            kind = draw(st.sampled_from((None, *nested)))
            if kind is None:
                name, line = call(known)
                known.append(name)
                lines.append(line)
            else:
                lines += kind(known, depth)
        return tuple(lines)

    known = ["a", "b"]
    body = block(known, 0)
    returned = ", ".join(known[2:]) + ("," if len(known) == 3 else "")
    text = "\n".join((*helpers, "def program(a, b):", *indented(body), f"    return {returned}", ""))
    return CompiledProgram(text, ambient)
