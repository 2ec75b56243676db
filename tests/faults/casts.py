"""Wrong casts by the policies that cast arguments: downcast, upcast and promote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.faults.kernels import Body, Call, outputs, wrong

CPU, CUDA, XPU, MPS = "cpu", "virtual:cuda", "virtual:xpu", "virtual:mps"
FP32 = torch.float32
_WIDTH = {torch.float16: 1, torch.bfloat16: 1, torch.float32: 2}


def to(dtype: str | torch.dtype, but: Callable[[Call, int, torch.Tensor], bool] = lambda *_: False) -> Body:
    """Return a kernel that casts eligible tensors to a dtype, or to `low` or `other` of the call, all `but` some."""

    def body(call: Call) -> Any:
        wanted = getattr(call, dtype) if isinstance(dtype, str) else dtype
        return call.cast(wanted, unless=lambda place, t: but(call, place, t))

    return body


def each(change: Callable[[Call, torch.Tensor], torch.Tensor]) -> Body:
    """Return a kernel that runs on changed tensors."""
    return lambda call: call.run(lambda _, t: change(call, t))


def last(call: Call, place: int, t: torch.Tensor) -> bool:
    return place == len(call.tensors()) - 1


def second(call: Call, place: int, t: torch.Tensor) -> bool:
    return place == 1


def as_given(call: Call) -> Any:
    return call.run()


in_float32, in_float64, in_low, in_other = to(FP32), to(torch.float64), to("low"), to("other")
always_bfloat16 = to(torch.bfloat16)
low_but_last, low_but_second = to("low", last), to("low", second)
low_but_bare = to("low", lambda call, place, t: t.numel() == 0)
low_but_batched = to("low", lambda call, place, t: t.dim() == 3)
low_doubles_too = each(lambda call, t: t.to(call.low) if t.is_floating_point() else t)
low_integers_too = each(lambda call, t: t.to(call.low) if t.dtype != torch.float64 else t)
low_by_way_of_other = each(lambda call, t: t.to(call.other).to(call.low) if call.eligible(t) else t)
float32_but_last, float32_but_second = to(FP32, last), to(FP32, second)
float32_doubles_too = each(lambda call, t: t.float() if t.is_floating_point() else t)
float32_integers_too = each(lambda call, t: t.float() if t.dtype in (torch.int64, torch.bool) else t)
float32_only_of_region = to(FP32, lambda call, place, t: t.dtype == call.other)
float32_rounded_first = each(lambda call, t: t.to(call.low).float() if call.eligible(t) else t)


def low_then_as_given(call: Call) -> Any:
    """Right kernel, then the result in the dtype of the first argument."""
    return outputs(call.cast(call.low), lambda place, t: t.to(call.tensors()[0].dtype))


def low_one_output_wide(call: Call) -> Any:
    return outputs(call.cast(call.low), lambda place, t: t.float() if place == 1 else t)


def low_only_leading_half(call: Call) -> Any:
    """Casts only where every argument is float32, as if mixed arguments had been cast before."""
    mixed = len({t.dtype for t in call.tensors()}) > 1
    return call.run() if mixed else call.cast(call.low)


def low_for_good(call: Call) -> Any:
    """The caller's own tensors become low, not copies of them."""
    for t in call.tensors():
        if call.eligible(t):
            t.data = t.data.to(call.low)
    return call.run()


def low_inside_float32_outside(call: Call) -> Any:
    """Right dtypes at both ends, lower precision in between."""
    return outputs(call.cast(call.low), lambda place, t: t.float() if t.is_floating_point() else t)


def float32_result_back(call: Call) -> Any:
    """Right kernel, then the result in the dtype of the first argument."""
    first = call.tensors()[0].dtype
    return outputs(call.cast(FP32), lambda place, t: t.to(first) if first.is_floating_point else t)


def float32_result_rounded(call: Call) -> Any:
    """Right kernel, but the result went through the region's dtype."""
    return outputs(call.cast(FP32), lambda place, t: t.to(call.low).float() if t.dtype == FP32 else t)


def float32_last_output_low(call: Call) -> Any:
    result = call.cast(FP32)
    return outputs(result, lambda place, t: t.to(call.low) if place == len(result) - 1 else t)


def one_tensor_cast_twice(call: Call) -> Any:
    """The first argument is cast, and the cast thrown away, before it is cast again."""
    for t in call.tensors()[:1]:
        if call.eligible(t) and t.dtype != FP32:
            t.float()
    return call.cast(FP32)


def _eligible(call: Call) -> list[torch.dtype]:
    return [t.dtype for t in call.tensors() if call.eligible(t)]


def promote(choose: Callable[[Call, list[torch.dtype]], torch.dtype]) -> Body:
    """Return a kernel that casts to one of the eligible dtypes it is given, or to another."""

    def body(call: Call) -> Any:
        found = _eligible(call)
        return call.cast(choose(call, found)) if found else call.run()

    return body


def _widest(found: list[torch.dtype]) -> torch.dtype:
    return max(found, key=_WIDTH.__getitem__)


def promote_with_integers(call: Call, found: list[torch.dtype]) -> torch.dtype:
    """Count an integer among the arguments as float32."""
    return FP32 if any(not t.is_floating_point() for t in call.tensors()) else _widest(found)


def promote_with_doubles(call: Call, found: list[torch.dtype]) -> torch.dtype:
    """Widen the others to a double among the arguments."""
    return torch.float64 if any(t.dtype == torch.float64 for t in call.tensors()) else _widest(found)


promote_first = promote(lambda call, found: found[0])
promote_last = promote(lambda call, found: found[-1])
promote_narrowest = promote(lambda call, found: min(found, key=_WIDTH.__getitem__))


def promote_doubles_down(call: Call) -> Any:
    found = _eligible(call)
    if not found:
        return call.run()
    widest = _widest(found)
    return call.run(lambda place, t: t.to(widest) if t.is_floating_point() else t)


def promote_ignores_third(call: Call) -> Any:
    """The third tensor neither counts nor is cast."""
    found = [t.dtype for place, t in enumerate(call.tensors()) if call.eligible(t) and place != 2]
    if not found:
        return call.run()
    return call.cast(_widest(found), unless=lambda place, t: place == 2)


DOWNCAST = (
    wrong("mm-in-float32", "downcast", CPU, "mm", in_float32),
    wrong("bmm-as-given", "downcast", CPU, "bmm", as_given),
    wrong("linear-bias-forgotten", "downcast", CPU, "linear", low_but_last),
    wrong("conv2d-always-bfloat16", "downcast", CPU, "conv2d", always_bfloat16),
    wrong("addmm-cast-twice-over", "downcast", CPU, "addmm", low_by_way_of_other),
    wrong("matmul-doubles-cast", "downcast", CPU, "matmul", low_doubles_too),
    wrong("baddbmm-integers-cast", "downcast", CPU, "baddbmm", low_integers_too),
    wrong("addbmm-result-cast-back", "downcast", CPU, "addbmm", low_then_as_given),
    wrong("prelu-empty-forgotten", "downcast", CPU, "prelu", low_but_bare),
    wrong("conv-transpose-mixed-left-alone", "downcast", CPU, "conv_transpose2d.input", low_only_leading_half),
    wrong("linear-batched-left-alone", "downcast", CPU, "linear", low_but_batched),
    wrong("mm-changes-its-arguments", "downcast", CPU, "mm", low_for_good),
    wrong("flattened-rnn-as-given", "downcast", CPU, "mkldnn_rnn_layer", as_given),
    wrong("attention-mask-forgotten", "downcast", CPU, "scaled_dot_product_attention", low_but_last),
    wrong("einsum-second-operand-forgotten", "downcast", CUDA, "einsum", low_but_second),
    wrong("multi-dot-second-matrix-forgotten", "downcast", CUDA, "linalg_multi_dot", low_but_second),
    wrong("lstm-cell-second-state-wide", "downcast", CUDA, "lstm_cell", low_one_output_wide),
    wrong("fused-gru-cell-in-float32", "downcast", CUDA, "_thnn_fused_gru_cell", in_float32),
    wrong("mv-cast-twice-over", "downcast", CUDA, "mv", low_by_way_of_other),
    wrong("conv-tbc-in-other-low", "downcast", XPU, "conv_tbc", in_other),
    wrong("fused-lstm-cell-doubles-cast", "downcast", XPU, "_thnn_fused_lstm_cell", low_doubles_too),
    wrong("mps-convolution-as-given", "downcast", MPS, "_mps_convolution", as_given),
    wrong("chain-matmul-last-forgotten", "downcast", MPS, "chain_matmul", low_but_last),
)

UPCAST = (
    wrong("ihfft-as-given", "upcast", CPU, "fft_ihfft", as_given),
    wrong("tensorsolve-in-low", "upcast", CPU, "linalg_tensorsolve", in_low),
    wrong("mse-loss-low-inside", "upcast", CPU, "mse_loss", low_inside_float32_outside),
    wrong("cdist-second-forgotten", "upcast", CPU, "cdist", float32_but_second),
    wrong("prod-rounded-first", "upcast", CPU, "prod", float32_rounded_first),
    wrong("svdvals-doubles-cast", "upcast", CPU, "linalg_svdvals", float32_doubles_too),
    wrong("nll-loss-target-cast", "upcast", CPU, "nll_loss", float32_integers_too),
    wrong("trace-in-float64", "upcast", CPU, "trace", in_float64),
    wrong("qr-second-output-low", "upcast", CPU, "linalg_qr", float32_last_output_low),
    wrong("huber-loss-result-cast-back", "upcast", CPU, "huber_loss", float32_result_back),
    wrong("pinverse-result-rounded", "upcast", CPU, "pinverse", float32_result_rounded),
    wrong("avg-pool-only-of-region", "upcast", CPU, "avg_pool3d", float32_only_of_region),
    wrong("polar-useless-cast", "upcast", CPU, "polar", one_tensor_cast_twice),
    wrong("layer-norm-affine-forgotten", "upcast", CUDA, "native_layer_norm", float32_but_last),
    wrong("exp-in-low", "upcast", CUDA, "exp", in_low),
    wrong("triplet-negative-forgotten", "upcast", CUDA, "triplet_margin_loss", float32_but_last),
    wrong("pow-scalar-in-float64", "upcast", XPU, "pow.Scalar", in_float64),
    wrong("group-norm-result-cast-back", "upcast", XPU, "group_norm", float32_result_back),
    wrong("cumsum-as-given", "upcast", MPS, "cumsum", as_given),
    wrong("batch-norm-statistics-forgotten", "upcast", MPS, "batch_norm", float32_but_last),
)

PROMOTE = (
    wrong("cat-by-first", "promote", CPU, "cat", promote_first),
    wrong("stack-always-float32", "promote", CPU, "stack", in_float32),
    wrong("index-copy-integers-count", "promote", CPU, "index_copy", promote(promote_with_integers)),
    wrong("addcmul-by-last", "promote", CUDA, "addcmul", promote_last),
    wrong("atan2-narrowest", "promote", CUDA, "atan2", promote_narrowest),
    wrong("dot-always-low", "promote", CUDA, "dot", in_low),
    wrong("scatter-add-as-given", "promote", CUDA, "scatter_add", as_given),
    wrong("cross-doubles-count", "promote", XPU, "cross", promote(promote_with_doubles)),
    wrong("index-put-values-ignored", "promote", XPU, "index_put", promote_first),
    wrong("tensordot-doubles-cast", "promote", MPS, "tensordot", promote_doubles_down),
    wrong("addcdiv-third-ignored", "promote", MPS, "addcdiv", promote_ignores_third),
)

FAULTS = (*DOWNCAST, *UPCAST, *PROMOTE)
