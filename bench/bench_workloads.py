"""Every workload in every arm: its absolute time by pytest-benchmark, the paired result in `extra_info`.

    pytest bench/bench_workloads.py -k "mm-512 and cpu"
    pytest bench/bench_workloads.py --device cpu --benchmark-json out.json

`ampcheck bench` measures the same in several fresh processes and writes a benchmark file; this is one process.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from ampcheck.bench.core.model import ArmResult, BenchPlan, Group, MachineryWorkload
from ampcheck.bench.run.measure import Measurer
from ampcheck.bench.run.summary import summarize
from ampcheck.bench.run.variants import arms, executors
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.registry import select

ROUNDS = 9
SECONDS = 0.02
"""Of a sample: long enough that reading the clock costs nothing."""

_measurers: dict[str, Measurer] = {}
_groups: dict[tuple[str, str, str], tuple[Group, dict[str, Any]]] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """A test per device, executor, workload and arm; of machinery one for all variants."""
    option = metafunc.config.option
    found = []
    for device in select(option.device, option.device_module):
        for workload in catalogue().values():
            if workload.heavy or not device.has_values:
                continue
            for executor in executors(workload, device.name):
                if isinstance(workload, MachineryWorkload):
                    names = [""]
                else:
                    names = [arm.name for arm in arms(workload, device.name, executor)[0] if not arm.again]
                found += [(device.name, executor, workload.name, name) for name in names]
    metafunc.parametrize("case", found, ids=["-".join(filter(None, one)) for one in found])


@pytest.fixture
def measured(case: tuple[str, str, str, str]) -> Iterator[tuple[Measurer, Group, dict[str, Any]]]:
    """The group of a case: measured when its first arm asks, kept until another group's does."""
    device, executor, workload, _ = case
    plan = BenchPlan(device, [], 0, ROUNDS, SECONDS, True, 1, [])
    measurer = _measurers.setdefault(device, Measurer(plan))
    with measurer.device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a compiler's advice is no matter here
        if (device, executor, workload) not in _groups:
            _groups.clear()
            (group,) = summarize([measurer.measure(workload, executor)])
            _groups[device, executor, workload] = group, dict(measurer.timed)
        yield measurer, *_groups[device, executor, workload]


def test_workload(
    case: tuple[str, str, str, str], measured: tuple[Measurer, Group, dict[str, Any]], benchmark: Any
) -> None:
    measurer, group, timed = measured
    name = case[3] or next(iter(timed))
    arm = group.arm(name)
    assert arm is not None
    if arm.verdict == "not measured":
        pytest.skip(arm.reason)
    benchmark.group = group.key
    benchmark.extra_info.update(_told(arm) if case[3] else {one.name: _told(one) for one in group.arms})
    timer, timing = measurer.timer, timed[name]
    # The call is waited for inside: outside, JAX and CUDA would be timed until they have been asked.
    benchmark.pedantic(lambda: timer.wait(timing.call()), rounds=ROUNDS, iterations=timing.count, warmup_rounds=1)
    assert arm.verdict != "invalid", arm.reason


def _told(arm: ArmResult) -> dict[str, Any]:
    return {key: value for key, value in asdict(arm).items() if value not in (None, "")}
