"""The private names of torch that rewriting TorchScript needs. docs/private_api.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import torch

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.torchscript", without="TorchScript programs cannot be rewritten without them")

if TYPE_CHECKING:  # what graphs are made of, for annotations alone
    from torch._C import Block as Block
    from torch._C import FunctionSchema as FunctionSchema
    from torch._C import JitType as JitType
    from torch._C import Node as Node
    from torch._C import Value as Value
    from torch._C import _InsertPoint

    class Graph(torch._C.Graph):
        """A graph, with the members that torch's annotations lack."""

        def insertConstant(self, value: object) -> Value: ...
        def findNode(self, kind: str) -> Node: ...
        def copy(self) -> Graph: ...
        def insert_point_guard(self, n: Block | Node) -> _InsertPoint: ...

    class JitClass(torch._C.JitType):
        """A class of TorchScript, with the member that torch's annotations lack."""

        def qualified_name(self) -> str: ...


class JitCode(Protocol):
    """A function of TorchScript."""

    @property
    def name(self) -> str: ...
    @property
    def graph(self) -> Graph: ...
    @property
    def schema(self) -> FunctionSchema: ...
    def __call__(self, *args: object) -> Any: ...


class JitModule(Protocol):
    """The module behind a ScriptModule."""

    def _type(self) -> JitClass: ...
    def _method_names(self) -> list[str]: ...
    def _get_method(self, name: str) -> JitCode: ...
    def setattr(self, name: str, value: object) -> None: ...


class TypeOf(Protocol):
    """A type of values of which there is one."""

    def get(self) -> JitType: ...


BoolType: TypeOf = NAMES.take("torch._C.BoolType", "the types of values in a graph")
IntType: TypeOf = NAMES.take("torch._C.IntType", "the types of values in a graph")
NoneType: TypeOf = NAMES.take("torch._C.NoneType", "the types of values in a graph")
NumberType: TypeOf = NAMES.take("torch._C.NumberType", "the types of values in a graph")
StringType: TypeOf = NAMES.take("torch._C.StringType", "the types of values in a graph")
TensorType: TypeOf = NAMES.take("torch._C.TensorType", "the types of values in a graph")
ListType: Callable[[JitType], JitType] = NAMES.take("torch._C.ListType", "the types of values in a graph")
OptionalType: Callable[[JitType], JitType] = NAMES.take("torch._C.OptionalType", "the types of values in a graph")
CompilationUnit: Any = NAMES.take("torch._C.CompilationUnit", "the rewritten copy of a function")
ModuleDict: Callable[[JitModule], dict[str, JitModule]] = NAMES.take(
    "torch._C.ModuleDict", "the parts of a scripted module"
)
ParameterDict: Callable[[JitModule], dict[str, torch.Tensor]] = NAMES.take(
    "torch._C.ParameterDict", "giving a copied module the tensors of the original"
)
BufferDict: Callable[[JitModule], dict[str, torch.Tensor]] = NAMES.take(
    "torch._C.BufferDict", "giving a copied module the tensors of the original"
)
clone_module: Callable[[JitModule, list[object], list[object]], JitModule] = NAMES.take(
    "torch._C._hack_do_not_use_clone_module_with_class", "a copy of a module whose code can be changed"
)
wrap_module: Callable[[JitModule], torch.jit.ScriptModule] = NAMES.take(
    "torch.jit._recursive.wrap_cpp_module", "the copy as a ScriptModule"
)
python_code: Any = NAMES.take("torch.jit._state._python_cu", "the functions and classes that this process scripted")
function_of_graph: Callable[[str, Graph], JitCode] = NAMES.take(
    "torch._C._create_function_from_graph", "running a rewritten graph"
)
parse_schema: Callable[[str], FunctionSchema] = NAMES.take(
    "torch._C.parse_schema", "the arguments of the op that a node calls"
)
schemas_of: Callable[[str], list[FunctionSchema]] = NAMES.take(
    "torch._C._jit_get_schemas_for_operator", "whether the operators of the library are loaded"
)
set_autocast_pass: Callable[[bool], bool] = NAMES.take(
    "torch._C._jit_set_autocast_mode", "switching PyTorch's own pass off while ours runs"
)
inline_calls: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_inline", "taking in what a program calls")
inline_fork_wait: Callable[[Graph], None] = NAMES.take(
    "torch._C._jit_pass_inline_fork_wait", "running what is forked in its place"
)
erase_shapes: Callable[[Graph], None] = NAMES.take(
    "torch._C._jit_pass_erase_shape_information", "dropping a trace's dtypes, which are those without our casts"
)
remove_dead_code: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_dce", "cleaning a rewritten graph")
pool_constants: Callable[[Graph], None] = NAMES.take(
    "torch._C._jit_pass_constant_pooling", "cleaning a rewritten graph"
)
lint_graph: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_lint", "checking a rewritten graph")

NAMES.attributes(
    "torch.jit.ScriptModule", "_c", need="the module behind its Python object", of=torch.jit.ScriptModule()
)
NAMES.attributes(
    "torch._C.ScriptModule",
    "_get_method",
    "_method_names",
    "_type",
    need="the methods of a module",
    of=torch.jit.ScriptModule()._c,
)
NAMES.check()
