"""Random programs with regions, as text, for each compiler. What compilers are known to do otherwise is kept out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from ampcheck.devices.base import Device
from ampcheck.spec.torch_dtypes import DTYPES

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
    `examples`: how many programs a run draws that is not nightly.
    """

    ops: tuple[str, ...]
    exact: bool = True
    one_dtype: bool = False
    inside: tuple[str, ...] = ()
    examples: int = 25


FUZZED = {
    "script": CompilerPrograms((*_BOTH, "{0}.float()"), one_dtype=True, examples=60),
    "traced": CompilerPrograms(_BOTH + _LISTED + _CASTS, inside=_BOTH, examples=100),
    "dynamo": CompilerPrograms(_BOTH + _LISTED + _CASTS + _COMPOSITE),
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


def _indented(lines: Sequence[str]) -> _Lines:
    return tuple(f"    {line}" for line in lines)


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
        return f"with torch.autocast({', '.join(options)}):", *_indented(block(known, depth + 1))

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
    return CompiledProgram(text, ambient)
