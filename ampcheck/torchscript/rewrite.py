"""`autocast`, a rewritten copy of a scripted or traced program, and the pass that rewrites it.

Every op of a graph does what autocast's policy tables say, decided at run time by operators of ours. A region of
TorchScript is lexical, so the state at each op is known as values of the graph: those of the region around it, else
those that the caller was in, read when the program begins. The functions and methods that a graph calls are taken into
it first, as they were written: PyTorch's own pass for this takes optimized code, with autocast's casts already in it,
or results that were computed without those that our pass would add.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any, cast

import torch

from ampcheck.errors import UsageError
from ampcheck.observe.recorder import CALLERS
from ampcheck.register.torch_private import has_kernel
from ampcheck.spec.casting import BANNED_MESSAGE
from ampcheck.spec.policies import closest, table
from ampcheck.torchscript import torch_private as private
from ampcheck.torchscript.library import FIXED_FORMS
from ampcheck.torchscript.regions import Builder, GraphState, States, is_region, off

if TYPE_CHECKING:
    from ampcheck.torchscript.torch_private import Block, FunctionSchema, Graph, JitClass, Node, Value

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
    private.inline_fork_wait(graph)
    while any([_taken_in(graph, node, methods, own_code=own_code) for node in nodes(graph)]):  # all
        private.inline_fork_wait(graph)
    with _without_casts():
        private.inline_calls(graph)
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
        function = private.python_code.find_function(name)
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
    mode = private.set_autocast_pass(False)
    for device, _ in before:
        torch.set_autocast_enabled(device, True)
    try:
        yield
    finally:
        for device, enabled in before:
            torch.set_autocast_enabled(device, enabled)
        private.set_autocast_pass(mode)


_FLOAT32 = 6
"""float32, as TorchScript numbers dtypes."""

Tables = Mapping[str, Mapping[str, str]]
"""The policy of each overload, by device type."""


def rewrite(graph: Graph, tables: Tables) -> None:
    """Rewrite a graph in place.

    `tables`: what decides, by device type. Calls must have been inlined. Raises UsageError for what it cannot rewrite.
    """
    _refuse(graph)
    private.erase_shapes(graph)  # a trace's dtypes are those without our casts
    _Pass(graph, tables).run()
    private.remove_dead_code(graph)
    private.pool_constants(graph)
    private.lint_graph(graph)


# ---- an op: its overload, which of its arguments hold tensors, whether it calls other ops
_TENSORS = {"Tensor": "tensor", "Optional[Tensor]": "optional", "List[Tensor]": "list"}


def kind_of(value: Value) -> str | None:
    """Return a value's kind for autocast: "tensor", "optional", "list", or None for no tensors."""
    return _TENSORS.get(value.type().annotation_str)


@cache
def _schema(text: str) -> FunctionSchema:
    return private.parse_schema(text)


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


# ---- the pass
_REFUSED = {
    "prim::CallMethod": "calls a method that cannot be inlined, of an interface or of a class written in C++",
    "prim::CallFunction": "calls a function that cannot be inlined",
    "prim::fork": "runs a fork that cannot be inlined",
    "prim::awaitable": "has an awaitable",
    "prim::rpc_async": "calls another process",
}


def _refuse(graph: Graph) -> None:
    for node in nodes(graph):
        kind = node.kind()
        if kind in _REFUSED:
            raise UsageError(f"a program that {_REFUSED[kind]} cannot be rewritten")
        if kind.startswith("amp::autocast"):
            raise UsageError("the program has been rewritten before")
        if kind.startswith("prim::") and "mkldnn" in kind.lower():
            raise UsageError(
                f"a program prepared for inference ({kind}) cannot be rewritten; rewrite it, then prepare it"
            )


def _held(value: torch.Tensor | None) -> list[torch.Tensor]:
    return [value] if value is not None else []


def _first(values: list[torch.Tensor]) -> torch.Tensor:
    return values[0]


def _first_if_any(values: list[torch.Tensor]) -> torch.Tensor | None:
    return values[0] if len(values) > 0 else None


class _Pass:
    def __init__(self, graph: Graph, tables: Tables) -> None:
        self._graph = graph
        self._tables = tables
        self._build = Builder(graph)

    def run(self) -> None:
        body = list(self._graph.nodes())
        self._block(body, self._build.surround(tuple(self._tables)))

    def _block(self, body: Sequence[Node], states: States) -> None:
        outer: list[States] = []
        for node in body:
            kind = node.kind()
            if kind == "prim::Enter" and is_region(node):
                outer.append(states)
                states = self._enter(node, states)
            elif kind == "prim::Exit" and is_region(node):
                if not outer:
                    raise UsageError(
                        "a program with a region that is left elsewhere than it is entered cannot be rewritten"
                    )
                states = outer.pop()
                self._forget(node)
            elif kind in ("aten::is_autocast_enabled", "aten::is_autocast_cpu_enabled", "aten::get_autocast_dtype"):
                self._asked(node, states)
            else:
                if kind == "prim::If" and _settled(node):
                    continue
                for block in node.blocks():
                    self._block(list(block.nodes()), states)
                if kind != "prim::If" or not _settled(node):
                    self._op(node, states)

    def _enter(self, node: Node, outer: States) -> States:
        inside = self._build.enter(node, outer)
        node.output().replaceAllUsesWith(node.inputsAt(0))
        node.destroy()
        return inside

    def _forget(self, node: Node) -> None:
        """Remove the end of a region, and with its last one the object."""
        made = node.inputsAt(0)
        node.destroy()
        users = [use.user for use in made.uses()]
        if made.node().kind() == "prim::CreateObject" and all(user.kind() == "prim::SetAttr" for user in users):
            for user in users:
                user.destroy()
            made.node().destroy()

    def _asked(self, node: Node, states: States) -> None:
        """Answer a program that asks for the state with that of its region."""
        if node.inputsSize():
            told = self._build.dtype_of(node, states, node.inputsAt(0))
        else:
            device = "cpu" if node.kind() == "aten::is_autocast_cpu_enabled" else "cuda"
            told = states[device].enabled if device in states else None
        if told is not None:
            node.output().replaceAllUsesWith(told)
            node.destroy()

    def _op(self, node: Node, states: States) -> None:
        name = overload(node)
        if any(name in self._tables[device] and not off(state) for device, state in states.items()):
            self._build.node(node, "amp::autocast_done", [], []).moveAfter(node)
            if name == "addmm":
                self._keep_whole(node)
        # Where tensors of several device types meet, PyTorch enters CUDA's kernel before the CPU's.
        for device in sorted(states, key=("cpu", "cuda").index, reverse=True):
            state = states[device]
            if off(state):
                continue
            policy = self._tables[device].get(name)
            where = self._build.constant(node, device)
            if policy in ("downcast", "upcast"):
                dtype = state.dtype if policy == "downcast" else self._build.constant(node, _FLOAT32)
                self._through(node, "amp::autocast_cast", [where, state.enabled, dtype])
            elif policy == "promote":
                self._through(node, "amp::autocast_promote", [where, state.enabled], together=True)
            elif policy == "optdtype":
                self._opt_dtype(node, [where, state.enabled])
            elif policy == "append":
                node = self._append(node, [where, state.enabled])
            elif policy == "banned":
                self._banned(node, name, [where, state.enabled])
            elif calls_others(node, name):
                self._bracket(node, where, state)

    def _keep_whole(self, node: Node) -> None:
        """TorchScript makes mm and add of an addmm whose factors are known to be 1, which rounds once more."""
        place = place_of(node, "beta")
        factor = self._build.values(node, "amp::autocast_opaque", [node.inputsAt(place)], [private.NumberType.get()])
        node.replaceInput(place, factor[0])

    def _through(self, node: Node, kind: str, leading: list[Value], *, together: bool = False) -> None:
        """Lead a node's tensors through an operator; `together` where it decides by all of them."""
        places = {place: kind_of(value) for place, value in enumerate(node.inputs())}
        tensors = [place for place, what in places.items() if what == "tensor"]
        optionals = [place for place, what in places.items() if what == "optional"]
        lists = [place for place, what in places.items() if what == "list"]
        if together:
            whole = tensors + optionals + lists
            if not (len(whole) == 1 if lists else len(tensors) <= FIXED_FORMS and len(optionals) <= 1):
                self._as_one_list(node, kind, leading, whole)
                return
            groups = [whole]
        else:
            groups = [tensors[at : at + FIXED_FORMS] for at in range(0, len(tensors), FIXED_FORMS)]
            groups += [[place] for place in optionals + lists]
        for group in filter(None, groups):
            given = [node.inputsAt(place) for place in group]
            made = self._build.values(node, kind, [*leading, *given], [value.type() for value in given])
            for place, value in zip(group, made, strict=True):
                node.replaceInput(place, value)

    def _as_one_list(self, node: Node, kind: str, leading: list[Value], places: list[int]) -> None:
        """Lead values for which an operator has no fixed form through it as one list of all their tensors.

        Its variadic form takes them as they are, but a saved program would hold that without arguments.
        """
        integer, tensors = private.IntType.get(), private.ListType(private.TensorType.get())
        given = []
        for place in places:
            value = node.inputsAt(place)
            what = kind_of(value)
            if what == "tensor":
                value = self._build.values(node, "prim::ListConstruct", [value], [tensors])[0]
            elif what == "optional":
                value = self._build.called(node, _held, value)
            given.append(value)
        whole = given[0]
        for value in given[1:]:
            whole = self._build.values(node, "aten::add", [whole, value], [tensors])[0]
        whole = self._build.values(node, kind, [*leading, whole], [tensors])[0]
        start, one = self._build.constant(node, 0), self._build.constant(node, 1)
        for place, value in zip(places, given, strict=True):
            count = self._build.values(node, "aten::len", [value], [integer])[0]
            end = self._build.values(node, "aten::add", [start, count], [integer])[0]
            made = self._build.values(node, "aten::slice", [whole, start, end, one], [tensors])[0]
            what = kind_of(node.inputsAt(place))
            if what != "list":
                made = self._build.called(node, _first if what == "tensor" else _first_if_any, made)
            node.replaceInput(place, made)
            start = end

    def _opt_dtype(self, node: Node, leading: list[Value]) -> None:
        place = place_of(node, "dtype")
        given = node.inputsAt(place)
        if kind_of(given) is None and str(given.type()) == "int":
            return
        optional = private.OptionalType(private.IntType.get())
        inputs = [*leading, node.inputsAt(0), given]
        node.replaceInput(place, self._build.values(node, "amp::autocast_opt_dtype", inputs, [optional])[0])

    def _append(self, node: Node, leading: list[Value]) -> Node:
        """Run the overload with a dtype if the kernel would be entered, else the op as it is; return that op's node."""
        bool_, int_ = private.BoolType.get(), private.IntType.get()
        reached = self._build.values(node, "amp::autocast_reached", [*leading, self._tensors(node)], [bool_])
        branch = self._build.node(node, "prim::If", reached, [node.output().type()])
        node.output().replaceAllUsesWith(branch.output())
        inputs = list(node.inputs())
        with_dtype, as_it_is = branch.addBlock(), branch.addBlock()
        dtype = with_dtype.addNode("amp::autocast_append_dtype", [leading[0], inputs[0]])
        dtype.output().setType(int_)
        kind = node.kind()
        node.destroy()
        with_dtype.registerOutput(with_dtype.addNode(kind, [*inputs, dtype.output()]).output())
        left = as_it_is.addNode(kind, inputs)
        as_it_is.registerOutput(left.output())
        return left

    def _banned(self, node: Node, name: str, leading: list[Value]) -> None:
        instead = BANNED_MESSAGE.get(name, "another op")
        message = self._build.constant(node, f"aten::{name} is unsafe to autocast; use {instead}")
        self._build.node(node, "amp::autocast_banned", [*leading, self._tensors(node), message], [])

    def _tensors(self, node: Node) -> Value:
        given = [value for value in node.inputs() if kind_of(value) in ("tensor", "optional")]
        type_ = private.ListType(private.OptionalType(private.TensorType.get()))
        return self._build.values(node, "prim::ListConstruct", given, [type_])[0]

    def _bracket(self, node: Node, where: Value, state: GraphState) -> None:
        """Let a node run in the region: the ops it calls, which no graph shows, follow eager autocast.

        Its tensors go through the operators around it, so that no optimization moves it out or merges it with another.
        """
        kind = "amp::autocast_set"
        if any(kind_of(value) for value in node.inputs()):
            self._through(node, kind, [where, *state])
        else:
            self._build.node(node, kind, [where, *state], [])
        leading = [where, self._build.constant(node, False), state.dtype]
        after = self._build.node(node, kind, leading, [])
        after.moveAfter(node)
        results = [value for value in node.outputs() if kind_of(value) in ("tensor", "list")]
        for result in results:
            made = self._build.node(after, kind, [*leading, result], [result.type()])
            result.replaceAllUsesAfterNodeWith(made, made.output())
        if results:
            after.destroy()


def _settled(node: Node) -> bool:
    """Take the branch of `x if dtype is None else dtype` where it is known whether it is None; whether it was."""
    asked = node.inputsAt(0).node()
    if asked.kind() != "aten::__is__" or str(asked.inputsAt(1).type()) != "NoneType" or node.outputsSize() != 1:
        return False
    type_ = str(asked.inputsAt(0).type())
    if type_.startswith("Optional"):
        return False
    taken = next(iter(list(node.blocks())[0 if type_ == "NoneType" else 1].outputs()))
    if taken.node().kind() == "prim::unchecked_cast":
        taken = taken.node().inputsAt(0)
    inside = (inner for block in node.blocks() for inner in nodes(block))
    if any(taken.unique() == output.unique() for inner in inside for output in inner.outputs()):
        return False
    node.output().replaceAllUsesWith(taken)
    node.destroy()
    return True


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
        return _function(cast(private.JitCode, scripted), chosen)  # torch's annotations know less of it
    if isinstance(scripted, torch.jit.ScriptModule):
        return _module(scripted, chosen)
    raise UsageError(f"{type(scripted).__name__} is no TorchScript program; give torch.jit.script's or trace's result")


def _function(scripted: private.JitCode, tables: Tables) -> private.JitCode:
    if any(argument.has_default_value() for argument in scripted.schema.arguments):
        made = _with_defaults(scripted)
        inline(made.graph, {}, own_code=True)
        rewrite(made.graph, tables)
        return made
    graph = scripted.graph.copy()
    inline(graph, {}, own_code=True)
    rewrite(graph, tables)
    return private.function_of_graph(scripted.name, graph)


def _with_defaults(scripted: private.JitCode) -> private.JitCode:
    """Return a copy of a function; one made from a graph alone has no defaults for its arguments."""
    arguments = scripted.schema.arguments
    taken = [
        f"{argument.name}: {argument.type.annotation_str}"
        + (f" = {argument.default_value!r}" if argument.has_default_value() else "")
        for argument in arguments
    ]
    head = f"def {scripted.name}({', '.join(taken)}) -> {scripted.schema.returns[0].type.annotation_str}:"
    body = f"return original({', '.join(argument.name for argument in arguments)})"
    unit = private.CompilationUnit()
    unit.define(f"{head}\n    {body}\n", lambda name: scripted if name == "original" else getattr(torch, name, None))
    made: private.JitCode = unit.find_function(scripted.name)
    take_in(made.graph, made.graph.findNode("prim::CallFunction"), scripted.graph)
    return made


def _module(scripted: torch.jit.ScriptModule, tables: Tables) -> torch.jit.ScriptModule:
    own_code = _made_here(scripted._c._type())
    cloned = private.clone_module(scripted._c, [], [])
    _share(scripted._c, cloned)
    methods = dict(_methods(cloned))
    for graph in methods.values():  # all of them before any is rewritten: a caller takes in the code as it was
        inline(graph, methods, own_code=own_code)
    for graph in methods.values():
        rewrite(graph, tables)
    return private.wrap_module(cloned)


def _share(original: private.JitModule, cloned: private.JitModule) -> None:
    """Give a clone the tensors themselves; it was made with copies."""
    for held in (private.ParameterDict, private.BufferDict):
        for name, tensor in held(original).items():
            cloned.setattr(name, tensor)
    parts = dict(private.ModuleDict(cloned).items())
    for name, part in private.ModuleDict(original).items():
        _share(part, parts[name])


def _made_here(type_: JitClass) -> bool:
    """Return whether a module was scripted in this process, not loaded."""
    here = private.python_code.get_class(type_.qualified_name())
    return here is not None and bool(type_.isSubtypeOf(here))


def _methods(module: private.JitModule) -> Iterator[tuple[str, Graph]]:
    """Yield the graph of each method of a module and its parts, by class and name."""
    waiting = [module]
    while waiting:
        part = waiting.pop()
        waiting += [child for _, child in private.ModuleDict(part).items()]
        for name in part._method_names():
            yield f"{part._type().annotation_str}.{name}", part._get_method(name).graph
