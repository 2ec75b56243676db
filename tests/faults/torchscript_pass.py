"""Faults of the pass for TorchScript: ways in which it could do something else than eager autocast.

The suites have no cases of the pass; the agreement of rewritten programs with eager ones is measured in their place.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import torch

from ampcheck import torchscript
from ampcheck.devices.registry import select
from ampcheck.torchscript import ops, programs, regions, rewrite
from ampcheck.torchscript.agreement import OURS, measure
from ampcheck.torchscript.regions import GraphState, States, scripted
from tests.faults.fault import Fault, Inject, Result
from tests.torchscript import programs as torchscript_programs
from tests.torchscript.test_regions import AMBIENT, around, given

SUITE = "torchscript"

_Pass, _Builder = rewrite._Pass, regions.Builder
_FLOAT32 = 6


def _fault(
    name: str, inject: Inject, says: str, in_programs: tuple[str, ...] = (), ops: tuple[tuple[str, str], ...] = ()
) -> tuple[Fault, ...]:
    """A fault of the pass, which each of some programs and overloads must show.

    `in_programs`: those of `tests.torchscript.programs` that must do something else than eagerly. `ops`: device and
    overload of those whose measured agreement must be lost.
    """
    made = Fault(name, "agreement", inject, (says,), SUITE)
    return tuple(
        replace(made, name=f"pass-{name}-in-{op}", device=device, op=op)
        for device, op in (*(("cpu", program) for program in in_programs), *ops)
    )


def results(fault: Fault) -> list[Result]:
    """Compare a rewritten program, or one of a region and an overload, with eager mode."""
    if fault.op in {program.__name__ for program in torchscript_programs.PROGRAMS}:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # TorchScript has no is_autocast_enabled of a type
            texts = _of_program(fault.op)
    else:
        measured = measure(select([fault.device], [])[0], {OURS: torchscript.autocast}, fault.op)
        texts = [text for one in measured for found in one.differences.get(OURS, {}).values() for text in found]
    return [{"id": fault.op, "status": "fail" if texts else "pass", "message": "\n".join(texts)}]


def _of_program(name: str) -> list[str]:
    """Return the differences of a rewritten program from the eager one, in each state of its caller."""
    program = getattr(torchscript_programs, name)
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


def _replaced(target: Any, name: str, body: Callable[..., Any]) -> Callable[[], AbstractContextManager[object]]:
    return lambda: patch.object(target, name, body)


_enter, _through, _surround, _build_enter = _Pass._enter, _Pass._through, _Builder.surround, _Builder.enter


def _drops_regions(self: Any, node: Any, outer: States) -> States:
    _enter(self, node, outer)
    return outer


def _ignores_disabled(self: Any, node: Any, outer: States) -> States:
    true = self._build.constant(node, True)
    return {name: GraphState(true, state.dtype) for name, state in _enter(self, node, outer).items()}


def _keeps_the_dtype(self: Any, node: Any, outer: States) -> States:
    return {name: GraphState(state.enabled, outer[name].dtype) for name, state in _enter(self, node, outer).items()}


def _leaks(self: Any, node: Any, outer: States) -> States:
    inside = _build_enter(self, node, outer)
    outer.update(inside)
    return inside


def _promotes_to_float32(self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    if together:
        kind, leading = "amp::autocast_cast", [*leading, self._build.constant(node, _FLOAT32)]
    _through(self, node, kind, leading)


def _never_promotes(self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    if not together:
        _through(self, node, kind, leading)


def _promotes_each_alone(self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    if not together:
        _through(self, node, kind, leading)
        return
    for place, value in enumerate(list(node.inputs())):
        if str(value.type()) == "Tensor":
            node.replaceInput(place, self._build.values(node, kind, [*leading, value], [value.type()])[0])


def _casts_everything(self: Any, node: Any, kind: str, leading: list[Any], *, together: bool = False) -> None:
    if kind != "amp::autocast_cast":
        _through(self, node, kind, leading, together=together)
        return
    false, none = self._build.constant(node, False), self._build.constant(node, None)
    for place, value in enumerate(list(node.inputs())):
        if str(value.type()) == "Tensor":
            given = [value, leading[2], false, false, none]
            node.replaceInput(place, self._build.values(node, "aten::to", given, [value.type()])[0])


def _without(class_name: str) -> Callable[..., States]:
    """The program is not surrounded by the objects of a class."""

    def surround(self: Any, device_types: tuple[str, ...]) -> States:
        before = len(list(self.graph.nodes()))
        states = _surround(self, device_types)
        added = len(list(self.graph.nodes())) - before
        ends = [node for node in self.graph.nodes() if node.kind() == "prim::Exit"][-2 - len(device_types) :]
        starts = [node for node in list(self.graph.nodes())[:added] if node.kind() == "prim::Enter"]
        for node in starts[: len(ends)] + ends:
            if str(node.inputsAt(0).type().annotation_str).endswith(class_name):
                node.destroy()
        return states

    return surround


def _ignores_the_caller(self: Any, device_types: tuple[str, ...]) -> States:
    first = next(iter(self.graph.nodes()))
    states = _surround(self, device_types)
    false = self.constant(first, False)
    return {name: GraphState(false, state.dtype) for name, state in states.items()}


def _nothing(*_: Any, **__: Any) -> None:
    """In place of a part of the pass."""


def _left_as_it_is(self: Any, node: Any, leading: list[Any]) -> Any:
    return node


def _forgets(kind: str) -> Callable[[], AbstractContextManager[object]]:
    kept = {name: what for name, what in ops._TENSORS.items() if what != kind}
    return lambda: patch.object(ops, "_TENSORS", kept)


def _one_table() -> AbstractContextManager[object]:
    return patch.object(programs, "TABLES", {"cpu": "AutocastCUDA", "cuda": "AutocastCPU"})


_CUDA = "virtual:cuda"

FAULTS = (
    *_fault("drops-regions", _replaced(_Pass, "_enter", _drops_regions), "float32", ("one_region", "several")),
    *_fault(
        "ignores-disabled", _replaced(_Pass, "_enter", _ignores_disabled), "expected torch.float32", ("nested", "flag")
    ),
    *_fault("keeps-the-outer-dtype", _replaced(_Pass, "_enter", _keeps_the_dtype), "bfloat16", ("several",)),
    *_fault("leaks-after-the-region", _replaced(_Builder, "enter", _leaks), "float16", ("one_region", "several")),
    *_fault(
        "promotes-to-float32",
        _replaced(_Pass, "_through", _promotes_to_float32),
        "expected bf16 (rule promote",
        ops=(("cpu", "stack"), (_CUDA, "addcmul")),
    ),
    *_fault(
        "never-promotes",
        _replaced(_Pass, "_through", _never_promotes),
        "expected fp32 (rule promote",
        ops=(("cpu", "cat"), (_CUDA, "addcmul")),
    ),
    *_fault(
        "promotes-each-alone",
        _replaced(_Pass, "_through", _promotes_each_alone),
        "expected fp32 (rule promote",
        ops=((_CUDA, "addcmul"), (_CUDA, "bilinear")),
    ),
    *_fault("forgets-lists", _forgets("list"), "rule promote", ops=(("cpu", "cat"), ("cpu", "stack"))),
    *_fault("forgets-what-may-be-none", _forgets("optional"), "raised", ("biases",)),
    *_fault("casts-everything", _replaced(_Pass, "_through", _casts_everything), "expected fp64", ops=(("cpu", "mm"),)),
    *_fault("leaves-eager-autocast-on", _replaced(_Builder, "surround", _without("Suspended")), "float", ("nested",)),
    *_fault("leaves-pytorchs-pass-on", _replaced(_Builder, "surround", _without("autocast")), "float", ("nested",)),
    *_fault("ignores-the-caller", _replaced(_Builder, "surround", _ignores_the_caller), "float32", ("no_region",)),
    *_fault(
        "fills-in-no-dtype",
        _replaced(_Pass, "_opt_dtype", _nothing),
        "expected dtype=fp32",
        ops=((_CUDA, "softmax.int"),),
    ),
    *_fault(
        "appends-no-dtype", _replaced(_Pass, "_append", _left_as_it_is), "never ran", ops=((_CUDA, "norm.Scalar"),)
    ),
    *_fault(
        "bans-nothing", _replaced(_Pass, "_banned", _nothing), "RuntimeError", ops=((_CUDA, "binary_cross_entropy"),)
    ),
    *_fault("forgets-composite-ops", _replaced(_Pass, "_bracket", _nothing), "float32", ("composite",)),
    *_fault("the-other-table", _one_table, "rule upcast", ops=(("cpu", "avg_pool3d"),)),
    *_fault("asks-the-process", _replaced(_Pass, "_asked", _nothing), "bfloat16", ("asks", "nested")),
)
"""Every fault of the pass."""
