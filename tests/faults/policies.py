"""Wrong dtypes filled in, overloads not exchanged, refusals left out, and policies on ops that have none."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ampcheck.observe.recorder import overload
from tests.faults.casts import CPU, CUDA, FP32, MPS, XPU, as_given, float32_result_back, in_float32, in_low
from tests.faults.fault import Fault
from tests.faults.kernels import Body, Call, outputs, wrong


def _position(call: Call) -> int:
    return [argument.name for argument in call.op._schema.arguments].index("dtype")


def _chosen(call: Call) -> torch.dtype | None:
    """The dtype that the caller gave."""
    place = _position(call)
    return call.kwargs.get("dtype", call.args[place] if place < len(call.args) else None)


def _with_dtype(call: Call, dtype: torch.dtype | None) -> Any:
    place = _position(call)
    kwargs = dict(call.kwargs)
    args = list(call.args)
    if place < len(args):
        args[place] = dtype
    else:
        kwargs["dtype"] = dtype
    return call.op(*args, **kwargs)


def _first_eligible(call: Call) -> bool:
    return call.eligible(call.tensors()[0])


def overrides(call: Call) -> Any:
    return _with_dtype(call, FP32) if _first_eligible(call) else call.run()


def fills(dtype: Callable[[Call], torch.dtype], when: Callable[[Call], bool] = _first_eligible) -> Body:
    """Return a kernel that fills in a dtype where the caller gave none."""
    return lambda call: _with_dtype(call, dtype(call)) if when(call) and _chosen(call) is None else call.run()


fills_float32 = fills(lambda call: FP32)
fills_low, fills_double = fills(lambda call: call.low), fills(lambda call: torch.float64)
fills_for_doubles = fills(lambda call: FP32, lambda call: call.tensors()[0].is_floating_point())
fills_for_integers = fills(lambda call: FP32, lambda call: call.tensors()[0].dtype != torch.float64)
fills_only_for_low = fills(lambda call: FP32, lambda call: call.tensors()[0].dtype == call.low)


def fills_then_casts_back(call: Call) -> Any:
    first = call.tensors()[0].dtype
    return outputs(fills_float32(call), lambda place, t: t.to(first))


def appends(dtype_of: str) -> Any:
    """A kernel that runs the overload with a dtype, but not with the promised one."""

    def body(call: Call) -> Any:
        first = call.tensors()[0]
        low = {"low": call.low, "float32 always": FP32, "own": first.dtype}[dtype_of]
        dtype = low if call.eligible(first) or dtype_of == "float32 always" else first.dtype
        return overload("norm.ScalarOpt_dtype" if len(call.args) < 3 else "norm.ScalarOpt_dim_dtype")(
            *call.args, **call.kwargs, dtype=dtype
        )

    return body


def refuses(error: Exception) -> Body:
    def body(call: Call) -> Any:
        raise error

    return body


def slightly_off(call: Call) -> Any:
    return outputs(call.run(), lambda place, t: t * 1.001 if t.is_floating_point() else t)


def unlisted(name: str, device: str, op: str, spelling: str, body: Body) -> Fault:
    """A fault of an op that has a policy nowhere; `spelling`: what the op database calls it."""
    # Virtual devices run the op database at night only.
    return replace(wrong(name, "fallthrough", device, op, body), says=(spelling,), op=spelling, nightly=device != CPU)


_UNSAFE = TypeError("binary_cross_entropy is unsafe; use binary_cross_entropy_with_logits")

OPTDTYPE = (
    wrong("softmax-overrides-the-caller", "optdtype", CUDA, "softmax.int", overrides),
    wrong("cumsum-fills-low", "optdtype", CUDA, "cumsum", fills_low),
    wrong("sum-casts-instead", "optdtype", CUDA, "sum.dim_IntList", in_float32),
    wrong("log-softmax-as-given", "optdtype", CUDA, "log_softmax.int", as_given),
    wrong("vector-norm-fills-for-doubles", "optdtype", CUDA, "linalg_vector_norm", fills_for_doubles),
    wrong("prod-fills-for-integers", "optdtype", XPU, "prod", fills_for_integers),
    wrong("cumprod-fills-double", "optdtype", XPU, "cumprod", fills_double),
    wrong("matrix-norm-fills-for-region-only", "optdtype", XPU, "linalg_matrix_norm", fills_only_for_low),
    wrong("prod-dim-cast-back", "optdtype", CUDA, "prod.dim_int", fills_then_casts_back),
)

APPEND = (
    wrong("norm-not-redirected", "append", CUDA, "norm.Scalar", as_given),
    wrong("norm-redirected-to-low", "append", XPU, "norm.Scalar", appends("low")),
    wrong("norm-redirected-always-float32", "append", CUDA, "norm.ScalarOpt_dim", appends("float32 always")),
    wrong("norm-redirected-as-given", "append", XPU, "norm.ScalarOpt_dim", appends("own")),
)

BANNED = (
    wrong("cross-entropy-runs", "banned", CUDA, "binary_cross_entropy", as_given),
    wrong("cross-entropy-runs-in-float32", "banned", XPU, "binary_cross_entropy", in_float32),
    wrong(
        "cross-entropy-refused-badly",
        "banned",
        CUDA,
        "binary_cross_entropy",
        refuses(RuntimeError("this is not supported")),
    ),
    wrong("cross-entropy-type-error", "banned", XPU, "binary_cross_entropy", refuses(_UNSAFE)),
)

FALLTHROUGH = (
    wrong("exp-policy-on-cpu", "fallthrough", CPU, "exp", in_float32),
    wrong("softmax-downcast-on-cpu", "fallthrough", CPU, "softmax.int", in_low),
    wrong("softmax-slightly-off-on-cpu", "fallthrough", CPU, "softmax.int", slightly_off),
    wrong("log-softmax-result-cast-back-on-cpu", "fallthrough", CPU, "log_softmax.int", float32_result_back),
    wrong("layer-norm-policy-on-cpu", "fallthrough", CPU, "native_layer_norm", in_float32),
    wrong("cumsum-slightly-off-on-cpu", "fallthrough", CPU, "cumsum", slightly_off),
    wrong("addcmul-result-cast-back-on-cpu", "fallthrough", CPU, "addcmul", float32_result_back),
    wrong("cat-downcast-on-cuda", "fallthrough", CUDA, "cat", in_low),
    wrong("fft-policy-on-cuda", "fallthrough", CUDA, "fft_fft", in_float32),
    wrong("stack-downcast-on-xpu", "fallthrough", XPU, "stack", in_low),
    wrong("cross-entropy-policy-on-mps", "fallthrough", MPS, "binary_cross_entropy", in_float32),
    wrong("upsample-policy-on-mps", "fallthrough", MPS, "upsample_nearest2d", in_float32),
    unlisted("relu-downcast-on-cpu", CPU, "relu", "nn.functional.relu", in_low),
    unlisted("add-downcast-on-cpu", CPU, "add.Tensor", "add", in_low),
    unlisted("view-downcast-on-cpu", CPU, "view", "view", in_low),
    unlisted("sqrt-slightly-off-on-cpu", CPU, "sqrt", "sqrt", slightly_off),
    unlisted("gelu-policy-on-cuda", CUDA, "gelu", "nn.functional.gelu", in_float32),
    unlisted("embedding-downcast-on-cuda", CUDA, "embedding", "nn.functional.embedding", in_low),
    unlisted("sigmoid-policy-on-xpu", XPU, "sigmoid", "sigmoid", in_float32),
)

FAULTS = (*OPTDTYPE, *APPEND, *BANNED, *FALLTHROUGH)
