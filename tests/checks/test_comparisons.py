"""Each check: nothing to say of right behaviour, and the right sentence on wrong behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from ampcheck.checks import comparisons
from ampcheck.checks.call import because
from ampcheck.checks.forward import received_by_parts
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import MOST, CheckFailure, Difference, one_line
from ampcheck.observe.closeness import identical, largest_distance
from ampcheck.observe.recorder import Cast, KernelCall, Observation, SeenLeaf
from ampcheck.spec.casting import Expectation

MM = Expectation(("bf16", "bf16"), "mm")
SUM = Expectation(("bf16",), "sum", dtype_kwarg="fp32")
BOOM = RuntimeError("boom")
RULE = "(rule downcast: eligible arguments are cast to the region's dtype)"


def seen(got: str, given: str = "fp32", source: int | None = 0, on_device: bool = True) -> SeenLeaf:
    return SeenLeaf(given, got, on_device, source)


def ran(overload: str, *leaves: SeenLeaf, dtype: str | None = None, casts: Sequence[int | None] = ()) -> Observation:
    made = [Cast("fp32", "bf16", source, 6) for source in casts]
    return Observation([KernelCall(overload, leaves, dtype)], made)


TWO = (seen("bf16"), seen("bf16", source=1))


@pytest.mark.parametrize(
    ("observation", "expected", "given", "says"),
    [
        (ran("mm", *TWO, casts=(0, 1)), MM, ("fp32", "fp32"), []),
        (ran("mm", *TWO, casts=(0, 1, None)), MM, ("fp32", "fp32"), []),  # a cast of something else
        (ran("mm", *TWO, casts=(0,)), MM, ("fp32", "bf16"), []),
        (
            ran("mm", *TWO, casts=(0, 1)),
            MM,
            ("bf16", "fp32"),
            [f"autocast made 2 casts of the arguments of aten::mm; expected 1 {RULE}"],
        ),
        (ran("mm", TWO[0], seen("bf16", source=None), casts=(0,)), MM, ("fp32", "fp32"), []),  # not all are followed
        (ran("mm", TWO[0], seen("fp16", source=None)), MM, ("bf16", "bf16"), []),
        (ran("sum", seen("bf16", "bf16"), dtype="fp32"), SUM, ("bf16",), []),
        (ran("mm", *TWO, dtype="fp64", casts=(0, 1)), MM, ("fp32", "fp32"), []),  # the caller's own
        (Observation(), MM, ("fp32", "fp32"), ["the kernel of aten::mm never ran; what ran was: nothing (rule"]),
        (
            Observation(error=BOOM),
            MM,
            ("fp32", "fp32"),
            ["aten::mm raised before its kernel ran: RuntimeError: boom (rule downcast"],
        ),
    ],
)
def test_what_a_kernel_received(
    observation: Observation, expected: Expectation, given: Sequence[str], says: list[str]
) -> None:
    found = comparisons.kernel(
        observation, expected.overload, given, expected.leaves, expected.dtype_kwarg, because("downcast")
    )
    assert len(found) == len(says), found
    assert all(text.startswith(start) for text, start in zip(found, says, strict=True)), found


class Listing(Cpu):
    """A device that promises three overloads."""

    def policies(self) -> dict[str, str]:
        return {"mm": "downcast", "exp": "upcast", "binary_cross_entropy": "banned"}


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (KernelCall("mm", TWO, None), []),
        (KernelCall("mm", (seen("fp32"), TWO[1]), None), ["argument 0 of aten::mm was given as fp32 and reached the"]),
        (KernelCall("exp", (seen("fp32", "bf16"),), None), []),
        (KernelCall("exp", (seen("bf16", "bf16"),), None), ["argument 0 of aten::exp was given as bf16 and reached"]),
        (KernelCall("tanh", (seen("fp16"),), None), []),
        (KernelCall("binary_cross_entropy", (seen("fp16", "fp16"),) * 2, None), []),
        (KernelCall("mm", (seen("fp32", on_device=False), TWO[1]), None), []),
    ],
)
def test_the_parts_of_a_composite_op_follow_their_policies(call: KernelCall, says: list[str]) -> None:
    found = received_by_parts(Observation([call]), Listing(), "bf16")
    assert len(found) == len(says), found
    assert all(text.startswith(start) for text, start in zip(found, says, strict=True))


@pytest.mark.parametrize(
    ("got", "reference", "says"),
    [
        (None, None, []),
        (BOOM, RuntimeError("other words"), []),
        (
            BOOM,
            TypeError("no"),
            ["it raised RuntimeError: boom; the same call on explicitly cast inputs raised TypeError"],
        ),
        (None, BOOM, ["it succeeded; the same call on explicitly cast inputs raised RuntimeError: boom"]),
    ],
)
def test_a_call_raises_what_the_reference_raises(
    got: Exception | None, reference: Exception | None, says: list[str]
) -> None:
    found = comparisons.same_error(got, reference, "it")
    assert [text[: len(start)] for text, start in zip(found, says, strict=True)] == says


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([1.0, NAN]), torch.tensor([NAN, 1.0]), False),
        (torch.tensor([1.0, NAN]), torch.tensor([2.0, NAN]), False),
        (torch.tensor([0.0]), torch.tensor([NAN]), False),
        (torch.tensor([INF, NAN]), torch.tensor([INF, NAN]), True),
        (torch.tensor([INF]).half(), torch.tensor([65504.0]).half(), False),  # a kernel that saturates
        (torch.tensor([-INF]), torch.tensor([torch.finfo(torch.float32).min]), False),
        (torch.tensor([1, 2]), torch.tensor([1, 2]), True),
        (torch.tensor([1, 2]), torch.tensor([1, 3]), False),
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]), False),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), True),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), False),
    ],
)
def test_identical_values(a: torch.Tensor, b: torch.Tensor, same: bool) -> None:
    assert identical(a, b) is same


@pytest.mark.parametrize(("a", "b"), [(INF, -INF), (INF, NAN), (1.0, NAN)])
def test_what_is_not_finite_is_far_from_anything_else(a: float, b: float) -> None:
    assert largest_distance(torch.tensor([0.0, a]), torch.tensor([0.0, b])) == INF
    assert largest_distance(torch.tensor([1.0, b]), torch.tensor([1.5, b])) == 0.5


def test_the_same_bits() -> None:
    x = torch.tensor([1.0, 2.0])
    assert comparisons.same_bits(x, x.clone(), "it") == []
    assert comparisons.same_bits(x, x.double() + 1, "it") == []  # of another dtype, which another check tells
    assert comparisons.same_bits(x, x[:1], "it") == ["it has shape (2,); expected (1,)"]
    fewer = "it returned 2 tensors; the same call on explicitly cast inputs returned 1"
    assert comparisons.bitwise([x, x], [x], "it") == [fewer]
    assert comparisons.bitwise([x, x], [x, x + 0.5], "it") == [
        "output 1 of it differs from the same op on explicitly cast inputs by up to 0.5; expected the same bits"
    ]


X, META = torch.arange(6.0).view(2, 3), torch.ones(2, 3, device="meta")
SAID: dict[str, tuple[Callable[[], list[str]], str]] = {
    "its own dtype": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", "fp64", "r"), ""),
    "no kernel": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "mm", "fp32", "r"), ""),
    "another dtype": (
        lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", None, "r"),
        "aten::sum ran with dtype",
    ),
    "refused": (lambda: comparisons.refused(RuntimeError("use this"), "bce", "this", "r"), ""),
    "ran": (
        lambda: comparisons.refused(None, "bce", "this", "r"),
        "aten::bce ran; expected a RuntimeError that names this",
    ),
    "other error": (
        lambda: comparisons.refused(ValueError("this"), "bce", "this", "r"),
        "aten::bce raised ValueError: this",
    ),
    "other words": (
        lambda: comparisons.refused(BOOM, "bce", "this", "r"),
        "aten::bce raised RuntimeError: boom; expected",
    ),
    "dtypes": (lambda: comparisons.output_dtypes([X, X.half()], ["fp32", "fp16"], "it"), ""),
    "fewer": (lambda: comparisons.output_dtypes([X], ["fp32", "fp16"], "it"), "it returned 1 tensors; expected 2"),
    "wrong dtype": (lambda: comparisons.output_dtypes([X], ["fp16"], "it"), "output 0 of it is fp32; expected fp16"),
    "right dtype": (lambda: comparisons.pytorch_dtype(X, [torch.float32, torch.half], "it"), ""),
    "odd dtype": (lambda: comparisons.pytorch_dtype(X, [torch.half], "it"), "it is fp32; expected fp16, as"),
    "beside": (lambda: comparisons.on_device(META, [X, META], "meta", "it"), ""),
    "on the host": (lambda: comparisons.on_device(X, [META], "meta", "it"), ""),
    "elsewhere": (
        lambda: comparisons.on_device(META, [META, X], "cpu", "it"),
        "it is on meta; expected cpu, where the inputs",
    ),
    "strides": (lambda: comparisons.strides(X, [(3, 1)], "it"), ""),
    "odd strides": (
        lambda: comparisons.strides(X.T, [(3, 1)], "it"),
        "it has strides (1, 3) in its dimensions of several",
    ),
    "same": (lambda: comparisons.same_tensor(X, X, (X, X), "it"), ""),
    "same without values": (lambda: comparisons.same_tensor(META, META, None, "it"), ""),
    "other shape": (lambda: comparisons.same_tensor(X, X[:1], None, "it"), "it has shape (2, 3); expected (1, 3)"),
    "other strides": (lambda: comparisons.same_tensor(X.T, X.T.contiguous(), None, "it"), "it has strides (1, 3)"),
    "other bits": (
        lambda: comparisons.same_tensor(X, X, (X, X + 1), "it"),
        "it differs from the same op on explicitly",
    ),
    "own memory": (lambda: comparisons.own_memory(X.clone(), [X], [], "it"), ""),
    "an alias": (lambda: comparisons.own_memory(X[0], [X], [0], "it"), ""),
    "shared": (
        lambda: comparisons.own_memory(X[0], [X.clone(), X], [0], "it"),
        "it shares memory with argument 1; expected",
    ),
    "wrong anyway": (lambda: comparisons.wrong_anyway(["a"], ["b"]), "a; it is wrong without autocast, too"),
    "wrong inside": (lambda: comparisons.wrong_anyway(["a"], []), "a"),
}
"""By name, what a comparison says, and how that starts; "" where it says nothing."""


@pytest.mark.parametrize("name", SAID)
def test_what_a_comparison_says(name: str) -> None:
    compare, start = SAID[name]
    found = compare()
    assert len(found) == bool(start)
    assert not start or (found[0].startswith(start) if name != "wrong inside" else found == [start])


def test_layouts_and_changes() -> None:
    assert comparisons.layout(torch.ones(2, 1, 3)) == (3, 1)
    assert comparisons.layout(torch.ones(0, 3)) == comparisons.layout(torch.eye(2).to_sparse()) == ()
    assert comparisons.changed([X, X], [X, X + 1]) == [1]
    for call in (
        lambda: comparisons.changed([X], []),
        lambda: comparisons.received(["fp32"], [], [], "it", "r"),
    ):
        with pytest.raises(ValueError, match="zip"):
            call()


def test_an_exception_in_one_line() -> None:
    assert one_line(None) == "nothing"
    assert one_line(ValueError("two\n  lines")) == "ValueError: two lines"
    whole = ValueError("x" * MOST)
    assert one_line(whole) == f"ValueError: {whole}"
    long = one_line(ValueError("a" * MOST + "z"))
    assert (len(long), long[-1], " … " in long) == (MOST + 3 + len("ValueError: "), "z", True)


def test_a_failure_carries_the_exception_of_its_first_difference() -> None:
    failure = CheckFailure(["a sentence", Difference("another", BOOM)])
    assert failure.error is failure.__cause__ is BOOM
    other = ValueError("other")
    assert CheckFailure([Difference("another", BOOM)], other).error is other
    assert CheckFailure(["a sentence"]).error is None
