"""Random small programs with regions, run eagerly and compiled: both must give the same dtypes, values and state.

A program is text: TorchScript reads it, and people paste it into reports. What compilers are known to do otherwise is
kept out of the programs by construction, see `Road`; each of those has a case of rule limits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import monotonic
from typing import Any

import hypothesis
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from ampcheck import seeds
from ampcheck.checks import CheckFailure, identical, one_line
from ampcheck.devices.base import Device
from ampcheck.executors.kinds import EXECUTORS, quiet
from ampcheck.isolation import reset
from ampcheck.lint import defined
from ampcheck.lint.record import state
from ampcheck.observe import tensors
from ampcheck.torch_dtypes import DTYPES, name_of

NIGHTLY = 600
SHRINKING = 5.0
"""For how many seconds a smaller program is looked for."""

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
    "F.layer_norm({0}, [2])",
    "torch.cumsum({0}, 1)",
    "torch.linalg.inv({0} + 2 * torch.eye(2, device={0}.device))",
    "{0} + {1}",
    "{0} * 2",
    "torch.pow({0}, 2)",
    "torch.cat([{0}, {1}])[:2]",
    "F.gelu({0})",
)
# An exported program asserts the dtype of what it casts, a wrong one in a region; see docs/findings.md,
# export-strict-metadata.
_CASTS = ("{0}.float()", "{0}.to(torch.bfloat16)")
# Tracing keeps a composite op whole and loses the casts of its parts (docs/findings.md, trace-loses-parts).
_COMPOSITE = (
    "torch.addmm({0}, {1}, {2})",  # TorchScript takes it apart, and rounds once more
    "torch.einsum('ij,jk->ik', {0}, {1})",
    "F.scaled_dot_product_attention({0}[None], {1}[None], {2}[None])[0]",
)


@dataclass(frozen=True)
class Road:
    """A way to compile. `ops`: what programs for it are made of. `exact`: whether the same kernels run as eagerly.

    `one_dtype`: whether the regions of a program name one dtype, the same for all; see docs/findings.md,
    script-keeps-first-dtype and script-casts-float32-only. `inside`: the ops of programs that are called in a region.
    `examples`: how many programs a run draws that is not nightly.
    """

    executor: str
    ops: tuple[str, ...]
    exact: bool = True
    one_dtype: bool = False
    inside: tuple[str, ...] = ()
    examples: int = 25


ROADS = {
    "jit": Road("script", (*_BOTH, "{0}.float()"), one_dtype=True, examples=60),
    "tracing": Road("traced", _BOTH + _LISTED + _CASTS, inside=_BOTH, examples=100),
    "bytecode": Road("dynamo", _BOTH + _LISTED + _CASTS + _COMPOSITE),
    "ep": Road("export", _BOTH + _LISTED + _COMPOSITE),
    "ep_tight": Road("strict", _BOTH + _LISTED + _COMPOSITE),
    "xla": Road("jaxjit", _BOTH + _LISTED + _CASTS + _COMPOSITE, exact=False),
}
"""The roads by the names their cases have."""


@dataclass(frozen=True)
class Program:
    """`text` defines `program`. `ambient`: the dtype of the region it is called in; "" for none.

    A program that is called in a region has none of its own, because a compiled region does not change the caller's.
    """

    text: str
    ambient: str = ""


_Lines = tuple[str, ...]
_Outcome = tuple[list[torch.Tensor], object]


def _indented(lines: Sequence[str]) -> _Lines:
    return tuple(f"    {line}" for line in lines)


@st.composite
def programs(draw: st.DrawFn, road: Road, device: Device) -> Program:
    """A program for a road: ops, regions that may nest, branches, loops and calls of a helper."""
    ambient = draw(st.sampled_from((*[""] * 6, *device.amp_dtypes)))
    ops = road.inside if ambient and road.inside else road.ops
    only = draw(st.sampled_from(device.amp_dtypes))
    count = iter(range(100))
    helpers: list[str] = []

    def call(known: list[str]) -> tuple[str, str]:
        name = f"v{next(count)}"
        chosen = [draw(st.sampled_from(known)) for _ in range(3)]
        return name, f"{name} = {draw(st.sampled_from(ops)).format(*chosen)}"

    def region(known: list[str], depth: int) -> _Lines:
        dtype = draw(st.sampled_from((only,) if road.one_dtype else ("", *device.amp_dtypes)))
        options = [repr(device.type), *([f"dtype={DTYPES[dtype]}"] if dtype else [])]
        options += ["enabled=False"] if draw(st.booleans()) else []
        return f"with torch.autocast({', '.join(options)}):", *_indented(block(known, depth + 1))

    def pair(known: list[str], depth: int) -> _Lines:
        """A region with a disabled one in it, and an op in each."""
        dtype = DTYPES[only if road.one_dtype else draw(st.sampled_from(device.amp_dtypes))]
        (outer, first), (inner, second) = call(known), call(known)
        known += [outer, inner]
        off = f"    with torch.autocast({device.type!r}, enabled=False):"
        return f"with torch.autocast({device.type!r}, dtype={dtype}):", f"    {first}", off, f"        {second}"

    def branch(known: list[str], depth: int) -> _Lines:
        name, first = call(known)
        _, second = call(known)
        other = f"{name} = {second.partition(' = ')[2]}"
        if draw(st.booleans()) and not ambient:  # one side in a region
            dtype = DTYPES[draw(st.sampled_from((only,) if road.one_dtype else device.amp_dtypes))]
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
        helpers.append("\n".join((f"def {title}(x, y):", *_indented(lines), f"    return {own[-1]}", "")))
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
    text = "\n".join((*helpers, "def program(a, b):", *_indented(body), f"    return {returned}", ""))
    return Program(text, ambient)


class Fuzzer:
    """Compares programs on one road. `compared` counts the results that were held against eager mode's."""

    def __init__(self, device: Device, road: str, *, nightly: bool = False, seed: str | int | None = None) -> None:
        self.device, self.road = device, ROADS[road]
        self.nightly, self.seed = nightly, seeds.of_programs(nightly, seed)
        self.compared = 0

    def difference(self, program: Program) -> str | None:
        """How the compiled program differs from the eager one, in a sentence, or None."""
        own = {self.device.type: self.device.default_amp}
        reset(own)
        try:
            with quiet():
                return self._difference(program)
        finally:
            reset(own)

    def _difference(self, program: Program) -> str | None:
        want = self._run(_defined(program.text), program)
        hypothesis.assume(not isinstance(want, Exception))  # matrices of two dtypes, and singular ones
        assert isinstance(want, tuple)
        try:
            with self._ambient(program):
                compiled = EXECUTORS[self.road.executor].make(_defined(program.text), self._inputs()).call
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

    def _ambient(self, program: Program) -> AbstractContextManager[object]:
        return self.device.autocast(program.ambient) if program.ambient else nullcontext()

    def _run(self, call: Callable[..., Any], program: Program) -> _Outcome | Exception:
        try:
            with torch.no_grad(), self._ambient(program):
                outputs = list(tensors(call(*self._inputs())))
                return outputs, state(self.device.type)
        except Exception as error:  # a program may raise anything
            return error

    def _compared(self, got: _Outcome, want: _Outcome, program: Program) -> str | None:
        self.compared += len(want[0])
        dtypes = [[name_of(x.dtype) for x in run[0]] for run in (got, want)]
        if dtypes[0] != dtypes[1]:
            return f"dtypes {dtypes[0]}; expected {dtypes[1]}"
        if got[1] != want[1]:
            return f"state {got[1]}; expected {want[1]}"
        for place, (a, b) in enumerate(zip(got[0], want[0], strict=True)):
            x, y = self.device.host(a), self.device.host(b)
            if x.shape != y.shape or not (identical(x, y) or (not self.road.exact and _near(x, y, program))):
                return f"result {place} is {x.tolist()}; expected {y.tolist()}"
        return None

    def explore(self) -> tuple[str, Program] | None:
        """The difference on the smallest drawn program that has one, and that program; None where there is none."""
        found: dict[Program, str] = {}
        first = 0.0

        def attempt(program: Program) -> None:
            nonlocal first
            if program not in found and (not found or monotonic() - first < SHRINKING):
                difference = self.difference(program)
                if difference:
                    first = first or monotonic()
                    found[program] = difference
            if program in found:
                found[program] = found.pop(program)  # the last one is the smallest at the end
                raise CheckFailure([found[program]])

        options = settings(
            max_examples=NIGHTLY if self.nightly else self.road.examples,
            database=None,
            deadline=None,
            phases=(Phase.generate, Phase.shrink),
            report_multiple_bugs=False,
            print_blob=False,
            suppress_health_check=list(HealthCheck),
        )
        try:
            options(hypothesis.seed(self.seed)(given(programs(self.road, self.device))(attempt)))()
        except CheckFailure:
            program, sentence = list(found.items())[-1]
            return (f"{sentence} (found with --hypothesis-seed={self.seed})" if self.nightly else sentence), program
        return None


def _defined(text: str) -> Callable[..., Any]:
    made = defined.module("program")
    whole = f"import torch\nimport torch.nn.functional as F\n\n{text}"
    defined.keep(f"{made.__name__}.py", whole)
    defined.run(whole, f"{made.__name__}.py", made)
    function: Callable[..., Any] = made.program
    return function


_LOOSE = 4


def _near(got: torch.Tensor, want: torch.Tensor, program: Program) -> bool:
    """Up to some roundings of the lowest dtype there may be: another compiler rounds elsewhere."""
    low = program.ambient or "autocast" in program.text or "bfloat16" in program.text
    bound = _LOOSE * torch.finfo(torch.bfloat16 if low else torch.float32).eps
    return torch.allclose(got.double(), want.double(), bound, bound, equal_nan=True)


_COMPILED = {
    "script": "compiled = torch.jit.script(program)",
    "traced": "compiled = torch.jit.trace(program, (a, b), check_trace=False)",
    "dynamo": 'compiled = torch.compile(program, backend="eager", fullgraph=True)',
    "export": "compiled = torch.export.export(Module(), (a, b)).module()",
    "strict": "compiled = torch.export.export(Module(), (a, b), strict=True).module()",
    "jaxjit": "compiled = jit(program)",
}
_MODULE = """
class Module(torch.nn.Module):
    def forward(self, a, b):
        return program(a, b)

"""


def text_of(program: Program, road: str, device: Device) -> str:
    """A program in plain torch: the dtypes of what it gives, eagerly and compiled."""
    executor = ROADS[road].executor
    lines = ["import torch", "import torch.nn.functional as F", *device.setup]
    lines += ["from ampcheck.jax_device import jit"] if executor == "jaxjit" else []
    values = "[[0.1, 0.7], [0.3, 1.3]], [[1.1, 0.2], [0.6, 0.9]]"
    lines += ["", program.text, f"a, b = (torch.tensor(x).to({device.type!r}) for x in ({values}))"]
    lines += [_MODULE] if executor in ("export", "strict") else []
    region = f"torch.autocast({device.type!r}, dtype={DTYPES[program.ambient or device.default_amp]}, "
    lines += [_COMPILED[executor], f"with torch.no_grad(), {region}enabled={bool(program.ambient)}):"]
    lines += [
        "    for call in (program, compiled, compiled):",
        "        print([x.dtype for x in call(a, b)], call(a, b))",
    ]
    return "\n".join(lines)
