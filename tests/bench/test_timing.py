"""Rounds, calibration, clocks: what is timed, how often, and that a clock which does not wait is found out."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.bench import measure
from ampcheck.bench.clocks import Clock, CpuClock, clock
from ampcheck.bench.model import Rounds
from ampcheck.bench.timing import Timed, calibrate, interleave, warm_up
from ampcheck.devices.cpu import Cpu


class Ticking(CpuClock):
    """A clock whose calls take what they say."""

    def __init__(self) -> None:
        super().__init__(Cpu())
        self.calls = 0

    def sample(self, call: Callable[[], Any], count: int) -> tuple[float, float]:
        self.calls += count
        return call(), 0.0


@pytest.mark.parametrize(("seconds", "count"), [(1.0, 1), (0.05, 1), (0.005, 2), (1e-5, 1000), (1e-9, 20_000)])
def test_a_sample_has_as_many_calls_as_its_length_wants(seconds: float, count: int) -> None:
    assert calibrate(Ticking(), lambda: seconds, 0.01) == count


def test_every_arm_is_timed_once_a_round_in_changing_order() -> None:
    order: list[str] = []
    arms = {name: Timed(lambda name=name: order.append(name) or 1.0, count=3) for name in "abc"}  # type: ignore[misc]
    wall, cpu = interleave(Ticking(), arms, 20, seed=1)
    assert {name: len(samples) for name, samples in wall.items()} == dict.fromkeys("abc", 20)
    assert cpu.keys() == wall.keys()
    rounds = ["".join(order[i : i + 6 : 2]) for i in range(0, 120, 6)]
    assert all(sorted(one) == ["a", "b", "c"] for one in rounds)
    assert len(set(rounds)) == 6


def test_what_goes_before_is_outside_of_the_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]

    def work(seconds: float) -> None:
        now[0] += seconds

    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    wall, _ = interleave(CpuClock(Cpu()), {"a": Timed(lambda: work(2), before=lambda: work(100))}, 3, seed=0)
    assert wall["a"] == [2, 2, 2]


def test_the_first_call_is_told_from_the_later_ones() -> None:
    waits = iter([0.05, 0, 0])
    assert warm_up(CpuClock(Cpu()), lambda: time.sleep(next(waits))) >= 0.05


def test_each_device_has_its_clock() -> None:
    assert type(clock(Cpu())) is CpuClock


# ---- a device that computes after it has returned


class Later(torch.Tensor):
    """A result that is there some time after the call that made it."""

    done: threading.Event


class Asynchronous(Cpu):
    """A device whose calls return at once; reading a result waits for it."""

    SECONDS = 0.2
    """Of a call's work: longer than a busy machine keeps this thread from its next line."""

    def __init__(self, waits: bool) -> None:
        self._waits = waits
        self._last: threading.Event | None = None

    def compute(self) -> torch.Tensor:
        result = torch.ones(1).as_subclass(Later)
        result.done = self._last = threading.Event()
        threading.Timer(self.SECONDS, result.done.set).start()
        return result

    def synchronize(self) -> None:
        if self._waits and self._last:
            self._last.wait()

    def host(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, Later):
            tensor.done.wait()
        return tensor


@pytest.mark.parametrize("waits", [True, False], ids=["waits", "returns"])
def test_a_synchronize_that_does_nothing_makes_every_result_invalid(waits: bool) -> None:
    device = Asynchronous(waits)
    timer = Clock(device)
    found = Rounds("w", "cpu", "eager", 0, facts={"a": {}, "b": {}})
    blocked = measure._Blocked(timer, device, found)
    arms = {name: Timed(device.compute) for name in "ab"}
    found.samples, _ = interleave(timer, arms, 3, 0, blocked.check)
    blocked.conclude()
    if waits:
        assert found.facts == {"a": {}, "b": {}}
        assert min(map(min, found.samples.values())) >= 0.9 * device.SECONDS
    else:
        assert all("work was still running when the clock stopped" in found.facts[arm]["invalid"] for arm in "ab")


def test_one_slow_reading_of_several_is_no_reason() -> None:
    found = Rounds("w", "cpu", "eager", 0, facts={"a": {}})
    blocked = measure._Blocked(Clock(Cpu()), Cpu(), found)
    blocked._late = {"a": ["late", "", ""]}
    blocked.conclude()
    assert found.facts == {"a": {}}
