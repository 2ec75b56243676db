"""The private names of torch that the jax device needs, besides those of `ampcheck.register.torch_private`.

They are bound at import: the device's kernels run at every op. docs/private_api.md lists them.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ampcheck.spec.private_names import PrivateNames

NAMES = PrivateNames("ampcheck.jax_device", without="there is no jax device without them")

if TYPE_CHECKING:
    from torch._C import DisableTorchFunction as DisableTorchFunction
    from torch.utils import _pytree
    from torch.utils._python_dispatch import _disable_current_modes

    DisableAutocast = torch._C._DisableAutocast
    disable_current_modes = _disable_current_modes
    pytree = _pytree
    CGenerator = torch.Generator
else:
    DisableTorchFunction = NAMES.take(
        "torch._C.DisableTorchFunction", "reading tensors unseen by `__torch_function__` of subclasses and modes"
    )
    DisableAutocast = NAMES.take("torch._C._DisableAutocast", "running a compiled graph, which has its casts already")
    disable_current_modes = NAMES.take(
        "torch.utils._python_dispatch._disable_current_modes", "computing unseen by the caller's dispatch modes"
    )
    pytree = NAMES.take("torch.utils._pytree", "tensors in nested arguments and results")
    CGenerator = NAMES.take("torch._C.Generator", "`torch.Generator`, which is replaced here")

# Making the device and its tensors.
setup_backend: Callable[..., None] = NAMES.take(
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend", "making a device in Python"
)
create_empty_tensor: Callable[..., Tensor] = NAMES.take(
    "torch._C._acc.create_empty_tensor", "making a tensor of the device; its storage is empty"
)
as_strided: Callable[..., Any] = NAMES.take(
    "torch.ops.aten.as_strided.default._handle.redispatch_boxed",
    "other tensors on the same storage, by the Meta kernel",
)
set_storage: Callable[..., Any] = NAMES.take(
    "torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed",
    "giving a tensor another storage, by the Meta kernel",
)
StorageBase: Any = NAMES.take("torch._C.StorageBase", "making a storage of another device")
C: Any = NAMES.take("torch._C", "what `torch.accelerator` asks, which is replaced here")
conj: Callable[[Tensor], Tensor] = NAMES.take("torch._conj", "tensors with a lazy conjugate")
neg_view: Callable[[Tensor], Tensor] = NAMES.take("torch._neg_view", "tensors with a lazy negative")

torch_utils: Any = NAMES.take("torch._utils", "the metadata of a backend")

has_compatible_type: Callable[[Tensor, Tensor], bool] = NAMES.take(
    "torch._has_compatible_shallow_copy_type", "whether a tensor can be given another one's values"
)

# flex_attention, which refuses devices that it does not know.
flex_attention_function: Any = NAMES.take("torch.nn.attention.flex_attention", "`flex_attention` on the device")
NAMES.attributes(
    "torch.nn.attention.flex_attention",
    "_FLEX_ATTENTION_DISABLE_COMPILE_DEBUG",
    "_validate_device",
    need="`flex_attention` on the device",
)

recomputation_hook: Any = NAMES.take(
    "torch.utils.checkpoint._recomputation_hook", "telling what activation checkpointing computes again"
)

# How an op is computed.
elementwise_dtypes: Callable[..., tuple[torch.dtype, torch.dtype]] = NAMES.take(
    "torch._prims_common.elementwise_dtypes", "the dtype that PyTorch promotes to"
)
PromotionKind: Any = NAMES.take("torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND", "the kind of promotion")
suggest_memory_format: Callable[[Tensor], torch.memory_format] = NAMES.take(
    "torch._prims_common.suggest_memory_format", "the layout of a convolution's result"
)
decompositions: dict[Any, Any] = NAMES.take(
    "torch._decomp.decomposition_table", "ops without a lowering, which PyTorch makes of other ops"
)

# What the caller is in the middle of.
function_modes: Callable[[], int] = NAMES.take(
    "torch._C._len_torch_function_stack", "whether a mode is to see the call, which then takes the slow path"
)
GlobalStateGuard: Any = NAMES.take(
    "torch._C._dynamo.guards.GlobalStateGuard", "whether PyTorch's settings are those of a jitted call before"
)
TensorGuards: Any = NAMES.take(
    "torch._C._dynamo.guards.TensorGuards", "whether an argument is like that of a jitted call before"
)
include_key: Callable[[Any, bool], None] = NAMES.take(
    "torch._C._dispatch_tls_set_dispatch_key_included", "seeing every op of a thread while it is traced"
)
transform_level: Callable[[], int | None] = NAMES.take(
    "torch._C._functorch.maybe_current_level", "whether vmap or grad is at work outside of a jitted call"
)
is_functorch_wrapped: Callable[[Tensor], bool] = NAMES.take(
    "torch._C._functorch.is_functorch_wrapped_tensor", "tensors of vmap and grad, which have no storage"
)
unwrapped: Callable[[Tensor], Tensor] = NAMES.take(
    "torch._C._functorch.get_unwrapped", "the tensors that vmap and grad wrap"
)

# torch.compile(backend="jax"); `import torch` loads neither module, so they are looked up at the call.
register_backend = NAMES.call("torch._dynamo.register_backend", 'making the name "jax" known to `torch.compile`')
skip_package = NAMES.call("torch._dynamo.trace_rules.add", "telling Dynamo to leave the device's own code alone")
aot_autograd = NAMES.call("torch._dynamo.backends.common.aot_autograd", "graphs of forward and backward to compile")
InductorBackend: Any = NAMES.take("torch._TorchCompileInductorWrapper", "`torch.compile` without a backend")
default_partition = NAMES.call("torch._functorch.partitioners.default_partition", "computing nothing again in backward")

# torch.distributed; a torch built without it lacks the module.
work_of: Callable[[Any], Any] = NAMES.call(
    "torch._C._distributed_c10d._create_work_from_future", "what a collective of the device returns"
)

NAMES.attributes(
    "torch._ops.OpOverload",
    "_handle",
    "_op_dk",
    need="PyTorch's own kernels for views and for ops made of other ops",
    of=torch.ops.aten.mm.default,
)
NAMES.attributes("torch.UntypedStorage", "_cdata", need="telling storages apart")
NAMES.attributes(
    "torch.Tensor", "_cdata", need="making a parameter one of another device", of=torch.empty(0, device="cpu")
)
NAMES.attributes(
    "torch.UntypedStorage",
    "_new_shared",
    "_set_from_file",
    "_share_fd_cpu_",
    "_share_filename_cpu_",
    "_write_file",
    need="storages of the device, for which these methods are replaced",
)
NAMES.optional(
    "torch.UntypedStorage",
    "_byteswap",
    "_resize_with_addr_",
    "_swap_data_ptr_",
    need="storages of the device, for which these methods are replaced",
)
NAMES.optional(
    "torch._C",
    "_accelerator_emptyCache",
    "_accelerator_emptyHostCache",
    "_accelerator_getDeviceCapability",
    "_accelerator_getDeviceStats",
    "_accelerator_getMemoryInfo",
    "_accelerator_isAllocatorInitialized",
    "_accelerator_resetAccumulatedStats",
    "_accelerator_resetPeakStats",
    "_accelerator_synchronizeDevice",
    need="`torch.accelerator`, for which these functions are replaced",
)
NAMES.attributes(
    "torch._C", "_conv_determine_backend_memory_format", need="fake tensors of a convolution's result, with its layout"
)
NAMES.optional(
    "libc10",
    "c10::GetAllocator",
    "c10::SetAllocator",
    need="an allocator under storages that no method was replaced for",
)
NAMES.optional(
    "libc10", "c10::TensorImpl::_change_backend_component_keys", need="making a parameter one of another device"
)
NAMES.attributes(
    "torch.amp.GradScaler",
    "_lazy_init_scale_growth_tracker",
    "_maybe_opt_step",
    need="a jitted training step whose optimizer the device decides to run",
)
NAMES.attributes(
    "torch.amp.GradScaler",
    "_per_optimizer_states",
    "_scale",
    need="a jitted training step, which carries the scaler's state",
    of=torch.amp.GradScaler("cpu"),
)
NAMES.optional("torch.optim.Optimizer", "_init_group", need="making an optimizer's state before a jitted step")
NAMES.attributes(
    "torch._utils",
    "get_tensor_metadata",
    "set_tensor_metadata",
    need="the metadata of a backend, which `torch.save` writes",
)
NAMES.attributes("torch.nn.Module", "_apply", need="modules that keep their parameters when they move")
NAMES.attributes(
    "torch.nn.Module", "_buffers", "_modules", need="the tensors that a jitted function reaches", of=torch.nn.Module()
)
NAMES.check()
