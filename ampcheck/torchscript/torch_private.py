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


BoolType: TypeOf = NAMES.take("torch._C.BoolType")
IntType: TypeOf = NAMES.take("torch._C.IntType")
NoneType: TypeOf = NAMES.take("torch._C.NoneType")
NumberType: TypeOf = NAMES.take("torch._C.NumberType")
StringType: TypeOf = NAMES.take("torch._C.StringType")
TensorType: TypeOf = NAMES.take("torch._C.TensorType")
ListType: Callable[[JitType], JitType] = NAMES.take("torch._C.ListType")
OptionalType: Callable[[JitType], JitType] = NAMES.take("torch._C.OptionalType")
CompilationUnit: Any = NAMES.take("torch._C.CompilationUnit")
ModuleDict: Callable[[JitModule], dict[str, JitModule]] = NAMES.take("torch._C.ModuleDict")
ParameterDict: Callable[[JitModule], dict[str, torch.Tensor]] = NAMES.take("torch._C.ParameterDict")
BufferDict: Callable[[JitModule], dict[str, torch.Tensor]] = NAMES.take("torch._C.BufferDict")
clone_module: Callable[[JitModule, list[object], list[object]], JitModule] = NAMES.take(
    "torch._C._hack_do_not_use_clone_module_with_class"
)
wrap_module: Callable[[JitModule], torch.jit.ScriptModule] = NAMES.take("torch.jit._recursive.wrap_cpp_module")
python_code: Any = NAMES.take("torch.jit._state._python_cu")
function_of_graph: Callable[[str, Graph], JitCode] = NAMES.take("torch._C._create_function_from_graph")
parse_schema: Callable[[str], FunctionSchema] = NAMES.take("torch._C.parse_schema")
schemas_of: Callable[[str], list[FunctionSchema]] = NAMES.take("torch._C._jit_get_schemas_for_operator")
set_autocast_pass: Callable[[bool], bool] = NAMES.take("torch._C._jit_set_autocast_mode")
inline_calls: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_inline")
inline_fork_wait: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_inline_fork_wait")
erase_shapes: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_erase_shape_information")
remove_dead_code: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_dce")
pool_constants: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_constant_pooling")
lint_graph: Callable[[Graph], None] = NAMES.take("torch._C._jit_pass_lint")

NAMES.check({"torch.jit.ScriptModule": torch.jit.ScriptModule(), "torch._C.ScriptModule": torch.jit.ScriptModule()._c})
