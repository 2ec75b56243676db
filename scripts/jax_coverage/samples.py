"""PyTorch's ops and their samples, chosen and seeded the same way in every process."""

import math
import sys
from functools import cache
from typing import Any
from zlib import crc32

import torch

from ampcheck.samples.torch_testing import internal

# What these give is memory nobody has written to.
UNINITIALISED = frozenset({"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"})
# What PyTorch wants on the CPU whatever device the input is on.
HOST_ARGUMENTS = frozenset({"tensor_split"})
# float32 against float32 computed in another order; PyTorch's own comparison of devices (test_ops.py,
# test_compare_cpu) allows 1e-3 for both.
RTOL, ATOL = 1e-4, 1e-5


def name_of(op: Any) -> str:
    """Return the op's name with its variant: "linalg.vector_norm", "std_mean.unbiased"."""
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else str(op.name)


@cache
def ops() -> dict[str, Any]:
    """Return the OpInfos that PyTorch declares for float32 on the CPU, by name."""
    op_db = internal("common_methods_invocations").op_db
    unseed()
    return {name_of(op): op for op in op_db if torch.float32 in op.supported_dtypes("cpu")}


def unseed() -> None:
    """Random OpInfos seed every call with the same number; let each call draw anew, so that draws can be compared."""
    for name, module in list(sys.modules.items()):
        if name.startswith("torch.testing._internal") and hasattr(module, "wrapper_set_seed"):
            setattr(module, "wrapper_set_seed", lambda op, *args, **kwargs: op(*args, **kwargs))  # noqa: B010


def seed(name: str, draw: int = 0) -> None:
    """Seed PyTorch for an op. Every device draws from this seed, each its own numbers."""
    torch.manual_seed(crc32(name.encode()) + draw)


def spread(count: int, limit: int) -> list[int]:
    """At most `limit` of the numbers 0 to count - 1, evenly spread, first and last included."""
    if count <= limit:
        return list(range(count))
    return sorted({round(i * (count - 1) / max(limit - 1, 1)) for i in range(limit)})


KINDS = ("plain", "reference", "edges")
"""Samples of an op: those of its gradients' tests; PyTorch's longer list with broadcasting, other dtypes, Python
numbers, strides and extreme values; and plain ones whose input is rounded, so that elements are equal, and has nan,
both infinities and a negative zero among its elements."""
_EDGES = (math.nan, math.inf, -math.inf, -0.0)


def samples(op: Any, limit: int, dtype: torch.dtype = torch.float32, kind: str = "plain") -> list[Any]:
    """At most `limit` of the op's forward samples, evenly spread."""
    seed(name_of(op))
    given = op.reference_inputs if kind == "reference" else op.sample_inputs
    every = list(given("cpu", dtype, requires_grad=False))
    if kind == "edges":
        for sample in every:
            sample.input = _with_edges(sample.input)
    return [every[i] for i in spread(len(every), limit)]


def _with_edges(value: Any) -> Any:
    if not isinstance(value, torch.Tensor) or not value.is_floating_point() or not value.is_contiguous():
        return value
    out = value.detach().round()
    for i, edge in enumerate(_EDGES[: max(value.numel() - 1, 0)]):
        out.view(-1)[(7 * i + 1) % value.numel()] = edge
    return out


def tolerances(op: Any, dtype: torch.dtype = torch.float32) -> tuple[float, float]:
    """Relative and absolute tolerance: ours for float32, or the widest that the OpInfo itself allows in some test."""
    rtol, atol = RTOL, ATOL
    for info in op.decorators:
        for decorator in getattr(info, "decorators", [info]):
            given = getattr(decorator, "d", {})  # toleranceOverride holds pairs, precisionOverride absolute tolerances
            allowed: Any = given.get(dtype) if isinstance(given, dict) else None
            if allowed is not None:
                rtol = max(rtol, getattr(allowed, "rtol", 0.0))
                atol = max(atol, getattr(allowed, "atol", allowed))
    return rtol, atol
