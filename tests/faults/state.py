"""Regions and functions that set, keep or restore the wrong state; ops and modules that go past autocast or lose it."""

import asyncio
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from operator import attrgetter
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from tests.faults.kernels import Call, always_bfloat16, in_low, kernel, promote, to, widest
from tests.faults.mutant import Change, Inject, both, fresh, giving, mutants, put, returns, then, within, wrap

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


def off(device: str = "cpu") -> AbstractContextManager[object]:
    return torch.autocast(device, enabled=False)


def low(tensor: torch.Tensor) -> torch.Tensor:
    """Cast to the region's dtype, in a region."""
    return tensor.to(torch.get_autocast_dtype("cpu")) if torch.is_autocast_enabled("cpu") else tensor


outside = within(off)


def function(name: str, change: Change) -> Inject:
    """Replace a function or a method of torch, by its name in it."""
    path, _, last = name.rpartition(".")
    return wrap(attrgetter(path)(torch) if path else torch, **{last: change})


def in_bfloat16(own: Any, *args: Any, **kwargs: Any) -> Any:
    return own(*(a.to(torch.bfloat16) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def doubled_in_regions(own: Any, *args: Any) -> Any:
    """Ask what replays of a call do not change."""
    return own(*args) * (2 if IS("cpu") else 1)


def never_cast(own: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    with torch._C._DisableAutocast():
        return own(a.float(), b.float())


def linear_in_float32(call: Any) -> torch.Tensor:
    a, b = call.tensors()[:2]
    return a.float() @ b.float().T


# ---- modules


def forward(module: type[nn.Module], change: Change) -> Inject:
    return wrap(module, forward=change)


def narrowed(own: Any, self: nn.Module, x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    return own(self, low(x) if x.is_floating_point() else x, *args, **kwargs)


def lowered_in_inference(own: Any, *args: Any, **options: Any) -> torch.Tensor:
    return low(own(*args, **options)) if torch.is_inference_mode_enabled() else own(*args)


MUTANTS = mutants(
    {
        "eager/context": {
            "arguments-in-another-order": wrap(autocast, __init__=swapped),
            "mm-never-cast": function("mm", never_cast),
        },
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
            "get-autocast-xla-dtype-is-bfloat16": on_torch(get_autocast_xla_dtype=returns(torch.bfloat16))
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
        "eager/eligibility": {
            "mm-in-low": function("mm", in_bfloat16),
            "mm-without-autocast": function("mm", outside),
            "method-addmm-in-low": function("Tensor.addmm_", in_bfloat16),
            "method-mm-without-autocast": function("Tensor.mm", outside),
            "add-in-low": function("add", in_bfloat16),
            "cat-otherwise": function("cat", lambda own, x: own([t.bfloat16() for t in x])),
            "cat-of-nothing-runs": function("cat", lambda own, x, *rest: own(x, *rest) if x else torch.empty(0)),
        },
        "eager/reports": {
            "grouped-products-cast": function("_grouped_mm", in_bfloat16),
            "dot-promotes": kernel("dot", promote(widest)),
        },
        "autograd/cache": {
            "mm-detached": function("mm", giving(torch.Tensor.detach)),
            "mm-doubled-in-regions": function("mm", doubled_in_regions),
            "mm-twice": function(
                "mm", lambda own, *args, **kwargs: (own(*args, **kwargs), own(*args, **kwargs) * 2)[1]
            ),
        },
        "eager/modules": {
            "lstm-without-autocast": function("_VF.lstm", outside),
            "attention-without-autocast": function("nn.functional.scaled_dot_product_attention", outside),
            "attention-leaves-the-mask": kernel(
                "scaled_dot_product_attention", to(lambda call: call.low, lambda call, place, t: place == 3)
            ),
            "linear-doubled": function("nn.functional.linear", doubled_in_regions),
            "linear-in-float32": kernel("linear", linear_in_float32),
            "linear-outside": forward(nn.Linear, outside),
            "layer-norm-narrowed": forward(nn.LayerNorm, narrowed),
            "lstm-outside": forward(nn.LSTM, outside),
            "gru-outside": forward(nn.GRU, outside),
            "fast-encoder-layer-outside": function("_transformer_encoder_layer_fwd", outside),
            "batch-norm-narrowed": forward(nn.BatchNorm2d, narrowed),
            "loss-narrowed": forward(nn.MSELoss, narrowed),
        },
        "eager/modules virtual:cuda": {
            "logits-widened": function("nn.functional.cross_entropy", lambda own, x, *rest: own(x.float(), *rest))
        },
        "eager/variants": {
            "bag-lowered-in-inference": forward(nn.EmbeddingBag, lowered_in_inference),
            "cross-entropy-outside": function("nn.functional.cross_entropy", outside),
        },
        "eager/moves jax": {"swaps-nothing": put(torch.utils, swap_tensors=lambda *_: None)},
    }
)
