"""Relations of programs, of ops and of what compilers make of them: right ones pass, wrong ones are named."""

import logging
import threading
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.checks import lowering, relations
from ampcheck.checks.lowering import arguments, assert_lowered, assert_taken_apart
from ampcheck.checks.relations import Form, assert_program, assert_relations, forms
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known
from ampcheck.errors import Unsupported
from ampcheck.observe.dispatcher import recording
from ampcheck.samples import op_database
from ampcheck.spec.policies import minor
from suites.jit.test_faketensor import COMPOSED, OPS, PHASES, _called

Patch = Callable[[pytest.MonkeyPatch], None]


def _off_where(wrong: Callable[[torch.autocast], bool]) -> Patch:
    """Return a patch by which the regions of which `wrong` is true as they are entered are off."""
    enter: Callable[[torch.autocast], Any] = torch.autocast.__enter__

    def entered(region: torch.autocast) -> Any:
        region._enabled &= not wrong(region)
        return enter(region)

    return lambda patch: patch.setattr(torch.autocast, "__enter__", entered)


class Widened(TorchDispatchMode):
    """Gives results of kernels in float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {})).float()


WRONG: dict[str, Patch] = {
    "decorator": lambda patch: patch.setattr(torch.autocast, "__call__", lambda self, function: function),
    "region entered again": _off_where(lambda _: torch.is_autocast_enabled("cpu")),
    "region without a cache": _off_where(lambda region: not region._cache_enabled),
    "thread": _off_where(lambda _: threading.current_thread() is not threading.main_thread()),
    "checkpoint": lambda patch: patch.setattr(relations, "checkpoint", lambda call, *_, **__: call(nullcontext)),
    "dispatch mode": lambda patch: patch.setattr(relations, "FlopCounterMode", lambda **_: Widened()),
}


@pytest.mark.parametrize("way", WRONG)
def test_a_way_that_differs_is_named(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_program(amp, "a @ b")
    assert amp.differences == []
    WRONG[way](monkeypatch)
    assert_program(amp, "a @ b")
    said = f"{way} of sample 0: gave torch.float32[4, 4]; the other way gave torch.bfloat16[4, 4]"
    assert said in amp.differences


OFF = torch.autocast("cpu", enabled=False)


def _doubled(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, *rest: function(x, *rest).mul_(2 if torch.is_autocast_enabled("cpu") else 1)


@pytest.mark.parametrize(
    ("op", "given", "form", "wrong", "said"),
    [
        ("matmul", "wide", "operator", OFF, "operator of sample 0: gave torch.float32"),
        ("matmul", "low", "operator", OFF, "operator of sample 0: raised RuntimeError"),
        ("linalg.det", "wide", "det", _doubled, "det of sample 0: is off by 1"),
        ("mul", "wide", "Tensor.mul_", _doubled, "in_place Tensor.mul_ of sample 0: is off by 1"),
    ],
)
def test_a_form_that_differs_is_named(
    op: str, given: str, form: str, wrong: Callable[..., Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each form is a sibling of the op itself: an alias, an operator, a call in place."""

    def planted(info: Any) -> list[Form]:
        return [one._replace(function=wrong(one.function)) if one.name == form else one for one in forms(info)]

    amp = DeviceAmp(known()["cpu"], "bf16")
    assert_relations(amp, op, given)
    assert amp.differences == []
    monkeypatch.setattr(relations, "forms", planted)
    assert_relations(amp, op, given)
    assert [text for text in amp.differences if text.startswith(said)]


def test_what_overflows_is_named_but_where_large_terms_cancel(monkeypatch: pytest.MonkeyPatch) -> None:
    amp = DeviceAmp(known()["cpu"], "fp16")
    assert_relations(amp, "nn.functional.conv_transpose2d", "large")
    assert amp.differences == []
    relu = amp.op_info("nn.functional.relu")
    right = relu.op
    monkeypatch.setattr(relu, "op", lambda *x: right(*x) * (torch.inf if torch.is_autocast_enabled("cpu") else 1))
    assert_relations(amp, "nn.functional.relu", "large")
    assert [text for text in amp.differences if text.startswith("accuracy of output 0 of sample 3: gave inf")]


LOW, WIDE = torch.bfloat16, torch.float32
GIVEN = [("low", True), ("first", False), ("bounds", False)]


def _amp() -> DeviceAmp:
    return DeviceAmp(known()["cpu"], "bf16")


def test_tensors_of_a_call_are_in_the_precision_that_is_asked_for() -> None:
    amp = _amp()
    sample = amp.op_samples(amp.op_info("addmm"), WIDE, 1)[0]
    dtypes = {kind: [x.dtype for x in arguments(sample, kind, LOW)[0]] for kind in ("wide", "low", "first", "others")}
    assert dtypes == {
        "wide": [WIDE, WIDE, WIDE],
        "low": [LOW, LOW, LOW],
        "first": [LOW, WIDE, WIDE],
        "others": [WIDE, LOW, LOW],
    }


def test_bounds_are_beside_the_numbers_of_a_call() -> None:
    amp = _amp()
    sample = amp.op_samples(amp.op_info("nn.functional.threshold"), WIDE, 12)[-1]
    (x, bound, _), _ = arguments(sample, "bounds", LOW)
    nearest = torch.tensor(bound, dtype=LOW)
    above, below = (torch.nextafter(nearest, torch.tensor(way, dtype=LOW)) for way in (float("inf"), -float("inf")))
    assert nearest.item() != bound
    assert {nearest.item(), above.item(), below.item()} <= set(x.flatten().tolist())


WRONG_PARTS: dict[str, tuple[Callable[..., Any], str]] = {
    "value": (lambda x, y: 1.1 * (x * x + y * y).sqrt(), "results of sample 0, low, in a region: is off by"),
    "dtype": (lambda x, y: (x.float() ** 2 + y.float() ** 2).sqrt(), "results of sample 0, low, in a region: gave"),
    "raised": (torch.Tensor.bmm, "results of sample 0, low, in a region: raised"),
}


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_a_wrong_decomposition_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decomposition, said = WRONG_PARTS[wrong]

    def never_wide(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (x * x + y * y).sqrt() if x.dtype == WIDE else decomposition(x, y)

    monkeypatch.setattr(lowering, "_decompositions", lambda: {torch.ops.aten.hypot.default: never_wide})
    amp = _amp()
    assert_taken_apart(amp, "hypot", GIVEN, 1)
    assert [text for text in amp.differences if text.startswith(said)]


def test_a_more_exact_decomposition_is_none_the_worse(monkeypatch: pytest.MonkeyPatch) -> None:
    """The right one: a sum of squares in float64."""
    exact = {torch.ops.aten.hypot.default: lambda x, y: (x.double() ** 2 + y.double() ** 2).sqrt().to(x.dtype)}
    monkeypatch.setattr(lowering, "_decompositions", lambda: exact)
    amp = _amp()
    assert_taken_apart(amp, "hypot", [("low", False)], 2)
    assert amp.differences == []
    assert amp.looked_at


@pytest.mark.parametrize("always", [False, True])
def test_what_inductor_refuses_in_the_lower_precision_alone_is_named(
    always: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuses(*inputs: torch.Tensor) -> None:
        if always or LOW in {x.dtype for x in inputs}:
            raise RuntimeError("no such kernel")

    amp = _amp()
    monkeypatch.setattr(amp, "compiled", lambda *_, **__: refuses)
    if always:
        with pytest.raises(Unsupported, match="Inductor raises RuntimeError for mean, in float32, too"):
            assert_lowered(amp, "mean")
        return
    assert_lowered(amp, "mean")
    assert amp.differences == ["mean in Inductor, which takes it in float32: raised RuntimeError: no such kernel"]


CPU = known()["cpu"]
OWN = minor(torch.__version__) == "2.13"
"""The list is of this version: others have other kernels and derivatives."""


def _reaches(op: str, number: int, given: str = "wide") -> set[str]:
    """Return the overloads with a policy whose kernels a sample of an op enters, forward and backward."""
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    with warnings.catch_warnings(), recording([CPU.key]) as entered:
        warnings.simplefilter("ignore")
        for phase in PHASES:
            _called(DeviceAmp(CPU, "bf16"), op, given, phase, "real", number)
    return {overload for _, overload in entered} & CPU.policies().keys()


def test_an_op_that_is_made_of_none_reaches_no_kernel() -> None:
    assert _reaches("sin", 0) == set()
    assert _reaches("mm", 0) == {"mm"}


@pytest.mark.nightly
@pytest.mark.skipif(not OWN, reason="the list is of torch 2.13")
def test_the_list_is_whole() -> None:
    """Each other op of the database has a policy, is composed by PyTorch's tests, or reaches no kernel with one."""
    found = {}
    for name, row in op_database.rows().items():
        overloads = row.overloads.split()
        own = overloads and all(overload in CPU.policies() for overload in overloads)
        if own or name in COMPOSED:
            continue
        for number in range(4):
            if _reaches(name, number):
                found[name] = number
                break
    assert found == OPS
