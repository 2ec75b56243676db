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
    FakeTensor = NAMES.take("torch._subclasses.fake_tensor.FakeTensor", "leaving fake tensors out of a trace")

current_node: Callable[[], Node | None] = NAMES.take(
    "torch._C._current_autograd_node", "the forward call of a backward kernel"
)
sequence_number: Callable[[], int] = NAMES.take(
    "torch._C._autograd._get_sequence_nr", "the forward call of a backward kernel"
)
restored_state: Callable[[], AbstractContextManager[None]] = NAMES.take(
    "torch._C._RestorePythonTLSSnapshot", "running an op as the code that called it would"
)
disabled_function: object = NAMES.take(
    "torch._C._disabled_torch_function_impl", "classes of tensors without a `__torch_function__`"
)
is_multithreaded: Callable[[], bool] = NAMES.take(
    "torch._C._is_multithreading_enabled", "backward in the thread that a trace sees"
)
set_multithreaded: Callable[[bool], None] = NAMES.take(
    "torch._C._set_multithreading_enabled", "backward in the thread that a trace sees"
)
function_modes: Callable[[], int] = NAMES.take("torch._C._len_torch_function_stack", "the public call of a kernel")
function_mode_at: Callable[[int], object] = NAMES.take("torch._C._get_function_stack_at", "the public call of a kernel")
current_dispatch_mode: Callable[[], object] = NAMES.take(
    "torch.utils._python_dispatch._get_current_dispatch_mode", "leaving the doctor's mode between steps"
)
is_functorch_wrapped: Callable[[torch.Tensor], bool] = NAMES.take(
    "torch._C._functorch.is_functorch_wrapped_tensor", "casts under a transform of torch.func"
)
resolve: Callable[..., str] = NAMES.take("torch._C._jit_resolve_packet", "the overload that a call means")
linalg_functions: object = NAMES.take("torch._C._linalg", "the functions that PyTorch's autocast lists name")
RUN_BACKWARD: CodeType = NAMES.take("torch.autograd.graph._engine_run_backward.__code__", "hooks that clip gradients")
FUNCTION_BACKWARD: CodeType = NAMES.take(
    "torch.autograd.function.BackwardCFunction.apply.__code__", "telling hooks from autograd functions"
)
MODULE_CALL: CodeType = NAMES.take("torch.nn.Module._call_impl.__code__", "the module that a cast is made in")

NAMES.attributes(
    "torch.amp.autocast", "_enabled", need="whether a region is on (`doctor`)", of=torch.autocast("cpu", enabled=False)
)
NAMES.attributes("torch._ops.OpOverloadPacket", "_qualified_op_name", need="the name of an op", of=torch.ops.aten.mm)
NAMES.attributes("torch.Tensor", "_base", need="the tensor behind a view")
NAMES.attributes("torch.UntypedStorage", "_cdata", need="telling storages apart")
NAMES.attributes(
    "torch.amp.GradScaler", "_found_inf_per_device", "_get_scale_async", need="why a step was skipped (`watch`)"
)
NAMES.attributes(
    "torch.amp.GradScaler",
    "_per_optimizer_states",
    need="whether the gradients are unscaled already (`watch`)",
    of=torch.amp.GradScaler("cpu"),
)
NAMES.check()
