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
    DisableTorchFunction = NAMES.take("torch._C.DisableTorchFunction")
    DisableAutocast = NAMES.take("torch._C._DisableAutocast")
    disable_current_modes = NAMES.take("torch.utils._python_dispatch._disable_current_modes")
    pytree = NAMES.take("torch.utils._pytree")
    CGenerator = NAMES.take("torch._C.Generator")

# Making the device and its tensors.
setup_backend: Callable[..., None] = NAMES.take(
    "torch.utils.backend_registration._setup_privateuseone_for_python_backend"
)
create_empty_tensor: Callable[..., Tensor] = NAMES.take("torch._C._acc.create_empty_tensor")
as_strided: Callable[..., Any] = NAMES.take("torch.ops.aten.as_strided.default._handle.redispatch_boxed")
set_storage: Callable[..., Any] = NAMES.take(
    "torch.ops.aten.set_.source_Storage_storage_offset._handle.redispatch_boxed"
)
StorageBase: Any = NAMES.take("torch._C.StorageBase")
C: Any = NAMES.take("torch._C")
conj: Callable[[Tensor], Tensor] = NAMES.take("torch._conj")
neg_view: Callable[[Tensor], Tensor] = NAMES.take("torch._neg_view")

torch_utils: Any = NAMES.take("torch._utils")

has_compatible_type: Callable[[Tensor, Tensor], bool] = NAMES.take("torch._has_compatible_shallow_copy_type")

# flex_attention, which refuses devices that it does not know.
flex_attention_function: Any = NAMES.take("torch.nn.attention.flex_attention")

recomputation_hook: Any = NAMES.take("torch.utils.checkpoint._recomputation_hook")

# How an op is computed.
elementwise_dtypes: Callable[..., tuple[torch.dtype, torch.dtype]] = NAMES.take(
    "torch._prims_common.elementwise_dtypes"
)
PromotionKind: Any = NAMES.take("torch._prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND")
suggest_memory_format: Callable[[Tensor], torch.memory_format] = NAMES.take("torch._prims_common.suggest_memory_format")
decompositions: dict[Any, Any] = NAMES.take("torch._decomp.decomposition_table")

# What the caller is in the middle of.
function_modes: Callable[[], int] = NAMES.take("torch._C._len_torch_function_stack")
function_mode_at: Callable[[int], Any] = NAMES.take("torch._C._get_function_stack_at")
DeviceContext: Any = NAMES.take("torch.utils._device.DeviceContext")
flash_allowed: Callable[[], bool] = NAMES.take("torch._C._get_flash_sdp_enabled")
GlobalStateGuard: Any = NAMES.take("torch._C._dynamo.guards.GlobalStateGuard")
TensorGuards: Any = NAMES.take("torch._C._dynamo.guards.TensorGuards")
include_key: Callable[[Any, bool], None] = NAMES.take("torch._C._dispatch_tls_set_dispatch_key_included")
transform_level: Callable[[], int | None] = NAMES.take("torch._C._functorch.maybe_current_level")
is_functorch_wrapped: Callable[[Tensor], bool] = NAMES.take("torch._C._functorch.is_functorch_wrapped_tensor")
unwrapped: Callable[[Tensor], Tensor] = NAMES.take("torch._C._functorch.get_unwrapped")

# torch.compile(backend="jax"); `import torch` loads neither module, so they are looked up at the call.
register_backend = NAMES.call("torch._dynamo.register_backend")
skip_package = NAMES.call("torch._dynamo.trace_rules.add")
aot_autograd = NAMES.call("torch._dynamo.backends.common.aot_autograd")
InductorBackend: Any = NAMES.take("torch._TorchCompileInductorWrapper")
default_partition = NAMES.call("torch._functorch.partitioners.default_partition")

# torch.distributed; a torch built without it lacks the module.
work_of: Callable[[Any], Any] = NAMES.call("torch._C._distributed_c10d._create_work_from_future")

NAMES.check(
    {
        "torch._ops.OpOverload": torch.ops.aten.mm.default,
        "torch.Tensor": torch.empty(0, device="cpu"),
        "torch.amp.GradScaler": torch.amp.GradScaler("cpu"),
        "torch.nn.Module": torch.nn.Module(),
    }
)
