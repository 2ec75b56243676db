"""The private names of torch that rewriting TorchScript needs. docs/private_api.md lists them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.torchscript", without="TorchScript programs cannot be rewritten without them")

BoolType: Any = NAMES.take("torch._C.BoolType", "the types of values in a graph")
IntType: Any = NAMES.take("torch._C.IntType", "the types of values in a graph")
ListType: Any = NAMES.take("torch._C.ListType", "the types of values in a graph")
NoneType: Any = NAMES.take("torch._C.NoneType", "the types of values in a graph")
NumberType: Any = NAMES.take("torch._C.NumberType", "the types of values in a graph")
OptionalType: Any = NAMES.take("torch._C.OptionalType", "the types of values in a graph")
StringType: Any = NAMES.take("torch._C.StringType", "the types of values in a graph")
TensorType: Any = NAMES.take("torch._C.TensorType", "the types of values in a graph")
CompilationUnit: Any = NAMES.take("torch._C.CompilationUnit", "the rewritten copy of a function")
ModuleDict: Any = NAMES.take("torch._C.ModuleDict", "the parts of a scripted module")
ParameterDict: Any = NAMES.take("torch._C.ParameterDict", "giving a copied module the tensors of the original")
BufferDict: Any = NAMES.take("torch._C.BufferDict", "giving a copied module the tensors of the original")
clone_module: Callable[..., Any] = NAMES.take(
    "torch._C._hack_do_not_use_clone_module_with_class", "a copy of a module whose code can be changed"
)
wrap_module: Callable[[Any], Any] = NAMES.take("torch.jit._recursive.wrap_cpp_module", "the copy as a ScriptModule")
python_code: Any = NAMES.take("torch.jit._state._python_cu", "the functions and classes that this process scripted")
function_of_graph: Callable[[str, Any], Any] = NAMES.take(
    "torch._C._create_function_from_graph", "running a rewritten graph"
)
parse_schema: Callable[[str], Any] = NAMES.take("torch._C.parse_schema", "the arguments of the op that a node calls")
schemas_of: Callable[[str], list[Any]] = NAMES.take(
    "torch._C._jit_get_schemas_for_operator", "whether the operators of the library are loaded"
)
set_autocast_pass: Callable[[bool], bool] = NAMES.take(
    "torch._C._jit_set_autocast_mode", "switching PyTorch's own pass off while ours runs"
)
inline_calls: Callable[[Any], None] = NAMES.take("torch._C._jit_pass_inline", "taking in what a program calls")
inline_fork_wait: Callable[[Any], None] = NAMES.take(
    "torch._C._jit_pass_inline_fork_wait", "running what is forked in its place"
)
erase_shapes: Callable[[Any], None] = NAMES.take(
    "torch._C._jit_pass_erase_shape_information", "dropping a trace's dtypes, which are those without our casts"
)
remove_dead_code: Callable[[Any], None] = NAMES.take("torch._C._jit_pass_dce", "cleaning a rewritten graph")
pool_constants: Callable[[Any], None] = NAMES.take("torch._C._jit_pass_constant_pooling", "cleaning a rewritten graph")
lint_graph: Callable[[Any], None] = NAMES.take("torch._C._jit_pass_lint", "checking a rewritten graph")

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
