"""Ways in which the pass for TorchScript could do something else than eager autocast.

The suites have no cases of the pass; the agreement of rewritten programs with eager ones is measured in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any
from unittest.mock import patch

import torch

from ampcheck import torchscript
from ampcheck.devices.registry import select
from ampcheck.torchscript import ops, programs, rewrite
from ampcheck.torchscript.agreement import OURS, measure
from ampcheck.torchscript.regions import Builder, GraphState, States, scripted
from tests.faults.collecting import Result
from tests.faults.mutant import CPU, CUDA, Change, Inject, Mutant, returns, wrap
from tests.torchscript import programs as known_programs
from tests.torchscript.test_regions import AMBIENT, around, given

AGREEMENT = "torchscript/agreement"
_FLOAT32 = 6


def agreement(device: str, ids: Sequence[str]) -> list[Result]:
    """Compare rewritten programs, or regions of an overload, with eager mode."""
    return [_result(device, name) for name in ids]


def _result(device: str, name: str) -> Result:
    if name in {program.__name__ for program in known_programs.PROGRAMS}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has no is_autocast_enabled of a type
            texts = _of_program(name)
    else:
        measured = measure(select([device], [])[0], {OURS: torchscript.autocast}, name)
        texts = [text for one in measured for found in one.differences.get(OURS, {}).values() for text in found]
    suite, rule = AGREEMENT.split("/")
    status = "fail" if texts else "pass"
    return {"suite": suite, "rule": rule, "id": name, "status": status, "message": "\n".join(texts)}


def _of_program(name: str) -> list[str]:
    """Return the differences of a rewritten program from the eager one, in each state of its caller."""
    program = getattr(known_programs, name)
    rewritten = torchscript.autocast(scripted(program))
    out = []
    for ambient, dtype in AMBIENT.items():
        with around(dtype):
            want = program(*given(), True)
            try:
                got = rewritten(*given(), True)
            except RuntimeError as error:
                out.append(f"{name} in {ambient} raised {error}")
                continue
        for place, (g, w) in enumerate(zip(got, want, strict=True)):
            if g.dtype != w.dtype or not torch.equal(g, w):
                out.append(f"result {place} of {name} in {ambient} is {g.dtype}; expected {w.dtype}")
    return out


def rewriting(**changes: Change) -> Inject:
    """Replace methods of the pass."""
    return wrap(rewrite._Pass, **changes)


def ignores_disabled(own: Any, self: Any, node: Any, outer: States) -> States:
    true = self._build.constant(node, True)
    return {name: GraphState(true, state.dtype) for name, state in own(self, node, outer).items()}


def keeps_the_dtype(own: Any, self: Any, node: Any, outer: States) -> States:
    return {name: GraphState(state.enabled, outer[name].dtype) for name, state in own(self, node, outer).items()}


def leaks(own: Any, self: Any, node: Any, outer: States) -> States:
    inside = own(self, node, outer)
    outer.update(inside)
    return inside


def to_float32(own: Any, self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    """Promote to float32."""
    if together:
        kind, leading = "amp::autocast_cast", [*leading, self._build.constant(node, _FLOAT32)]
    own(self, node, kind, leading)


def never(own: Any, self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    if not together:
        own(self, node, kind, leading)


def each_alone(own: Any, self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    """Promote each tensor alone."""
    if not together:
        own(self, node, kind, leading)
        return
    for place, value in enumerate(list(node.inputs())):
        if str(value.type()) == "Tensor":
            node.replaceInput(place, self._build.values(node, kind, [*leading, value], [value.type()])[0])


def everything(own: Any, self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    """Cast every tensor."""
    if kind != "amp::autocast_cast":
        own(self, node, kind, leading, together=together)
        return
    false, none = self._build.constant(node, False), self._build.constant(node, None)
    for place, value in enumerate(list(node.inputs())):
        if str(value.type()) == "Tensor":
            taken = [value, leading[2], false, false, none]
            node.replaceInput(place, self._build.values(node, "aten::to", taken, [value.type()])[0])


def without(class_name: str) -> Inject:
    """Do not surround a program by the objects of a class."""

    def surround(own: Any, self: Any, device_types: tuple[str, ...]) -> States:
        before = len(list(self.graph.nodes()))
        states = own(self, device_types)
        added = len(list(self.graph.nodes())) - before
        ends = [node for node in self.graph.nodes() if node.kind() == "prim::Exit"][-2 - len(device_types) :]
        starts = [node for node in list(self.graph.nodes())[:added] if node.kind() == "prim::Enter"]
        for node in starts[: len(ends)] + ends:
            if str(node.inputsAt(0).type().annotation_str).endswith(class_name):
                node.destroy()
        return states

    return wrap(Builder, surround=surround)


def ignores_the_caller(own: Any, self: Any, device_types: tuple[str, ...]) -> States:
    first = next(iter(self.graph.nodes()))
    states = own(self, device_types)
    false = self.constant(first, False)
    return {name: GraphState(false, state.dtype) for name, state in states.items()}


def forgetting(kind: str) -> Inject:
    kept = {name: what for name, what in ops._TENSORS.items() if what != kind}
    return lambda device: patch.object(ops, "_TENSORS", kept)


def swapped_tables(device: str) -> Any:
    return patch.object(programs, "TABLES", {"cpu": "AutocastCUDA", "cuda": "AutocastCPU"})


PASS = {
    "drops-regions": rewriting(_enter=lambda own, self, node, outer: (own(self, node, outer), outer)[1]),
    "ignores-disabled": rewriting(_enter=ignores_disabled),
    "keeps-the-outer-dtype": rewriting(_enter=keeps_the_dtype),
    "leaks-after-the-region": wrap(Builder, enter=leaks),
    "promotes-to-float32": rewriting(_through=to_float32),
    "never-promotes": rewriting(_through=never),
    "forgets-lists": forgetting("list"),
    "forgets-what-may-be-none": forgetting("optional"),
    "casts-everything": rewriting(_through=everything),
    "leaves-eager-autocast-on": without("Suspended"),
    "leaves-pytorchs-pass-on": without("autocast"),
    "ignores-the-caller": wrap(Builder, surround=ignores_the_caller),
    "forgets-composite-ops": rewriting(_bracket=returns(None)),
    "the-other-table": swapped_tables,
    "asks-the-process": rewriting(_asked=returns(None)),
}
PASS_ON_CUDA = {
    "promotes-each-alone": rewriting(_through=each_alone),
    "fills-in-no-dtype": rewriting(_opt_dtype=returns(None)),
    "appends-no-dtype": rewriting(_append=lambda own, self, node, leading: node),
    "bans-nothing": rewriting(_banned=returns(None)),
}

MUTANTS = tuple(
    Mutant(f"pass-{name}", AGREEMENT, inject, (device,))
    for device, table in ((CPU, PASS), (CUDA, PASS_ON_CUDA))
    for name, inject in table.items()
)
