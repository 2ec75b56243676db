"""Every workload in every variant: its absolute time by pytest-benchmark, the paired result in `extra_info`.

    pytest bench/bench_workloads.py -k "mm-512 and cpu"
    pytest bench/bench_workloads.py --device cpu --benchmark-json out.json

`ampcheck bench` measures the same in several fresh processes and writes a benchmark file; this is one process.
"""

import warnings
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import pytest

from ampcheck.bench.core.model import BenchPlan, Group, OverheadWorkload, VariantResult
from ampcheck.bench.run.measure import Measurer
from ampcheck.bench.run.summary import summarize
from ampcheck.bench.run.variants import compilers, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.registry import select

ROUNDS = 9
SECONDS = 0.02
"""Of a sample: long enough that reading the clock costs nothing."""

_measurers: dict[str, Measurer] = {}
_groups: dict[tuple[str, str, str], tuple[Group, dict[str, Any]]] = {}


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Make a test per device, compiler, workload and variant; of overhead one for all variants."""
    option = metafunc.config.option
    found = []
    for device in select(option.device, option.device_module):
        for workload in catalogue().values():
            if workload.heavy or not device.has_values:
                continue
            for compiler in compilers(workload, device.name):
                overhead = isinstance(workload, OverheadWorkload)
                chosen = [] if overhead else variants(workload, device.name)[0]
                names = [""] if overhead else [variant.name for variant in chosen if not variant.aa]
                found += [(device.name, compiler, workload.name, name) for name in names]
    metafunc.parametrize("case", found, ids=["-".join(filter(None, one)) for one in found])


@pytest.fixture
def measured(case: tuple[str, str, str, str]) -> Iterator[tuple[Measurer, Group, dict[str, Any]]]:
    """Return the group of a case: measured when its first variant asks, kept until another group's does."""
    device, compiler, workload, _ = case
    plan = BenchPlan(device, [], 0, ROUNDS, SECONDS, 1, [])
    measurer = _measurers.setdefault(device, Measurer(plan))
    with measurer.device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a compiler's advice does not matter here
        if (device, compiler, workload) not in _groups:
            _groups.clear()
            (group,) = summarize([measurer.measure(workload, compiler)])
            _groups[device, compiler, workload] = group, dict(measurer.timed)
        yield measurer, *_groups[device, compiler, workload]


def test_workload(
    case: tuple[str, str, str, str], measured: tuple[Measurer, Group, dict[str, Any]], benchmark: Any
) -> None:
    measurer, group, timed = measured
    name = case[3] or next(iter(timed))
    variant = group.variant(name)
    assert variant is not None
    if variant.verdict == "not measured":
        pytest.skip(variant.reason)
    benchmark.group = group.key
    benchmark.extra_info.update(_told(variant) if case[3] else {one.name: _told(one) for one in group.variants})
    timer, timing = measurer.timer, timed[name]
    # The call is waited for inside: outside, JAX and CUDA would be timed until they have been asked.
    benchmark.pedantic(lambda: timer.wait(timing.call()), rounds=ROUNDS, iterations=timing.count, warmup_rounds=1)
    assert variant.verdict != "invalid", variant.reason


def _told(variant: VariantResult) -> dict[str, Any]:
    return {key: value for key, value in asdict(variant).items() if value not in (None, "")}
