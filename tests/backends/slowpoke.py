"""A PrivateUse1 backend of a third party: CPU tensors in a wrapper, autocast registered kernel by kernel.

It uses nothing of ampcheck but the device class and the policy table.
"""

from typing import Any

import torch
from engine import device_module
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ampcheck.devices import Device
from ampcheck.spec.policies import closest, table

NAME = "slowpoke"
KEY = "AutocastPrivateUse1"

_MODULE = device_module(NAME, get_amp_supported_dtype=lambda: [torch.float16, torch.bfloat16])
_setup_privateuseone_for_python_backend(rename=NAME, backend_module=_MODULE)


class Wrapped(torch.Tensor):
    """A tensor that says it lives on the device and keeps its values on the CPU."""

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> "Wrapped":
        memory = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        given = {"device": f"{NAME}:0", "requires_grad": held.requires_grad}
        return torch.Tensor._make_wrapper_subclass(cls, held.shape, **memory, **given)

    def __init__(self, held: torch.Tensor) -> None:
        self.held = held

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = tree_map(lambda x: x.held if isinstance(x, Wrapped) else x, (args, kwargs or {}))
        if plain[1].get("device") is not None:
            plain[1]["device"] = torch.device("cpu")
        out = func(*plain[0], **plain[1])
        if func.overloadpacket is torch.ops.aten._to_copy and (kwargs or {}).get("device") == torch.device("cpu"):
            return out
        return tree_map(lambda x: Wrapped(x) if isinstance(x, torch.Tensor) else x, out)


def _on_cpu(op: Any) -> Any:
    return lambda *args, device=None, pin_memory=None, **kwargs: Wrapped(op(*args, device="cpu", **kwargs))


_kernels = Library("aten", "IMPL")
_kernels.impl("empty.memory_format", _on_cpu(torch.ops.aten.empty.memory_format), "PrivateUse1")
_kernels.impl("empty_strided", _on_cpu(torch.ops.aten.empty_strided.default), "PrivateUse1")
_fallback = Library("_", "IMPL")
_fallback.fallback(fallthrough_kernel, KEY)
_aten = Library("aten", "IMPL")


def _eligible(x: Any) -> bool:
    if not isinstance(x, torch.Tensor) or x.device.type != NAME:
        return False
    return x.is_floating_point() and x.dtype is not torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if _eligible(x) else x, value)


_APPENDED = {
    torch.ops.aten.norm.Scalar: torch.ops.aten.norm.ScalarOpt_dtype,
    torch.ops.aten.norm.ScalarOpt_dim: torch.ops.aten.norm.ScalarOpt_dim_dtype,
}


def _kernel(op: Any, policy: str) -> Any:
    names = [argument.name for argument in op._schema.arguments]

    def run(*args: Any, **kwargs: Any) -> Any:
        low = torch.get_autocast_dtype(NAME)
        with torch._C._ExcludeDispatchKeyGuard(torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastPrivateUse1)):
            if policy == "banned":
                raise RuntimeError("binary_cross_entropy is unsafe to autocast; use binary_cross_entropy_with_logits")
            if policy in ("downcast", "upcast"):
                args, kwargs = _cast((args, kwargs), low if policy == "downcast" else torch.float32)
            elif policy == "promote":
                if found := {x.dtype for x in tree_leaves((args, kwargs)) if _eligible(x)}:
                    args, kwargs = _cast((args, kwargs), found.pop() if len(found) == 1 else torch.float32)
            elif policy == "optdtype" and _eligible(args[0]):
                place = names.index("dtype")
                given = args[place] if place < len(args) else kwargs.get("dtype")
                if given is None:
                    args = tuple(torch.float32 if n == place else a for n, a in enumerate(args))
                    kwargs = {**kwargs, **({"dtype": torch.float32} if place >= len(args) else {})}
            elif policy == "append":
                # The dispatcher leaves out trailing arguments that have their default; the other overload has none.
                left = op._schema.arguments[len(args) :]
                args = (*args, *(kwargs.pop(a.name, a.default_value) for a in left))
                dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
                return _APPENDED[op](*args, dtype=dtype)
            return op(*args, **kwargs)

    return run


for _name, _policy in table("AutocastCUDA", closest(torch.__version__)).items():
    _packet, _, _variant = _name.partition(".")
    _op = getattr(getattr(torch.ops.aten, _packet), _variant or "default")
    _aten.impl(_name, _kernel(_op, _policy), KEY)


class Slowpoke(Device):
    """The backend as ampcheck sees it."""

    name = token = type = NAME
    key = KEY

    def unavailable(self) -> str | None:
        return None

    def policies(self) -> Any:
        return table("AutocastCUDA", closest(torch.__version__))

    def tensor(self, arg: Any, dtype: str, position: int) -> torch.Tensor:
        from ampcheck.samples.tensors import host_tensor

        made = host_tensor(arg, dtype, position)
        return made if arg.device == "cpu" else Wrapped(made)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.held if isinstance(tensor, Wrapped) else tensor


DEVICES = (Slowpoke(),)
