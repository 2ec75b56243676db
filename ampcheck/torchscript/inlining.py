"""Takes the functions and methods that a graph calls into it, as they were written.

PyTorch's own pass for this takes optimized code, with autocast's casts already in it, or results that were computed
without those that our pass would add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch

from ampcheck.torchscript.torch_private import inline_calls, inline_fork_wait, python_code, set_autocast_pass

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import Block, Graph, Node

_CALLS = ("prim::CallFunction", "prim::CallMethod")
_CASTS = ("aten::_autocast_to_reduced_precision", "aten::_autocast_to_full_precision")


def nodes(block: Graph | Block) -> list[Node]:
    """Return every node of a graph or block and of the blocks in it."""
    return [n for node in block.nodes() for n in (node, *(inner for b in node.blocks() for inner in nodes(b)))]


def inline(graph: Graph, methods: Mapping[str, Graph], *, own_code: bool) -> None:
    """Inline every call that can be.

    Args:
        graph: changed in place.
        methods: the graphs of a module's methods, by class and name.
        own_code: whether other names are those of this process. A loaded program brings other functions, which may
            be called as others here, and only PyTorch's pass finds them.
    """
    inline_fork_wait(graph)
    while any([_taken_in(graph, node, methods, own_code=own_code) for node in nodes(graph)]):  # all
        inline_fork_wait(graph)
    with _without_casts():
        inline_calls(graph)
    for node in nodes(graph):
        if node.kind() in _CASTS or _says_nothing(node):
            node.output().replaceAllUsesWith(node.inputsAt(0))
            node.destroy()


def _says_nothing(node: Node) -> bool:
    """Return whether it is a cast to the type that its input has already."""
    if node.kind() != "prim::unchecked_cast":
        return False
    return str(node.inputsAt(0).type().annotation_str) == str(node.output().type().annotation_str)


def _taken_in(graph: Graph, node: Node, methods: Mapping[str, Graph], *, own_code: bool) -> bool:
    if node.kind() not in _CALLS:
        return False
    name = str(node.inputsAt(0).type().annotation_str)
    if node.kind() == "prim::CallMethod":
        name = f"{name}.{node.s('name')}"
    code = methods.get(name)
    if code is None and (own_code or name.startswith("__torch__.torch.")):
        function = python_code.find_function(name)
        code = function.graph if function is not None else None
    if code is None:
        return False
    take_in(graph, node, code)
    return True


def take_in(graph: Graph, node: Node, code: Graph) -> None:
    """Put a copy of a graph in place of the node that calls it."""
    given = list(node.inputs())[node.kind() == "prim::CallFunction" :]
    with graph.insert_point_guard(node):
        results = graph.insertGraph(code, given)
    node.output().replaceAllUsesWith(results[0])
    node.destroy()


@contextmanager
def _without_casts() -> Iterator[None]:
    """PyTorch's pass off for code that is optimized meanwhile.

    A function keeps its optimized code for each set of enabled device types. Both are enabled here, so that one which
    is called elsewhere does not lose its casts there.
    """
    before = [(device, torch.is_autocast_enabled(device)) for device in ("cpu", "cuda")]
    mode = set_autocast_pass(False)
    for device, _ in before:
        torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        for device, enabled in before:
            torch.set_autocast_enabled(device, enabled)
        set_autocast_pass(mode)
