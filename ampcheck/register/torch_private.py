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
    Argument = NAMES.take("torch._C.Argument")
    DispatchKey = NAMES.take("torch._C.DispatchKey")
    DispatchKeySet = NAMES.take("torch._C.DispatchKeySet")
    ExcludeDispatchKeyGuard = NAMES.take("torch._C._ExcludeDispatchKeyGuard")
    HigherOrderOperator = NAMES.take("torch._ops.HigherOrderOperator")
    OpOverload = NAMES.take("torch._ops.OpOverload")

higher_order_ops: dict[str, HigherOrderOperator] = NAMES.take("torch._ops._higher_order_ops")
fallthrough_keys: list[DispatchKey] = NAMES.take("torch._ops._HIGHER_ORDER_OP_DEFAULT_FALLTHROUGH_DISPATCH_KEYS")
flex_attention: HigherOrderOperator = NAMES.take("torch._higher_order_ops.flex_attention")
has_kernel: Callable[..., bool] = NAMES.take("torch._C._dispatch_has_kernel_for_dispatch_key")
has_fallback: Callable[[DispatchKey], bool] = NAMES.take("torch._C._dispatch_has_backend_fallback")
exclude_key: Callable[[DispatchKey, bool], None] = NAMES.take("torch._C._dispatch_tls_set_dispatch_key_excluded")
op_names: Callable[[], list[str]] = NAMES.take("torch._C._dispatch_get_all_op_names")
backend_name: Callable[[], str] = NAMES.take("torch._C._get_privateuse1_backend_name")
functions: Any = NAMES.take("torch._C._VariableFunctions")
nn_functions: Any = NAMES.take("torch._C._nn")
ModeKey: Any = NAMES.take("torch._C._TorchDispatchModeKey")
mode_of: Callable[[object], object] = NAMES.take("torch._C._get_dispatch_mode")
dispatch_modes: Callable[[], int] = NAMES.take("torch._C._len_torch_dispatch_stack")
tracing_state: Callable[[], object] = NAMES.take("torch._C._get_tracing_state")
functorch_level: Callable[[], object] = NAMES.take("torch._C._functorch.peek_interpreter_stack")
is_rewritten: Callable[[torch.Tensor], bool] = NAMES.take("torch._C._is_cached_tensor")
has_storage: Callable[[torch.Tensor], bool] = NAMES.take("torch._C._has_storage")
eval_frame: Any = NAMES.take("torch._C._dynamo.eval_frame")

NAMES.check(
    {
        "torch._ops.OpOverload": torch.ops.aten.mm.default,
        "torch._ops.HigherOrderOperator": torch.ops.higher_order.cond,
        "torch.library.Library": Library,
    }
)

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
