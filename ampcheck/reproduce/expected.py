"""What each op with a policy must receive while a call runs, worked out by `ampcheck.observe.replay` for a
reproduction.

A reproduction has no policy table. It holds lines such as "linear bf16 bf16 bf16": the overload, the dtypes of its
tensor arguments and, where it has one, its `dtype=`.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.checks.scenario import Amp
from ampcheck.devices.base import Device
from ampcheck.observe.isolation import reset
from ampcheck.observe.recorder import overload_name, tensors
from ampcheck.observe.replay import replay
from ampcheck.observe.torch_private import TorchDispatchMode
from ampcheck.spec.casting import APPENDED
from ampcheck.spec.torch_dtypes import name_of


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
        found, outside = replay(call, device.type, dtype, policies)
    raised = [f"raises {type(found.error).__name__}"] if found.error is not None else []
    return [*seen.lines, *raised], len(outside) < sum(line.split()[0] in policies for line in seen.lines), found.outputs


def of_scenario(
    body: Callable[..., Any], helper: str, device: Device, dtype: str, params: Mapping[str, Any]
) -> tuple[dict[str, list[str]], bool]:
    """Return the lines of each call that a scenario hands to a helper of its file, by the name it gives the call.

    The scenario runs with the helper replaced: a replay of autocast runs the call, and no region is entered around it.
    """
    found: dict[str, list[str]] = {}
    hides = False

    def note(amp: Amp, call: Callable[[], Any], name: str, **options: bool) -> tuple[list[torch.Tensor], bool]:
        nonlocal hides
        device.seed()
        found[name], hidden, outputs = of_call(call, device, dtype)
        hides = hides or hidden
        return outputs, bool(found[name])

    reset({device.type: device.default_amp})
    try:
        with device.activate(), warnings.catch_warnings(), patch.dict(body.__globals__, {helper: note}):
            warnings.simplefilter("ignore")  # it warned when it ran
            body(Amp(device, dtype), **params)
    except Exception:  # it failed when it ran, or there would be nothing to reproduce; what it reached is enough
        pass
    finally:
        reset({device.type: device.default_amp})
    return found, hides
