"""The largest error against float64 that each precision may have, by `relative_error`.

The reference is `ampcheck.bench.core.prepare.reference`: the workload with the same values, computed in float64 on the
CPU. Outputs are vectors as `Prepared.output` gives them, without integers and booleans.
"""

from __future__ import annotations

from ampcheck.bench.core import counting
from ampcheck.bench.core.model import Precision, StepWorkload, Workload
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import name_of

# Limits on the relative error, about ten times what normal numbers give, so that only another kind of arithmetic
# exceeds them. Measured: products of normal numbers 2e-7 (float32, 4e-6 at 65536 terms), 3e-4 (TF32 and fp16), 2.4e-3
# (products of bf16 numbers, kept in float32), 2.9e-3 (bf16), 4.2e-3 (exp and softmax in bf16). A step adds up layers.
_OP = {"fp32": 3e-5, "tf32": 1e-3, "fp16": 8e-3, "bf16": 3e-2, "fp64": 1e-12}
_STEP = {"fp32": 1e-4, "tf32": 5e-3, "fp16": 8e-2, "bf16": 3e-1, "fp64": 1e-11}


def limit(kind: str, workload: Workload) -> float:
    """Return the largest relative error that a precision gives on a workload.

    `kind`: "fp32", "tf32", "fp16", "bf16" or "fp64". Raises KeyError for another.
    """
    return (_STEP if isinstance(workload, StepWorkload) else _OP)[kind]


def given_low(workload: Workload) -> str:
    """Return the lower precision that the workload's own inputs have in every variant, "" where they are float32."""
    for spec in getattr(workload, "inputs", ()):
        name = name_of(spec.dtype)
        if is_floating(name) and spec.dtype.itemsize < 4:
            return name
    return ""


def float32_kind(found: float, workload: Workload, platform: str) -> str:
    """Name the arithmetic of a float32 variant, by the size of its error.

    "float32", "TF32", "bf16 products" (on a TPU its default), or "" where the error is larger than all of these give.
    `platform`: e.g. "cpu", "cuda", "tpu".
    """
    if found <= limit("fp32", workload):
        return "float32"
    if found <= limit("tf32", workload) and platform != "tpu":
        return "TF32"
    if found <= limit("bf16", workload):
        return "TPU default: bf16 products" if platform == "tpu" else "bf16 products"
    return ""


def beyond(found: float, precision: Precision, workload: Workload, platform: str = "") -> str:
    """Say why the precision does not explain an error, "" where it does.

    `found`: relative error. `platform` as for `float32_kind`.
    """
    if found == float("inf"):
        return "the output is not finite, or not zero, where float64's is"
    low = name_of(precision.low) if precision.low else given_low(workload)
    if low:
        most = max(limit(low, workload), limit(given_low(workload) or low, workload))
        return f"error {found:.1e} is beyond what {low} gives ({most:.0e} at most)" if found > most else ""
    kind = float32_kind(found, workload, platform)
    allowed = {"highest": ("float32",), "tf32": ("float32", "TF32")}.get(precision.matmul)
    if kind and (allowed is None or kind in allowed):
        return ""
    most = limit("tf32" if precision.matmul == "tf32" else "fp32" if allowed else "bf16", workload)
    what = f"error {found:.1e} is beyond what {precision.name} gives ({most:.0e} at most)"
    multiplies = counting.flops(workload) > 0 or workload.policy in ("downcast", "mixed")
    return f"{what}: this is {kind}" if kind and multiplies else what
