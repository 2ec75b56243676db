"""Behaviours that upstream reports and tests are about, brought back.

`docs/coverage/upstream.md` says which cases check each of them. `REPORTS` names, for the rows that matter most, one of
those cases and the fault that brings the behaviour back: it must turn a case red that the row names. Where a fault of
another module runs under named cases alone, its id is given; every other one is a fault of this module, most often with
what another module plants. `tests/docs/test_coverage.py` compares the table with the page.
"""

from __future__ import annotations

import re
import threading
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch.utils import checkpoint as checkpoints

from tests.faults import (
    caches,
    casts,
    checkpoint,
    compilers,
    customfn,
    decorators,
    eligibility,
    functorch,
    gradients,
    modules,
    optimizers,
    persistence,
    policies,
    regions,
    scaler,
    unscale,
)
from tests.faults.caches import cache
from tests.faults.casts import CPU, CUDA
from tests.faults.compilers import Function, entering, handed_out, results
from tests.faults.fault import Fault, Inject
from tests.faults.kernels import Body, Call, kernel
from tests.faults.regions import autocast, replaced
from tests.faults.scaler import OWN


@dataclass(frozen=True)
class Report:
    """A behaviour that cases must notice.

    `upstream`: a name in the first column of the page. `cases`: a glob of that row. `fault`: a fault of this module, or
    the id of another one, which runs under such cases alone.
    """

    upstream: str
    cases: str
    fault: Fault | str


def _back(
    upstream: str, cases: str, inject: Inject, *says: str, also: str = "", device: str = CPU, amp: str = "bf16"
) -> Report:
    """A behaviour brought back; `cases` are `suite/rule/glob`, of which `device`, `amp` and `also` leave a few."""
    suite, _, glob = cases.partition("/")
    words = [word for word in f"/{glob}".split("*") if word]
    only = " and ".join([*words, f"({also})"] if also else words)
    name = "reported-" + re.sub(r"[^A-Za-z0-9_]+", "-", upstream).strip("-")
    return Report(upstream, glob, Fault(name, glob.partition("/")[0], inject, says, suite, device, only=only, amp=amp))


def _op(upstream: str, cases: str, op: str, body: Body, *says: str, device: str = CPU, **chosen: str) -> Report:
    """A behaviour of an op's autocast kernel brought back."""
    return _back(upstream, cases, lambda: kernel(device, op, body), *says, device=device, **chosen)


def _region(
    upstream: str, cases: str, *says: str, device: str = CPU, amp: str = "bf16", **methods: Callable[..., Any]
) -> Report:
    """A behaviour of `torch.autocast` brought back."""
    wrong = {f"__{method}__": body for method, body in methods.items()}
    return _back(upstream, cases, lambda: replaced(autocast, **wrong), *says, device=device, amp=amp)


def _as(module: Any, name: str) -> Inject:
    """Return what a fault of another module plants."""
    inject: Inject = next(fault.inject for fault in module.FAULTS if fault.name == name)
    return inject


# ---- regions and casts


_INIT = autocast.__init__
_CLEAR = torch.clear_autocast_cache


def another_each_time(call: Call, t: torch.Tensor) -> object:
    """Without gradients each forward keeps one more cast, and finds none."""
    return caches.by_identity(call, t) if torch.is_grad_enabled() else object()


def clear_here_alone() -> None:
    """Another thread's call clears nothing, as when each thread had a cache."""
    if threading.current_thread() is threading.main_thread():
        _CLEAR()


def raising_although_disabled(
    self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
) -> None:
    """A dtype that is not supported is refused, also where the region is off."""
    if not enabled and dtype not in (None, torch.float16, torch.bfloat16):
        raise RuntimeError(f"{device_type} autocast does not support {dtype}")
    _INIT(self, device_type, dtype, enabled, cache_enabled)


def warning_always(self: Any, *args: Any, **options: Any) -> None:
    """Every region without CUDA warns of that."""
    warnings.warn("User provided device_type of 'cuda', but CUDA is not available. Disabling", stacklevel=2)
    _INIT(self, *args, **options)


def unknown_is_cpu(self: Any, device_type: Any, *args: Any, **options: Any) -> None:
    try:
        _INIT(self, device_type, *args, **options)
    except (RuntimeError, ValueError):
        _INIT(self, CPU, *args, **options)


def registered_for_two(op: Any, device_type: str, cast_inputs: torch.dtype, /, *, lib: Any = None) -> None:
    """Custom ops can ask for casts on the CPU and on CUDA, and nowhere else."""
    if device_type not in ("cpu", "cuda"):
        raise ValueError(f"Unknown device type: {device_type}")
    _REGISTER(op, device_type, cast_inputs, lib=lib)


_REGISTER = torch.library.register_autocast
all_but_mask = casts.to("low", lambda call, place, t: place == 3)


def lists_others(self: Any, device_type: str, dtype: Any = None, *args: Any, **options: Any) -> None:
    """The warning names one dtype alone as supported."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _INIT(self, device_type, dtype, *args, **options)
    for warning in said:
        warnings.warn(str(warning.message).replace("torch.bfloat16, torch.float16", "torch.float16"), stacklevel=2)


def encoder_outside() -> AbstractContextManager[object]:
    """The fused kernel of an encoder layer runs in a region, and without its casts."""
    fused = torch._transformer_encoder_layer_fwd

    def outside(*args: Any, **options: Any) -> torch.Tensor:
        with torch.autocast("cpu", enabled=False):
            return fused(*args, **options)

    return patch.object(torch, "_transformer_encoder_layer_fwd", outside)


EAGER = (
    _back(
        "pytorch#158232",
        "autograd/cache/no_grad_before_grad-*",
        partial(cache, key=caches.without_grad_mode),
        "whether a later result requires grad: got False",
    ),
    _back(
        "pytorch#112583",
        "autograd/cache/alternating_no_grad-*",
        partial(cache, key=caches.without_grad_mode),
        "whether result 1 requires grad: got False",
    ),
    _back(
        "pytorch#48049",
        "eager/cache/no_growth_without_grad-*",
        partial(cache, key=another_each_time),
        "casts kept after four forwards: got 4",
    ),
    _back(
        "test_cuda: test_autocast_cache_leak",
        "eager/cache/no_growth_without_grad-*",
        partial(cache, key=another_each_time),
        "casts kept after four forwards: got 4",
    ),
    _back("pytorch#63552", "eager/cache/off-*", _as(caches, "cache-ignores-setting"), "casts without the cache: got 1"),
    _back(
        "pytorch-lightning#5559",
        "eager/cache/freed_after_the_region-*",
        partial(cache, clears=False),
        "casts alive after the region: got 1",
    ),
    _back(
        "pytorch#86136",
        "eager/cache/cleared_by_another_thread-*",
        lambda: replaced(torch, clear_autocast_cache=clear_here_alone),
        "casts after clearing: got 0",
    ),
    _back(
        "test_autocast: test_autocast_inference_mode_interaction",
        "autograd/cache/inference_either_way_round-*",
        _as(caches, "cache-in-inference-mode"),
        "requires grad after inference mode: got False",
    ),
    Report(
        "mindnlp: cache cleared exactly once at outer exit",
        "cache/dropped_at_outermost_exit-*",
        "cpu-always-outermost-by-cache-dropped_at_outermost_exit",
    ),
    Report(
        "pytorch#71631",
        "cache/registered_as_reused-*",
        "cpu-add-cached-tensor-does-nothing-by-cache-registered_as_reused",
    ),
    _op(
        "test_cuda: test_autocast_banned",
        "eager/banned/binary_cross_entropy-*",
        "binary_cross_entropy",
        casts.as_given,
        "ran; expected a RuntimeError",
        device=CUDA,
        also="fp32-bf16",
    ),
    _op(
        "pytorch#61098",
        "eager/errors/refused_loss-*",
        "binary_cross_entropy",
        casts.as_given,
        "the function: raised nothing",
        device=CUDA,
        amp="",
    ),
    _op(
        "test_cuda: test_autocast_ignored_types",
        "eager/eligibility/never_cast-*",
        "mm",
        casts.low_doubles_too,
        "expected ('fp64', 'fp64')",
    ),
    _region(
        "pytorch#96097",
        "eager/errors/unsupported_dtype_disabled-*",
        "RuntimeError: cpu autocast does not support torch.float32",
        init=raising_although_disabled,
        amp="",
    ),
    _region(
        "test_autocast: test_mps_autocast_error_message",
        "eager/errors/unsupported_dtype-*-vmp",
        "expected UserWarning saying 'torch.bfloat16, torch.float16'",
        init=lists_others,
        amp="",
        device="virtual:mps",
    ),
    _region(
        "test_autocast: test_invalid_device",
        "eager/errors/refused-unknown-*",
        "the wrong call unknown: raised nothing",
        init=unknown_is_cpu,
        amp="",
    ),
    Report(
        "test_autocast: test_non_string_device",
        "errors/refused-device-*",
        "cpu-any-device-type-is-taken-by-errors-refused-device",
    ),
    Report(
        "pytorch#130067", "errors/refused-meta-*", "cpu-regions-is-autocast-available-says-yes-by-errors-refused-meta"
    ),
    _region("pytorch#67598", "eager/errors/supported_dtype_is_quiet-*", "expected no warning", init=warning_always),
    _op(
        "pytorch#42605",
        "eager/downcast/gru_cell-*",
        "gru_cell",
        casts.as_given,
        "aten::gru_cell was given as fp32 and reached the kernel as fp32",
        device=CUDA,
    ),
    _op(
        "pytorch#42218",
        "eager/promote/grid_sampler-*",
        "grid_sampler",
        casts.as_given,
        "aten::grid_sampler was given as bf16 and reached the kernel as bf16; expected fp32",
        device=CUDA,
    ),
    _op(
        "pytorch#41035",
        "eager/promote/index_put-*",
        "index_put",
        casts.as_given,
        "aten::index_put was given as bf16 and reached the kernel as bf16; expected fp32",
        device=CUDA,
    ),
    _op(
        "pytorch#59497",
        "eager/promote/stack-*",
        "stack",
        casts.as_given,
        "aten::stack was given as bf16 and reached the kernel as bf16; expected fp32",
    ),
    _op(
        "pytorch#109188",
        "eager/upcast/layer_norm-*",
        "layer_norm",
        casts.as_given,
        "aten::layer_norm was given as bf16 and reached the kernel as bf16",
        device=CUDA,
    ),
    _op(
        "pytorch#112329",
        "eager/optdtype/sum-*",
        "sum",
        policies.fills_low,
        "aten::sum ran with dtype=bf16; expected dtype=fp32",
        device=CUDA,
    ),
    _op(
        "pytorch#188955",
        "eager/upcast/rms_norm-*",
        "rms_norm",
        casts.as_given,
        "aten::rms_norm was given as bf16 and reached the kernel as bf16",
        device=CUDA,
    ),
    _op(
        "pytorch#99012",
        "eager/modules/attention_mask-*",
        "scaled_dot_product_attention",
        all_but_mask,
        "('bf16', 'bf16', 'bf16', 'fp32'))]; expected",
    ),
    _op(
        "pytorch#114458",
        "eager/eligibility/other_device-*",
        "mm",
        eligibility.other_devices_too,
        "of a cuda and a cpu tensor: got ('bf16', 'bf16')",
        device=CUDA,
    ),
    _op(
        "pytorch/xla#8405",
        "eager/downcast/einsum-*",
        "einsum",
        casts.as_given,
        "aten::einsum was given as fp32 and reached the kernel as fp32",
        device=CUDA,
        amp="fp16",
    ),
    Report("pytorch#88929", "modules/network-BatchNorm*", "cpu-batch-norm-narrowed"),
    _back(
        "pytorch-image-models#1340",
        "eager/modules/layer-LayerNorm-*",
        _as(modules, "layer-norm-narrowed"),
        "dtype of LayerNorm, which is not listed: got torch.bfloat16",
    ),
    _op(
        "pytorch#116763",
        "eager/downcast/_thnn_fused_gru_cell-*",
        "_thnn_fused_gru_cell",
        casts.as_given,
        "aten::_thnn_fused_gru_cell was given as fp32 and reached the kernel as fp32",
        device=CUDA,
        amp="fp16",
    ),
    _back(
        "pytorch-lightning#19950",
        "eager/cache/not_for_views-*",
        _as(caches, "cache-of-views"),
        "casts of a view of a leaf: got 1",
    ),
    Report("OLMo#339", "errors/unsupported_dtype-single-*-cpu", "cpu-silent-by-errors-unsupported_dtype-single"),
    _back(
        "pytorch#183689",
        "eager/eligibility/custom_op-*",
        lambda: replaced(torch.library, register_autocast=registered_for_two),
        "what registering for mps raises: got 'ValueError: Unknown device type: mps'",
        device="virtual:mps",
    ),
    _op(
        "test_autocast: test_autocast_torch_16",
        "eager/downcast/mm-*",
        "mm",
        casts.in_float32,
        "aten::mm was given as fp32 and reached the kernel as fp32",
    ),
    _op(
        "test_autocast: test_autocast_torch_fp32",
        "eager/upcast/mse_loss-*-cpu",
        "mse_loss",
        casts.in_low,
        "aten::mse_loss was given as bf16 and reached the kernel as bf16",
    ),
    _back(
        "pytorch#132613",
        "eager/modules/network-EncoderLayer_fast-*",
        encoder_outside,
        "EncoderLayer_fast raised RuntimeError: expected m1 and m2 to have the same dtype",
    ),
    Report(
        "pytorch#110966",
        "state/without_a_device_type-*",
        "virtual:cuda-is-autocast-enabled-says-no-by-state-without_a_device_type",
    ),
    Report(
        "pytorch#60706",
        "state/device_types_are_independent-*",
        "cpu-is-autocast-enabled-all-types-by-state-device_types_are_independent",
    ),
    Report("test_autocast: test_autocast_rnn", "modules/network-LSTM*", "cpu-lstm-outside"),
    Report("test_autocast: test_autocast_nn_16", "modules/layer-Linear-*", "cpu-linear-outside"),
    Report(
        "test_autocast: test_autocast_torch_expect_builtin_promote",
        "eligibility/builtin_promotion-*",
        "cpu-add-in-low-by-eligibility-builtin_promotion-add",
    ),
    Report(
        "test_autocast: test_autocast_torch_need_autocast_promote",
        "eligibility/lists-*",
        "cpu-cat-otherwise-by-eligibility-lists",
    ),
    Report("csarofeen/pytorch#672", "eligibility/in_place-*", "cpu-method-addmm-in-low-by-eligibility-in_place-addmm_"),
    Report("pytorch#57386", "nesting/two_device_types-*", "cpu-enter-sets-other-types-by-nesting-two_device_types"),
    Report("pytorch#186583", "threads/to_thread-*", "cpu-to-thread-stays-by-threads-to_thread"),
    Report("pytorch#148281", "threads/really_at_once-*", "cpu-threads-inherit-by-threads-really_at_once"),
    _region(
        "openreg: test_autocast_nested_context (plain tensors)",
        "eager/nesting/dtype_order-*",
        "dtype a product runs in at depth 2: got torch.bfloat16",
        enter=regions.enter_keeps_outer_dtype,
    ),
    _region(
        "mindnlp: state set and restored (all parts)",
        "eager/context/restores_all_three_parts-*",
        "state after the region: got (True, torch.bfloat16",
        exit=regions.exit_keeps_dtype,
    ),
    _region(
        "test_data_parallel: test_autocast",
        "eager/decorator/forward-*",
        "dtype of forward's output: got torch.float32",
        call=decorators.call_does_nothing,
    ),
    _region(
        "pytorch#172178",
        "eager/decorator/not_callable-*",
        "decorating a Tensor: raised nothing",
        call=decorators.call_takes_anything,
        amp="",
    ),
)
"""Regions, casts and the cache."""

# ---- gradients


def other(call: Call) -> torch.dtype:
    return call.other


def never_stopping() -> AbstractContextManager[object]:
    """A function computes again to its end, whatever is needed."""
    own = checkpoints._CheckpointFrame.__init__

    def made(self: Any, function: Any, early_stop: bool, *rest: Any) -> None:
        own(self, function, False, *rest)

    return patch.object(checkpoints._CheckpointFrame, "__init__", made)


def tensors_alone(value: Any, device_type: str, dtype: torch.dtype) -> Any:
    """Tensors among the arguments are cast, those in containers are not."""

    def cast(x: Any) -> Any:
        return _CAST(x, device_type, dtype) if isinstance(x, torch.Tensor) else x

    return {name: cast(x) for name, x in value.items()} if isinstance(value, dict) else tuple(map(cast, value))


_CAST = torch.amp.autocast_mode._cast

GRADIENTS = (
    _back(
        "pytorch#90105",
        "autograd/checkpoint/where_it_stops-*",
        never_stopping,
        "steps: got ['first', (True, torch.float16, True), 'first', (True",
    ),
    _back(
        "test_cuda: test_autocast_custom_cast_inputs (nested dict and tuple)",
        "autograd/eligibility/custom_fwd_container-*",
        lambda: replaced(torch.amp.autocast_mode, _cast=tensors_alone),
        "dtypes in the container: got [torch.bfloat16, torch.int64]",
    ),
    Report("pytorch#36171", "customfn/cast_inputs_outside-*", "cpu-fwd-casts-outside"),
    Report("pytorch#87979", "customfn/region_of_forward-*", "cpu-bwd-in-the-callers-dtype"),
    Report("test_cuda: test_autocast_custom_enabled", "customfn/region_of_forward-*", "cpu-bwd-as-the-caller"),
    Report(
        "test_cuda: test_autocast_custom_cast_inputs (casts, both passes off)",
        "customfn/cast_inputs-*",
        "cpu-fwd-casts-nothing",
    ),
    Report("pytorch#125186", "autodiff/from_another_thread-*", "cpu-backward-in-default-dtype-by-from_another_thread"),
    Report("pytorch#133938", "autodiff/what_a_hook_sees-*", "cpu-backward-in-default-dtype"),
    _op(
        "pytorch#105682",
        "autograd/autodiff/as_by_hand-*",
        "mm",
        gradients.computed(gradients.low, other),
        "gradient of w: differs",
        also="product",
    ),
    Report("pytorch#137033", "customfn/registered_by-*", "cpu-op-not-registered"),
    Report(
        "test_custom_ops: test_library_register_autocast_list_input",
        "customfn/lists_and_options-*",
        "cpu-op-casts-no-list",
    ),
    Report(
        "test_custom_ops: test_library_register_autocast_multiple_times",
        "customfn/registered_again-*",
        "cpu-op-registered-once-by-registered_again",
    ),
    Report(
        "test_custom_ops: test_library_register_autocast_low_level",
        "customfn/cast_to-*",
        "cpu-library-op-casts-to-low-by-cast_to",
    ),
    Report(
        "test_proxy_tensor: test_amp_cache", "functorch/same_graph_again-*", "cpu-trace-keeps-casts-by-same_graph_again"
    ),
    Report(
        "docs: notes/amp_examples, autocast and custom autograd functions",
        "customfn/documented_product-*",
        "cpu-bwd-as-the-caller-by-documented_product",
    ),
    Report("TransformerEngine#791", "checkpoint/computed_again-*", "cpu-replay-off"),
    _back(
        "pytorch#71169",
        "autograd/checkpoint/computed_again-*-reentrant-*",
        _as(checkpoint, "replay-in-default-dtype"),
        "when the function ran again: got ((True, torch.bfloat16, True), torch.bfloat16)",
    ),
    _back(
        "test_autograd: test_checkpointing_non_reentrant_autocast_cpu",
        "autograd/checkpoint/backward_elsewhere-*-saved-*",
        _as(checkpoint, "replay-in-no-state"),
        "have different metadata than during the forward pass",
    ),
    Report("test_cuda: test_autocast_checkpointing", "checkpoint/same_bits-*", "cpu-replay-off-by-same_bits"),
    _back(
        "pytorch#105442",
        "autograd/functorch/model_mapped_over_samples-*",
        _as(functorch, "vmap-outside-of-regions"),
        "dtypes: got (torch.float32, torch.bfloat16)",
    ),
    _back(
        "test_vmap: test_vmap_autocast_cpu",
        "autograd/functorch/mapped-*",
        _as(functorch, "vmap-outside-of-regions"),
        "state and dtypes inside: got {'((False",
    ),
    Report("functorch#305", "functorch/derivative-*", "cpu-grad-outside-of-regions"),
    Report(
        "pytorch#187265",
        "functorch/attention_of_two_dtypes-*",
        "cpu-vmap-outside-of-regions-by-attention_of_two_dtypes",
    ),
    Report(
        "test_data_parallel: test_autocast (replicas)",
        "dataparallel/one_thread_each-*",
        "cpu-replica-leaves-region-by-one_thread_each",
    ),
)
"""Backward passes, custom functions, checkpoints and transforms."""

# ---- GradScaler


def not_on_cpu(self: Any, device: str = "cuda", *args: Any, **options: Any) -> None:
    """There is a scaler for CUDA alone."""
    OWN["__init__"](self, device, *args, **options)
    self._enabled = self._enabled and device != CPU


def without_bfloat16(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    if any(grad.dtype == torch.bfloat16 for grad in grads):
        raise NotImplementedError(f"\"{unscale.UNSCALE}cpu\" not implemented for 'BFloat16'")
    _UNSCALE(grads, found, inverse)


def not_pickled(self: Any) -> Any:
    raise TypeError("cannot pickle 'GradScaler' object")


_UNSCALE = getattr(torch, unscale.UNSCALE)


def _scaler(upstream: str, cases: str, *says: str, also: str = "", **wrong: Callable[..., Any]) -> Report:
    """A behaviour of `GradScaler` brought back."""
    return _back(upstream, f"scaler/{cases}", lambda: replaced(unscale.SCALER, **wrong), *says, also=also, amp="")


SCALER = (
    _scaler(
        "pytorch#94060", "optimizers/divided_once-*", "unscale_ called: True", unscale_=optimizers.apart_is_forgotten
    ),
    Report("pytorch#95781", "optimizers/skipped-*-fused-*", "cpu-fused-ignores-found-inf"),
    Report(
        "pytorch#97415",
        "optimizers/gradient_spoiled_after_the_check-*",
        "cpu-looks-again-by-gradient_spoiled_after_the_check",
    ),
    Report("pytorch#123428", "optimizers/preset_grad_scale-*", "cpu-fused-ignores-grad-scale-by-preset_grad_scale"),
    _scaler("pytorch#111559", "loops/recovers-fp16-cpu", "whether steps were skipped: got False", __init__=not_on_cpu),
    _back(
        "pytorch#127176",
        "scaler/unscale/sizes-brain-*",
        lambda: replaced(torch, **{unscale.UNSCALE: without_bfloat16}),
        "not implemented for 'BFloat16'",
        amp="",
    ),
    Report("pytorch#74739", "unscale/half_is_refused-*", "cpu-unscale-takes-half"),
    _scaler("pytorch#35810", "unscale/sparse-*", "the gradient: differs", _unscale_grads_=unscale.dense_only),
    _scaler("pytorch#38296", "persistence/goes_on-*", "cannot pickle", __getstate__=not_pickled),
    Report("pytorch#67590", "optimizers/returned_value-*", "cpu-result-swallowed"),
    Report("pytorch#196195", "misuse/absent_device-*", "cpu-disabled-quietly-by-absent_device"),
    _back(
        "accelerate#357",
        "scaler/misuse/update_of_nothing-*",
        _as(scaler, "scaler-update-of-nothing"),
        "update: raised nothing",
        amp="",
    ),
    Report("nerfstudio#1919", "optimizers/no_gradient_at_all-*", "cpu-scaler-no-gradients-taken-by-no_gradient_at_all"),
    Report("apex#289", "loops/long_overflow-*", "cpu-scaler-never-backs-off-by-long_overflow"),
    Report("tango#154", "loops/resumed-*", "cpu-tracker-not-loaded"),
    Report(
        "test_torch: test_grad_scaling_unscale (the perfect storm)",
        "unscale/perfect_storm-*",
        "cpu-unscale-blind-to-nan-by-perfect_storm",
    ),
    Report(
        "test_torch: test_grad_scaling_unscale (10 layouts, inf, nan)",
        "unscale/layout-*",
        "cpu-unscale-skips-non-contiguous",
    ),
    Report("test_torch: test_grad_scaling_update_scale", "rescale/overflow-*", "cpu-tracker-not-reset"),
    Report(
        "test_torch: test_grad_scaling_unscale_sparse",
        "unscale/sparse_overflow_by_coalescing-*",
        "cpu-unscale-sums-unseen",
    ),
    _back(
        "test_torch: test_grad_scaling_state_dict",
        "scaler/persistence/what_it_holds-*",
        _as(persistence, "scaler-tracker-stale-when-saved"),
        "their values: got",
        amp="",
    ),
    Report(
        "test_torch: test_grad_scaling_clipping_separate_unscale",
        "loops/recipe-clip_norm-*",
        "cpu-clipped-before-unscaling",
    ),
    Report("test_torch: test_grad_scaling_multiple", "loops/recipe-several-*", "cpu-first-optimizer-alone"),
    Report("test_torch: test_grad_scale_will_not_overflow", "rescale/top_of_float32-*", "cpu-grows-past-float32"),
    Report("test_torch: _run_scaling_case with enabled=False", "loops/disabled-*", "cpu-disabled-scales"),
    Report(
        "test_cuda: test_grad_scaling_autocast_fused_optimizers",
        "optimizers/divided_once-*",
        "cpu-fused-ignores-grad-scale",
    ),
    Report(
        "test_fsdp_sharded_grad_scaler: test_grad_scaling", "loops/sharded-*", "cpu-sharded-steps-anyway-by-sharded"
    ),
)
"""`GradScaler`, its ops and the optimizers under it."""

# ---- compilers


def _compiled(upstream: str, cases: str, *says: str, inject: Inject, also: str = "", amp: str = "bf16") -> Report:
    """A behaviour of a compiler brought back, seen under Dynamo where a case is for several."""
    return _back(upstream, f"jit/{cases}", inject, *says, also=also, amp=amp)


def refusing_mixed(compiled: Function, _: Function) -> Function:
    """A scripted function stops where it is given two dtypes."""

    def call(*args: Any) -> Any:
        if len({t.dtype for t in compilers.tensors(args)}) > 1:
            raise RuntimeError("expected a single dtype in torch.cat")
        return compiled(*args)

    return call


def eating() -> AbstractContextManager[object]:
    """An exception in a region is lost to an error about the region itself."""
    own = torch.export.export

    def export(*args: Any, **options: Any) -> Any:
        try:
            return own(*args, **options)
        except Exception:
            raise AssertionError("a region was not left") from None

    return patch.object(torch.export, "export", export)


def without_metadata() -> AbstractContextManager[object]:
    """Nothing is known of what the node that enters a region gives."""
    own = torch.export.export

    def export(*args: Any, **options: Any) -> Any:
        exported = own(*args, **options)
        for node in exported.graph.nodes:
            if "autocast" in str(node.target):
                node.meta.pop("val", None)
        return exported

    return patch.object(torch.export, "export", export)


def shifted(x: torch.Tensor) -> torch.Tensor:
    return x + 1


_DROPPED: Inject = partial(entering, compilers.not_at_all)

COMPILERS = (
    _compiled(
        "test_recompiles: test_ambient_autocast_recompile",
        "context/compiled_once_called_in_and_out-*",
        "dtype in a region",
        inject=partial(handed_out, compilers.frozen),
        also="dynamo",
    ),
    _compiled(
        "test_recompiles: test_autocast_constant_fold",
        "state/surroundings_asked_inside-*",
        "dtype in a region of torch.bfloat16: got torch.float64",
        inject=partial(handed_out, compilers.frozen),
        also="dynamo",
    ),
    _compiled(
        "pytorch#180309",
        "state/set_between_calls-*",
        "dtype after setting torch.bfloat16: got torch.float32",
        inject=partial(handed_out, compilers.frozen),
        also="dynamo",
    ),
    Report("#102414", "context/graph_break_*", "cpu-jit-result-widened-by-graph_break_in_a_called_function"),
    Report(
        "test_ctx_manager: test_autocast_cpu_graph_break*",
        "context/graph_break_*",
        "cpu-jit-state-left-on-by-graph_break_where_the_region_ends",
    ),
    _compiled(
        "pytorch#115520",
        "context/region_given_as_an_argument-*",
        "dtype in a region of torch.bfloat16: got torch.float32",
        inject=_DROPPED,
        also="dynamo",
    ),
    _compiled(
        "pytorch#134030",
        "context/context_manager_around_a_region-*",
        "dtypes: got [torch.float32, torch.float32]",
        inject=_DROPPED,
        also="dynamo",
    ),
    _compiled(
        "pytorch#131829",
        "context/dtypes_in_the_graph-*",
        "calls without a value: got ['wrap_with_autocast']",
        inject=without_metadata,
    ),
    _compiled(
        "test_autograd_function: test_amp_custom_fwd_bwd",
        "programs/custom_fwd_and_bwd-*",
        "to have the same dtype, but got: c10::BFloat16 != float",
        inject=lambda: replaced(torch.amp, custom_bwd=customfn.backward(customfn.always_off)),
    ),
    _compiled(
        "torchdynamo#1368",
        "downcast/mm-*-aot-*",
        "gave 0 gradients; eager mode 2",
        inject=partial(handed_out, results(compilers.detached)),
    ),
    _compiled(
        "test_jit_autocast: test_jit_freeze_autocast_*",
        "context/frozen_region-script-*",
        "dtypes, first call: got [torch.float32, torch.float32]",
        inject=compilers.no_script_pass,
    ),
    Report("pytorch#138082", "context/captured_twice-*", "cpu-jit-region-dropped-by-captured_twice"),
    _compiled(
        "pytorch#153202",
        "exceptions/raised_while_captured-*",
        "expected it to say 'raised while captured'",
        inject=eating,
        also="-export-",
    ),
    Report("pytorch#166267", "nesting/compiled_calls_compiled-*", "cpu-jit-result-widened-by-compiled_calls_compiled"),
    _compiled(
        "pytorch#194329",
        "programs/any_size-*",
        "sum for size 3: differs",
        inject=partial(handed_out, results(shifted)),
        also="dynamo",
    ),
    Report(
        "pytorch#25387",
        "context/body_alone_in_a_source-script-*",
        "cpu-jit-region-dropped-by-script-by-body_alone_in_a_source",
    ),
    _compiled(
        "#63939",
        "context/body_alone_in_a_source-script-*",
        "state after the first call: got (True",
        inject=partial(handed_out, compilers.leaking, "script"),
    ),
    _compiled(
        "pytorch#38958",
        "promote/cat-*-script-*",
        "expected a single dtype in torch.cat; eager mode runs it",
        inject=partial(handed_out, refusing_mixed, "script"),
    ),
    Report("pytorch#72760", "context/static_called_in_and_out-*", "cpu-jit-result-widened-by-static_called_in_and_out"),
    _compiled(
        "pytorch#75956",
        "upcast/*-script-*",
        "aten::mse_loss received ['fp32', 'bf16']",
        inject=compilers.no_script_pass,
        also="/mse_loss-",
    ),
    _compiled(
        "test_jit_autocast: test_minimal",
        "downcast/mm-*-script-*",
        "script: aten::mm is fp32; expected bf16",
        inject=compilers.no_script_pass,
    ),
    _compiled(
        "test_ctx_manager: test_autocast",
        "context/body_alone-dynamo-*",
        "inside and behind, first call: got [torch.float32, torch.float32",
        inject=_DROPPED,
    ),
    Report(
        "test_ctx_manager: test_autocast_decorator",
        "decorator/decorated_helper-*",
        "cpu-jit-region-dropped-by-decorated_helper",
    ),
    Report(
        "test_ctx_manager: test_autocast_arguments_binding",
        "defaults/arguments_by_place_and_name-*",
        "cpu-jit-region-dropped-by-arguments_by_place_and_name",
    ),
    _compiled(
        "test_aotdispatch: test_autocast_disable_guard",
        "nesting/disabled_inside_called_in_a_region-aot-*",
        "dtypes inside and behind: got [torch.bfloat16",
        inject=partial(entering, compilers.always_on),
    ),
    _compiled(
        "export: test_export_with_autocast",
        "context/body_alone-export-*",
        "inside and behind, first call: got [torch.float32, torch.float32",
        inject=_DROPPED,
    ),
)
"""TorchScript, `torch.compile` and `torch.export`."""

REPORTS = (*EAGER, *GRADIENTS, *SCALER, *COMPILERS)
"""Every behaviour that is brought back."""
FAULTS = tuple(report.fault for report in REPORTS if isinstance(report.fault, Fault))
"""Those that are planted here."""
