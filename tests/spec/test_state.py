"""The model: casts, the state of regions, and the scaler."""

from functools import reduce
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ampcheck.spec import scaler as spec
from ampcheck.spec.casting import APPENDED, FLOATING, POLICIES, Expectation, Leaf, expect, widest
from ampcheck.spec.scaler import Refused, Scaler
from ampcheck.spec.state import DEFAULTS, Process, State, Tensor, Thread
from ampcheck.spec.torch_dtypes import DTYPES

ANY_DTYPE = (*FLOATING, "int64", "int8", "bool", "complex64", "complex128")
FP16, BF16, FP32, FP64 = Leaf("fp16"), Leaf("bf16"), Leaf("fp32"), Leaf("fp64")
INT, ELSEWHERE = Leaf("int64"), Leaf("fp32", on_device=False)

leaves = st.lists(st.builds(Leaf, st.sampled_from(ANY_DTYPE), st.booleans()), max_size=6)
amp_dtypes = st.sampled_from(("fp16", "bf16"))


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
    got = expect(policy, "norm.Scalar" if policy == "append" else "mm", args, amp)
    assert len(got.leaves) == len(args)
    assert all(dtype == leaf.dtype for leaf, dtype in zip(args, got.leaves, strict=True) if not leaf.eligible)


# Without the 8-bit dtypes, which torch refuses to promote.
@given(st.lists(st.sampled_from(("fp16", "bf16", "fp32", "fp64")), min_size=1, max_size=6))
def test_widest_is_as_torch_promotes(dtypes: list[str]) -> None:
    assert DTYPES[widest(dtypes)] == reduce(torch.promote_types, (DTYPES[dtype] for dtype in dtypes))


WEIGHT = Tensor("fp32", name="w", requires_grad=True)


@pytest.fixture
def thread() -> Thread:
    return Process().thread()


def _casts(thread: Thread, tensor: Tensor, *, policy: str = "downcast") -> int:
    return thread.op("cpu", policy, "mm", [tensor]).casts


@pytest.mark.parametrize("name", [name for name in DEFAULTS if name != "privateuseone"])
def test_defaults_are_those_of_torch(name: str) -> None:
    assert torch.get_autocast_dtype(name) == DTYPES[DEFAULTS[name]]


def test_a_region_inside_itself_restores(thread: Thread) -> None:
    region = thread.construct("cpu")
    for _ in range(3):
        thread.enter(region)
    for _ in range(3):
        thread.exit(region)
    assert thread.state("cpu") == State(False, "bf16", True, 0)
    with pytest.raises(ValueError, match="not inside this region of cpu"):
        thread.exit(region)


def test_a_region_in_two_threads_restores_each() -> None:
    process = Process()
    one, two = process.thread(), process.thread()
    two.set_enabled("cpu", True)
    region = one.construct("cpu", "fp16")
    one.enter(region)
    two.enter(region)
    one.exit(region)
    assert one.state("cpu") == State(False, "bf16", True, 0)
    two.exit(region)
    assert two.state("cpu") == State(True, "bf16", True, 0)


@pytest.mark.parametrize(
    ("device", "dtype", "enabled", "region_enabled", "warns"),
    [
        ("cpu", "fp32", True, False, True),
        ("cpu", "fp32", False, False, False),
        ("cpu", "fp16", True, True, False),
        ("cuda", "fp32", True, True, False),
    ],
)
def test_unsupported(thread: Thread, device: str, dtype: str, enabled: bool, region_enabled: bool, warns: bool) -> None:
    region = thread.construct(device, dtype, enabled=enabled)
    assert (region.enabled, region.warns, region.dtype) == (region_enabled, warns, dtype)


@pytest.mark.parametrize(
    ("tensor", "casts"),
    [
        (WEIGHT, [1, 0, 0]),  # a weight is cast once
        (Tensor("fp32", name="no grad"), [1, 1, 1]),
        (Tensor("fp32", name="view", requires_grad=True, is_view=True), [1, 1, 1]),
        (Tensor("fp32", name="result", requires_grad=True, is_leaf=False), [1, 1, 1]),
        (Tensor("fp16", name="low", requires_grad=True), [1, 1, 1]),
        (Tensor("fp32", on_device=False, name="elsewhere", requires_grad=True), [0, 0, 0]),
    ],
)
def test_what_is_cast_once(tensor: Tensor, casts: list[int], thread: Thread) -> None:
    assert _casts(thread, tensor) == 0  # outside of a region
    thread.enter(thread.construct("cpu"))
    assert ([_casts(thread, tensor) for _ in range(3)], _casts(thread, tensor, policy="fallthrough")) == (casts, 0)


GOOD, BAD = {"cpu": True}, {"cpu": False}


def _iterate(model: Scaler, *found: dict[str, bool]) -> list[tuple[float, int]]:
    seen = []
    for finite in found:
        model.scale()
        model.step("o", finite)
        model.update()
        seen.append((model.scale_value, model.tracker))
    return seen


def test_keeps_the_promise_of_an_interval_that_was_passed() -> None:
    model = Scaler(8.0, growth_interval=9)
    _iterate(model, *[GOOD] * 5)
    model.growth_interval = 3
    assert _iterate(model, GOOD) == [(16.0, 0)]


def test_stays_where_float32_ends() -> None:
    assert _iterate(Scaler(2.0**127, growth_interval=1), GOOD, GOOD) == [(2.0**127, 0)] * 2
    assert _iterate(Scaler(2.0**-149), BAD) == [(0.0, 0)]


def test_one_bad_device_is_enough() -> None:
    model = Scaler(4.0)
    model.scale()
    model.unscale("o", {"cpu": True, "cuda": False})
    assert model.optimizers["o"].found_inf == {"cpu": False, "cuda": True}
    assert not model.step("o", {})


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (lambda m: (m.scale(), m.unscale("o", GOOD, half=True)), spec.HALF),
        (lambda m: m.step("o", GOOD, closure=True), spec.WITH_CLOSURE),
        (lambda m: m.load({}), spec.EMPTY_STATE),
    ],
)
def test_refuses(calls: Any, text: str) -> None:
    with pytest.raises(Refused) as caught:
        calls(Scaler())
    assert text in caught.value.text


@pytest.mark.parametrize(
    ("factors", "text"), [({"growth_factor": 1.0}, spec.GROWTH), ({"backoff_factor": 1.0}, spec.BACKOFF)]
)
def test_factors(factors: Any, text: str) -> None:
    with pytest.raises(Refused, match=text):
        Scaler(**factors)
    with pytest.raises(AssertionError, match=text):
        torch.amp.GradScaler("cpu", **factors)
