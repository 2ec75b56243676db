"""How close tensors are and must be, on both sides of each limit, and what each check says of right and wrong ones."""

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch

from ampcheck.checks import backward, comparisons, compiled
from ampcheck.checks import reference as own
from ampcheck.checks.backward import Pass
from ampcheck.checks.cases import CallPlan, because, plan
from ampcheck.checks.comparisons import far
from ampcheck.checks.compiled import ProgramOutcome
from ampcheck.checks.forward import received, received_by_parts, shared_when_written
from ampcheck.checks.reference import Reference, reference
from ampcheck.checks.relations import difference, unlike
from ampcheck.checks.sweep import compare_cells
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known as known_devices
from ampcheck.errors import MOST, CheckFailure, Difference, error_of, one_line
from ampcheck.observe.closeness import (
    NOTICED,
    alike,
    bound,
    bounds,
    distance,
    identical,
    largest_distance,
    moved_by,
    mover,
    nonfinite,
    relative_distance,
    relative_error,
    right,
    rounding_bound,
)
from ampcheck.observe.recorder import Cast, KernelCall, Observation, SeenLeaf
from ampcheck.samples.describe import in_form
from ampcheck.samples.tensors import host_values as own_values
from ampcheck.spec.case import Case
from ampcheck.spec.casting import Expectation
from ampcheck.spec.torch_dtypes import DTYPES
from tests.checks.test_kinds import Elsewhere

MM = Expectation(("bf16", "bf16"), "mm")
SUM = Expectation(("bf16",), "sum", dtype_kwarg="fp32")
BOOM = RuntimeError("boom")
DOWNCAST = because("downcast")
MM_ONCE = "aten::mm; expected 1 (rule downcast: eligible arguments are cast to the region's dtype)"


def seen(got: str, given: str = "fp32", source: int | None = 0, on_device: bool = True) -> SeenLeaf:
    return SeenLeaf(given, got, on_device, source)


def ran(overload: str, *leaves: SeenLeaf, dtype: str | None = None, casts: Sequence[int | None] = ()) -> Observation:
    made = [Cast("fp32", "bf16", source, 6) for source in casts]
    return Observation([KernelCall(overload, leaves, dtype)], made)


TWO = (seen("bf16"), seen("bf16", source=1))


class Listing(Cpu):
    """A device that promises three overloads."""

    def policies(self) -> dict[str, str]:
        return {"mm": "downcast", "exp": "upcast", "binary_cross_entropy": "banned"}


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
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


X, META = torch.arange(6.0).view(2, 3), torch.ones(2, 3, device="meta")
NOT_CAST = "argument 0 of aten::{} was given as {} and reached the kernel as {}"
KERNELS: list[tuple[Observation, Expectation, tuple[str, ...], str]] = [
    (ran("mm", *TWO, casts=(0, 1)), MM, ("fp32", "fp32"), ""),
    (ran("mm", *TWO, casts=(0, 1, None)), MM, ("fp32", "fp32"), ""),  # a cast of something else
    (ran("mm", *TWO, casts=(0,)), MM, ("fp32", "bf16"), ""),
    (ran("mm", *TWO, casts=(0, 1)), MM, ("bf16", "fp32"), f"autocast made 2 casts of the arguments of {MM_ONCE}"),
    (ran("mm", TWO[0], seen("bf16", source=None), casts=(0,)), MM, ("fp32", "fp32"), ""),  # not all are followed
    (ran("mm", TWO[0], seen("fp16", source=None)), MM, ("bf16", "bf16"), ""),
    (ran("sum", seen("bf16", "bf16"), dtype="fp32"), SUM, ("bf16",), ""),
    (ran("mm", *TWO, dtype="fp64", casts=(0, 1)), MM, ("fp32", "fp32"), ""),  # the caller's own
    (Observation(), MM, ("fp32", "fp32"), "the kernel of aten::mm never ran; what ran was: nothing (rule"),
    (Observation(error=BOOM), MM, ("fp32", "fp32"), "aten::mm raised before its kernel ran: RuntimeError: boom"),
]
PARTS: list[tuple[KernelCall, str]] = [
    (KernelCall("mm", TWO, None), ""),
    (KernelCall("mm", (seen("fp32"), TWO[1]), None), NOT_CAST.format("mm", "fp32", "fp32")),
    (KernelCall("exp", (seen("fp32", "bf16"),), None), ""),
    (KernelCall("exp", (seen("bf16", "bf16"),), None), NOT_CAST.format("exp", "bf16", "bf16")),
    (KernelCall("tanh", (seen("fp16"),), None), ""),
    (KernelCall("binary_cross_entropy", (seen("fp16", "fp16"),) * 2, None), ""),
    (KernelCall("mm", (seen("fp32", on_device=False), TWO[1]), None), ""),
]
"""Parts of a composite op, which follow their policies."""
BESIDE = "the same call on explicitly cast inputs"
ERRORS: list[tuple[Exception | None, Exception | None, str]] = [
    (None, None, ""),
    (BOOM, RuntimeError("other words"), ""),
    (BOOM, TypeError("no"), f"it raised RuntimeError: boom; {BESIDE} raised TypeError"),
    (None, BOOM, f"it succeeded; {BESIDE} raised RuntimeError: boom"),
]
GRADIENT = "the gradient of argument 0 of it "
GRADIENTS: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", ({0: X}, {0: X}), ""),
    ("none", ({}, {}), ""),
    ("missing", ({}, {0: X}), GRADIENT + "is missing; expected it to be there r"),
    ("too many", ({0: X}, {}), GRADIENT + "is there; expected it to be missing r"),
    ("other dtype", ({0: X.half()}, {0: X}), GRADIENT + "is fp16 of shape (2, 3); expected fp32 (2, 3)"),
    ("other shape", ({0: X[:1]}, {0: X}), GRADIENT + "is fp32 of shape (1, 3); expected fp32 (2, 3)"),
]
GRADIENT_BITS: list[tuple[str, tuple[Any, Any, Any], str]] = [
    ("the same", ({0: X}, {0: X}, {}), ""),
    ("others", ({0: X}, {0: X + 1}, {}), GRADIENT + "differs from"),
    ("nearer", ({0: X}, {0: X + 1}, {0: X}), ""),
    ("as near", ({0: X + 1}, {0: X - 1}, {0: X}), GRADIENT + "differs from"),
    ("farther", ({0: X}, {0: X + 1}, {0: X + 1}), GRADIENT + "differs from"),
    ("of another shape", ({0: X[:1]}, {0: X}, {0: X}), GRADIENT + "has shape (1, 3)"),
    ("beside another shape", ({0: X}, {0: X + 1}, {0: X[:1]}), GRADIENT + "differs from"),
    ("infinite", ({0: X / 0}, {0: X + 1}, {0: X}), GRADIENT + "differs from"),
    ("beside an infinite one", ({0: X + 1}, {0: X / 0}, {0: X}), ""),
]
WITH_GRADIENTS: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", ([X, X.half()], [X, X.half()]), ""),
    ("none", ([], [X]), "the outputs of it that require grad are none; expected fp32 r"),
    ("others", ([X, X.half()], []), "the outputs of it that require grad are fp32, fp16; expected none r"),
]
BACKWARD: list[tuple[str, tuple[Any, Any], str]] = [
    ("the same", (["mm", "mm"], ["mm", "mm"]), ""),
    ("others", (["mm low", "add"], ["mm wide", "add"]), "the backward pass of it ran mm low in the place of mm wide r"),
    ("one more", (["mm", "mm"], ["mm"]), "the backward pass of it ran mm in the place of nothing r"),
]
PROGRAMS: list[tuple[str, tuple[ProgramOutcome, ProgramOutcome], str]] = [
    ("the same", (ProgramOutcome([X], [X, None]), ProgramOutcome([X], [X, None])), ""),
    ("absent", (ProgramOutcome(grads=[None]), ProgramOutcome(grads=[X])), "gradient 0 of it is absent; eager mode"),
    ("present", (ProgramOutcome(grads=[X]), ProgramOutcome(grads=[None])), "gradient 0 of it is fp32; eager mode"),
    ("fewer", (ProgramOutcome([X]), ProgramOutcome([X, X])), "it returned 1 tensors; expected 2"),
    ("fewer gradients", (ProgramOutcome(grads=[X]), ProgramOutcome(grads=[X, X])), "it gave 1 gradients; eager mode 2"),
]
SAME_KERNELS: list[tuple[str, tuple[Observation, Observation], str]] = [
    ("the same", (ran("mm", *TWO), ran("mm", *TWO)), ""),
    ("of another op", (ran("exp", *TWO), ran("exp", seen("fp16"))), ""),
    ("other dtypes", (ran("mm", *TWO), ran("mm", TWO[0], seen("fp16"))), "the kernel of it received ['bf16', 'bf16']"),
    ("another dtype=", (ran("mm", dtype="fp32"), ran("mm", dtype="fp64")), "it ran with dtype=fp32; in eager mode"),
    (
        "in a second call",
        (Observation(ran("mm").kernels + ran("mm", *TWO).kernels), Observation(ran("mm").kernels * 2)),
        "the kernel of it received ['bf16', 'bf16']; in eager mode []",
    ),
]
LONG = ValueError("w" * MOST)
REFUSALS: list[tuple[str, tuple[Exception, Exception | None], str]] = [
    ("the same", (RuntimeError("compiled: boom"), BOOM), ""),
    ("of lines", (ValueError("a\nb\nc\nd"), BOOM), "it was not compiled: ValueError: a … b … d; eager mode raises"),
    (
        "quoted by Dynamo",
        (ValueError("a\nmm(x,\n y)): got RuntimeError('boom')\nc\nd"), None),
        "it was not compiled: ValueError: a … mm(x, … y)): got RuntimeError('boom') … d; eager mode runs it",
    ),
    (
        "quoted twice",
        (ValueError("a\nb\nx)): got 1\ny)): got 2\nd"), None),
        "it was not compiled: ValueError: a … b … x)): got 1 … d; eager mode runs it",
    ),
    ("the same dtypes", (RuntimeError("got Half for Float"), RuntimeError("Float and Half differ")), ""),
    ("other dtypes", (RuntimeError("got Half"), RuntimeError("Float and Half differ")), "it was not compiled"),
    ("the same dtypes in another type", (ValueError("Half"), RuntimeError("Half differs")), "it was not compiled"),
    ("no dtypes", (RuntimeError("no"), RuntimeError("never")), "it was not compiled"),
    ("long", (LONG, None), f"it was not compiled: ValueError: {'w' * (MOST // 3)}; eager mode runs it"),
]


def passed(gradient: torch.Tensor | None, copy: torch.Tensor | None = None) -> Pass:
    leaf = X.clone().requires_grad_()
    leaf.grad = gradient
    return Pass({0: leaf}, copies={} if copy is None else {0: copy})


FILLED = Pass({}, [X], [X])
CELLS: list[tuple[str, tuple[Pass, Pass], str]] = [
    ("no gradient", (passed(None), passed(None)), ""),
    ("the same", (passed(X, X), passed(X, X)), ""),
    ("missing", (passed(None), passed(X)), "gradient 0 of it is None"),
    ("too many", (passed(X), passed(None)), "gradient 0 of it is tensor"),
    ("other strides", (passed(X), passed(X.T.contiguous().T)), "gradient 0 of it has strides (3, 1)"),
    ("other bits", (passed(X, X), passed(X, X + 1)), "gradient 0 of it differs from"),
]
SAID: dict[str, tuple[Callable[[], list[str]], str]] = {
    "its own dtype": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", "fp64", "r"), ""),
    "no kernel": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "mm", "fp32", "r"), ""),
    "another dtype": (lambda: comparisons.untouched_dtype(ran("sum", dtype="fp64"), "sum", None, "r"), "aten::sum ran"),
    "refused": (lambda: comparisons.refused(RuntimeError("use this"), "bce", "this", "r"), ""),
    "ran": (lambda: comparisons.refused(None, "bce", "this", "r"), "aten::bce ran; expected a RuntimeError"),
    "other error": (
        lambda: comparisons.refused(ValueError("this"), "bce", "this", "r"),
        "aten::bce raised ValueError: this",
    ),
    "other words": (lambda: comparisons.refused(BOOM, "bce", "this", "r"), "aten::bce raised RuntimeError: boom"),
    "dtypes": (lambda: comparisons.output_dtypes([X, X.half()], ["fp32", "fp16"], "it"), ""),
    "fewer": (lambda: comparisons.output_dtypes([X], ["fp32", "fp16"], "it"), "it returned 1 tensors; expected 2"),
    "wrong dtype": (lambda: comparisons.output_dtypes([X], ["fp16"], "it"), "output 0 of it is fp32; expected fp16"),
    "right dtype": (lambda: comparisons.pytorch_dtype(X, [torch.float32, torch.half], "it"), ""),
    "odd dtype": (lambda: comparisons.pytorch_dtype(X, [torch.half], "it"), "it is fp32; expected fp16, as"),
    "beside": (lambda: comparisons.on_device(META, [X, META], "meta", "it"), ""),
    "on the host": (lambda: comparisons.on_device(X, [META], "meta", "it"), ""),
    "elsewhere": (lambda: comparisons.on_device(META, [META, X], "cpu", "it"), "it is on meta; expected cpu"),
    "strides": (lambda: comparisons.strides(X, [(3, 1)], "it"), ""),
    "odd strides": (lambda: comparisons.strides(X.T, [(3, 1)], "it"), "it has strides (1, 3)"),
    "same": (lambda: comparisons.same_tensor(X, X, (X, X), "it"), ""),
    "same without values": (lambda: comparisons.same_tensor(META, META, None, "it"), ""),
    "other shape": (lambda: comparisons.same_tensor(X, X[:1], None, "it"), "it has shape (2, 3); expected (1, 3)"),
    "other strides": (lambda: comparisons.same_tensor(X.T, X.T.contiguous(), None, "it"), "it has strides (1, 3)"),
    "other bits": (lambda: comparisons.same_tensor(X, X, (X, X + 1), "it"), "it differs from the same op"),
    "own memory": (lambda: comparisons.own_memory(X.clone(), [X], [], "it"), ""),
    "an alias": (lambda: comparisons.own_memory(X[0], [X], [0], "it"), ""),
    "shared": (lambda: comparisons.own_memory(X[0], [X.clone(), X], [0], "it"), "it shares memory with argument 1"),
    "the same bits": (lambda: comparisons.same_bits(X, X.clone(), "it"), ""),
    "another dtype, which is told apart": (lambda: comparisons.same_bits(X, X.double() + 1, "it"), ""),
    "bits of another shape": (lambda: comparisons.same_bits(X, X[:1], "it"), "it has shape (2, 3); expected (1, 3)"),
    "fewer outputs": (lambda: comparisons.bitwise([X, X], [X], "it"), f"it returned 2 tensors; {BESIDE} returned 1"),
    "another output": (
        lambda: comparisons.bitwise([X, X], [X, X + 0.5], "it"),
        "output 1 of it differs from the same op on explicitly cast inputs by up to 0.5; expected the same bits",
    ),
    **{
        f"kernel {n}": (partial(comparisons.kernel, run, e.overload, given, e.leaves, e.dtype_kwarg, DOWNCAST), s)
        for n, (run, e, given, s) in enumerate(KERNELS)
    },
    **{
        f"part {n}": (partial(received_by_parts, Observation([c]), Listing(), "bf16"), s)
        for n, (c, s) in enumerate(PARTS)
    },
    **{f"errors {n}": (partial(comparisons.same_error, *given, "it"), s) for n, (*given, s) in enumerate(ERRORS)},
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
    "wrong inside": (lambda: comparisons.wrong_anyway(["a"], []), "a"),
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
    assert (len(found), re.findall("; products in (\\w+) are", "".join(found))) == (off > 2**-19, named)


def test_layouts_and_changes() -> None:
    assert comparisons.layout(torch.ones(2, 1, 3)) == (3, 1)
    assert comparisons.layout(torch.ones(0, 3)) == comparisons.layout(torch.eye(2).to_sparse()) == ()
    assert comparisons.changed([X, X], [X, X + 1]) == [1]
    for call in (
        lambda: comparisons.changed([X], []),
        lambda: comparisons.received(["fp32"], [], [], "it", "r"),
        lambda: comparisons.kernel(ran("mm", *TWO), "mm", ("fp32",), ("bf16", "bf16"), None, "r"),
        lambda: compiled.same_strides(ProgramOutcome([X]), [ProgramOutcome()], "it"),
        lambda: compiled.same_strides(ProgramOutcome(), [ProgramOutcome(), ProgramOutcome([X])], "it"),
    ):
        with pytest.raises(ValueError, match="zip"):
            call()


ONES, COMPLEX = torch.ones(2), torch.tensor([3 + 4j])
OFF = "is off by {} of the largest value of output {}; at most {} is expected"


@pytest.mark.parametrize(
    ("got", "want", "tolerance", "says"),
    [
        (BOOM, ValueError("other"), 0.0, ""),
        (BOOM, [X], 0.0, "raised RuntimeError: boom"),
        ([X], BOOM, 0.0, "raised nothing; the other way raised RuntimeError: boom"),
        ([X], [X.half()], 0.0, "gave torch.float32[2, 3]; the other way gave torch.float16[2, 3]"),
        ([X], [X], 0.0, ""),
        ([ONES], [ONES * 1.5], None, OFF.format(0.33, 0, 0)),
        ([ONES * 3], [ONES * 2], 0.5, ""),
        ([ONES * 3], [ONES * 2], 0.4, OFF.format(0.5, 0, 0.4)),
        ([ONES * 0.3], [ONES * 0.2], 0.6, ""),
        ([X[:0], ONES], [X[:0], ONES * 2], 0.0, OFF.format(0.5, 1, 0)),
        ([COMPLEX], [COMPLEX.conj()], 0.0, OFF.format(1.6, 0, 0)),
        ([ONES / 0], [ONES], 0.0, "gave 0 finite values in output 0; the other way gave 2"),
        ([ONES / 0, ONES], [-ONES / 0, ONES], 0.0, ""),
        ([torch.tensor([INF, 1.0])], [torch.tensor([INF, 2.0])], 0.5, ""),
        ([ONES], [ONES * 0], 0.5, OFF.format(INF, 0, 0.5)),
    ],
)
def test_how_ways_to_call_an_op_differ(got: Any, want: Any, tolerance: float | None, says: str) -> None:
    given = () if tolerance is None else (tolerance,)
    assert difference(got, want, *given) == says


# Quantized tensors leave PyTorch: https://github.com/pytorch/pytorch/issues/184982
@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_quantized_values_are_compared() -> None:
    one, other = ([torch.quantize_per_tensor(ONES * x, 0.5, 0, torch.qint8)] for x in (1, 0.5))
    assert not difference(one, one)
    assert difference(one, other).startswith("is off by 1 of the largest value of output 0")


SOFTMAX, OWN = ("optdtype", "softmax.int", ""), seen("fp32")


@pytest.mark.parametrize(
    ("of", "watched", "says"),
    [
        (("downcast", "mm", ""), ran("mm", *TWO, casts=(0, 1)), []),
        (("downcast", "mm", ""), ran("mm", *TWO, dtype="fp64", casts=(0, 1)), []),
        (("downcast", "mm", ""), Observation(error=BOOM), ["aten::mm raised before its kernel ran: RuntimeError"]),
        (("downcast", "mm", ""), Observation(), ["the kernel of aten::mm never ran"]),
        (("downcast", "mm", ""), Observation(ran("mm", *TWO).kernels, error=BOOM), ["autocast made 0 casts"]),
        (SOFTMAX, ran("softmax.int", OWN, dtype="fp32"), []),
        (SOFTMAX, Observation(error=BOOM), ["aten::softmax.int raised before its kernel ran: RuntimeError: boom"]),
        ((*SOFTMAX[:2], "double"), ran("softmax.int", OWN, dtype="fp64"), []),
        ((*SOFTMAX[:2], "double"), ran("softmax.int", OWN, dtype="fp32"), ["aten::softmax.int ran with dtype=fp32"]),
        (
            (*SOFTMAX[:2], "double"),
            Observation(ran("softmax.int", OWN, dtype="fp32").kernels, error=BOOM),
            ["aten::softmax.int ran with dtype=fp32"],
        ),
    ],
)
def test_what_an_op_received(of: tuple[str, str, str], watched: Observation, says: list[str]) -> None:
    case = Case("eager", *of, "fp32", "bf16", "cpu", "cpu")
    found = received(case, plan(case, Cpu()), watched)
    assert [text[: len(start)] for text, start in zip(found, says, strict=True)] == says
    assert {error_of(text) for text in found} <= {None if watched.kernels else watched.error}


@pytest.mark.parametrize(
    ("device", "outputs", "aliases", "says"),
    [
        (Elsewhere(), lambda x: [x.clone()], (), []),
        (Elsewhere(), lambda x: [x.clone(), x[1]], (), ["argument 0 of"]),
        (Elsewhere(), lambda x: [x.clone(), x[1]], ((1, 0),), []),
        (Elsewhere(), lambda x: [x[1], x.clone()], ((1, 0),), ["argument 0 of"]),
        (Elsewhere(), lambda x: [x[1], None], (), []),  # of which one cannot be written to
        (Cpu(), lambda x: [x[1]], (), []),
    ],
)
def test_shared_memory(device: Cpu, outputs: Callable[[torch.Tensor], Any], aliases: Any, says: list[str]) -> None:
    x, case = X + 1, Case("eager", "downcast", "mm", "", "fp32", "bf16", "cpu", "cpu")
    watched = Observation(outputs=outputs(x), inputs=[x])
    exact = Reference(aliases=frozenset(aliases))
    assert shared_when_written(Cpu(), exact, watched, plan(case, Cpu())) == []  # whose storages are compared
    found = shared_when_written(device, exact, watched, plan(case, Cpu()))
    assert [text[: len(start)] for text, start in zip(found, says, strict=True)] == says
    assert shared_when_written(device, exact, Observation(outputs=outputs(X.clone())), plan(case, Cpu())) == []


def test_an_exception_in_one_line() -> None:
    assert (one_line(None), one_line(ValueError("two\n  lines"))) == ("nothing", "ValueError: two lines")
    whole = ValueError("x" * MOST)
    assert one_line(whole) == f"ValueError: {whole}"
    long = one_line(ValueError("a" * MOST + "z"))
    assert (len(long), long[-1], " … " in long) == (MOST + 3 + len("ValueError: "), "z", True)


@pytest.mark.parametrize(
    ("x", "y", "says"),
    [
        ([1.0, 2.0], [1.0, 2.0], ""),
        ([NAN], [NAN], ""),
        ([1.125], [1.0], ""),  # by one rounding
        ([1.0], [0.875], "of 10, 0 it gives 1; 0.875"),
        ([-1.125], [-1.0], ""),
        ([0.5, 1.0], [0.5, 1.25], "of 20, 1 it gives 1; 1.25"),
        ([1.0, 9.0, 1.0], [2.0, 5.0, 3.0], "of 20, 1 it gives 9; 5"),
        ([8.0, 1.0], [10.0, 5.0], "of 20, 1 it gives 1; 5"),
        ([3.0, INF], [4.0, 1.0], "of 20, 1 it gives inf; 1"),
        ([NAN, 3.0], [1.0, 4.0], "of 20, 1 it gives 3; 4"),
        ([1.0, NAN], [1.0, 1.0], "of 20, 1 it gives nan; 1"),
        ([1.0, 1.0], [1.0, NAN], "of 20, 1 it gives 1; nan"),
    ],
)
def test_unlike_elements(x: list[float], y: list[float], says: str) -> None:
    """The one that differs most is told, with its arguments."""
    columns = [torch.tensor([10.0, 20.0, 30.0]), torch.tensor([0.0, 1.0, 2.0])]
    assert unlike(torch.tensor(x, dtype=torch.bfloat16), torch.tensor(y), columns, 0.125) == says


def test_a_failure_carries_the_exception_of_its_first_difference() -> None:
    failure = CheckFailure(["a sentence", Difference("another", BOOM)])
    assert failure.error is failure.__cause__ is BOOM
    other = ValueError("other")
    assert CheckFailure([Difference("another", BOOM)], other).error is other
    assert CheckFailure(["a sentence"]).error is None


HALF, SINGLE, DOUBLE = torch.float16, torch.float32, torch.float64
EPS = 2.0**-10  # of float16


def of(*values: complex, dtype: torch.dtype = SINGLE) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


@pytest.mark.parametrize(
    ("a", "want", "tolerance", "same"),
    [
        (of(1.0, NAN), of(1.0, NAN), None, True),
        (of(1.0), of(1.25), None, False),
        (of(1.0), of(1.25), 0.25, True),
        (of(1.0), of(1.0, dtype=DOUBLE), None, False),
        (of(1.0), of(1.0, 1.0), None, False),
        (of(1.0), of(1.0, 1.0, dtype=DOUBLE), None, False),
    ],
)
def test_alike(a: torch.Tensor, want: torch.Tensor, tolerance: float | None, same: bool) -> None:
    assert (alike(a, want) if tolerance is None else alike(a, want, tolerance)) is same


@pytest.mark.parametrize(
    ("a", "b", "each", "largest", "relative"),
    [
        (of(1.0, 5.0), of(3.0, 4.0), [2.0, 1.0], 2.0, 0.5),
        (of(), of(), [], 0.0, 0.0),
        (of(1.0, INF), of(3.0, INF), [2.0, 0.0], 2.0, NAN),
        (of(INF), of(1.0), [0.0], INF, INF),
        (of(1.0), of(INF), [0.0], INF, NAN),
        (of(1 + 2j, dtype=torch.complex64), of(1 - 2j, dtype=torch.complex64), [4.0], 4.0, None),
        (of(1 + 2j, dtype=torch.complex64), of(1.0), [2.0], 2.0, None),
        (of(1.0), of(1 + 2j, dtype=torch.complex64), [2.0], 2.0, None),
        (of(complex(INF, 0), 2, dtype=torch.cfloat), of(complex(-INF, 0), 1, dtype=torch.cfloat), [0, 1], 1, None),
    ],
)
def test_distances(a: torch.Tensor, b: torch.Tensor, each: list[float], largest: float, relative: float | None) -> None:
    assert (distance(a, b).tolist(), largest_distance(a, b)) == (each, largest)
    if relative is not None:
        assert relative_distance(a, b) == pytest.approx(relative, nan_ok=True)


@pytest.mark.parametrize(
    ("want", "dtypes", "roundings", "in_float32", "far"),
    [
        (of(4.0), [SINGLE], 0, 48, 0.0),
        (of(4, dtype=torch.int64), [SINGLE], 4, 48, 0.0),
        (of(4.0, -8.0, INF, dtype=HALF), [], 4, 48, 4 * EPS * 8),
        (of(0.5), [HALF, torch.int64], 4, 48, 4 * EPS),
        (of(0.5), [SINGLE], 4, 48, 48 * 2.0**-23),
        (of(INF), [SINGLE], 4, 0, 4 * 2.0**-23),
        (of(2.0**-8), [HALF], 48, 0, NOTICED * 2.0**-8),
        (of(3 + 4j, dtype=torch.complex64), [], 4, 0, 4 * 2.0**-23 * 5),
    ],
)
def test_the_bound_of_other_kernels(
    want: torch.Tensor, dtypes: list[torch.dtype], roundings: int, in_float32: int, far: float
) -> None:
    assert rounding_bound(want, dtypes, roundings, in_float32) == far


def test_inputs_are_moved_by_half_a_rounding() -> None:
    assert set(mover(HALF, 1)(torch.full((99,), 2.0)).tolist()) == {2 - EPS, 2 + EPS}
    assert torch.equal(mover(HALF, 1)(torch.arange(3)), torch.arange(3))
    assert [far.tolist() for far in moved_by(lambda draw: [of(1.0 + draw, 5.0)], [of(1.0, 6.0)])] == [[2.0, 1.0]]
    with pytest.raises(ValueError, match="shorter"):
        moved_by(lambda draw: [], [of(1.0)])


@pytest.mark.parametrize(
    ("want", "moved", "passes", "far"),
    [
        ([4.0, -1.0], [0.5, 0.0], 1, [1.25 * (EPS * 4.0 + 0.5), 1.25 * EPS * 1.75]),
        ([4.0, INF], [0.0, 0.0], 2, [2.5 * EPS * 4, 2.5 * EPS]),
        ([0.0], [0.0], 1, [2.0**-126]),
        ([0.0], [0.0], 2, [2.5 * EPS * 0.25]),
        ([], [], 1, []),
    ],
)
def test_the_bound_of_a_right_kernel(want: list[float], moved: list[float], passes: int, far: list[float]) -> None:
    given = of(*want, dtype=DOUBLE), of(*moved, dtype=DOUBLE), HALF, SINGLE
    assert bound(*given, passes).tolist() == pytest.approx(far, rel=1e-12, abs=0)
    if passes == 1:
        assert torch.equal(bound(*given), bound(*given, 1))


@pytest.mark.parametrize(
    ("products", "factor"), [("", 384.0), ("ieee", 32.0), ("sum", 32.0), ("tf32", 1.25 * 2**13), ("bf16", 1.25 * 2**16)]
)
def test_the_bound_of_float32_products(products: str, factor: float) -> None:
    """A setting that allows shorter factors allows as much as a kernel in a dtype of such significands."""
    far = bound(of(1.0, dtype=DOUBLE), of(2.0**-24, dtype=DOUBLE), SINGLE, SINGLE, products=products)
    assert far.item() == pytest.approx(factor * (2.0**-23 + 2.0**-24), rel=1e-12)
    assert torch.equal(bound(far, far, HALF, SINGLE, products=products), bound(far, far, HALF, SINGLE))


@pytest.mark.parametrize(
    ("got", "want", "is_right"),
    [
        (1 + EPS, 1.0, True),
        (1 + 2 * EPS, 1.0, False),
        (NAN, NAN, True),
        (NAN, INF, False),
        (1.0, NAN, False),
        (INF, INF, True),
        (-INF, INF, False),
        (INF, 1.0, False),
        (65504.0, INF, False),
        # Beyond the range of float16, and near its end.
        (INF, 65450.0, True),
        (-INF, -65450.0, True),
        (-INF, 65450.0, False),
        (32752.0, 65450.0, True),
        (32736.0, 65450.0, False),
        (40000.0, 100.0, False),
        (INF, 65000.0, False),
        (complex(1 + EPS, 0), 1 + 0j, True),
        (complex(1 + 2 * EPS, 0), 1 + 0j, False),
        (complex(INF, 0), 1 + 0j, False),
        (complex(INF, 0), complex(INF, 0), True),
        (1 + 0j, complex(INF, 0), False),
        (1.0, 1 + 0j, True),
        (1.0, 2 + 0j, False),
        (1 + 0j, 1.0, True),
        (2 + 0j, 1.0, False),
    ],
)
def test_right(got: complex, want: complex, is_right: bool) -> None:
    output = of(got, dtype=torch.complex64 if isinstance(got, complex) else HALF)
    exact = of(want, dtype=torch.complex128 if isinstance(want, complex) else DOUBLE)
    assert right(output, exact, of(0.0, dtype=DOUBLE), HALF).tolist() == [is_right]


@pytest.mark.parametrize("dtype", [SINGLE, torch.complex64])
def test_what_is_off_by_the_bound_is_right(dtype: torch.dtype) -> None:
    wide = torch.complex128 if dtype.is_complex else DOUBLE
    moved = of(0.8, dtype=DOUBLE)
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved, HALF).tolist() == [True]
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved / 2, HALF, 2).tolist() == [True]
    assert right(of(1.0, dtype=dtype), of(0.0, dtype=wide), moved / 2, HALF).tolist() == [False]


def test_an_infinity_is_wrong_at_the_bound_of_the_range() -> None:
    most = torch.finfo(HALF)
    moved = of((5504 - most.smallest_normal) / 1.25 - EPS * 60000, dtype=DOUBLE)
    want = of(most.max - 5504, dtype=DOUBLE)
    assert bound(want, moved, HALF, HALF).tolist() == [5504]
    assert right(of(INF, dtype=HALF), want, moved, HALF).tolist() == [False]


@pytest.mark.parametrize(
    ("output", "exact", "error"),
    [
        ((3, 4), (3, 4), 0),
        ((3, 4.5), (3, 4), 0.1),
        ((0, 0), (3, 4), 1),
        ((0, 0), (0, 0), 0),
        ((0, 1e-30), (0, 0), INF),
        ((3, NAN), (3, 4), INF),
        ((3, INF), (3, 4), INF),
        ((3, 4), (3, INF), INF),
        ((3, -INF), (3, INF), INF),
        ((3, INF), (3, NAN), INF),
        ((3, NAN), (3, INF), INF),
        ((3, INF), (3, INF), 0),
        ((3, NAN), (3, NAN), 0),
        ((6, NAN, INF), (3, NAN, INF), 1),
        ((), (), 0),
    ],
)
def test_error(output: tuple[float, ...], exact: tuple[float, ...], error: float) -> None:
    assert relative_error(of(*output, dtype=SINGLE), of(*exact, dtype=DOUBLE)) == pytest.approx(error)


def test_vectors_of_other_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"an output of shape \(1,\) beside a reference of \(2,\)"):
        relative_error(of(1), of(1, 1))  # would be broadcast


def planned(op: str, inputs: str, amp: str = "bf16", rule: str = "downcast") -> CallPlan:
    return plan(Case("eager", rule, op, "", inputs, amp, "cpu", "cpu"), Cpu())


@pytest.mark.parametrize(
    ("op", "rule"), [("mm", "downcast"), ("conv2d", "downcast"), ("tanh", "fallthrough"), ("addmm", "downcast")]
)
@pytest.mark.parametrize(("dtype", "off"), [("bf16", 0.02), ("fp16", 0.002), ("fp32", 1.5e-4), ("fp64", 3e-13)])
def test_two_percent_in_bf16_and_two_per_mille_in_fp16_are_seen(op: str, rule: str, dtype: str, off: float) -> None:
    todo = planned(
        op, dtype, dtype if dtype in ("bf16", "fp16") else "bf16", "fallthrough" if dtype[-2:] != "16" else rule
    )
    exact = reference(todo)
    low = DTYPES[dtype]
    (want,), (moved,) = exact.outputs, exact.moved
    assert far(want.to(low), want, moved, low, "it") == []
    (said,) = far((want * (1 + off)).to(low), want, moved, low, "it")
    assert f"a right kernel in {dtype} by at most" in said
    assert "the float64 result on the CPU" in said


def test_rounded_inputs_are_what_the_reference_computes_with() -> None:
    exact = reference(planned("mm", "fp32")).outputs[0]
    given = reference(planned("mm", "fp64", rule="fallthrough")).outputs[0]
    assert 1e-4 < (exact - given).abs().max() < 1e-1


def test_whole_numbers_and_shapes_are_equal() -> None:
    want, moved = torch.tensor([3, 4]), torch.zeros(2, dtype=torch.float64)
    assert far(torch.tensor([3, 4]), want, moved, DTYPES["bf16"], "it") == []
    assert far(torch.tensor([3, 5]), want, moved, DTYPES["bf16"], "it") == [
        "it is 5 at [1]; expected 4, the float64 result on the CPU"
    ]
    assert far(torch.tensor([3]), want, moved, DTYPES["bf16"], "it") == ["it has shape (1,); expected (2,)"]


@pytest.mark.parametrize("sample", ["", "torch", "method"])
def test_the_dtype_that_autocast_fills_in_is_the_kernels(sample: str) -> None:
    device = known_devices()["virtual:cuda"]
    todo = plan(Case("eager", "optdtype", "cumprod", sample, "fp16", "fp16", device.token, device.name), device)
    given = todo.cast(todo.inputs(Cpu()))
    assert given[0].dtype is (torch.float16 if todo.sample.call == "aten" else torch.float32)
    assert todo.reference()(*given).dtype is torch.float32
    assert todo.reference("fp64")(*todo.cast(todo.inputs(Cpu()), "fp64")).dtype is torch.float64


def test_forms_change_normal_values_alone() -> None:
    sample = planned("mm", "fp32").sample
    large, strided = in_form(sample, "large"), in_form(sample, "strided")
    assert large is not None
    assert strided is not None
    assert [arg.fill for arg in large.args] == ["large", "large"]
    assert [arg.strided for arg in strided.args] == [True, True]
    assert in_form(replace(sample, args=(replace(sample.args[0], fill="unit"),)), "large") is None
    positive = in_form(replace(sample, args=(replace(sample.args[0], fill="positive"),)), "large")
    assert positive is not None
    for made, least in ((large, -18), (positive, 0.5)):
        values = own_values(made.args[0], 0)
        assert (values.abs().max().item(), values.min().item() >= least) == (18, True)


def test_a_virtual_device_leaves_no_fake_tensor_to_others() -> None:
    own_values.cache_clear()
    todo = planned("mm", "fp32")
    with known_devices()["virtual:cuda"].activate():
        assert own.raised_by_cpu(todo) is None
        values = own_values(todo.sample.args[0], 0)
    assert type(values) is torch.Tensor
    assert values.abs().sum().item() > 0


INF, NAN = float("inf"), float("nan")


def test_the_bounds_of_a_tensor_and_what_of_it_is_not_finite() -> None:
    assert (bounds(torch.tensor([1.0, -2.0, 3.0])), bounds(torch.tensor(4))) == ((-2.0, 3.0), (4, 4))
    others = (torch.ones(0), torch.ones(2, dtype=torch.bool), torch.ones(2, dtype=torch.complex64))
    assert [bounds(x) for x in (*others, torch.ones(2).to_sparse(), torch.ones(2, device="meta"))] == [None] * 5
    assert nonfinite([torch.tensor([1.0, INF]), torch.ones(2), torch.tensor([-INF, 1.0])]) == "inf and -inf"
    assert nonfinite([torch.tensor([NAN, INF]), torch.tensor([NAN])]) == "nan"
    assert nonfinite([torch.ones(2), torch.tensor([3]), torch.ones(0)]) == ""
