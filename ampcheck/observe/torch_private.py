"""The private names of torch that observing and judging a call needs. docs/private_api.md lists them.

Names that the packages below need too are in `ampcheck.register.torch_private` and `ampcheck.samples.torch_private`.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from ampcheck.samples.torch_private import pytree as pytree
from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.observe", without="no device can be checked without them")

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch._C import StorageBase as StorageBase
    from torch._C._autograd import DeviceType as DeviceType
    from torch._ops import OpOverloadPacket as OpOverloadPacket
    from torch._subclasses.fake_tensor import FakeTensorMode as FakeTensorMode
    from torch._subclasses.fake_tensor import unset_fake_temporarily as unset_fake_temporarily
    from torch.utils._mode_utils import no_dispatch as no_dispatch
    from torch.utils._python_dispatch import TorchDispatchMode as TorchDispatchMode

    AutoDispatchBelowAutograd = torch._C._AutoDispatchBelowAutograd
else:
    StorageBase = NAMES.take("torch._C.StorageBase", "storages of emulated devices")
    DisableTorchFunction = NAMES.take("torch._C.DisableTorchFunction", "calls unseen by function modes")
    AutoDispatchBelowAutograd = NAMES.take(
        "torch._C._AutoDispatchBelowAutograd", "seeing an op whole, before autograd takes it apart"
    )
    DeviceType = NAMES.take("torch._C._autograd.DeviceType", "device types by number, for virtual devices")
    OpOverloadPacket = NAMES.take("torch._ops.OpOverloadPacket", "naming an op that is called without an overload")
    FakeTensorMode = NAMES.take("torch._subclasses.fake_tensor.FakeTensorMode", "the virtual devices")
    unset_fake_temporarily = NAMES.take(
        "torch._subclasses.fake_tensor.unset_fake_temporarily", "real samples while a virtual device is entered"
    )
    no_dispatch = NAMES.take("torch.utils._mode_utils.no_dispatch", "CPU tensors beside torchax")
    TorchDispatchMode = NAMES.take("torch.utils._python_dispatch.TorchDispatchMode", "seeing every kernel that runs")

# The dispatcher.
dispatch_dump: Callable[[str], str] = NAMES.take(
    "torch._C._dispatch_dump", "whether an autocast kernel is written in C++"
)
dispatch_keys: Callable[[torch.Tensor], Any] = NAMES.take("torch._C._dispatch_keys", "the backend of a tensor")
schema_of: Callable[[str, str], Any] = NAMES.take("torch._C._get_schema", "whether an overload exists")
is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = NAMES.take(
    "torch._C._is_alias_of", "outputs that share memory with inputs"
)

# Parts of PyTorch that a device is asked for.
get_cudnn_enabled: Callable[[], bool] = NAMES.take("torch._C._get_cudnn_enabled", "virtual:cuda has no cuDNN")
set_cudnn_enabled: Callable[[bool], None] = NAMES.take("torch._C._set_cudnn_enabled", "virtual:cuda has no cuDNN")
can_fuse_on_gpu: Callable[[], bool] = NAMES.take("torch._C._jit_can_fuse_on_gpu", "virtual:cuda compiles for no GPU")
set_fuse_on_gpu: Callable[[bool], None] = NAMES.take(
    "torch._C._jit_override_can_fuse_on_gpu", "virtual:cuda compiles for no GPU"
)
unscale = NAMES.call(
    "torch._amp_foreach_non_finite_check_and_unscale_", "whether a device can unscale gradients (`ampcheck onboard`)"
)
update_scale = NAMES.call("torch._amp_update_scale_", "whether a device can update a scale (`ampcheck onboard`)")

# Dynamo takes seconds to import, so it is looked up when it is used.
load_dynamo = NAMES.module(
    "torch._dynamo.variables.torch",
    "importing Dynamo before functions of torch, which it finds by identity, are replaced",
)
compile_package = NAMES.call("torch._inductor.aoti_compile_and_package", "programs that AOTInductor compiles")
load_package = NAMES.call("torch._inductor.aoti_load_package", "programs that AOTInductor compiles")
reset_dynamo = NAMES.call("torch._dynamo.reset", "compiling each case afresh")
TracerWarning: type[Warning] = NAMES.take("torch.jit._trace.TracerWarning", "warnings to leave out")

NAMES.attributes(
    "torch.utils.checkpoint.DefaultDeviceType",
    "_default_device_type",
    need="checkpoints without tensors among their arguments, on the device under test",
)
NAMES.attributes(
    "torch._ops.OpOverload",
    "_can_decompose",
    "_op_dk",
    need="whether an op is made of other ops, and running it so that they are seen",
    of=torch.ops.aten.mm.default,
)
NAMES.attributes(
    "torch.nn.Module", "_buffers", "_parameters", need="giving a copy of a module other tensors", of=torch.nn.Module()
)
NAMES.attributes(
    "torch.nn.RNNBase",
    "_flat_weights",
    "_flat_weights_names",
    need="giving a copy of a recurrent module other weights",
    of=torch.nn.RNN(1, 1, device="meta"),  # draws no random numbers
)
NAMES.attributes("torch.Tensor", "_values", need="the values of sparse gradients")
NAMES.attributes(
    "torch._C._functions.AccumulateGrad",
    "_input_metadata",
    "_sequence_nr",
    need="backward on virtual devices, from node to node",
)
NAMES.optional(
    "libc10",
    "c10::impl::device_guard_impl_registry",
    "c10::impl::registerDeviceGuard",
    need="gradients on virtual devices",
)
NAMES.optional("torch._dynamo.guards", "profile_guard_manager", need="leaving a measurement out of each compilation")
NAMES.optional("torch._dynamo.symbolic_convert", "get_funcname", need="reading no file by its tokens for a log")
NAMES.optional(
    "torch._dynamo.utils",
    "_compiler_config_for_logging",
    "_functorch_config_for_logging",
    "_get_dynamo_config_for_logging",
    "_scrubbed_inductor_config_for_logging",
    need="leaving the text of all settings out of each compilation",
)
NAMES.optional(
    "torch._export.utils",
    "_collect_all_valid_cia_ops",
    "_materialize_cpp_cia_ops",
    need="listing the composite ops once an export, not once for each namespace",
)
NAMES.check()
