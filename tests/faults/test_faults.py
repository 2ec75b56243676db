"""The suites catch every planted fault and say what is wrong; without it they are green."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from zlib import crc32

import pytest

from tests.faults import CONTROLS, FAULTS, Fault
from tests.faults.backends import BACKENDS
from tests.faults.caches import cache
from tests.faults.fault import lines, red
from tests.faults.runner import Runner, Runners

HERE = ("cpu", "virtual:cuda", "virtual:xpu", "virtual:mps", "virtual:mtia")


LONG = {
    "cpu-cache-dropped-at-inner-exit",
    "cpu-cache-never-cleared",
    "cpu-compiler-drops-regions",
    "cpu-compiles-each-time",
    "cpu-grad-in-other-dtype",
    "cpu-mm-in-float32",
    "cpu-reduced-outside-by-reduced",
    "cpu-reduced-twice-by-region_in_the_forward",
    "cpu-scaler-nan-unseen-at-random",
    "cpu-shard-without-dtype-by-sharded",
    "jax-call-with-own-parameters",
    "jax-first-optimizer-alone",
    "jax-jax-backward-outside",
    "jax-jax-gradients-added-in-low",
    "jax-unscale-skips-last",
    "jax-vmap-draws-alike",
    "jax-vmap-swaps-slices",
    "opaque-raises-attribute-error-in-low",
    "opaque-raises-runtime-error-in-low",
    "partial-raises-attribute-error-in-low",
    "partial-raises-runtime-error-in-low",
}
"""Faults whose cases take more than five seconds."""


@pytest.fixture(scope="module")
def runners() -> Iterator[Runners]:
    made = Runners(HERE)
    yield made
    made.close()


def test_names_are_unique() -> None:
    names = [fault.id for fault in FAULTS]
    assert sorted(names) == sorted(set(names))


def test_the_long_ones_are_faults() -> None:
    assert {fault.id for fault in FAULTS} >= LONG


def _at_night(fault: Fault) -> bool:
    """Return whether a fault is nightly: a long one, and two of three on jax, which compiles for each."""
    return fault.id in LONG or (fault.device == "jax" and crc32(fault.id.encode()) % 3 > 0)


@pytest.mark.parametrize(
    "fault", [pytest.param(fault, id=fault.id, marks=[pytest.mark.nightly] * _at_night(fault)) for fault in FAULTS]
)
def test_is_caught(fault: Fault, runners: Runners) -> None:
    runners.run(fault)


def _cases(runners: Runners, suite: str, rule: str) -> list[pytest.Function]:
    """The cases of a rule on the CPU."""
    every = Fault("", rule, nullcontext, (), suite)
    runner = runners.of(every)
    assert isinstance(runner, Runner)
    return [item for item in runner.cases(every) if isinstance(item, pytest.Function)]


@pytest.mark.parametrize("rule", ["nesting", "context", "decorator", "exceptions", "threads"])
def test_every_scenario_of_regions_has_a_fault(rule: str, runners: Runners) -> None:
    caught = {fault.op for fault in FAULTS if (fault.suite, fault.rule) == ("eager", rule)}
    assert {item.originalname.removeprefix("test_") for item in _cases(runners, "eager", rule)} - caught == set()


@pytest.mark.parametrize(
    ("suite", "rule"),
    [
        *(("eager", rule) for rule in ("cache", "state", "deprecated", "defaults", "errors", "eligibility", "modules")),
        ("autograd", "cache"),
    ],
)
def test_every_scenario_cites_its_source(suite: str, rule: str, runners: Runners) -> None:
    for item in _cases(runners, suite, rule):
        assert "(" in (inspect.getdoc(item.function) or ""), f"{item.name} names no source"


@pytest.mark.nightly
def test_nothing_is_left_behind(runners: Runners) -> None:
    """The cases of a fault of each rule are green after all faults of this process."""
    for fault in runners.ran.values():
        assert lines(red(runners.of(fault).rerun(fault))) == "", f"{fault.rule} is red after the faults"


def test_the_own_cache_is_right(runners: Runners) -> None:
    """The cache that the faults of `caches` change does what is promised as long as none of them does."""
    fault = replace(next(fault for fault in FAULTS if fault.name == "cache-by-shape"), inject=cache)
    _, results = runners.of(fault).run(fault)
    # Where PyTorch's own cache deviates this one may be right, which makes the deviation stale.
    assert lines([result for result in red(results) if result["status"] != "fixed"]) == ""


@pytest.mark.parametrize("backend", BACKENDS)
def test_right_kernels_of_a_backend_pass(backend: str, runners: Runners) -> None:
    """After the faults of this process."""
    controls = [fault for fault in CONTROLS if fault.device == backend]
    results = [result for fault in controls for result in runners.of(fault).rerun(fault)]
    assert sum(result["status"] == "pass" for result in results) > 300
    assert lines(red(results)) == ""
