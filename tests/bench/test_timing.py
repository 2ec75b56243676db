"""Rounds, calibration, clocks: what is timed, how often, and that a clock which does not wait is found out."""

import math
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.bench.core.model import BenchPlan, Rounds
from ampcheck.bench.core.timing import Clock, CpuClock, Timed, calibrate, interleave
from ampcheck.bench.run import measure
from ampcheck.devices.cpu import Cpu


class Ticking(CpuClock):
    """A clock whose calls take what they say."""

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        return call(), 0.0


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 1), (0.05, 1), (0.005, 2), (1e-5, 1000), (1e-9, 20_000)])
def test_a_sample_has_as_many_calls_as_its_length_wants(seconds: float, count: int) -> None:
    assert calibrate(Ticking(Cpu()), lambda: seconds, 0.01) == count


def test_what_goes_before_is_outside_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    wall, _, _ = interleave(CpuClock(Cpu()), {"a": Timed(lambda: work(2), before=lambda: work(100))}, 3, seed=0)
    assert wall["a"] == [2, 2, 2]


# ---- variants that take too long for their rounds


class Telling(CpuClock):
    """A clock on which the calls of some variants take some seconds, and those of others nothing."""

    def __init__(self, seconds: dict[str, float]) -> None:
        super().__init__(Cpu())
        self.seconds, self.variant, self.said = seconds, "", list[tuple[str, str]]()

    def say(self, variant: str, what: str) -> None:
        self.variant = variant
        self.said.append((variant, what))

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        self.last = call()
        return self.seconds.get(self.variant, 1e-5), 0.0


def timed(seconds: dict[str, float], monkeypatch: pytest.MonkeyPatch, patience: float = 6.0) -> tuple[Rounds, Telling]:
    """Measure a product of 64² on the CPU where the calls of some variants take some seconds."""
    monkeypatch.setattr(measure, "warm_up", lambda timer, call, times=3: timer.sample(call, 1)[0])
    measurer = measure.Measurer(BenchPlan("cpu", [], 0, 5, 1e-4, 1, [], patience))
    measurer.timer = timer = Telling(seconds)
    return measurer.measure("mm-64", "eager", timer.say), timer


ALL = {"fp32", "fp32-aa", "bf16", "fp16", "bf16-native", "fp16-native"}


def test_a_variant_that_is_too_slow_is_given_up_with_bound_and_precision_check(monkeypatch: pytest.MonkeyPatch) -> None:
    found, _ = timed({"bf16": 1.0, "fp16": 0.25}, monkeypatch)
    assert set(found.samples) == ALL - {"bf16"}
    assert found.failed == {
        "bf16": "neither of two calls took less than 1 s; 6 s, which a variant may take, are not enough for 5 rounds"
    }
    assert found.facts["bf16"]["at_least"] == 1.0
    assert found.facts["bf16"]["precision_check"] == "mm in bf16"
    assert "at_least" not in found.facts["fp16"]
    found, _ = timed({"bf16": 1.0}, monkeypatch, patience=math.inf)
    assert set(found.samples) == ALL


def test_a_variant_that_is_far_too_slow_is_not_even_shown_to_be_what_it_says(monkeypatch: pytest.MonkeyPatch) -> None:
    found, timer = timed({"bf16": 4.0}, monkeypatch)
    assert found.facts["bf16"] == {"first": 4.0, "at_least": 4.0}
    assert ("bf16", "check_precision") not in timer.said
    assert set(found.samples) == ALL - {"bf16"}
    found, timer = timed({"fp32": 1.0}, monkeypatch)  # nothing is measured beside it
    assert (found.samples, set(found.failed)) == ({}, {"fp32"})
    assert {variant for variant, _ in timer.said} == {"fp32"}


# ---- a device that computes after it has returned


class Asynchronous(Cpu):
    """A device whose calls return at once; reading a result waits for it."""

    SECONDS = 0.2
    """Of a call's work: longer than a busy machine keeps this thread from its next line."""

    def __init__(self, waits: bool) -> None:
        self._waits, self._done = waits, 0.0

    def compute(self) -> torch.Tensor:
        self._done = time.perf_counter() + self.SECONDS
        return torch.ones(1)

    def synchronize(self) -> None:
        if self._waits:
            self.host(torch.ones(1))

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        time.sleep(max(self._done - time.perf_counter(), 0.0))
        return tensor


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "returns"])
def test_a_synchronize_that_does_nothing_makes_every_result_invalid(waits: bool) -> None:
    device = Asynchronous(waits)
    timer = Clock(device)
    found = Rounds("w", "cpu", "eager", 0, facts={"a": {}, "b": {}})
    variants = {name: Timed(device.compute) for name in "ab"}
    found.samples, _, late = interleave(timer, variants, 3, 0)
    measure.blocked(late, found)
    if waits:
        assert found.facts == {"a": {}, "b": {}}
        assert min(map(min, found.samples.values())) >= 0.9 * device.SECONDS
    else:
        assert all("work was still running when the clock stopped" in found.facts[v]["invalid"] for v in "ab")


@pytest.mark.parametrize(
    ("first", "second", "sample", "late"),
    [
        (1e-4, 1e-6, 1e-6, False),  # a tiny call: reading has its own costs
        (5e-4, 1e-6, 1e-6, True),
        (0.15, 0.01, 1.0, False),  # less than a fifth of the sample
        (0.35, 0.1, 1.0, True),
        (3.0, 3.0, 0.01, False),  # reading is slow, the second time as well
    ],
)
def test_what_is_late(first: float, second: float, sample: float, late: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    timer = Clock(Cpu())
    monkeypatch.setattr(timer.device, "host", lambda tensor: read.append(tensor.numel()))
    timer.last = {"out": torch.ones(1), "more": (torch.zeros(2),)}
    times = iter([0.0, first, first + second])
    monkeypatch.setattr(time, "perf_counter", lambda: next(times))
    assert bool(timer.late(sample)) is late
    assert read == [1, 2, 1, 2], "every output is read twice"
