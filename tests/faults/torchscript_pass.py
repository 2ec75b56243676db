"""Faults of the pass for TorchScript: ways in which it could do something else than eager autocast.

`tests/test_torchscript_faults.py` goes through them. Each changes the pass while planted; the agreement of rewritten
programs with eager ones must then be lost, in the words given.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from ampcheck.torchscript import ops, programs, regions, rewrite
from ampcheck.torchscript.regions import GraphState, States

_Pass, _Builder = rewrite._Pass, regions.Builder
_FLOAT32 = 6


@dataclass(frozen=True)
class PassFault:
    """A fault of the pass.

    `programs`: those of `tests.torchscript.programs` that must do something else than eagerly. `ops`: pairs of device
    and overload whose measured agreement must be lost. `says`: what a difference must mention.
    """

    name: str
    plant: Callable[[], AbstractContextManager[object]]
    says: str
    programs: tuple[str, ...] = ()
    ops: tuple[tuple[str, str], ...] = ()


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
    PassFault("drops-regions", _replaced(_Pass, "_enter", _drops_regions), "float32", ("one_region", "several")),
    PassFault(
        "ignores-disabled", _replaced(_Pass, "_enter", _ignores_disabled), "expected torch.float32", ("nested", "flag")
    ),
    PassFault("keeps-the-outer-dtype", _replaced(_Pass, "_enter", _keeps_the_dtype), "bfloat16", ("several",)),
    PassFault("leaks-after-the-region", _replaced(_Builder, "enter", _leaks), "float16", ("one_region", "several")),
    PassFault(
        "promotes-to-float32",
        _replaced(_Pass, "_through", _promotes_to_float32),
        "expected bf16 (rule promote",
        ops=(("cpu", "stack"), (_CUDA, "addcmul")),
    ),
    PassFault(
        "never-promotes",
        _replaced(_Pass, "_through", _never_promotes),
        "expected fp32 (rule promote",
        ops=(("cpu", "cat"), (_CUDA, "addcmul")),
    ),
    PassFault(
        "promotes-each-alone",
        _replaced(_Pass, "_through", _promotes_each_alone),
        "expected fp32 (rule promote",
        ops=((_CUDA, "addcmul"), (_CUDA, "bilinear")),
    ),
    PassFault("forgets-lists", _forgets("list"), "rule promote", ops=(("cpu", "cat"), ("cpu", "stack"))),
    PassFault("forgets-what-may-be-none", _forgets("optional"), "raised", ("biases",)),
    PassFault(
        "casts-everything", _replaced(_Pass, "_through", _casts_everything), "expected fp64", ops=(("cpu", "mm"),)
    ),
    PassFault("leaves-eager-autocast-on", _replaced(_Builder, "surround", _without("Suspended")), "float", ("nested",)),
    PassFault("leaves-pytorchs-pass-on", _replaced(_Builder, "surround", _without("autocast")), "float", ("nested",)),
    PassFault("ignores-the-caller", _replaced(_Builder, "surround", _ignores_the_caller), "float32", ("no_region",)),
    PassFault(
        "fills-in-no-dtype",
        _replaced(_Pass, "_opt_dtype", _nothing),
        "expected dtype=fp32",
        ops=((_CUDA, "softmax.int"),),
    ),
    PassFault(
        "appends-no-dtype", _replaced(_Pass, "_append", _left_as_it_is), "never ran", ops=((_CUDA, "norm.Scalar"),)
    ),
    PassFault(
        "bans-nothing", _replaced(_Pass, "_banned", _nothing), "RuntimeError", ops=((_CUDA, "binary_cross_entropy"),)
    ),
    PassFault("forgets-composite-ops", _replaced(_Pass, "_bracket", _nothing), "float32", ("composite",)),
    PassFault("the-other-table", _one_table, "rule upcast", ops=(("cpu", "avg_pool3d"),)),
    PassFault("asks-the-process", _replaced(_Pass, "_asked", _nothing), "bfloat16", ("asks", "nested")),
)
"""Every fault of the pass."""
