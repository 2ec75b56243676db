"""Relations of an op and of what Inductor makes of it: right behaviour passes, wrong behaviour is named."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.checks import lowering
from ampcheck.checks.lowering import arguments, assert_lowered, assert_taken_apart
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.devices.registry import known
from ampcheck.errors import Unsupported

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


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "value": (lambda x, y: 1.1 * (x * x + y * y).sqrt(), "results of sample 0, low, in a region: is off by"),
    "dtype": (lambda x, y: (x.float() ** 2 + y.float() ** 2).sqrt(), "results of sample 0, low, in a region: gave"),
    "raised": (torch.Tensor.bmm, "results of sample 0, low, in a region: raised"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_decomposition_is_named(wrong: str, monkeypatch: pytest.MonkeyPatch) -> None:
    decomposition, said = WRONG[wrong]

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
