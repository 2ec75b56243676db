"""On a torch no table covers, new overloads are tried against the known policies; dropped ones are said to be gone."""

from collections.abc import Iterator

import pytest
import torch

from ampcheck.checks import forward
from ampcheck.checks.cases import op_cases
from ampcheck.checks.drift import DriftCheck
from ampcheck.checks.forward import ForwardCheck
from ampcheck.devices import base
from ampcheck.devices.cpu import Cpu
from ampcheck.errors import Unsupported
from ampcheck.spec.case import Case
from tests.faults.kernels import kernel, to


@pytest.fixture
def newer(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cpu]:
    """The CPU of a torch without a table, whose dispatcher has policies for three overloads the closest table lacks."""
    monkeypatch.setattr(base, "covered", lambda version: False)
    monkeypatch.setattr(base, "unlisted", lambda key: ["mm", "cat", "glu_backward"])
    base.promised.cache_clear()
    yield Cpu()
    base.promised.cache_clear()


def case_of(device: Cpu, op: str) -> Case:
    return next(case for case in op_cases(device, "drift") if case.op == op)


def test_new_overloads_have_cases_of_their_own(newer: Cpu) -> None:
    assert [case.id for case in op_cases(newer, "drift")] == [
        f"{op}-all-bf16-cpu" for op in ("cat", "glu_backward", "mm")
    ]
    assert not [case for rule in ("downcast", "fallthrough") for case in op_cases(newer, rule) if case.op == "mm"]
    assert [case for case in op_cases(newer, "downcast") if case.op == "bmm"]


def test_on_a_covered_torch_there_are_none() -> None:
    assert list(op_cases(Cpu(), "drift")) == []


def test_an_overload_that_follows_a_known_policy_passes(newer: Cpu) -> None:
    assert DriftCheck().run(case_of(newer, "mm"), newer) == []


def test_one_without_samples_is_unsupported(newer: Cpu) -> None:
    with pytest.raises(Unsupported, match=r"aten::glu_backward is registered .* has no samples yet"):
        DriftCheck().run(case_of(newer, "glu_backward"), newer)


def test_one_that_follows_no_policy_is_named(newer: Cpu) -> None:
    with kernel("mm", to(lambda call: torch.float64))("cpu"):
        [difference] = DriftCheck().run(case_of(newer, "mm"), newer)
    assert difference.startswith("aten::mm is registered under AutocastCPU, is in no table, and follows none of")


def test_a_dropped_overload_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    case = next(iter(op_cases(Cpu(), "upcast")))
    monkeypatch.setattr(forward, "exists", lambda name: name != case.op)
    with pytest.raises(Unsupported, match=f"has no aten::{case.op}"):
        ForwardCheck().run(case, Cpu())


def test_what_a_composite_op_hides_is_unsupported(monkeypatch: pytest.MonkeyPatch) -> None:
    """bilinear calls bmm inside a kernel; where no recorder fits, its result is neither right nor wrong."""
    case = next(case for case in op_cases(Cpu(), "fallthrough") if case.op == "bilinear" and case.inputs == "fp32")
    assert ForwardCheck().run(case, Cpu()) == []
    monkeypatch.setattr(forward, "replaceable", lambda key: False)
    with pytest.raises(Unsupported, match=r"aten::bilinear gives something else in a region"):
        ForwardCheck().run(case, Cpu())
