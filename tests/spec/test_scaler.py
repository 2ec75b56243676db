"""The model of GradScaler where no program asks it; `tests/programs/test_scaler.py` runs it beside torch."""

from typing import Any

import pytest
import torch

from ampcheck.spec import scaler as spec
from ampcheck.spec.scaler import Refused, Scaler

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
