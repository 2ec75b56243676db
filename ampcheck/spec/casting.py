"""What autocast does to the arguments of one call, in plain Python.

Which tensors are eligible, and which policy each overload has: https://docs.pytorch.org/docs/2.13/amp.html (op
eligibility, the op lists per device) and `aten/src/ATen/autocast_mode.h` of PyTorch 2.13 for what the page leaves to
the reader. Where the code falls short of the page, the page wins and the difference is a deviation
(`ampcheck/devices/deviations.toml`). Dtypes are named by strings, so that the specification can be read, tested and
shown without torch; `ampcheck.spec.torch_dtypes` maps them to `torch.dtype`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

LOW = ("fp16", "bf16")
"""The lower precisions autocast casts to."""

FLOATING = ("fp8e4m3", "fp8e5m2", "fp16", "bf16", "fp32", "fp64")
"""Every floating-point dtype the suite uses."""

_WIDTH = {"fp8e4m3": 1, "fp8e5m2": 1, "fp16": 2, "bf16": 2, "fp32": 4, "fp64": 8}


def is_floating(dtype: str) -> bool:
    """Return whether a dtype is a floating-point one; integers, bool and complex are not."""
    return dtype in _WIDTH


def widest(dtypes: list[str]) -> str:
    """Return the widest of some floating dtypes, as `torch.promote_types` orders them.

    fp16 and bf16 hold values the other cannot, so the narrowest dtype that holds both is fp32.
    """
    distinct = set(dtypes)
    top = max(_WIDTH[d] for d in distinct)
    candidates = {d for d in distinct if _WIDTH[d] == top}
    if len(candidates) == 1:
        return candidates.pop()
    return "fp32" if top <= 2 else "fp64"


Policy = str
"""One of `POLICIES`, or "fallthrough" for an overload that has none."""

POLICIES = ("downcast", "upcast", "optdtype", "append", "promote", "banned")


@dataclass(frozen=True, slots=True)
class Leaf:
    """One tensor among the arguments of a call, as far as autocast looks at it.

    `dtype` is one of the names here; `on_device` says whether it lives on the region's device type.
    """

    dtype: str
    on_device: bool = True

    @property
    def eligible(self) -> bool:
        """Floating point, not double, on the region's device type."""
        return self.on_device and is_floating(self.dtype) and self.dtype != "fp64"


@dataclass(frozen=True, slots=True)
class Expectation:
    """Expected observations when the kernel of one call runs.

    `leaves`: dtype of each tensor argument, in order. `overload`: the overload whose kernel runs (another one than was
    called only for `append`). `dtype_kwarg`: the value autocast fills in for `dtype=`, or None where it must leave the
    caller's choice alone. `error`: a part of the message where the call must be refused, else None.
    """

    leaves: tuple[str, ...]
    overload: str
    dtype_kwarg: str | None = None
    error: str | None = None


# fp32_append_dtype sends a call to the overload that takes a dtype; its schema differs, so the name does too.
APPENDED = {
    "norm.Scalar": "norm.ScalarOpt_dtype",
    "norm.ScalarOpt_dim": "norm.ScalarOpt_dim_dtype",
    "norm.names_ScalarOpt_dim": "norm.names_ScalarOpt_dim_dtype",  # named tensors, until 2.12
}

# A refused overload names what to call instead.
BANNED_MESSAGE = {"binary_cross_entropy": "binary_cross_entropy_with_logits"}


def expect(
    policy: Policy,
    overload: str,
    given: Sequence[Leaf],
    amp_dtype: str,
    *,
    dtype_given: bool = False,
    enabled: bool = True,
) -> Expectation:
    """Return the casts that autocast must make for a call.

    Args:
        policy: the overload's policy under the region's dispatch key, or "fallthrough".
        overload: the overload called, without the namespace, e.g. `mm` or `sum.dim_IntList`.
        given: the tensors among the arguments, in order, lists flattened.
        amp_dtype: the region's dtype.
        dtype_given: whether the caller passed `dtype=`.
        enabled: whether autocast is enabled for the device type.

    Returns: the expectation. Raises ValueError for an unknown policy.
    """
    untouched = Expectation(tuple(leaf.dtype for leaf in given), overload)
    if policy not in POLICIES and policy != "fallthrough":
        raise ValueError(f"unknown policy {policy!r}; known: {', '.join((*POLICIES, 'fallthrough'))}")
    if not enabled or policy == "fallthrough":
        return untouched
    if policy == "banned":
        return Expectation(untouched.leaves, overload, error=BANNED_MESSAGE.get(overload, "unsafe to autocast"))
    if policy == "downcast":
        return _cast(given, overload, amp_dtype)
    if policy == "upcast":
        return _cast(given, overload, "fp32")
    if policy == "promote":
        eligible = [leaf.dtype for leaf in given if leaf.eligible]
        return _cast(given, overload, widest(eligible)) if eligible else untouched
    first_eligible = bool(given) and given[0].eligible
    if policy == "optdtype":
        fill = first_eligible and not dtype_given
        return Expectation(untouched.leaves, overload, dtype_kwarg="fp32" if fill else None)
    # append: the other overload is always called, with the first argument's own dtype where it is not eligible.
    own = given[0].dtype if given else None
    return Expectation(untouched.leaves, APPENDED[overload], dtype_kwarg="fp32" if first_eligible else own)


def _cast(given: Sequence[Leaf], overload: str, dtype: str) -> Expectation:
    return Expectation(tuple(dtype if leaf.eligible else leaf.dtype for leaf in given), overload)


WITHOUT_GRADIENT: Mapping[str, str] = {
    "_addmm_activation": "PyTorch has no derivative of this fused kernel",
    "_native_multi_head_attention": "PyTorch has no derivative of this fused kernel",
    "geqrf": "its derivative is declared and not written",
    "linalg_matrix_rank": "a rank is an integer",
    "linalg_matrix_rank.atol_rtol_float": "a rank is an integer",
    "linalg_matrix_rank.atol_rtol_tensor": "a rank is an integer",
    "linalg_matrix_rank.tol_tensor": "a rank is an integer",
}
"""Overloads that have a policy and no gradient, each with the reason."""
