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
    StorageBase = NAMES.take("torch._C.StorageBase")
    DisableTorchFunction = NAMES.take("torch._C.DisableTorchFunction")
    AutoDispatchBelowAutograd = NAMES.take("torch._C._AutoDispatchBelowAutograd")
    DeviceType = NAMES.take("torch._C._autograd.DeviceType")
    OpOverloadPacket = NAMES.take("torch._ops.OpOverloadPacket")
    FakeTensorMode = NAMES.take("torch._subclasses.fake_tensor.FakeTensorMode")
    unset_fake_temporarily = NAMES.take("torch._subclasses.fake_tensor.unset_fake_temporarily")
    no_dispatch = NAMES.take("torch.utils._mode_utils.no_dispatch")
    TorchDispatchMode = NAMES.take("torch.utils._python_dispatch.TorchDispatchMode")

# The dispatcher.
dispatch_dump: Callable[[str], str] = NAMES.take("torch._C._dispatch_dump")
dispatch_keys: Callable[[torch.Tensor], Any] = NAMES.take("torch._C._dispatch_keys")
schema_of: Callable[[str, str], Any] = NAMES.take("torch._C._get_schema")
is_alias_of: Callable[[torch.Tensor, torch.Tensor], bool] = NAMES.take("torch._C._is_alias_of")

# Parts of PyTorch that a device is asked for.
get_cudnn_enabled: Callable[[], bool] = NAMES.take("torch._C._get_cudnn_enabled")
set_cudnn_enabled: Callable[[bool], None] = NAMES.take("torch._C._set_cudnn_enabled")
can_fuse_on_gpu: Callable[[], bool] = NAMES.take("torch._C._jit_can_fuse_on_gpu")
set_fuse_on_gpu: Callable[[bool], None] = NAMES.take("torch._C._jit_override_can_fuse_on_gpu")
unscale = NAMES.call("torch._amp_foreach_non_finite_check_and_unscale_")
update_scale = NAMES.call("torch._amp_update_scale_")

# Dynamo takes seconds to import, so it is looked up when it is used.
load_dynamo = NAMES.module("torch._dynamo.variables.torch")
compile_package = NAMES.call("torch._inductor.aoti_compile_and_package")
load_package = NAMES.call("torch._inductor.aoti_load_package")
reset_dynamo = NAMES.call("torch._dynamo.reset")
decompositions = NAMES.call("torch._inductor.decomposition.select_decomp_table")
all_decompositions = NAMES.module("torch._decomp")
inductor_graphs = NAMES.module("torch._inductor.graph")
TracerWarning: type[Warning] = NAMES.take("torch.jit._trace.TracerWarning")

NAMES.check(
    {
        "torch._ops.OpOverload": torch.ops.aten.mm.default,
        "torch.nn.Module": torch.nn.Module(),
        "torch.nn.RNNBase": torch.nn.RNN(1, 1, device="meta"),  # draws no random numbers
    }
)
