"""The pass's facts of an op: its overload, which of its arguments hold tensors, whether it calls other ops."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from ampcheck.observe.replay import CALLERS
from ampcheck.register.torch_private import has_kernel
from ampcheck.torchscript.torch_private import parse_schema

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import FunctionSchema, Node, Value

_TENSORS = {"Tensor": "tensor", "Optional[Tensor]": "optional", "List[Tensor]": "list"}


def kind_of(value: Value) -> str | None:
    """Return a value's kind for autocast: "tensor", "optional", "list", or None for no tensors."""
    return _TENSORS.get(value.type().annotation_str)


@cache
def _schema(text: str) -> FunctionSchema:
    return parse_schema(text)


def overload(node: Node) -> str:
    """Return the overload that a node calls, named as by `overload_name`; its kind where it has no schema."""
    text = node.schema()
    if text == "(no schema)":
        return node.kind()
    schema = _schema(text)
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    return full.removeprefix("aten::")


def place_of(node: Node, name: str) -> int:
    """Return the place of an argument among those of the op that a node calls."""
    return [argument.name for argument in _schema(node.schema()).arguments].index(name)


def calls_others(node: Node, name: str) -> bool:
    """Return whether an op without a policy may call ops with one where no graph shows them.

    Composite ops do, some kernels of backends, the ops of other libraries and Python functions.
    """
    kind = node.kind()
    if kind.startswith("prim::PythonOp") or kind.startswith("^"):
        return True
    if kind.startswith(("prim::", "amp::")) or node.schema() == "(no schema)":
        return False
    if not kind.startswith("aten::") or name in CALLERS:
        return True
    return _composite(node.schema())


@cache
def _composite(schema_text: str) -> bool:
    schema = _schema(schema_text)
    full = f"{schema.name}.{schema.overload_name}" if schema.overload_name else schema.name
    returns = schema.returns
    is_view = len(returns) == 1 and "(a)" in schema_text.partition("->")[2]
    if is_view or not any("Tensor" in str(value.type) for value in returns):
        return False
    try:
        return bool(has_kernel(full, "CompositeImplicitAutograd"))
    except RuntimeError:  # an op of the TorchScript runtime, which the dispatcher does not know
        return False
