"""A PrivateUse1 backend of a third party, whose autocast is registered kernel by kernel.

For that it uses nothing of ampcheck but the policy table.
"""

from typing import Any

import torch
from engine import Arrays, Backend, Tested, overload
from torch.library import Library, fallthrough_kernel
from torch.utils._pytree import tree_map

from ampcheck.spec.policies import closest, table

NAME = "slowpoke"
KEY = "AutocastPrivateUse1"
BACKEND = Backend(NAME, Arrays(), fallback=True)
torch.slowpoke.get_amp_supported_dtype = lambda: [torch.float16, torch.bfloat16]

_fallback = Library("_", "IMPL")
_fallback.fallback(fallthrough_kernel, KEY)
_aten = Library("aten", "IMPL")


def _eligible(x: Any) -> bool:
    if not isinstance(x, torch.Tensor) or x.device.type != NAME:
        return False
    return x.is_floating_point() and x.dtype is not torch.float64


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda x: x.to(dtype) if _eligible(x) else x, value)


def _floats(value: Any) -> list[torch.dtype]:
    found: list[torch.dtype] = []
    tree_map(lambda x: found.append(x.dtype) if _eligible(x) else None, value)
    return found


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
                found = _floats((args, kwargs))
                if found:
                    widest = found[0] if len(set(found)) == 1 else torch.float32
                    args, kwargs = _cast((args, kwargs), widest)
            elif policy == "optdtype" and _eligible(args[0]):
                place = names.index("dtype")
                given = args[place] if place < len(args) else kwargs.get("dtype")
                if given is None:
                    args = tuple(torch.float32 if n == place else a for n, a in enumerate(args))
                    kwargs = {**kwargs, **({"dtype": torch.float32} if place >= len(args) else {})}
            elif policy == "append":
                # The dispatcher leaves out trailing arguments that have their default; the other overload has none.
                defaults = [a.default_value for a in op._schema.arguments]
                args = (
                    *args,
                    *(kwargs.pop(n, d) for n, d in zip(names[len(args) :], defaults[len(args) :], strict=True)),
                )
                dtype = torch.float32 if _eligible(args[0]) else args[0].dtype
                return _APPENDED[op](*args, dtype=dtype)
            return op(*args, **kwargs)

    return run


for _name, _policy in table("AutocastCUDA", closest(torch.__version__)).items():
    _aten.impl(_name, _kernel(overload(_name), _policy), KEY)

DEVICES = (Tested(BACKEND),)
