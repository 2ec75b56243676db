"""`autocast`: a rewritten copy of a scripted or traced program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ampcheck.errors import UsageError
from ampcheck.spec.policies import closest, table
from ampcheck.torchscript.regions import Graph
from ampcheck.torchscript.rewrite import Tables, rewrite

TABLES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""The device types a program can be rewritten for, and the policy table of each."""


def autocast(scripted: Any, *, device_type: str | Sequence[str] = ("cpu", "cuda"), tables: Tables | None = None) -> Any:
    """A copy of a TorchScript program that does under autocast what the same code does eagerly.

    The copy shares parameters and buffers. It keeps to the regions in it and to the one it is called in, casts and
    promotes by the tensors it is given, and leaves PyTorch's own pass nothing to do.

    Args:
        scripted: a scripted or traced function or module, frozen or not.
        device_type: the device types, or the one, whose regions decide; those of others have to be left to the caller.
        tables: other policies than those of this torch version, by device type and overload.

    Raises UsageError for something else than a program, and for one that cannot be rewritten, with the reason.
    """
    names = (device_type,) if isinstance(device_type, str) else tuple(device_type)
    unknown = [name for name in names if name not in TABLES]
    if unknown or not names:
        raise UsageError(f"device_type is {device_type!r}; a program can be rewritten for {', '.join(TABLES)}")
    version = closest(torch.__version__)
    chosen = {name: (tables or {}).get(name, table(TABLES[name], version)) for name in names}
    if isinstance(scripted, torch.jit.ScriptFunction):
        return _function(scripted, chosen)
    if isinstance(scripted, torch.jit.ScriptModule):
        return _module(scripted, chosen)
    raise UsageError(f"{type(scripted).__name__} is no TorchScript program; give torch.jit.script's or trace's result")


def _inline(graph: Graph) -> None:
    torch._C._jit_pass_inline(graph)
    torch._C._jit_pass_inline_fork_wait(graph)


def _function(scripted: Any, tables: Tables) -> Any:
    graph = scripted.graph.copy()
    _inline(graph)
    rewrite(graph, tables)
    return torch._C._create_function_from_graph(scripted.name, graph)


def _module(scripted: Any, tables: Tables) -> Any:
    cloned = torch._C._hack_do_not_use_clone_module_with_class(scripted._c, [], [])
    graphs = list(_graphs(cloned))
    for graph in graphs:  # all of them before any is rewritten: a caller takes in the code of the program as it was
        _inline(graph)
    for graph in graphs:
        rewrite(graph, tables)
    return torch.jit._recursive.wrap_cpp_module(cloned)


def _graphs(module: Any) -> Iterator[Graph]:
    """The graph of each method of a module and its parts, once where parts share a class."""
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        part = waiting.pop()
        waiting += [child for _, child in torch._C.ModuleDict(part).items()]
        name = part._type().qualified_name()
        if name not in seen:
            seen.add(name)
            yield from (part._get_method(method).graph for method in part._method_names())
