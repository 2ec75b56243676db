"""The private names of torch that registering autocast needs. docs/private_api.md lists them."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import torch
from torch.library import Library

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.register", without="autocast cannot be registered for a PrivateUse1 device without them")

if TYPE_CHECKING:
    from torch._C import Argument as Argument
    from torch._C import DispatchKey as DispatchKey
    from torch._C import DispatchKeySet as DispatchKeySet
    from torch._ops import HigherOrderOperator as HigherOrderOperator
    from torch._ops import OpOverload as OpOverload

    ExcludeDispatchKeyGuard = torch._C._ExcludeDispatchKeyGuard
else:
    Argument = NAMES.take("torch._C.Argument", "an argument of an op, as its schema says it")
    DispatchKey = NAMES.take("torch._C.DispatchKey", "the autocast key, and the key whose policies are taken over")
    DispatchKeySet = NAMES.take("torch._C.DispatchKeySet", "the keys that a kernel excludes")
    ExcludeDispatchKeyGuard = NAMES.take("torch._C._ExcludeDispatchKeyGuard", "calling an op below a dispatch key")
    HigherOrderOperator = NAMES.take("torch._ops.HigherOrderOperator", "autocast of higher-order operators")
    OpOverload = NAMES.take("torch._ops.OpOverload", "telling an overload from other attributes of `torch.ops`")

higher_order_ops: dict[str, HigherOrderOperator] = NAMES.take(
    "torch._ops._higher_order_ops", "all higher-order operators, each of which gets a kernel or falls through"
)
fallthrough_keys: list[DispatchKey] = NAMES.take(
    "torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS", "higher-order operators that are defined later"
)
flex_attention: HigherOrderOperator = NAMES.take(
    "torch._higher_order_ops.flex_attention", "the operator with autocast kernels, which importing defines"
)
has_kernel: Callable[..., bool] = NAMES.take(
    "torch._C._dispatch_has_kernel_for_dispatch_key", "whether an op has a kernel under a key"
)
has_fallback: Callable[[DispatchKey], bool] = NAMES.take(
    "torch._C._dispatch_has_backend_fallback", "whether the backend registered its own fallback"
)
exclude_key: Callable[[DispatchKey, bool], None] = NAMES.take(
    "torch._C._dispatch_tls_set_dispatch_key_excluded", "excluding the autocast key while a kernel runs"
)
op_names: Callable[[], list[str]] = NAMES.take(
    "torch._C._dispatch_get_all_op_names", "all ops that are registered, to suggest one for a name that does not exist"
)
backend_name: Callable[[], str] = NAMES.take(
    "torch._C._get_privateuse1_backend_name", "the name that the backend gave to PrivateUse1"
)
functions: Any = NAMES.take("torch._C._VariableFunctions", "the functions of `torch`, which kernels call")
nn_functions: Any = NAMES.take("torch._C._nn", "the functions of `torch.nn.functional`, which kernels call")
ModeKey: Any = NAMES.take("torch._C._TorchDispatchModeKey", "programs that must see no cached casts")
mode_of: Callable[[object], object] = NAMES.take(
    "torch._C._get_dispatch_mode", "programs that must see no cached casts"
)
dispatch_modes: Callable[[], int] = NAMES.take("torch._C._len_torch_dispatch_stack", "whether a mode is entered")
tracing_state: Callable[[], object] = NAMES.take("torch._C._get_tracing_state", "whether `torch.jit.trace` is at work")
functorch_level: Callable[[], object] = NAMES.take(
    "torch._C._functorch.peek_interpreter_stack", "whether a transform of torch.func is at work"
)
is_rewritten: Callable[[torch.Tensor], bool] = NAMES.take(
    "torch._C._is_cached_tensor", "weights that CUDA graphs rewrite, whose casts are not cached"
)
has_storage: Callable[[torch.Tensor], bool] = NAMES.take(
    "torch._C._has_storage", "tensors without a storage, whose memory the backend names"
)
eval_frame: Any = NAMES.take("torch._C._dynamo.eval_frame", "telling Dynamo to leave the Python code of a kernel alone")

NAMES.attributes(
    "torch._C._dynamo.eval_frame",
    "_FrameAction",
    "_FrameExecStrategy",
    need="telling Dynamo to leave the Python code of a kernel alone",
)
NAMES.attributes(
    "torch._ops.OpOverload",
    "_schema",
    "_op",
    "_opname",
    "_overloadname",
    "_overloadpacket",
    need="an overload's arguments, its name, the call itself and the other overloads of its op",
    of=torch.ops.aten.mm.default,
)
NAMES.attributes(
    "torch._ops.HigherOrderOperator",
    "_dispatch_cache",
    need="forgetting the kernel that was found before",
    of=torch.ops.higher_order.cond,
)
NAMES.attributes("torch.library.Library", "_destroy", need="taking the kernels back", of=Library)
NAMES.attributes("torch.Tensor", "_is_view", "_version", need="which casts may be cached, and for how long")
NAMES.check()

P = ParamSpec("P")
R = TypeVar("R")
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def dynamo_skip(function: Callable[P, R]) -> Callable[P, R]:
    """Keep Dynamo from compiling or following a Python function from now on; a call costs nothing more.

    A kernel's Python runs as it is between two graphs of a compiled function. Dynamo skips files by their folders;
    generated code has no file.
    """
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function
