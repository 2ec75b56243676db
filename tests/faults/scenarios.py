"""Functions of torch that do something else, each seen by scenarios of the suites eager and autograd."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Inject, seen_in

_NESTING, _CACHE = torch.autocast_decrement_nesting, torch.set_autocast_cache_enabled
_INIT, _ENTER, _OF_CPU = torch.autocast.__init__, torch.autocast.__enter__, torch.cpu.amp.autocast


def put(owner: Any, **wrong: Any) -> Inject:
    """Attributes replaced."""
    return lambda: patch.multiple(owner, **wrong)


def wrapped(name: str, change: Callable[..., object]) -> Inject:
    """A function of torch replaced by `change(real, *args, **kwargs)`."""
    path, _, last = name.rpartition(".")
    owner = attrgetter(path)(torch) if path else torch
    real = getattr(owner, last)
    return lambda: patch.object(owner, last, lambda *args, **kwargs: change(real, *args, **kwargs))


def returns(name: str, value: object) -> Inject:
    """A function of torch that takes anything and always returns the same."""
    return wrapped(name, lambda real, *args, **kwargs: value)


no_clearing = put(torch, clear_autocast_cache=lambda: None)
always_outermost = put(torch, autocast_decrement_nesting=lambda: _NESTING() * 0)
always_cached = put(torch, set_autocast_cache_enabled=lambda enabled: None)
never_cached = put(torch, set_autocast_cache_enabled=lambda enabled: _CACHE(False))
silent = put(torch.amp.autocast_mode, warnings=SimpleNamespace(warn=lambda *args, **kwargs: None))
quiet_spelling = put(torch.cpu.amp, autocast=partial(torch.autocast, "cpu"))
inverted = put(torch.cpu.amp, autocast=lambda enabled=True, **kwargs: _OF_CPU(enabled=not enabled, **kwargs))
quiet_custom = put(torch.cuda.amp, custom_fwd=partial(torch.amp.custom_fwd, device_type="cuda"))


def without_autocast(real: Callable[..., object], *args: object, **kwargs: object) -> object:
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=False):
        return real(*args, **kwargs)


def in_low(real: Callable[..., object], *args: object, **kwargs: object) -> object:
    return real(*(a.to(torch.bfloat16) if isinstance(a, torch.Tensor) else a for a in args), **kwargs)


def all_types(real: Callable[..., bool], *args: object) -> bool:
    return any(real(name) for name in ("cpu", "cuda", "xpu"))


def disabled_without_a_dtype(
    self: torch.autocast, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    """The cache setting of the surroundings is not taken over either."""
    _INIT(self, device_type, dtype, enabled and dtype is not None, True if cache_enabled is None else cache_enabled)


def dtype_at_entry(self: torch.autocast) -> object:
    self.fast_dtype = torch.get_autocast_dtype(self.device)
    return _ENTER(self)


off_by_default = put(torch.autocast, __init__=disabled_without_a_dtype)
dtype_on_entry = put(torch.autocast, __enter__=dtype_at_entry)


def detached(real: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    return real(*args, **kwargs).detach()


def doubled_in_regions(real: Callable[..., torch.Tensor], *args: object) -> torch.Tensor:
    return real(*args) * (2 if torch.is_autocast_enabled("cpu") else 1)


def of_text(real: Callable[..., object], device_type: object, *args: object, **kwargs: object) -> object:
    return real(str(device_type), *args, **kwargs)


def twice(real: Callable[..., torch.Tensor], *args: object, **kwargs: object) -> torch.Tensor:
    real(*args, **kwargs)
    return real(*args, **kwargs) * 2


FAULTS = (
    *seen_in(
        "never-kept",
        never_cached,
        {
            "eager/cache/one_cast_for_many_uses": "casts of a leaf used by three products: got 3; expected 1",
            "eager/cache/no_growth_without_grad": "casts kept after four forwards: got 0; expected 1",
            "autograd/cache/one_cast_with_gradients": "nodes behind two uses, cache_enabled=True: got 2",
            "autograd/cache/shared_with_the_backward_pass": "casts of the weight: got 2; expected 1",
        },
    ),
    *seen_in(
        "always-kept",
        always_cached,
        {
            "eager/cache/off": "casts without the cache: got 1; expected 3",
            "eager/cache/off_inside_on": "casts inside: got 0; expected 2",
            "eager/cache/switched_inside": "casts after switching the cache off: got 1; expected 2",
            "eager/state/reuse_round_trip": "cache_enabled after setting False: got True",
        },
    ),
    *seen_in(
        "no-clearing",
        no_clearing,
        {
            "eager/cache/dropped_at_outermost_exit": "casts in the next outermost region: got 0; expected 1",
            "eager/cache/dropped_at_outermost_exit on virtual:xpu": "got 0; expected 1",
            "eager/cache/dropped_by_an_exception": "casts in the next region: got 0; expected 1",
            "eager/cache/cleared_on_request": "casts after clearing: got 0; expected 1",
            "eager/cache/cleared_by_another_thread": "casts after clearing: got 0; expected 1",
            "eager/cache/freed_after_the_region": "casts alive after the region: got 1; expected 0",
        },
    ),
    *seen_in(
        "always-outermost",
        always_outermost,
        {
            "eager/cache/dropped_at_outermost_exit": "casts after an inner region: got 1; expected 0",
            "eager/state/depth": "depth in a region: got 0; expected 1",
        },
    ),
    *seen_in(
        "add-cached-tensor-does-nothing",
        returns("_C._add_cached_tensor", None),
        {"eager/cache/registered_as_reused": "registered tensor: got 1; expected 3"},
    ),
    *seen_in(
        "mm-detached",
        wrapped("mm", detached),
        {
            "eager/cache/survives_another_thread": "does not require grad",
            "autograd/cache/no_grad_before_grad": "whether a later result requires grad: got False",
            "autograd/cache/grad_before_no_grad": "before no_grad requires grad: got False",
            "autograd/cache/alternating_no_grad": "whether result 1 requires grad: got False",
        },
    ),
    *seen_in(
        "mm-doubled-in-regions",
        wrapped("mm", doubled_in_regions),
        {"autograd/cache/three_forwards_three_backwards": "gradient in turn 0"},
    ),
    *seen_in("mm-twice", wrapped("mm", twice), {"autograd/cache/new_values_after_a_step": "product after the step"}),
    *seen_in(
        "set-autocast-enabled-does-nothing",
        returns("set_autocast_enabled", None),
        {
            "eager/state/enabled_round_trip": "enabled after setting True: got False",
            "eager/state/wrong_argument-set_swapped": "raised nothing; expected",
        },
    ),
    *seen_in(
        "get-autocast-dtype-is-bfloat16",
        returns("get_autocast_dtype", torch.bfloat16),
        {
            "eager/state/dtype_round_trip": "got torch.bfloat16; expected",
            "eager/defaults/dtype on virtual:mtia": "got torch.bfloat16",
        },
    ),
    *seen_in(
        "is-autocast-enabled-all-types",
        wrapped("is_autocast_enabled", all_types),
        {"eager/state/device_types_are_independent": "after enabling this one"},
    ),
    *seen_in(
        "is-autocast-enabled-says-no",
        returns("is_autocast_enabled", False),
        {"eager/state/without_a_device_type on virtual:cuda": "got False"},
    ),
    *seen_in(
        "is-autocast-enabled-says-yes",
        returns("is_autocast_enabled", True),
        {"eager/state/wrong_argument-read_number": "raised nothing; expected"},
    ),
    *seen_in(
        "quiet-spelling",
        quiet_spelling,
        {"eager/deprecated/class": "the deprecated class: warned of nothing; expected FutureWarning"},
    ),
    *seen_in("inverted", inverted, {"eager/deprecated/class_default": "state in the region: got (False"}),
    *seen_in(
        "is-autocast-cpu-enabled-says-no",
        returns("is_autocast_cpu_enabled", False),
        {"eager/deprecated/functions": "what is_autocast_cpu_enabled reads: got False"},
    ),
    *seen_in(
        "get-autocast-xla-dtype-is-bfloat16",
        returns("get_autocast_xla_dtype", torch.bfloat16),
        {"eager/deprecated/functions_of-xla": "warned of nothing"},
    ),
    *seen_in(
        "quiet-custom",
        quiet_custom,
        {"eager/deprecated/custom_functions on virtual:cuda": "custom_fwd: warned of nothing"},
    ),
    *seen_in(
        "get-autocast-dtype-is-float16",
        returns("get_autocast_dtype", torch.float16),
        {
            "eager/defaults/dtype": "get_autocast_dtype: got torch.float16",
            "eager/defaults/dtype_of_every_device_type": "default dtype of xla: got",
        },
    ),
    *seen_in(
        "is-autocast-available-says-yes",
        returns("amp.is_autocast_available", True),
        {"eager/defaults/available_device_types": "is_autocast_available('meta')"},
    ),
    *seen_in(
        "off-by-default",
        off_by_default,
        {
            "eager/defaults/enabled": "enabled in a region without options: got False",
            "eager/defaults/reuse_setting": "cache_enabled, not given, where it was False: got True",
        },
    ),
    *seen_in(
        "dtype-on-entry",
        dtype_on_entry,
        {"eager/defaults/dtype_at_construction": "dtype of a product: got torch.float16"},
    ),
    *seen_in(
        "silent",
        silent,
        {
            "eager/errors/unsupported_dtype-single": "warned of nothing; expected UserWarning",
            "eager/errors/warning_names_the_caller": "files that the warning points at: got []",
            "eager/errors/absent_hardware on virtual:cuda": "a region without CUDA: warned of nothing",
        },
    ),
    *seen_in(
        "autocast-of-text", wrapped("autocast", of_text), {"eager/errors/refused-device": "raised nothing; expected"}
    ),
    *seen_in(
        "regions-is-autocast-available-says-yes",
        returns("amp.autocast_mode.is_autocast_available", True),
        {"eager/errors/refused-meta": "raised nothing; expected"},
    ),
    *seen_in(
        "binary-cross-entropy-otherwise",
        wrapped("nn.functional.binary_cross_entropy", lambda real, x, y: x),
        {"eager/errors/refused_loss on virtual:cuda": "raised nothing; expected"},
    ),
    *seen_in(
        "mm-in-low",
        wrapped("mm", in_low),
        {
            "eager/eligibility/never_cast-double": "dtypes mm receives: got ('bf16', 'bf16')",
            "eager/eligibility/other_device": "dtypes mm receives of meta tensors: got",
            "eager/eligibility/two_device_types on virtual:cuda": "product in a CPU region: got",
            "eager/eligibility/out-mm": "dtypes the kernel receives",
        },
    ),
    *seen_in(
        "mm-without-autocast",
        wrapped("mm", without_autocast),
        {"eager/eligibility/cast_beside-double": "got ('fp64', 'fp32')"},
    ),
    *seen_in(
        "method-addmm-in-low", wrapped("Tensor.addmm_", in_low), {"eager/eligibility/in_place-addmm_": "expected"}
    ),
    *seen_in(
        "sum-otherwise",
        wrapped("sum", lambda real, x, dim, dtype: real(x, dim)),
        {"eager/eligibility/explicit_dtype-sum": "dtype of sum("},
    ),
    *seen_in(
        "method-mm-without-autocast",
        wrapped("Tensor.mm", without_autocast),
        {"eager/eligibility/every_spelling": "dtype of Tensor.mm: got torch.float32"},
    ),
    *seen_in(
        "add-in-low", wrapped("add", in_low), {"eager/eligibility/builtin_promotion-add": "dtype of torch.add of"}
    ),
    *seen_in(
        "cat-otherwise",
        wrapped("cat", lambda real, x: real([t.bfloat16() for t in x])),
        {"eager/eligibility/lists": "dtypes cat receives"},
    ),
    *seen_in(
        "view-as-complex-otherwise",
        wrapped("view_as_complex", lambda real, x: real(x.clone())),
        {"eager/eligibility/nothing_to_copy": "address of the view"},
    ),
    *seen_in(
        "relu-in-low",
        wrapped("relu", in_low),
        {"eager/eligibility/unlisted_ops": "dtype of relu of float32: got torch.bfloat16"},
    ),
    *seen_in(
        "linear-without-autocast",
        wrapped("nn.functional.linear", without_autocast),
        {"eager/modules/layer-Linear-wide": "dtype of Linear: got torch.float32; expected torch.bfloat16"},
    ),
    *seen_in(
        "mse-loss-without-autocast",
        wrapped("nn.functional.mse_loss", without_autocast),
        {"eager/modules/layer-MSELoss-low": "output 0 of MSELoss is bf16; expected fp32"},
    ),
    *seen_in(
        "lstm-without-autocast",
        wrapped("_VF.lstm", without_autocast),
        {"eager/modules/network-LSTM_projection-wide": "output 0 of LSTM_projection is fp32; expected bf16"},
    ),
    *seen_in(
        "scaled-dot-product-attention-without-autocast",
        wrapped("nn.functional.scaled_dot_product_attention", without_autocast),
        {"eager/modules/attention_mask-none": "dtypes of attention of float32: got [torch.float32]"},
    ),
)
