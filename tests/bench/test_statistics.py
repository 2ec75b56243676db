"""Ratios, intervals and verdicts on simulated samples whose truth is known."""

import itertools
import math
from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from ampcheck.bench.core import statistics
from ampcheck.bench.core.model import VERDICTS
from ampcheck.bench.core.statistics import (
    BOUNDS,
    Array,
    TimingComparison,
    beside_noise,
    compare_runs,
    compare_variants,
    judged,
    mann_whitney,
)
from ampcheck.errors import UsageError

Lists = list[list[float]]

IDLE, BUSY = 0.026, 0.054
"""The spread of paired ratios seen on an idle and on a busy machine."""
NOISE = TimingComparison("", ratio=1.0, low=0.68, high=1.33)
"""What an A/A baseline shows on a busy machine."""
OFF = TimingComparison("", ratio=1.03, low=1.028, high=1.032)
"""An A/A baseline that is off its place."""


class Simulation:
    """Samples of variants that run at a known speed. Rounds share a load, which pairing cancels."""

    def __init__(self, seed: int, rounds: int = 9) -> None:
        self.random = np.random.default_rng(seed)
        self.load = [np.exp(self.random.normal(0, 0.2, rounds)) for _ in range(5)]

    def variant(self, speed: float, within: float, between: float = 0.0) -> Lists:
        """Return seconds of a variant with a spread `within` its rounds beside the load, and `between` processes."""
        noise = (np.exp(self.random.normal(self.random.normal(0, between), within, len(load))) for load in self.load)
        return [list(1e-3 / speed * load * factor) for load, factor in zip(self.load, noise, strict=True)]


def verdicts(
    speed: float, within: float, between: float = 0.0, aa: float | None = None, rounds: int = 9
) -> Counter[str]:
    """Count the verdicts on a hundred simulated pairs of variants, `aa` being the A/A baseline's true ratio."""
    found: Counter[str] = Counter()
    for seed in range(100):
        simulation = Simulation(seed, rounds=rounds)
        base, variant = simulation.variant(1, 0), simulation.variant(speed, within, between)
        told = compare_variants(base, variant, 0.02)
        if aa is not None:
            told = beside_noise(told, compare_variants(base, simulation.variant(aa, within), 0.02), 0.02)
        found[told.verdict] += 1
    return found


def test_equal_variants_are_never_told_as_different() -> None:
    idle = verdicts(1, IDLE)
    assert idle["same"] >= 55
    assert idle["faster"] + idle["slower"] == 0
    assert verdicts(1, 0.01)["same"] >= 99
    for within, between in ((BUSY, 0.01), (0.1, 0.02), (0.3, 0)):
        found = verdicts(1, within, between)
        assert found["faster"] + found["slower"] <= 3
        assert found["unstable"] >= 45
        assert set(found) <= set(VERDICTS)
    beside = verdicts(1, 0.3, aa=1, rounds=5)
    assert beside["faster"] + beside["slower"] <= 2


def test_real_differences_are_found() -> None:
    assert verdicts(1.05, IDLE)["faster"] >= 95
    assert verdicts(1 / 1.05, IDLE)["slower"] >= 95
    assert verdicts(1.2, BUSY, 0.01)["faster"] >= 95
    assert verdicts(3.9, 0.3) == {"faster": 100}
    for aa in (1, 0.95, 1.05):  # a noisy machine does not hide a certain difference
        assert verdicts(3.9, 0.01, aa=aa) == {"faster": 100}
        assert verdicts(0.2, 0.01, aa=aa) == {"slower": 100}


def test_pairing_cancels_the_load() -> None:
    simulation = Simulation(1)
    base, variant = simulation.variant(1, 0), simulation.variant(1.05, 0.005)
    paired = compare_variants(base, variant, 0.02)
    assert (paired.verdict, paired.ratio) == ("faster", pytest.approx(1.05, abs=0.01))
    assert (paired.rounds, paired.processes) == (45, 5)
    assert compare_variants(base, variant, 0.02) == paired, "the draws are the same each time"
    shuffled = [sorted(process) for process in variant]
    assert compare_variants(base, shuffled, 0.02).verdict != "faster", "rounds out of order are no pairs"


@pytest.mark.parametrize(
    ("low", "high", "noise", "expected"),
    [
        (0.16, 0.22, NOISE, "slower"),
        (1 / 0.22, 1 / 0.16, NOISE, "faster"),
        (0.16, 0.69, NOISE, "ambiguous"),
        (1.32, 2.0, NOISE, "ambiguous"),
        (0.16, 0.22, TimingComparison("", ratio=0.18, low=0.15, high=0.3), "ambiguous"),
        (1.1, 1.2, TimingComparison("", ratio=1.5, low=1.4, high=1.6), "ambiguous"),  # less than the noise
        (0.99, 1.01, NOISE, "same"),
        (0.99, 1.01, TimingComparison("", ratio=1.05, low=0.9, high=1.2), "ambiguous"),
        (1.00, 1.03, NOISE, "ambiguous"),
        (0.5, 2.0, NOISE, "unstable"),
        (0.5, 2.0, OFF, "unstable"),  # which says less than ambiguous
        (0.99, 1.01, OFF, "ambiguous"),
        (1.029, 1.031, OFF, "ambiguous"),  # as the baseline itself
        (2.0, 3.0, TimingComparison("not measured"), "ambiguous"),
    ],
)
def test_a_comparison_beside_the_noise(low: float, high: float, noise: TimingComparison, expected: str) -> None:
    found = beside_noise(judged(math.sqrt(low * high), low, high, 0.02), noise, 0.02)
    assert (found.verdict, found.low, found.high) == (expected, low, high)
    assert bool(found.reason) == (expected in ("ambiguous", "unstable"))
    assert noise.ratio or found.reason == "the A/A baseline was not measured"
    assert beside_noise(judged(1.0, 0.99, 1.01, BOUNDS["step"]), OFF, BOUNDS["step"]).verdict == "same"


def test_too_few_rounds_are_not_measured() -> None:
    found = compare_variants([[1.0, 1.0], [1.0, 1.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]], 0.02)
    assert found == TimingComparison("not measured", "4 rounds; a verdict needs 5", rounds=4, processes=2)
    assert beside_noise(found, NOISE, 0.02) == found
    assert compare_variants([[]], [[1.0]], 0.02).verdict == "not measured"
    assert compare_variants([[1.0] * 5], [[0.5] * 5], 0.02).verdict == "faster"
    assert compare_runs([[1.0] * 9], [[1.0] * 4], 0.02).reason == "4 rounds; a verdict needs 5"
    assert compare_runs([], [[1.0] * 9], 0.02).verdict == "not measured"


def test_what_cannot_be_compared_is_refused() -> None:
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match="cannot be the time of a call"):
            compare_variants([[1.0] * 9], [[1.0] * 8 + [bad]], 0.02)
    with pytest.raises(UsageError, match="2 processes of one variant cannot be paired with 1"):
        compare_variants([[1.0], [1.0]], [[1.0]], 0.02)
    with pytest.raises(UsageError, match="both sides"):
        mann_whitney([], [1.0])


# ---- two runs


def of_two_runs(
    between: float, change: float, told: Callable[[TimingComparison], str] = lambda found: found.verdict
) -> Counter[str]:
    """Count what is told of a hundred pairs of runs of 5 × 9 samples with 1 % of noise within processes."""
    found: Counter[str] = Counter()
    random = np.random.default_rng(8)
    for _ in range(100):
        before, after = (
            [list(np.exp(random.normal(random.normal(0, between), 0.01, 9)) / speed) for _ in range(5)]
            for speed in (1.0, change)
        )
        found[told(compare_runs(before, after, 0.02))] += 1
    return found


def test_two_runs() -> None:
    assert of_two_runs(0.005, 1.0)["same"] >= 80
    assert of_two_runs(0.005, 1.1) == {"faster": 100}
    assert of_two_runs(0.005, 0.9) == {"slower": 100}
    noise = of_two_runs(0.05, 1.0)
    assert noise["faster"] + noise["slower"] <= 6
    by_chance = of_two_runs(0.05, 1.0, lambda found: "different" if (found.p or 0) < 0.05 else "")
    assert by_chance["different"] <= 10, "the rank test counts processes, not rounds"


def test_two_runs_of_one_process_are_told_by_their_samples() -> None:
    before, after = [[1.0, 1.0, 1.0, 1.1, 1.1]], [[0.9, 0.9, 0.9, 1.1, 1.1]]
    assert compare_runs(before, after, 0.02).p == mann_whitney(before[0], after[0])
    faster = compare_runs([[1.0] * 5], [[0.9] * 5], 0.02)
    assert (faster.verdict, faster.ratio) == ("faster", pytest.approx(1 / 0.9))
    itself = compare_runs(before, before, 0.02)
    assert (itself.low or 1) < 1 < (itself.high or 1), "the two sides are drawn apart"


def test_the_rank_test_can_overrule_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "mann_whitney", lambda one, two: 0.2)
    found = compare_runs([[1.0] * 5], [[0.9] * 5], 0.02)
    assert (found.verdict, "p = 0.20" in found.reason) == ("ambiguous", True)


def test_the_u_test_agrees_with_all_arrangements() -> None:
    def ranks(values: Array, chosen: tuple[int, ...]) -> float:
        return float(sum((values < values[i]).sum() + (values == values[i]).sum() / 2 for i in chosen))

    random = np.random.default_rng(2)
    for shift in (0, 0.8, 2):
        values = np.round(np.concatenate([random.normal(0, 1, 6), random.normal(shift, 1, 6)]), 1)
        every = [ranks(values, chosen) for chosen in itertools.combinations(range(12), 6)]
        middle, seen = np.mean(every), every[0]
        exact = np.mean([abs(value - middle) >= abs(seen - middle) - 1e-9 for value in every])
        assert mann_whitney(values[:6], values[6:]) == pytest.approx(exact, abs=0.05)
    assert mann_whitney([1.0] * 5, [1.0] * 5) == 1
