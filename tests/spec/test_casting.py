"""The casting oracle: every policy, every reason for an argument to be left alone, and what holds for all calls."""

from __future__ import annotations

from functools import reduce

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.spec import torch_dtypes
from ampcheck.spec.casting import APPENDED, POLICIES, Expectation, Leaf, expect
from ampcheck.spec.dtypes import FLOATING, widest

DTYPES = (*FLOATING, "int64", "int8", "bool", "complex64", "complex128")
FP16, BF16, FP32, FP64 = Leaf("fp16"), Leaf("bf16"), Leaf("fp32"), Leaf("fp64")
INT, ELSEWHERE = Leaf("int64"), Leaf("fp32", on_device=False)

leaves = st.lists(st.builds(Leaf, st.sampled_from(DTYPES), st.booleans()), max_size=6)
amp_dtypes = st.sampled_from(("fp16", "bf16"))


def overload_for(policy: str) -> str:
    return "norm.Scalar" if policy == "append" else "mm"


@pytest.mark.parametrize("leaf", [FP16, BF16, FP32, Leaf("fp8e4m3"), Leaf("fp8e5m2")])
def test_eligible(leaf: Leaf) -> None:
    assert leaf.eligible


@pytest.mark.parametrize("leaf", [FP64, INT, Leaf("bool"), Leaf("complex64"), ELSEWHERE, Leaf("fp16", on_device=False)])
def test_not_eligible(leaf: Leaf) -> None:
    assert not leaf.eligible


@pytest.mark.parametrize("amp", ["fp16", "bf16"])
def test_downcast(amp: str) -> None:
    got = expect("downcast", "addmm", [FP32, FP16, BF16], amp)
    assert got == Expectation((amp,) * 3, "addmm")


def test_upcast() -> None:
    assert expect("upcast", "exp", [FP16, BF16, FP32], "bf16") == Expectation(("fp32",) * 3, "exp")


@pytest.mark.parametrize(("policy", "to"), [("downcast", "bf16"), ("upcast", "fp32"), ("promote", "fp16")])
def test_what_is_not_eligible_is_left_alone(policy: str, to: str) -> None:
    got = expect(policy, "op", [FP64, INT, ELSEWHERE, FP16], "bf16")
    assert got.leaves == ("fp64", "int64", "fp32", to)


@pytest.mark.parametrize(
    ("given_leaves", "to"),
    [
        ([FP16, FP32], "fp32"),
        ([FP32, FP16], "fp32"),
        ([BF16, BF16], "bf16"),
        ([FP16, BF16], "fp32"),
        ([BF16, FP16], "fp32"),
        ([Leaf("fp8e4m3"), FP16], "fp16"),
        ([Leaf("fp8e4m3"), Leaf("fp8e5m2")], "fp32"),
    ],
)
def test_promote_takes_the_widest(given_leaves: list[Leaf], to: str) -> None:
    assert expect("promote", "atan2", given_leaves, "bf16") == Expectation((to, to), "atan2")


def test_promote_does_not_count_a_double() -> None:
    assert expect("promote", "addcmul", [FP64, FP16, FP32], "fp16").leaves == ("fp64", "fp32", "fp32")


@pytest.mark.parametrize("given_leaves", [[], [FP64, INT], [ELSEWHERE]])
def test_promote_without_an_eligible_argument_changes_nothing(given_leaves: list[Leaf]) -> None:
    assert expect("promote", "cat", given_leaves, "bf16").casts(given_leaves) == 0


def test_optdtype_fills_in_float32_and_casts_nothing() -> None:
    assert expect("optdtype", "sum", [FP16], "fp16") == Expectation(("fp16",), "sum", dtype_kwarg="fp32")


@pytest.mark.parametrize(
    ("given_leaves", "dtype_given"),
    [([FP16], True), ([FP64], False), ([INT, FP16], False), ([ELSEWHERE], False), ([], False)],
)
def test_optdtype_leaves_the_choice_alone(given_leaves: list[Leaf], dtype_given: bool) -> None:
    got = expect("optdtype", "sum", given_leaves, "fp16", dtype_given=dtype_given)
    assert got == Expectation(tuple(leaf.dtype for leaf in given_leaves), "sum")


@pytest.mark.parametrize("overload", sorted(APPENDED))
def test_append_calls_the_overload_with_a_dtype(overload: str) -> None:
    assert expect("append", overload, [BF16], "bf16") == Expectation(("bf16",), APPENDED[overload], dtype_kwarg="fp32")


@pytest.mark.parametrize("leaf", [FP64, Leaf("complex64"), Leaf("fp16", on_device=False)])
def test_append_keeps_the_dtype_of_a_first_argument_that_is_not_eligible(leaf: Leaf) -> None:
    got = expect("append", "norm.Scalar", [leaf], "bf16")
    assert got == Expectation((leaf.dtype,), "norm.ScalarOpt_dtype", dtype_kwarg=leaf.dtype)


def test_append_without_tensors_names_no_dtype() -> None:
    assert expect("append", "norm.Scalar", [], "bf16").dtype_kwarg is None


def test_banned_names_what_to_call_instead() -> None:
    got = expect("banned", "binary_cross_entropy", [FP32, FP32], "fp16")
    assert got == Expectation(("fp32", "fp32"), "binary_cross_entropy", error="binary_cross_entropy_with_logits")
    assert expect("banned", "another", [], "fp16").error == "unsafe to autocast"


def test_fallthrough() -> None:
    assert expect("fallthrough", "add.Tensor", [FP16, FP32], "bf16") == Expectation(("fp16", "fp32"), "add.Tensor")


@pytest.mark.parametrize("enabled", [True, False])
@pytest.mark.parametrize("policy", ["unknown", "fp32", ""])
def test_an_unknown_policy_is_refused(policy: str, enabled: bool) -> None:
    with pytest.raises(ValueError, match=rf"^unknown policy '{policy}'; known: downcast, .*, fallthrough$"):
        expect(policy, "mm", [FP32], "bf16", enabled=enabled)


def test_casts_counts_the_arguments_that_change() -> None:
    given_leaves = [FP32, BF16, FP64, FP16]
    assert expect("downcast", "op", given_leaves, "bf16").casts(given_leaves) == 2


@given(st.sampled_from((*POLICIES, "fallthrough")), leaves, amp_dtypes, st.booleans())
def test_nothing_changes_where_autocast_is_off(policy: str, args: list[Leaf], amp: str, dtype_given: bool) -> None:
    overload = overload_for(policy)
    got = expect(policy, overload, args, amp, dtype_given=dtype_given, enabled=False)
    assert got == Expectation(tuple(leaf.dtype for leaf in args), overload)


@given(st.sampled_from(POLICIES), leaves, amp_dtypes)
def test_no_policy_changes_an_argument_that_is_not_eligible(policy: str, args: list[Leaf], amp: str) -> None:
    got = expect(policy, overload_for(policy), args, amp)
    assert len(got.leaves) == len(args)
    assert all(dtype == leaf.dtype for leaf, dtype in zip(args, got.leaves, strict=True) if not leaf.eligible)


@given(leaves, amp_dtypes, st.data())
def test_promote_does_not_depend_on_the_order_of_arguments(args: list[Leaf], amp: str, data: st.DataObject) -> None:
    order = data.draw(st.permutations(range(len(args))))
    straight = expect("promote", "cat", args, amp).leaves
    shuffled = expect("promote", "cat", [args[place] for place in order], amp).leaves
    assert shuffled == tuple(straight[place] for place in order)


@given(st.sampled_from(("downcast", "upcast", "promote")), leaves, amp_dtypes)
def test_casting_twice_changes_nothing_more(policy: str, args: list[Leaf], amp: str) -> None:
    once = expect(policy, "op", args, amp)
    cast_once = [Leaf(dtype, leaf.on_device) for leaf, dtype in zip(args, once.leaves, strict=True)]
    assert expect(policy, "op", cast_once, amp).casts(cast_once) == 0


# Without the 8-bit dtypes, which torch refuses to promote.
@given(st.lists(st.sampled_from(("fp16", "bf16", "fp32", "fp64")), min_size=1, max_size=6))
def test_widest_is_as_torch_promotes(dtypes: list[str]) -> None:
    assert torch_dtypes.DTYPES[widest(dtypes)] == reduce(
        torch.promote_types, (torch_dtypes.DTYPES[dtype] for dtype in dtypes)
    )
