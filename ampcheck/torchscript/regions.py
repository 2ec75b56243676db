"""The autocast regions of a TorchScript graph: what their objects hold, and what surrounds a whole program."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from ampcheck.errors import UsageError
from ampcheck.torchscript.torch_private import BoolType, IntType, JitCode, ListType, NoneType, StringType, TensorType

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import Graph, JitType, Node, Value

_INT = IntType.get()
_AUTOCAST = re.compile(r"^__torch__\.torch\.((cuda|cpu)\.)?amp\.autocast_mode\.(___torch_mangle_\d+\.)?autocast$")


class GraphState(NamedTuple):
    """The state of one device type at a place in a program: a bool value and a dtype value."""

    enabled: Value
    dtype: Value


States = dict[str, GraphState]
"""By device type."""


class Suspended:
    """Entered by a rewritten program around its body: eager autocast of one device type is off until it ends."""

    def __init__(self, device_type: str, enabled: bool, dtype: int):
        self.device_type = device_type
        self.enabled = enabled
        self.dtype = dtype

    def __enter__(self) -> None:
        torch.ops.amp.autocast_set(self.device_type, False, self.dtype)

    def __exit__(self, type: Any, value: Any, traceback: Any) -> None:  # the annotations that TorchScript asks for
        torch.ops.amp.autocast_set(self.device_type, self.enabled, self.dtype)


def _suspended() -> None:
    with Suspended("cpu", False, 15):
        pass


def _shielded() -> None:
    with torch.autocast("cpu", enabled=False, dtype=torch.bfloat16):
        pass


def scripted(call: Callable[..., object] | type) -> JitCode:
    """`torch.jit.script` without its deprecation warning."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        code: JitCode = torch.jit.script(call)
    return code


_scripted = cache(scripted)


@cache
def _type(call: Callable[[], None]) -> JitType:
    """Return the TorchScript class that a function makes an object of."""
    return _scripted(call).graph.findNode("prim::CreateObject").output().type()


def is_constant(value: Value) -> bool:
    """Return whether a value is known before the program runs."""
    return bool(value.node().kind() == "prim::Constant")


def constant(value: Value) -> object:
    """Return a value that is known before the program runs, else None."""
    return value.toIValue() if is_constant(value) else None


def off(state: GraphState) -> bool:
    """Return whether autocast is known to be disabled."""
    return constant(state.enabled) is False


def is_region(node: Node) -> bool:
    """Return whether a prim::Enter or prim::Exit belongs to an autocast region."""
    return bool(_AUTOCAST.match(str(node.inputsAt(0).type().annotation_str)))


class Builder:
    """Adds nodes to a graph. An added node takes its place in the source from the node behind it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def constant(self, before: Node, value: object) -> Value:
        """Return a new constant."""
        with self.graph.insert_point_guard(before):
            return self.graph.insertConstant(value)

    def node(self, before: Node, kind: str, inputs: list[Value], types: list[JitType]) -> Node:
        """Return a new node with an output of each type."""
        made = self.graph.create(kind, inputs, len(types))
        made.insertBefore(before)
        made.copyMetadata(before)
        for output, type_ in zip(made.outputs(), types, strict=True):
            output.setType(type_)
        return made

    def values(self, before: Node, kind: str, inputs: list[Value], types: list[JitType]) -> list[Value]:
        """Return the outputs of a new node."""
        return list(self.node(before, kind, inputs, types).outputs())

    def called(self, before: Node, function: Callable[..., object], given: Value) -> Value:
        """Return the result of a function of TorchScript, whose code is taken in."""
        with self.graph.insert_point_guard(before):
            return self.graph.insertGraph(_scripted(function).graph, [given])[0]

    def _entered(self, before: Node, class_: JitType, attributes: dict[str, Value]) -> Value:
        made = self.values(before, "prim::CreateObject", [], [class_])[0]
        for name, value in attributes.items():
            self.node(before, "prim::SetAttr", [made, value], []).s_("name", name)
        enter = class_ if _AUTOCAST.match(str(class_.annotation_str)) else NoneType.get()
        self.node(before, "prim::Enter", [made], [enter])
        return made

    def surround(self, device_types: tuple[str, ...]) -> States:
        """Put eager autocast and PyTorch's own pass out of action around the body; the states that the caller is in.

        The caller's state is back after the body, exceptions included. PyTorch's pass reads regions of its own class,
        so that two regions with `enabled=False` keep it from adding casts, also where the caller is in a region and
        after saving and loading.
        """
        first = next(iter(self.graph.nodes()), self.graph.return_node())
        states: States = {}
        entered = []
        false, bfloat16 = self.constant(first, False), self.constant(first, torch.bfloat16)
        for device in ("cpu", "cuda"):
            attributes = {"fast_dtype": bfloat16, "_enabled": false, "device": self.constant(first, device)}
            entered.append(self._entered(first, _type(_shielded), attributes))
        for device in device_types:
            name = self.constant(first, device)
            types = [BoolType.get(), _INT]
            enabled, dtype = self.values(first, "amp::autocast_ambient", [name], types)
            attributes = {"device_type": name, "enabled": enabled, "dtype": dtype}
            entered.append(self._entered(first, _type(_suspended), attributes))
            states[device] = GraphState(enabled, dtype)
        last = self.graph.return_node()
        for made in reversed(entered):
            self.node(last, "prim::Exit", [made], [TensorType.get()])
        return states

    def enter(self, node: Node, outer: States) -> States:
        """Return the states inside of a region that a prim::Enter begins. Raises UsageError for another device type."""
        made = node.inputsAt(0)
        device, enabled, dtype = (self._attribute(node, made, name) for name in ("device", "_enabled", "fast_dtype"))
        if is_constant(device) and constant(device) not in outer:
            raise UsageError(
                f"the program has a region on {constant(device)!r}; name it in device_type, which is {tuple(outer)}"
            )
        return {name: self._inside(node, outer, name, device, GraphState(enabled, dtype)) for name in outer}

    def dtype_of(self, node: Node, states: States, device: Value) -> Value | None:
        """Return the dtype of a device type; None for one that is left to the caller."""
        if is_constant(device):
            state = states.get(str(constant(device)))
            return state.dtype if state is not None else None
        dtypes = [state.dtype for state in states.values()]
        numbers = self.values(node, "prim::ListConstruct", dtypes, [ListType(_INT)])
        return self.values(node, "amp::autocast_dtype", [self._names(node, states), *numbers, device], [_INT])[0]

    def _names(self, node: Node, states: States) -> Value:
        strings = ListType(StringType.get())
        return self.values(node, "prim::ListConstruct", [self.constant(node, name) for name in states], [strings])[0]

    def _inside(self, node: Node, outer: States, name: str, device: Value, given: GraphState) -> GraphState:
        supported = name != "cpu" or constant(given.dtype) in _SUPPORTED
        if is_constant(device) and constant(device) != name:
            return outer[name]
        if is_constant(device) and supported:
            return given
        inputs = [self._names(node, outer), self.constant(node, name), device, *given, *outer[name]]
        types = [BoolType.get(), _INT]
        return GraphState(*self.values(node, "amp::autocast_region", inputs, types))

    def _attribute(self, node: Node, made: Value, name: str) -> Value:
        """Return an attribute of a region's object: the value it was given if that is plain, else a read at entry."""
        uses = [use.user for use in made.uses()]
        given = [user for user in uses if user.kind() == "prim::SetAttr" and user.s("name") == name]
        if made.node().kind() == "prim::CreateObject" and len(given) == 1:
            return given[0].inputsAt(1)
        read = self.node(node, "prim::GetAttr", [made], [_ATTRIBUTES[name].get()])
        read.s_("name", name)
        return read.output()


_ATTRIBUTES = {"device": StringType, "_enabled": BoolType, "fast_dtype": IntType}
_SUPPORTED = (5, 15)  # float16 and bfloat16, as TorchScript numbers dtypes
