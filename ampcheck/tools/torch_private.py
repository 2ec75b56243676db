"""The private names of torch that the tools need, besides those below. docs/private_api.md lists them."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from types import CodeType
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import Node

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.tools", without="trace, watch, lint, explain and entered do not work")

if TYPE_CHECKING:
    from torch._subclasses.fake_tensor import FakeTensor as FakeTensor
else:
    FakeTensor = NAMES.take("torch._subclasses.fake_tensor.FakeTensor")

current_node: Callable[[], Node | None] = NAMES.take("torch._C._current_autograd_node")
sequence_number: Callable[[], int] = NAMES.take("torch._C._autograd._get_sequence_nr")
restored_state: Callable[[], AbstractContextManager[None]] = NAMES.take("torch._C._RestorePythonTLSSnapshot")
disabled_function: object = NAMES.take("torch._C._disabled_torch_function_impl")
is_multithreaded: Callable[[], bool] = NAMES.take("torch._C._is_multithreading_enabled")
set_multithreaded: Callable[[bool], None] = NAMES.take("torch._C._set_multithreading_enabled")
function_modes: Callable[[], int] = NAMES.take("torch._C._len_torch_function_stack")
function_mode_at: Callable[[int], object] = NAMES.take("torch._C._get_function_stack_at")
current_dispatch_mode: Callable[[], object] = NAMES.take("torch.utils._python_dispatch._get_current_dispatch_mode")
is_functorch_wrapped: Callable[[torch.Tensor], bool] = NAMES.take("torch._C._functorch.is_functorch_wrapped_tensor")
resolve: Callable[..., str] = NAMES.take("torch._C._jit_resolve_packet")
linalg_functions: object = NAMES.take("torch._C._linalg")
RUN_BACKWARD: CodeType = NAMES.take("torch.autograd.graph._engine_run_backward.__code__")
FUNCTION_BACKWARD: CodeType = NAMES.take("torch.autograd.function.BackwardCFunction.apply.__code__")
MODULE_CALL: CodeType = NAMES.take("torch.nn.Module._call_impl.__code__")

NAMES.check(
    {
        "torch.amp.autocast": torch.autocast("cpu", enabled=False),
        "torch._ops.OpOverloadPacket": torch.ops.aten.mm,
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
    }
)
