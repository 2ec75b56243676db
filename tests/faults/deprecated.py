"""Deprecated spellings that do not warn, name nothing to use instead, or do something else."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.functions import functions


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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.autocast.__init__(self, "cpu", dtype, enabled, cache_enabled)
    warnings.warn(
        "`torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.",
        FutureWarning,
        stacklevel=2,
    )


def _aliased(name: str, replacement: str, body: Callable[..., Any]) -> Callable[..., Any]:
    """A deprecated function with its warning, that does something else."""

    def wrong(*args: Any) -> Any:
        warnings.warn(
            f"torch.{name} is deprecated. Please use torch.{replacement} instead.", DeprecationWarning, stacklevel=2
        )
        return body(*args)

    return wrong


FAULTS = (
    functions(
        "cpu-region-does-not-warn",
        "deprecated",
        "warned of nothing",
        "torch.cpu.amp.autocast",
        where=torch.cpu.amp,
        autocast=quiet(_CPU_REGION),
    ),
    functions(
        "cpu-region-in-float16", "deprecated", "got torch.float16", where=_CPU_REGION, __init__=cpu_region_in_float16
    ),
    functions(
        "cpu-region-always-enabled",
        "deprecated",
        "enabled=False: got torch.bfloat16",
        where=_CPU_REGION,
        __init__=cpu_region_always_enabled,
    ),
    functions(
        "cuda-region-of-cpu",
        "deprecated",
        "state in the region: got (False, ",
        device="virtual:cuda",
        where=torch.cuda.amp.autocast,
        __init__=cuda_region_of_cpu,
    ),
    functions(
        "is-cpu-enabled-does-not-warn",
        "deprecated",
        "is_autocast_cpu_enabled: warned of nothing",
        is_autocast_cpu_enabled=quiet(torch.is_autocast_cpu_enabled),
    ),
    functions(
        "is-cpu-enabled-names-nothing",
        "deprecated",
        "is_autocast_cpu_enabled",
        "DeprecationWarning 'deprecated'",
        is_autocast_cpu_enabled=loud(torch.is_autocast_cpu_enabled, DeprecationWarning, "deprecated"),
    ),
    functions(
        "is-cpu-enabled-reads-cuda",
        "deprecated",
        "is_autocast_cpu_enabled reads: got False",
        is_autocast_cpu_enabled=_aliased(
            "is_autocast_cpu_enabled()", "is_autocast_enabled('cpu')", lambda: torch.is_autocast_enabled("cuda")
        ),
    ),
    functions(
        "set-cpu-dtype-does-nothing",
        "deprecated",
        "set_autocast_cpu_dtype: got torch.bfloat16",
        set_autocast_cpu_dtype=_aliased(
            "set_autocast_cpu_dtype(dtype)", "set_autocast_dtype('cpu', dtype)", lambda dtype: None
        ),
    ),
    functions(
        "set-gpu-dtype-sets-cpu",
        "deprecated",
        "set_autocast_gpu_dtype: got torch.float16",
        device="virtual:cuda",
        set_autocast_gpu_dtype=_aliased(
            "set_autocast_gpu_dtype(dtype)",
            "set_autocast_dtype('cuda', dtype)",
            lambda dtype: torch.set_autocast_dtype("cpu", dtype),
        ),
    ),
    functions(
        "custom-fwd-does-not-warn",
        "deprecated",
        "custom_fwd: warned of nothing",
        device="virtual:cuda",
        where=torch.cuda.amp,
        custom_fwd=quiet(torch.cuda.amp.custom_fwd),
    ),
)
