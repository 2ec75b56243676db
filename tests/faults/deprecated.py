"""Deprecated spellings that do not warn, name nothing to use instead, or do something else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from tests.faults.functions import functions

_fault = partial(functions, rule="deprecated")


def quiet(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same without its warning."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return function(*args, **kwargs)

    return wrong


def loud(function: Callable[..., Any], category: type[Warning], text: str) -> Callable[..., Any]:
    """The same with another warning."""

    def wrong(*args: Any, **kwargs: Any) -> Any:
        warnings.warn(text, category, stacklevel=2)
        return quiet(function)(*args, **kwargs)

    return wrong


_CPU_REGION = torch.cpu.amp.autocast
_CPU_INIT = _CPU_REGION.__init__
_CUDA_INIT = torch.cuda.amp.autocast.__init__


def cpu_region_in_float16(
    self: Any, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True
) -> None:
    quiet(_CPU_INIT)(self, enabled, torch.float16, cache_enabled)


def cpu_region_always_enabled(self: Any, enabled: bool = True, *args: Any, **kwargs: Any) -> None:
    _CPU_INIT(self, True, *args, **kwargs)


def cuda_region_of_cpu(self: Any, enabled: bool = True, dtype: Any = torch.float16, cache_enabled: bool = True) -> None:
    text = "`torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead."
    loud(torch.autocast.__init__, FutureWarning, text)(self, "cpu", dtype, enabled, cache_enabled)


def _aliased(name: str, replacement: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """Return a deprecated function with its warning that does something else."""
    return loud(body, DeprecationWarning, f"torch.{name} is deprecated. Please use torch.{replacement} instead.")


FAULTS = (
    _fault(
        "cpu-region-does-not-warn",
        "warned of nothing",
        "torch.cpu.amp.autocast",
        where=torch.cpu.amp,
        autocast=quiet(_CPU_REGION),
    ),
    _fault("cpu-region-in-float16", "got torch.float16", where=_CPU_REGION, __init__=cpu_region_in_float16),
    _fault(
        "cpu-region-always-enabled",
        "enabled=False: got torch.bfloat16",
        where=_CPU_REGION,
        __init__=cpu_region_always_enabled,
    ),
    _fault(
        "cuda-region-of-cpu",
        "state in the region: got (False, ",
        device="virtual:cuda",
        where=torch.cuda.amp.autocast,
        __init__=cuda_region_of_cpu,
    ),
    _fault(
        "is-cpu-enabled-does-not-warn",
        "is_autocast_cpu_enabled: warned of nothing",
        is_autocast_cpu_enabled=quiet(torch.is_autocast_cpu_enabled),
    ),
    _fault(
        "is-cpu-enabled-names-nothing",
        "is_autocast_cpu_enabled",
        "DeprecationWarning 'deprecated'",
        is_autocast_cpu_enabled=loud(torch.is_autocast_cpu_enabled, DeprecationWarning, "deprecated"),
    ),
    _fault(
        "is-cpu-enabled-reads-cuda",
        "is_autocast_cpu_enabled reads: got False",
        is_autocast_cpu_enabled=_aliased(
            "is_autocast_cpu_enabled()", "is_autocast_enabled('cpu')", lambda: torch.is_autocast_enabled("cuda")
        ),
    ),
    _fault(
        "set-cpu-dtype-does-nothing",
        "set_autocast_cpu_dtype: got torch.bfloat16",
        set_autocast_cpu_dtype=_aliased(
            "set_autocast_cpu_dtype(dtype)", "set_autocast_dtype('cpu', dtype)", lambda dtype: None
        ),
    ),
    _fault(
        "set-gpu-dtype-sets-cpu",
        "set_autocast_gpu_dtype: got torch.float16",
        device="virtual:cuda",
        set_autocast_gpu_dtype=_aliased(
            "set_autocast_gpu_dtype(dtype)",
            "set_autocast_dtype('cuda', dtype)",
            lambda dtype: torch.set_autocast_dtype("cpu", dtype),
        ),
    ),
    _fault(
        "custom-fwd-does-not-warn",
        "custom_fwd: warned of nothing",
        device="virtual:cuda",
        where=torch.cuda.amp,
        custom_fwd=quiet(torch.cuda.amp.custom_fwd),
    ),
)
