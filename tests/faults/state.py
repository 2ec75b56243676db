"""Functions that read or set the state of autocast, their deprecated spellings, threads, modes and other settings."""

from __future__ import annotations

import asyncio
import threading
import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode
from torch.utils.flop_counter import FlopCounterMode

from tests.faults.kernels import Call, always_bfloat16, float32_doubles_too, in_low, kernel
from tests.faults.mutant import CUDA, MPS, Change, Inject, both, first, fresh, mutants, put, returns, then, wrap
from tests.faults.regions import (
    DTYPE,
    INCREMENT,
    IS,
    SET,
    SET_CACHE,
    SET_DTYPE,
    TYPES,
    disabled_where,
    quietly,
    refuse,
    region,
)

_BACKENDS: Any = torch.backends


def on_torch(**changes: Change) -> Inject:
    """Replace functions of `torch`."""
    return wrap(torch, **changes)


# ---- functions of the state


def enabled_or_off(own: Any, *args: Any) -> bool:
    try:
        return own(*args)
    except RuntimeError:
        return False


def set_dtype_low_only(own: Any, *args: Any) -> None:
    if len(args) == 2 and args[1] in (torch.float32, torch.float64):
        refuse(None, args[1])
    own(*args)


def available(change: Change) -> Inject:
    """Replace `is_autocast_available` under both its names."""
    return both(*(wrap(place, is_autocast_available=change) for place in (torch.amp, torch.amp.autocast_mode)))


STATE = {
    "is-enabled-never": on_torch(is_autocast_enabled=lambda own, *args: own(*args) and False),
    "is-enabled-if-any": on_torch(is_autocast_enabled=lambda own, *args: own(*args) or any(map(own, TYPES))),
    "is-enabled-takes-device": on_torch(is_autocast_enabled=lambda own, *a: own(*(getattr(x, "type", x) for x in a))),
    "is-enabled-takes-unknown": on_torch(is_autocast_enabled=enabled_or_off),
    "get-dtype-stale": on_torch(
        get_autocast_dtype=lambda own, name: torch.bfloat16 if name == "cpu" else torch.float16
    ),
    "set-enabled-nothing": on_torch(set_autocast_enabled=returns(None)),
    "set-enabled-takes-number": on_torch(
        set_autocast_enabled=lambda own, *a: own(*a[:-1], bool(a[-1]) if isinstance(a[-1], int) else a[-1])
    ),
    "set-enabled-takes-anything": on_torch(
        set_autocast_enabled=lambda own, *a: own(*a) if len(a) == 2 and type(a[1]) is bool else None
    ),
    "set-dtype-low-only": on_torch(set_autocast_dtype=set_dtype_low_only),
    "set-cache-nothing": on_torch(set_autocast_cache_enabled=returns(None)),
    "depth-one-too-many": on_torch(autocast_increment_nesting=lambda own: own() + 1),
}
CACHE = {
    "clear-does-nothing": on_torch(clear_autocast_cache=returns(None)),
    "clear-in-the-main-thread-alone": on_torch(
        clear_autocast_cache=lambda own: own() if threading.current_thread() is threading.main_thread() else None
    ),
    "always-outermost": on_torch(autocast_decrement_nesting=lambda own: own() * 0),
    "never-kept": on_torch(set_autocast_cache_enabled=lambda own, enabled: own(False)),
    "add-cached-tensor-does-nothing": wrap(torch._C, _add_cached_tensor=returns(None)),
}

# ---- deprecated spellings


def alias(name: str, arguments: str, use: str, body: Callable[..., Any]) -> Inject:
    """Let a deprecated function of torch give its warning and do something else."""
    text = f"torch.{name}({arguments}) is deprecated. Please use torch.{use} instead."

    def change(own: Any, *args: Any) -> Any:
        warnings.warn(text, DeprecationWarning, stacklevel=3)
        return body(*args)

    return on_torch(**{name: change})


_CPU_REGION = torch.cpu.amp.autocast
DEPRECATED = {
    "cpu-region-does-not-warn": wrap(torch.cpu.amp, autocast=quietly),
    "cpu-region-inverted": put(torch.cpu.amp, autocast=lambda enabled=True, **k: _CPU_REGION(not enabled, **k)),
    "cpu-region-in-float16": wrap(
        _CPU_REGION,
        __init__=lambda own, self, enabled=True, dtype=None, cache_enabled=True: quietly(
            own, self, enabled, torch.float16, cache_enabled
        ),
    ),
    "cpu-region-always-enabled": wrap(
        _CPU_REGION, __init__=lambda own, self, enabled=True, *a, **k: own(self, True, *a, **k)
    ),
    "is-cpu-enabled-does-not-warn": on_torch(is_autocast_cpu_enabled=quietly),
    "is-cpu-enabled-reads-cuda": alias(
        "is_autocast_cpu_enabled", "", "is_autocast_enabled('cpu')", lambda: torch.is_autocast_enabled("cuda")
    ),
    "get-autocast-xla-dtype-is-bfloat16": on_torch(get_autocast_xla_dtype=returns(torch.bfloat16)),
}
DEPRECATED_ON_CUDA = {
    "set-gpu-dtype-sets-cpu": alias(
        "set_autocast_gpu_dtype", "dtype", "set_autocast_dtype('cuda', dtype)", partial(SET_DTYPE, "cpu")
    ),
    "custom-fwd-does-not-warn": wrap(torch.cuda.amp, custom_fwd=quietly),
}

# ---- errors and warnings


def without_warnings() -> Inject:
    """Let the module of `torch.autocast` warn of nothing."""
    return put(torch.amp.autocast_mode, warnings=SimpleNamespace(warn=lambda *args, **kwargs: None))


ERRORS = {
    "silent": without_warnings(),
    "no-warning-at-all": put(warnings, warn=lambda *given, **options: None),
    "regions-say-available": wrap(torch.amp.autocast_mode, is_autocast_available=returns(True)),
}

# ---- threads


def starting(change: Callable[[Any], object]) -> Inject:
    """Change the state that a thread starts with, given the thread."""
    return wrap(threading.Thread, run=first(change))


def note_state(thread: Any) -> None:
    thread.state = [(name, IS(name), DTYPE(name)) for name in TYPES]


def inheriting(change: Callable[[str, bool, torch.dtype], object]) -> Inject:
    """Let threads take over a part of the state in which they are started."""
    noted = wrap(threading.Thread, start=first(note_state))
    return both(noted, starting(lambda thread: [change(*state) for state in thread.state]))


def start_in_a_region(thread: Any) -> None:
    """Start enabled, in another dtype, without the cache and one level deep."""
    SET("cpu", True)
    SET_DTYPE("cpu", torch.float64)
    SET_CACHE(False)
    INCREMENT()


def one_state_for_all(of_products: bool) -> Inject:
    """Let the region that any thread entered or left last decide for all threads."""
    enabled = [False]

    def note(self: Any) -> None:
        enabled[0] = IS(self.device)

    if not of_products:
        entered: list[bool] = []
        return both(
            region(enter=then(lambda self: entered.append(True))),
            on_torch(is_autocast_enabled=lambda own, *args: bool(entered) or own(*args)),
        )

    def body(call: Call) -> Any:
        return call.cast(call.low) if enabled[0] else call.run()

    return both(region(enter=then(note), exit=then(note)), kernel("mm", body))


def one_dtype_for_all() -> Inject:
    """Run products in the dtype that any thread set last."""
    last = [torch.bfloat16]

    def note(own: Any, device_type: str, dtype: torch.dtype) -> None:
        own(device_type, dtype)
        if device_type == "cpu":
            last[0] = dtype

    return both(on_torch(set_autocast_dtype=note), kernel("mm", lambda call: call.cast(last[0])))


THREADS = {
    "threads-start-in-a-region": starting(start_in_a_region),
    "threads-inherit-enabled": inheriting(lambda name, enabled, dtype: SET(name, enabled)),
    "threads-share-the-answer": fresh(lambda: one_state_for_all(of_products=False)),
    "to-thread-stays": put(asyncio, to_thread=lambda call: asyncio.sleep(0, call())),
    "backward-raises-in-a-region": wrap(
        torch.Tensor, backward=lambda own, self: refuse(None, self.dtype) if IS(self.device.type) else own(self)
    ),
}

# ---- unusual dtypes, precision and modes


def set_low_only(own: Any, device_type: str, dtype: torch.dtype) -> None:
    if dtype in (torch.float16, torch.bfloat16):
        own(device_type, dtype)


ANY_DTYPE = {
    "region-of-any-dtype": region(
        init=lambda own, self, *a, enabled=True, **k: enabled_as_asked(own, self, a, enabled, k)
    ),
    "unsupported-is-quiet": region(init=quietly),
    "set-dtype-not-read": region(
        init=lambda own, self, type_, dtype=None, **options: own(self, type_, dtype or torch.bfloat16, **options)
    ),
    "only-lower-set": on_torch(set_autocast_dtype=set_low_only),
    "legacy-sets-nothing": on_torch(set_autocast_cpu_dtype=returns(None)),
    "product-in-bfloat16": kernel("mm", always_bfloat16),
    "double-is-cast": kernel("huber_loss", float32_doubles_too),
    "loss-in-what-is-set": kernel("huber_loss", in_low),
}


def enabled_as_asked(own: Any, self: Any, args: Any, enabled: bool, options: Any) -> None:
    """Say that a dtype is unsupported and be enabled all the same."""
    own(self, *args, enabled=enabled, **options)
    self._enabled = enabled


def disables(own: Any, precision: str) -> None:
    """Take the precision of matrix products for a reason to switch autocast off."""
    own(precision)
    if precision != "highest":
        SET("cpu", False)


def convolutions_too(own: Any, precision: str) -> None:
    own(precision)
    if precision == "medium":
        _BACKENDS.mkldnn.conv.fp32_precision = "bf16"


def where_short(body: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """Do `body` where matrix products may be short, else what is right."""
    return lambda call: body(call) if _BACKENDS.mkldnn.matmul.fp32_precision == "bf16" else call.registered()


_MATMUL = torch.set_float32_matmul_precision
PRECISION = {
    "region-forgets-deterministic": region(enter=first(lambda self: torch.use_deterministic_algorithms(False))),
    "region-resets-products": region(exit=first(lambda self: _MATMUL("highest"))),
    "short-products-disable": on_torch(set_float32_matmul_precision=disables),
    "products-set-convolutions": on_torch(set_float32_matmul_precision=convolutions_too),
    "short-products-unset": on_torch(set_float32_matmul_precision=returns(None)),
    "short-products-lower-losses": kernel("mse_loss", where_short(in_low)),
}


def wrappers_with(**other: Any) -> Inject:
    """Let the dispatcher take wrapper subclasses for tensors of another dtype or device."""
    make = torch.Tensor._make_wrapper_subclass  # type: ignore[attr-defined]
    wrong = staticmethod(lambda cls, size, **options: make(cls, size, **{**options, **other}))
    return put(torch.Tensor, _make_wrapper_subclass=wrong)


MODES = {
    "no-region-in-a-function-mode": disabled_where(torch._C._is_torch_function_mode_enabled),
    "no-region-in-a-dispatch-mode": disabled_where(_get_current_dispatch_mode),
    "function-mode-ends-autocast": wrap(TorchFunctionMode, __enter__=then(lambda self: SET("cpu", False))),
    "dispatch-mode-leaves-on": wrap(TorchDispatchMode, __exit__=then(lambda self: SET("cpu", True))),
    "flop-counter-ends-autocast": wrap(FlopCounterMode, __enter__=then(lambda self: SET("cpu", False))),
    "inference-has-no-region": disabled_where(torch.is_inference_mode_enabled),
    "wrapper-of-double": wrappers_with(dtype=torch.float64),
    "wrapper-on-another-device": wrappers_with(device="meta"),
}
DEFAULTS = {
    "available-everywhere": available(returns(True)),
    "get-autocast-dtype-is-float16": on_torch(get_autocast_dtype=returns(torch.float16)),
}

MUTANTS = (
    *mutants("eager/state", STATE),
    *mutants("eager/state", {"set-dtype-nothing": on_torch(set_autocast_dtype=returns(None))}, [MPS]),
    *mutants("eager/defaults", DEFAULTS),
    *mutants(
        "eager/defaults", {"available-on-cpu-only": available(lambda own, name: own(name) and name == "cpu")}, [CUDA]
    ),
    *mutants("eager/cache", CACHE),
    *mutants("eager/deprecated", DEPRECATED),
    *mutants("eager/deprecated", DEPRECATED_ON_CUDA, [CUDA]),
    *mutants("eager/errors", ERRORS),
    *mutants("eager/threads", THREADS),
    *mutants("eager/anydtype", ANY_DTYPE),
    *mutants("eager/precision", PRECISION),
    *mutants("eager/modes", MODES),
)
