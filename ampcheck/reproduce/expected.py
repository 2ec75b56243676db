"""What each op with a policy must receive while a call runs, worked out by `ampcheck.observe.replay` for a
reproduction.

A reproduction has no policy table. It holds lines such as "linear bf16 bf16 bf16": the overload, the dtypes of its
tensor arguments and, where it has one, its `dtype=`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ampcheck.devices.base import Device
from ampcheck.observe.recorder import overload_name, tensors
from ampcheck.observe.replay import by_policies, replay
from ampcheck.observe.torch_private import TorchDispatchMode
from ampcheck.spec.casting import APPENDED
from ampcheck.spec.torch_dtypes import DTYPES, name_of


class _Seen(TorchDispatchMode):
    """Writes down the ops with a policy that a replay calls, as it has cast their arguments."""

    def __init__(self, policies: Mapping[str, str]) -> None:
        super().__init__()
        self.lines: list[str] = []
        self._policies = policies

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = overload_name(func)
        if name in self._policies or name in APPENDED.values():
            given = {**dict(zip((a.name for a in func._schema.arguments), args, strict=False)), **kwargs}
            dtype = given.get("dtype")
            told = [f"dtype={name_of(dtype)}"] if isinstance(dtype, torch.dtype) else []
            self.lines.append(" ".join([name, *(name_of(t.dtype) for t in tensors((args, kwargs))), *told]))
        return func(*args, **kwargs)


def of_call(call: Callable[[], Any], device: Device, dtype: str) -> tuple[list[str], bool, list[torch.Tensor]]:
    """Return the lines of a call, whether some are of ops inside a kernel, and its outputs; the device is entered.

    A call that raises has a last line "raises" and the error's class.
    """
    policies = device.policies()
    seen = _Seen(policies)
    with seen:
        found, outside = replay(call, device.type, policies, by_policies(policies, DTYPES[dtype]))
    raised = [f"raises {type(found.error).__name__}"] if found.error is not None else []
    return [*seen.lines, *raised], len(outside) < sum(line.split()[0] in policies for line in seen.lines), found.outputs
