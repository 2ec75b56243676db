"""Regions and functions that set, keep or restore the wrong state of autocast, in threads and modes, too.

What is a change of a line of `torch.amp.autocast_mode` is in `edits.toml`.
"""

import asyncio
import threading
import warnings
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch

from tests.faults.kernels import Call, always_bfloat16, in_low, kernel
from tests.faults.mutant import Change, Inject, both, fresh, mutants, put, returns, then, wrap

autocast = torch.amp.autocast_mode.autocast
TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")
IS, SET, DTYPE, SET_DTYPE = (
    torch.is_autocast_enabled,
    torch.set_autocast_enabled,
    torch.get_autocast_dtype,
    torch.set_autocast_dtype,
)
SET_CACHE = torch.set_autocast_cache_enabled


def on_torch(**changes: Change) -> Inject:
    """Replace functions of `torch`."""
    return wrap(torch, **changes)


def quietly(own: Any, *args: Any, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return own(*args, **options)


def vaguely(own: Any, *args: Any, **options: Any) -> Any:
    """Refuse in words that name nothing."""
    try:
        return own(*args, **options)
    except Exception as error:
        raise type(error)("invalid argument") from None


# ---- regions


def last_entered_first() -> Inject:
    """Keep what regions found in one list, of which each exit takes the last."""
    found: list[tuple[bool, bool, Any]] = []

    def leave(own: Any, self: Any, *exc: Any) -> Any:
        if found:
            self.prev_cache_enabled, self.prev, self.prev_fastdtype = found.pop()
        return own(self, *exc)

    def note(self: Any) -> None:
        found.append((self.prev_cache_enabled, self.prev, self.prev_fastdtype))

    return wrap(autocast, __enter__=then(note), __exit__=leave)


def swapped(own: Any, self: Any, type_: Any, dtype: Any = None, cache_enabled: Any = None, enabled: Any = True) -> None:
    own(self, type_, dtype, enabled, cache_enabled if cache_enabled is not None else True)
    if isinstance(type_, str):
        self._cache_enabled = not self._cache_enabled


# ---- functions of the state


def set_dtype_low_only(own: Any, *args: Any) -> None:
    if len(args) == 2 and args[1] in (torch.float32, torch.float64):
        raise RuntimeError(f"{args[1]} is not supported")
    own(*args)


# ---- threads


def one_state_for_all() -> Inject:
    """Let every thread be enabled once a region was entered in any."""
    entered: list[bool] = []
    return both(
        wrap(autocast, __enter__=then(lambda self: entered.append(True))),
        on_torch(is_autocast_enabled=lambda own, *args: bool(entered) or own(*args)),
    )


def where_short(body: Callable[[Call], Any]) -> Callable[[Call], Any]:
    """Do `body` where matrix products may be short, else what is right."""
    backends: Any = torch.backends
    return lambda call: body(call) if backends.mkldnn.matmul.fp32_precision == "bf16" else call.registered()


MUTANTS = mutants(
    {
        "eager/context": {"arguments-in-another-order": wrap(autocast, __init__=swapped)},
        "eager/state": {
            "is-enabled-never": on_torch(is_autocast_enabled=lambda own, *args: own(*args) and False),
            "is-enabled-if-any": on_torch(is_autocast_enabled=lambda own, *args: own(*args) or any(map(own, TYPES))),
            "get-dtype-stale": on_torch(
                get_autocast_dtype=lambda _, n: torch.bfloat16 if n == "cpu" else torch.float16
            ),
            "set-enabled-takes-anything": on_torch(
                set_autocast_enabled=lambda own, *a: own(*a) if len(a) == 2 and type(a[1]) is bool else None
            ),
            "set-dtype-low-only": on_torch(set_autocast_dtype=set_dtype_low_only),
        },
        "eager/defaults": {"get-autocast-dtype-is-float16": on_torch(get_autocast_dtype=returns(torch.float16))},
        "eager/cache": {
            "set-cache-nothing": on_torch(set_autocast_cache_enabled=returns(None)),
            "clear-does-nothing": on_torch(clear_autocast_cache=returns(None)),
            "clear-in-the-main-thread-alone": on_torch(
                clear_autocast_cache=lambda own: (
                    own() if threading.current_thread() is threading.main_thread() else None
                )
            ),
            "always-outermost": on_torch(autocast_decrement_nesting=lambda own: own() * 0),
            "never-kept": on_torch(set_autocast_cache_enabled=lambda own, enabled: own(False)),
            "add-cached-tensor-does-nothing": wrap(torch._C, _add_cached_tensor=returns(None)),
        },
        "eager/deprecated": {
            "get-autocast-xla-dtype-is-bfloat16": on_torch(get_autocast_xla_dtype=returns(torch.bfloat16)),
        },
        "eager/deprecated virtual:cuda": {
            "set-gpu-dtype-nothing": on_torch(set_autocast_gpu_dtype=lambda own, dtype: own(DTYPE("cuda"))),
            "custom-fwd-does-not-warn": wrap(torch.cuda.amp, custom_fwd=quietly),
        },
        "eager/errors": {
            "refuses-in-vague-words": wrap(autocast, __init__=vaguely),
            "silent": put(torch.amp.autocast_mode, warnings=SimpleNamespace(warn=lambda *args, **kwargs: None)),
            "no-warning-at-all": put(warnings, warn=lambda *given, **options: None),
        },
        "eager/holders": {
            "exit-takes-the-last": fresh(last_entered_first),
            "copy-is-the-object": put(autocast, __copy__=lambda self: self, __deepcopy__=lambda self, _: self),
            "loaded-region-disabled": put(
                autocast, __setstate__=lambda self, state: vars(self).update(state, _enabled=False)
            ),
        },
        "eager/threads": {
            "threads-share-the-answer": fresh(one_state_for_all),
            "to-thread-stays": put(asyncio, to_thread=lambda call: asyncio.sleep(0, call())),
        },
        "eager/anydtype": {
            "legacy-sets-nothing": on_torch(set_autocast_cpu_dtype=returns(None)),
            "product-in-bfloat16": kernel("mm", always_bfloat16),
            "loss-in-what-is-set": kernel("huber_loss", in_low),
        },
        "eager/precision": {"short-products-lower-losses": kernel("mse_loss", where_short(in_low))},
    }
)
