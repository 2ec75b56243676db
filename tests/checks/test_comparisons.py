"""Each check: nothing to say of right behaviour, and the right sentence on wrong behaviour."""

import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch

from ampcheck.checks import backward, comparisons, compiled
from ampcheck.checks.backward import Pass
from ampcheck.checks.call import because, plan
from ampcheck.checks.compiled import ProgramOutcome
from ampcheck.checks.forward import received_by_parts, shared_when_written
from ampcheck.checks.reference import Reference
from ampcheck.checks.relations import difference
from ampcheck.checks.sweep import compare_cells
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import CheckFailure, Difference
from ampcheck.observe.closeness import identical
from ampcheck.observe.recorder import Cast, KernelCall, Observation, SeenLeaf
from ampcheck.spec.case import Case
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
        (ran("mm", *TWO, casts=(0,)), MM, ("fp32", "bf16"), []),
        (
            ran("mm", *TWO, casts=(0, 1)),
            MM,
            ("bf16", "fp32"),
            [f"autocast made 2 casts of the arguments of aten::mm; expected 1 {RULE}"],
        ),
        (ran("sum", seen("bf16", "bf16"), dtype="fp32"), SUM, ("bf16",), []),
        (Observation(), MM, ("fp32", "fp32"), ["the kernel of aten::mm never ran; what ran was: nothing (rule"]),
        (Observation(error=BOOM), MM, ("fp32", "fp32"), ["aten::mm raised before its kernel ran: RuntimeError: boom"]),
    ],
)
def test_received(observation: Observation, expected: Expectation, given: Sequence[str], says: list[str]) -> None:
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
        (KernelCall("exp", (seen("bf16", "bf16"),), None), ["argument 0 of aten::exp was given as bf16 and reached"]),
        (KernelCall("binary_cross_entropy", (seen("fp16", "fp16"),) * 2, None), []),
        (KernelCall("mm", (seen("fp32", on_device=False), TWO[1]), None), []),
    ],
)
def test_the_parts_of_a_composite_op_follow_their_policies(call: KernelCall, says: list[str]) -> None:
    found = received_by_parts(Observation([call]), Listing(), "bf16")
    assert len(found) == len(says), found
    assert all(text.startswith(start) for text, start in zip(found, says, strict=True))


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        (torch.ones(2), torch.ones(2), True),
        (torch.ones(2), torch.tensor([1.0, 2.0]), False),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, NAN]), True),
        (torch.tensor([1.0, NAN]), torch.tensor([1.0, 1.0]), False),
        (torch.tensor([INF, NAN]), torch.tensor([INF, NAN]), True),
        (torch.tensor([INF]).half(), torch.tensor([65504.0]).half(), False),  # a kernel that saturates
        (torch.tensor([1 + 2j]), torch.tensor([1 + 2j]), True),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 + 2j]), False),
        (torch.eye(2).to_sparse(), torch.ones(2, 2).to_sparse(), False),
    ],
)
def test_identical_values(a: torch.Tensor, b: torch.Tensor, same: bool) -> None:
    assert identical(a, b) is same


X, META = torch.arange(6.0).view(2, 3), torch.ones(2, 3, device="meta")
GRADIENT = "the gradient of argument 0 of it "
GRADIENTS: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", ({0: X}, {0: X}), ""),
    ("missing", ({}, {0: X}), GRADIENT + "is missing; expected it to be there r"),
    ("too many", ({0: X}, {}), GRADIENT + "is there; expected it to be missing r"),
    ("other dtype", ({0: X.half()}, {0: X}), GRADIENT + "is fp16 of shape (2, 3); expected fp32 (2, 3)"),
    ("other shape", ({0: X[:1]}, {0: X}), GRADIENT + "is fp32 of shape (1, 3); expected fp32 (2, 3)"),
]
GRADIENT_BITS: list[tuple[str, tuple[Any, Any, Any], str]] = [
    ("the same", ({0: X}, {0: X}, {}), ""),
    ("others", ({0: X}, {0: X + 1}, {}), GRADIENT + "differs from"),
    ("nearer", ({0: X}, {0: X + 1}, {0: X}), ""),
    ("farther", ({0: X}, {0: X + 1}, {0: X + 1}), GRADIENT + "differs from"),
    ("infinite", ({0: X / 0}, {0: X + 1}, {0: X}), GRADIENT + "differs from"),
]
WITH_GRADIENTS: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", ([X, X.half()], [X, X.half()]), ""),
    ("none", ([], [X]), "the outputs of it that require grad are none; expected fp32 r"),
    ("others", ([X, X.half()], []), "the outputs of it that require grad are fp32, fp16; expected none r"),
]
BACKWARD: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", (["mm", "mm"], ["mm", "mm"]), ""),
    ("others", (["mm low", "add"], ["mm wide", "add"]), "the backward pass of it ran mm low in the place of mm wide r"),
]
PROGRAMS: list[tuple[str, tuple[ProgramOutcome, ProgramOutcome], str]] = [
    ("the same", (ProgramOutcome([X], [X, None]), ProgramOutcome([X], [X, None])), ""),
    ("absent", (ProgramOutcome(grads=[None]), ProgramOutcome(grads=[X])), "gradient 0 of it is absent; eager mode"),
    ("fewer", (ProgramOutcome([X]), ProgramOutcome([X, X])), "it returned 1 tensors; expected 2"),
]
SAME_KERNELS: list[tuple[str, tuple[Observation, Observation], str]] = [
    ("the same", (ran("mm", *TWO), ran("mm", *TWO)), ""),
    ("other dtypes", (ran("mm", *TWO), ran("mm", TWO[0], seen("fp16"))), "the kernel of it received ['bf16', 'bf16']"),
    ("another dtype=", (ran("mm", dtype="fp32"), ran("mm", dtype="fp64")), "it ran with dtype=fp32; in eager mode"),
    (
        "in a second call",
        (Observation(ran("mm").kernels + ran("mm", *TWO).kernels), Observation(ran("mm").kernels * 2)),
        "the kernel of it received ['bf16', 'bf16']; in eager mode []",
    ),
]
REFUSALS: list[tuple[str, tuple[Exception, Exception | None], str]] = [
    ("the same", (RuntimeError("compiled: boom"), BOOM), ""),
    (
        "quoted by Dynamo",
        (ValueError("a\nmm(x,\n y)): got RuntimeError('boom')\nc\nd"), None),
        "it was not compiled: ValueError: a … mm(x, … y)): got RuntimeError('boom') … d; eager mode runs it",
    ),
    ("the same dtypes", (RuntimeError("got Half for Float"), RuntimeError("Float and Half differ")), ""),
    ("other dtypes", (RuntimeError("got Half"), RuntimeError("Float and Half differ")), "it was not compiled"),
]


def passed(gradient: torch.Tensor | None, copy: torch.Tensor | None = None) -> Pass:
    leaf = X.clone().requires_grad_()
    leaf.grad = gradient
    return Pass({0: leaf}, copies={} if copy is None else {0: copy})


FILLED = Pass({}, [X], [X])
CELLS: list[tuple[str, tuple[Pass, Pass], str]] = [
    ("the same", (passed(X, X), passed(X, X)), ""),
    ("missing", (passed(None), passed(X)), "gradient 0 of it is None"),
    ("other strides", (passed(X), passed(X.T.contiguous().T)), "gradient 0 of it has strides (3, 1)"),
]
SAID: dict[str, tuple[Callable[[], list[str]], str]] = {
    "its own dtype": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", "fp64", "r"), ""),
    "another dtype": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", None, "r"), "aten::sum ran"),
    "refused": (lambda: comparisons.refused(RuntimeError("use this"), "bce", "this", "r"), ""),
    "ran": (lambda: comparisons.refused(None, "bce", "this", "r"), "aten::bce ran; expected a RuntimeError"),
    "other error": (
        lambda: comparisons.refused(ValueError("this"), "bce", "this", "r"),
        "aten::bce raised ValueError: this",
    ),
    "other words": (lambda: comparisons.refused(BOOM, "bce", "this", "r"), "aten::bce raised RuntimeError: boom"),
    "succeeded": (lambda: comparisons.same_error(None, BOOM, "it"), "it succeeded; the same call on explicitly cast i"),
    "another error": (lambda: comparisons.same_error(BOOM, TypeError("no"), "it"), "it raised RuntimeError: boom; the"),
    "fewer": (lambda: comparisons.output_dtypes([X], ["fp32", "fp16"], "it"), "it returned 1 tensors; expected 2"),
    "wrong dtype": (lambda: comparisons.output_dtypes([X], ["fp16"], "it"), "output 0 of it is fp32; expected fp16"),
    "odd dtype": (lambda: comparisons.pytorch_dtype(X, [torch.half], "it"), "it is fp32; expected fp16, as"),
    "beside": (lambda: comparisons.on_device(META, [X, META], "meta", "it"), ""),
    "elsewhere": (lambda: comparisons.on_device(META, [META, X], "cpu", "it"), "it is on meta; expected cpu"),
    "odd strides": (lambda: comparisons.strides(X.T, [(3, 1)], "it"), "it has strides (1, 3)"),
    "same": (lambda: comparisons.same_tensor(X, X, (X, X), "it"), ""),
    "other bits": (lambda: comparisons.same_tensor(X, X, (X, X + 1), "it"), "it differs from the same op"),
    "an alias": (lambda: comparisons.own_memory(X[0], [X], [0], "it"), ""),
    "shared": (lambda: comparisons.own_memory(X[0], [X.clone(), X], [0], "it"), "it shares memory with argument 1"),
    **{f"gradients: {name}": (partial(backward.gradient_dtypes, {0: X}, *g, "it", "r"), s) for name, g, s in GRADIENTS},
    **{f"gradient bits: {name}": (partial(backward.gradient_bits, *g, "it"), s) for name, g, s in GRADIENT_BITS},
    **{f"outputs: {name}": (partial(backward.output_grads, *g, "it", "r"), s) for name, g, s in WITH_GRADIENTS},
    **{f"backward pass: {name}": (partial(backward.backward_kernels, *g, "it", "r"), s) for name, g, s in BACKWARD},
    **{f"programs: {name}": (partial(compiled.compare_programs, *g, "it"), s) for name, g, s in PROGRAMS},
    **{f"kernels: {name}": (partial(compiled.same_kernels, *g, "mm", "it"), s) for name, g, s in SAME_KERNELS},
    **{f"compiling: {name}": (partial(compiled.refusal, *g, "it"), s) for name, g, s in REFUSALS},
    **{f"cells: {name}": (partial(compare_cells, *g, "it"), s) for name, g, s in CELLS},
    **{
        f"cells: a value, unfilled {places}": (partial(compare_cells, FILLED, Pass({}, [X], [X + 1]), "it", places), s)
        for places, s in [((), "output 0 of it differs"), ((0,), ""), ((1,), "output 0 of it differs")]
    },
    "just near": (lambda: compiled.within("output", [(X, X + 1)], lambda _: 1.0, "it"), ""),
    "too far": (lambda: compiled.within("output", [(X, X + 1)], lambda _: 0.5, "it"), "output 0 of it is 1 away from"),
    "wrong anyway": (lambda: comparisons.wrong_anyway(["a"], ["b"]), "a; it is wrong without autocast, too"),
}
"""By name, what a comparison says, and how that starts; "" where it says nothing."""


@pytest.mark.parametrize("name", SAID)
def test_what_a_comparison_says(name: str) -> None:
    compare, start = SAID[name]
    found = compare()
    assert len(found) == bool(start)
    assert not start or (found[0].startswith(start) if name != "wrong inside" else found == [start])


@pytest.mark.parametrize(
    ("off", "named"), [(2**-20, []), (2**-12, ["tf32"]), (2**-8, ["bf16"]), (0.5, [])], ids=["right", *"abc"]
)
def test_products_that_are_as_far_off_are_named(off: float, named: list[str]) -> None:
    want = torch.ones(4, dtype=torch.float64)
    found = comparisons.far((want * (1 + off)).float(), want, want * 0, torch.float32, "it", 1, "ieee")
    assert len(found) == (off > 2**-19)
    assert re.findall("; products in (\\w+) are", "".join(found)) == named


ONES = torch.ones(2)


@pytest.mark.parametrize(
    ("got", "want", "tolerance", "says"),
    [
        (BOOM, [X], 0.0, "raised RuntimeError: boom"),
        ([X], BOOM, 0.0, "raised nothing; the other way raised RuntimeError: boom"),
        ([X], [X.half()], 0.0, "gave torch.float32[2, 3]; the other way gave torch.float16[2, 3]"),
        ([X], [X], 0.0, ""),
        ([ONES], [ONES * 1.5], None, "is off by 0.33 of the largest value of output 0; at most 0 is expected"),
        ([ONES * 3], [ONES * 2], 0.4, "is off by 0.5 of the largest value of output 0; at most 0.4 is expected"),
        (
            [X[:0], ONES],
            [X[:0], ONES * 2],
            0.0,
            "is off by 0.5 of the largest value of output 1; at most 0 is expected",
        ),
        ([ONES / 0], [ONES], 0.0, "gave 0 finite values in output 0; the other way gave 2"),
        ([ONES], [ONES * 0], 0.5, "is off by inf of the largest value of output 0; at most 0.5 is expected"),
    ],
)
def test_how_ways_to_call_an_op_differ(got: Any, want: Any, tolerance: float | None, says: str) -> None:
    given = () if tolerance is None else (tolerance,)
    assert difference(got, want, *given) == says


class Elsewhere(Cpu):
    type = "elsewhere"

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


@pytest.mark.parametrize(
    ("device", "outputs", "aliases", "says"),
    [
        (Elsewhere(), lambda x: [x.clone()], (), []),
        (Elsewhere(), lambda x: [x.clone(), x[1]], (), ["argument 0 of"]),
        (Elsewhere(), lambda x: [x.clone(), x[1]], ((1, 0),), []),
        (Elsewhere(), lambda x: [x[1], None], (), []),  # of which one cannot be written to
        (Cpu(), lambda x: [x[1]], (), []),
    ],
)
def test_shared_memory(device: Cpu, outputs: Callable[[torch.Tensor], Any], aliases: Any, says: list[str]) -> None:
    x, case = X + 1, Case("eager", "downcast", "mm", "", "fp32", "bf16", "cpu", "cpu")
    watched = Observation(outputs=outputs(x), inputs=[x])
    exact = Reference(aliases=frozenset(aliases))
    found = shared_when_written(device, exact, watched, plan(case, Cpu()))
    assert [text[: len(start)] for text, start in zip(found, says, strict=True)] == says
    assert shared_when_written(device, exact, Observation(outputs=outputs(X.clone())), plan(case, Cpu())) == []


def test_a_failure_carries_the_exception_of_its_first_difference() -> None:
    failure = CheckFailure(["a sentence", Difference("another", BOOM)])
    assert failure.error is failure.__cause__ is BOOM
    other = ValueError("other")
    assert CheckFailure([Difference("another", BOOM)], other).error is other
    assert CheckFailure(["a sentence"]).error is None
