"""The verdict on an op case, one condition at a time; test_statuses.py has whole cases."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from ampcheck.checks import forward
from ampcheck.checks.call import CallPlan, plan
from ampcheck.checks.forward import check_forward
from ampcheck.checks.reference import Reference
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import Broken, Unsupported
from ampcheck.observe.recorder import KernelCall, Observation, SeenLeaf
from ampcheck.samples.describe import FORMS
from ampcheck.spec.case import Case

CASE = Case("eager", "downcast", "mm", "", "bf16", "bf16", "cpu", "cpu")
BOOM = RuntimeError("boom")


class Elsewhere(Cpu):
    """A device that is not the CPU and has no op database."""

    type = "elsewhere"
    database = False
    refusals = ("not on elsewhere",)

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor.clone()


@pytest.mark.parametrize(
    ("device", "changes", "op", "formed"),
    [
        (Cpu(), {}, {}, True),
        (Cpu(), {"inputs": "fp32"}, {}, True),
        (Cpu(), {"inputs": "fp64"}, {}, False),
        (Cpu(), {"sample": "torch"}, {}, False),
        (Cpu(), {}, {"values": "none"}, False),
        (Cpu(), {}, {"overload": "mm.out"}, False),
        (Elsewhere(), {}, {}, True),
        (Elsewhere(), {"inputs": "fp32"}, {}, False),
    ],
)
def test_which_cases_try_other_values(
    device: Cpu, changes: dict[str, str], op: dict[str, str], formed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo = plan(CASE, Cpu())
    todo = replace(todo, op=replace(todo.op, **op))  # type: ignore[arg-type]
    tried: list[str] = []
    monkeypatch.setattr(forward, "_results", lambda case, device, other, name: tried.append(other.sample.name) or [])
    monkeypatch.setattr(forward, "run", lambda *_: None)
    monkeypatch.setattr(forward, "require_inputs", lambda *_: None)
    monkeypatch.setattr(forward, "_overwritten", lambda *_: [])
    case = replace(CASE, op=op.get("overload", "mm"), **changes)  # type: ignore[arg-type]
    assert forward._forms(case, device, todo, "it") == []
    assert [name.rpartition(", ")[2] for name in tried] == (list(FORMS) if formed else [])


MIXED = replace(CASE, rule="fallthrough", inputs="bf16_fp32")


@pytest.mark.parametrize(
    ("case", "device", "raised", "on_cpu", "status"),
    [
        (CASE, Cpu(), "boom", None, "broken"),
        (CASE, Cpu(), "boom", "boom", "broken"),  # the device is the CPU
        (CASE, Elsewhere(), "boom", None, "broken"),
        (CASE, Elsewhere(), "boom", "boom", "unsupported"),
        (CASE, Elsewhere(), "boom", "another", "broken"),
        (CASE, Elsewhere(), "boom", ValueError("boom"), "broken"),
        (CASE, Elsewhere(), "not on elsewhere", None, "unsupported"),
        (CASE, Elsewhere(), "expected scalar type Half", "another", "broken"),
        (MIXED, Elsewhere(), "expected scalar type Half", None, "pass"),
        (MIXED, Elsewhere(), "boom", "another", "pass"),
        (MIXED, Elsewhere(), "boom", None, "broken"),
        (replace(MIXED, inputs="int64"), Elsewhere(), "boom", "another", "pass"),
    ],
)
def test_what_is_raised_without_autocast_too(
    case: Case, device: Cpu, raised: str, on_cpu: Any, status: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cpu = RuntimeError(on_cpu) if isinstance(on_cpu, str) else on_cpu
    monkeypatch.setattr(forward, "raised_by_cpu", lambda todo: cpu)
    got = "pass"
    try:
        forward.judge_raise(RuntimeError(raised), device, plan(case, Cpu()), "it")
    except (Broken, Unsupported) as error:
        got = type(error).__name__.lower()
    assert got == status


@pytest.mark.parametrize(
    ("inputs", "rule", "one"),
    [
        ("bf16", "downcast", True),
        ("fp16_fp32", "downcast", True),
        ("fp16_fp32", "fallthrough", False),
        ("int64", "fallthrough", False),
        ("bool", "fallthrough", False),
        ("fp32_int64", "downcast", False),
    ],
)
def test_a_kernel_that_gets_one_dtype(inputs: str, rule: str, one: bool) -> None:
    assert forward.asks_for_one_dtype(plan(replace(CASE, inputs=inputs, rule=rule), Cpu())) is one


def planned(**changes: Any) -> CallPlan:
    return plan(replace(CASE, **changes), Cpu())


def kernel(overload: str = "mm", *got: str, dtype: str | None = None) -> KernelCall:
    leaves = tuple(SeenLeaf("bf16", text, True, place) for place, text in enumerate(got))
    return KernelCall(overload, leaves, dtype)


RIGHT = Observation([kernel("mm", "bf16", "bf16")])


class Flat(Elsewhere):
    """A device on which composite ops are not seen whole."""

    observes_composite_ops = False


class Valueless(Elsewhere):
    has_values = False


class Listing(Cpu):
    """A device that promises one op."""

    def __init__(self, promised: str, key: str = "AutocastXPU") -> None:
        self.promised, self.key = promised, key

    def policies(self) -> Any:
        return {self.promised: "append"}

    def autocast(self, *_: Any, **__: Any) -> Any:
        return nullcontext()


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The steps of `check_forward` that were reached: each notes its name, and the comparing ones find it."""
    reached: list[str] = []

    def note(name: str, out: Any) -> Callable[..., Any]:
        return lambda *_, **__: reached.append(name) or out

    for name, out in {
        "require_inputs": None,
        "_parts": ["parts"],
        "watch": RIGHT,
        "run_reference": Observation(error=BOOM),
        "judge_raise": None,
        "_received": [],
        "_calls_a_policy": False,
        "_results": [],
        "_forms": [],
    }.items():
        monkeypatch.setattr(forward, name, note(name.strip("_"), out))
    return reached


def set_to(monkeypatch: pytest.MonkeyPatch, **found: Any) -> None:
    for name, out in found.items():
        monkeypatch.setattr(forward, name, lambda *_, out=out, **__: out)


def test_what_is_compared_in_which_order(steps: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert check_forward(CASE, Cpu()) == []
    assert steps == ["require_inputs", "watch", "received", "results", "forms"]
    set_to(monkeypatch, _results=["wrong"])
    assert check_forward(CASE, Cpu()) == ["wrong"]
    assert steps.count("forms") == 1
    set_to(monkeypatch, _received=["other dtype"])
    assert check_forward(CASE, Cpu()) == ["other dtype"]


@pytest.mark.parametrize(
    ("rule", "composite", "parts"),
    [("fallthrough", True, True), ("fallthrough", False, False), ("downcast", True, False), ("downcast", False, False)],
)
def test_a_composite_op_without_a_policy_is_its_parts(
    rule: str, composite: bool, parts: bool, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(monkeypatch, is_composite=composite)
    assert check_forward(replace(CASE, rule=rule), Cpu()) == (["parts"] if parts else [])


@pytest.mark.parametrize(
    ("device", "watched", "judged"),
    [
        (Cpu(), Observation(error=BOOM), True),
        (Cpu(), Observation(), False),
        (Cpu(), Observation(RIGHT.kernels, error=BOOM), False),
        (Valueless(), Observation(error=BOOM), False),
    ],
)
def test_a_call_that_raises_before_its_kernel_is_judged_first(
    device: Cpu, watched: Observation, judged: bool, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(monkeypatch, watch=watched)
    check_forward(CASE, device)
    assert ("judge_raise" in steps) is judged


@pytest.mark.parametrize(
    ("device", "watched", "compared"),
    [(Elsewhere(), Observation(), True), (Flat(), Observation(), False), (Flat(), RIGHT, True)],
)
def test_what_a_kernel_received_is_compared_where_it_was_seen(
    device: Cpu, watched: Observation, compared: bool, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(monkeypatch, watch=watched)
    check_forward(CASE, device)
    assert ("received" in steps) is compared


@pytest.mark.parametrize(
    ("rule", "calls", "compared"),
    [("fallthrough", True, False), ("fallthrough", False, True), ("downcast", True, True)],
)
def test_what_comes_of_an_op_that_calls_a_policy_is_its_own(
    rule: str, calls: bool, compared: bool, steps: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to(monkeypatch, _calls_a_policy=calls, is_composite=False)
    check_forward(replace(CASE, rule=rule), Cpu())
    assert ("results" in steps) is compared


@pytest.mark.parametrize(
    ("rule", "filled", "found"),
    [("optdtype", None, 1), ("append", None, 1), ("fallthrough", None, 0), ("optdtype", "fp32", 0)],
)
def test_a_dtype_that_the_caller_left_out(
    rule: str, filled: str | None, found: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forward.comparisons, "kernel", lambda *_: [])
    todo = planned()
    todo = replace(todo, expected=replace(todo.expected, dtype_kwarg=filled))
    watched = Observation([kernel("mm", "bf16", "bf16", dtype="fp64")])
    assert len(forward._received(replace(CASE, rule=rule), todo, watched)) == found


OTHER = Observation([kernel("tanh", "bf16")])
LISTED = Observation([kernel("exp", "bf16")])


@pytest.mark.parametrize(
    ("device", "arrived", "watched", "results", "hides", "found"),
    [
        (Cpu(), RIGHT, OTHER, [], False, []),
        (Cpu(), RIGHT, OTHER, ["wrong"], False, ["wrong"]),
        (Cpu(), RIGHT, OTHER, ["wrong"], True, []),
        (Cpu(), RIGHT, OTHER, Broken(["wrong"]), True, []),
        (Cpu(), RIGHT, OTHER, Broken(["wrong"]), False, "broken"),
        (Cpu(), RIGHT, Observation([kernel("mm", "bf16", "bf16")]), ["wrong"], False, []),  # a part has a policy
        (Cpu(), RIGHT, Observation([kernel("mm", "fp32", "bf16")]), [], False, ["argument 0 of aten::mm"]),
        (Cpu(), RIGHT, Observation(), [], False, ["aten::mm ran no kernel"]),
        (Cpu(), RIGHT, Observation(error=BOOM), [], False, []),
        (Cpu(), Observation([kernel("mm", "fp32", "bf16")]), OTHER, [], False, ["argument 0 of aten::mm"]),
        (Cpu(), OTHER, OTHER, [], False, []),  # another spelling, which leads past it
        (Valueless(), RIGHT, OTHER, ["wrong"], False, []),
    ],
)
def test_a_composite_op(
    device: Cpu,
    arrived: Observation,
    watched: Observation,
    results: Any,
    hides: bool,
    found: Any,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def compared(*_: object) -> list[str]:
        if isinstance(results, Broken):
            raise results
        return list(results)

    monkeypatch.setattr(forward, "watch", lambda *_, whole=True: arrived if whole else watched)
    monkeypatch.setattr(forward, "_results", compared)
    set_to(monkeypatch, _hides_a_policy=hides)
    try:
        got: Any = forward._parts(CASE, device, planned(), "aten::mm")
    except Broken:
        got = "broken"
    assert got == found if isinstance(found, str) else [a[: len(b)] for a, b in zip(got, found, strict=True)] == found


@pytest.mark.parametrize(
    ("op", "sample", "promised", "key", "calls"),
    [
        ("norm.Scalar", "", "norm.ScalarOpt_dim", "AutocastXPU", True),
        ("norm.Scalar", "torch", "norm.ScalarOpt_dim", "AutocastXPU", True),
        ("norm.Scalar", "", "exp", "AutocastXPU", False),
        ("mm", "", "mm", "AutocastXPU", False),  # it has no composite kernel
        ("addr", "", "mul.Tensor", "AutocastXPU", True),
        ("addr", "", "mul.Tensor", "AutocastCPU", False),  # nor does this backend use the one that there is
    ],
)
def test_an_op_whose_one_kernel_calls_a_policy(op: str, sample: str, promised: str, key: str, calls: bool) -> None:
    case = replace(CASE, op=op, sample=sample, rule="fallthrough", inputs="fp32")
    device = Listing(promised, key)
    assert forward._calls_a_policy(case, device, plan(case, Cpu())) is calls


@pytest.mark.parametrize(("entered", "hides"), [([("AutocastCPU", "mm")], True), ([("AutocastCPU", "tanh")], False)])
def test_a_part_that_calls_a_policy_inside_its_kernel(
    entered: list[tuple[str, str]], hides: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def recording(keys: list[str]) -> AbstractContextManager[Any]:
        return nullcontext(entered)

    monkeypatch.setattr(forward, "recording", recording)
    assert forward._hides_a_policy(CASE, Cpu(), planned()) is hides
    with pytest.raises(Unsupported, match="under AutocastPrivateUse1 it cannot be seen"):
        forward._hides_a_policy(CASE, Listing("mm", "AutocastPrivateUse1"), planned())


@pytest.mark.parametrize(
    ("values", "call", "filled", "compared"),
    [
        ("exact", "aten", None, True),
        ("none", "aten", None, False),
        ("exact", "aten", "fp32", True),
        ("exact", "torch.mm", None, True),
        ("exact", "torch.mm", "fp32", False),  # the reference rounds elsewhere
    ],
)
def test_bits_are_compared(values: Any, call: str, filled: str | None, compared: bool) -> None:
    todo = planned()
    todo = replace(
        todo,
        op=replace(todo.op, values=values),
        sample=replace(todo.sample, call=call),
        expected=replace(todo.expected, dtype_kwarg=filled),
    )
    one, two = Observation(values=[torch.zeros(2)]), Observation(values=[torch.ones(2)])
    assert bool(forward._same_bits(Cpu(), todo, one, two, "it")) is compared


@pytest.mark.parametrize(
    ("changed", "error", "outputs", "shared", "found"),
    [
        (set(), None, 1, [], []),
        ({0}, None, 1, [], ["argument 0 of it holds other values"]),
        ({0}, BOOM, 1, [], ["argument 0 of it holds other values"]),
        (set(), BOOM, 2, ["shared"], []),  # PyTorch refuses the call, so there is nothing to compare with
        (set(), None, 2, [], ["it returned 2 tensors; expected 1"]),
        (set(), None, 1, ["shared"], ["shared"]),
        (set(), None, -1, ["shared"], ["output 0 of it is -1"]),
    ],
)
def test_what_is_wrong(
    changed: set[int],
    error: Exception | None,
    outputs: int,
    shared: list[str],
    found: list[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    want = torch.ones(2, dtype=torch.float64)
    set_to(monkeypatch, reference=Reference((want,), (want * 0,), error=error), _changed=changed, _shared=shared)
    got = torch.ones(2) * (1 if outputs > 0 else -1)
    seen = Observation(outputs=[got] * abs(outputs), values=[got] * abs(outputs))
    wrong = forward._wrong(Cpu(), planned(), seen, "it")
    assert [a[: len(b)] for a, b in zip(wrong, found, strict=True)] == found


def test_memory_that_only_a_write_shows_to_be_shared() -> None:
    def found(device: Cpu, aliases: frozenset[tuple[int, int]] = frozenset()) -> list[str]:
        given, output = torch.ones(2), torch.ones(2)
        seen = Observation(outputs=[output, given], inputs=[given])
        return forward._shared(device, Reference((output, given), aliases=aliases), seen, "it")

    said = "argument 0 of it changes as the outputs are written to: an output shares memory with it"
    assert found(Elsewhere()) == [said]
    assert found(Elsewhere(), frozenset({(1, 0)})) == []
    assert found(Cpu()) == []  # PyTorch's own, whose storages say so
    assert forward._shared(Elsewhere(), Reference((torch.ones(2),)), Observation(outputs=[torch.ones(2)]), "it") == []
