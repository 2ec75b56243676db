"""The casting oracle where no case of the suites asks it: arguments elsewhere, and what holds for all calls."""

from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.spec import torch_dtypes
from ampcheck.spec.casting import APPENDED, FLOATING, POLICIES, Expectation, Leaf, expect, widest

DTYPES = (*FLOATING, "int64", "int8", "bool", "complex64", "complex128")
FP16, BF16, FP32, FP64 = Leaf("fp16"), Leaf("bf16"), Leaf("fp32"), Leaf("fp64")
INT, ELSEWHERE = Leaf("int64"), Leaf("fp32", on_device=False)

leaves = st.lists(st.builds(Leaf, st.sampled_from(DTYPES), st.booleans()), max_size=6)
amp_dtypes = st.sampled_from(("fp16", "bf16"))


def overload_for(policy: str) -> str:
    return "norm.Scalar" if policy == "append" else "mm"


@pytest.mark.parametrize(
    ("policy", "given_leaves", "dtypes"),
    [
        ("downcast", [FP64, INT, ELSEWHERE, FP16], ("fp64", "int64", "fp32", "bf16")),
        ("upcast", [FP64, INT, ELSEWHERE, FP16], ("fp64", "int64", "fp32", "fp32")),
        ("promote", [FP64, INT, ELSEWHERE, FP16], ("fp64", "int64", "fp32", "fp16")),
    ],
)
def test_policies_cast_what_is_eligible(policy: str, given_leaves: list[Leaf], dtypes: tuple[str, ...]) -> None:
    assert expect(policy, "op", given_leaves, "bf16") == Expectation(dtypes, "op")


@pytest.mark.parametrize(
    ("given_leaves", "filled"), [([FP16], "fp32"), ([INT, FP16], None), ([ELSEWHERE], None), ([], None)]
)
def test_optdtype_looks_at_the_first_argument_alone(given_leaves: list[Leaf], filled: str | None) -> None:
    got = expect("optdtype", "sum", given_leaves, "fp16")
    assert got == Expectation(tuple(leaf.dtype for leaf in given_leaves), "sum", dtype_kwarg=filled)


@pytest.mark.parametrize("overload", sorted(APPENDED))
@pytest.mark.parametrize(
    ("leaf", "to"), [(BF16, "fp32"), (FP64, "fp64"), (Leaf("complex64"), "complex64"), (ELSEWHERE, "fp32")]
)
def test_append_calls_the_overload_with_a_dtype(leaf: Leaf, to: str, overload: str) -> None:
    """float32, or the dtype that a first argument which is not eligible has."""
    assert expect("append", overload, [leaf], "bf16") == Expectation((leaf.dtype,), APPENDED[overload], dtype_kwarg=to)
    assert expect("append", overload, [], "bf16").dtype_kwarg is None


@pytest.mark.parametrize("enabled", [True, False])
def test_an_unknown_policy_is_refused(enabled: bool) -> None:
    with pytest.raises(ValueError, match=r"^unknown policy 'fp32'; known: downcast, .*, fallthrough$"):
        expect("fp32", "mm", [FP32], "bf16", enabled=enabled)


@given(st.sampled_from(POLICIES), leaves, amp_dtypes)
def test_no_policy_changes_an_argument_that_is_not_eligible(policy: str, args: list[Leaf], amp: str) -> None:
    got = expect(policy, overload_for(policy), args, amp)
    assert len(got.leaves) == len(args)
    assert all(dtype == leaf.dtype for leaf, dtype in zip(args, got.leaves, strict=True) if not leaf.eligible)


# Without the 8-bit dtypes, which torch refuses to promote.
@given(st.lists(st.sampled_from(("fp16", "bf16", "fp32", "fp64")), min_size=1, max_size=6))
def test_widest_is_as_torch_promotes(dtypes: list[str]) -> None:
    assert torch_dtypes.DTYPES[widest(dtypes)] == reduce(
        torch.promote_types, (torch_dtypes.DTYPES[dtype] for dtype in dtypes)
    )
