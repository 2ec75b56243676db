"""`autocast`: a rewritten copy of a scripted or traced program."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import torch

from ampcheck.errors import UsageError
from ampcheck.spec.policies import closest, table
from ampcheck.torchscript.rewrite import Tables, inline, rewrite, take_in
from ampcheck.torchscript.torch_private import (
    BufferDict,
    CompilationUnit,
    JitCode,
    JitModule,
    ModuleDict,
    ParameterDict,
    clone_module,
    function_of_graph,
    python_code,
    wrap_module,
)

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import Graph, JitClass

TABLES = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
"""The device types a program can be rewritten for, and the policy table of each."""


def autocast(
    scripted: object, *, device_type: str | Sequence[str] = ("cpu", "cuda"), tables: Tables | None = None
) -> Any:
    """Return a copy of a TorchScript program that does under autocast what the same code does eagerly.

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
        return _function(cast(JitCode, scripted), chosen)  # torch's annotations know less of it
    if isinstance(scripted, torch.jit.ScriptModule):
        return _module(scripted, chosen)
    raise UsageError(f"{type(scripted).__name__} is no TorchScript program; give torch.jit.script's or trace's result")


def _function(scripted: JitCode, tables: Tables) -> JitCode:
    if any(argument.has_default_value() for argument in scripted.schema.arguments):
        made = _with_defaults(scripted)
        inline(made.graph, {}, own_code=True)
        rewrite(made.graph, tables)
        return made
    graph = scripted.graph.copy()
    inline(graph, {}, own_code=True)
    rewrite(graph, tables)
    return function_of_graph(scripted.name, graph)


def _with_defaults(scripted: JitCode) -> JitCode:
    """Return a copy of a function; one made from a graph alone has no defaults for its arguments."""
    arguments = scripted.schema.arguments
    taken = [
        f"{argument.name}: {argument.type.annotation_str}"
        + (f" = {argument.default_value!r}" if argument.has_default_value() else "")
        for argument in arguments
    ]
    head = f"def {scripted.name}({', '.join(taken)}) -> {scripted.schema.returns[0].type.annotation_str}:"
    body = f"return original({', '.join(argument.name for argument in arguments)})"
    unit = CompilationUnit()
    unit.define(f"{head}\n    {body}\n", lambda name: scripted if name == "original" else getattr(torch, name, None))
    made: JitCode = unit.find_function(scripted.name)
    take_in(made.graph, made.graph.findNode("prim::CallFunction"), scripted.graph)
    return made


def _module(scripted: torch.jit.ScriptModule, tables: Tables) -> torch.jit.ScriptModule:
    own_code = _made_here(scripted._c._type())
    cloned = clone_module(scripted._c, [], [])
    _share(scripted._c, cloned)
    methods = dict(_methods(cloned))
    for graph in methods.values():  # all of them before any is rewritten: a caller takes in the code as it was
        inline(graph, methods, own_code=own_code)
    for graph in methods.values():
        rewrite(graph, tables)
    return wrap_module(cloned)


def _share(original: JitModule, cloned: JitModule) -> None:
    """Give a clone the tensors themselves; it was made with copies."""
    for held in (ParameterDict, BufferDict):
        for name, tensor in held(original).items():
            cloned.setattr(name, tensor)
    parts = dict(ModuleDict(cloned).items())
    for name, part in ModuleDict(original).items():
        _share(part, parts[name])


def _made_here(type_: JitClass) -> bool:
    """Return whether a module was scripted in this process, not loaded."""
    here = python_code.get_class(type_.qualified_name())
    return here is not None and bool(type_.isSubtypeOf(here))


def _methods(module: JitModule) -> Iterator[tuple[str, Graph]]:
    """Yield the graph of each method of a module and its parts, by class and name."""
    waiting = [module]
    while waiting:
        part = waiting.pop()
        waiting += [child for _, child in ModuleDict(part).items()]
        for name in part._method_names():
            yield f"{part._type().annotation_str}.{name}", part._get_method(name).graph
