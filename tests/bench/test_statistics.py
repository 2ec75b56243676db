"""Ratios, intervals and verdicts on simulated samples whose truth is known; wrong rules have to miss the same bars."""

from __future__ import annotations

import itertools
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from ampcheck.bench.core import statistics
from ampcheck.bench.core.model import VERDICTS
from ampcheck.bench.core.statistics import (
    BOUNDS,
    Array,
    TimingComparison,
    compare_runs,
    compare_variants,
    interval,
    verdict,
)
from ampcheck.errors import UsageError

Lists = list[list[float]]

IDLE, BUSY = 0.026, 0.054
"""The spread of paired ratios seen on an idle and on a busy machine."""


class Simulation:
    """Samples of variants that run at a known speed. Rounds share a load, which pairing cancels."""

    def __init__(self, seed: int, processes: int = 5, rounds: int = 9) -> None:
        self.random = np.random.default_rng(seed)
        self.load = [np.exp(self.random.normal(0, 0.2, rounds)) for _ in range(processes)]

    def variant(self, speed: float, within: float, between: float = 0.0) -> Lists:
        """Return seconds of a variant with a spread `within` its rounds beside the load, and `between` processes."""
        noise = (np.exp(self.random.normal(self.random.normal(0, between), within, len(load))) for load in self.load)
        return [list(1e-3 / speed * load * factor) for load, factor in zip(self.load, noise, strict=True)]


def verdicts(
    speed: float, within: float, between: float = 0.0, *, runs: int = 100, aa: float | None = None, rounds: int = 9
) -> Counter[str]:
    """The verdicts on simulated pairs of variants, `aa` being the A/A baseline's true ratio."""
    found: Counter[str] = Counter()
    for seed in range(runs):
        simulation = Simulation(seed, rounds=rounds)
        base, variant = simulation.variant(1, 0), simulation.variant(speed, within, between)
        check = None if aa is None else simulation.variant(aa, within)
        found[compare_variants(base, variant, 0.02, check).verdict] += 1
    return found


def coverage(rule: Callable[[Sequence[Array]], tuple[float, float]], between: float, within: float = 0.03) -> float:
    """Return how often the interval of 5 × 9 log ratios holds the true ratio, 1."""
    random = np.random.default_rng(3)
    hits = 0
    for _ in range(200):
        processes = [random.normal(random.normal(0, between), within, 9) for _ in range(5)]
        low, high = rule(processes)
        hits += low <= 1 <= high
    return hits / 200


def naive(processes: Sequence[Array], draws: int) -> tuple[float, float]:
    """The hierarchical bootstrap written out, without the correction for few processes."""
    random = np.random.default_rng(5)
    medians = []
    for _ in range(draws):
        chosen = [processes[i] for i in random.integers(len(processes), size=len(processes))]
        medians.append(np.median(np.concatenate([random.choice(values, len(values)) for values in chosen])))
    low, high = np.quantile(medians, [0.025, 0.975])
    return float(low), float(high)


@pytest.mark.parametrize("between", [0, 0.01, 0.03, 0.1], ids=lambda value: f"between {value}")
def test_the_interval_holds_the_truth(between: float) -> None:
    assert coverage(interval, between) >= 0.88


def test_the_interval_is_that_of_the_bootstrap_written_out() -> None:
    random = np.random.default_rng(0)
    processes = [random.normal(0.1 * i, 0.1, 4 + 3 * i) for i in range(4)]
    low, high = (math.log(value) for value in interval(processes, draws=4000))
    plain_low, plain_high = naive(processes, 4000)
    middle, grown = float(np.median(np.concatenate(processes))), math.sqrt(4 / 3)
    assert low == pytest.approx(middle + grown * (plain_low - middle), abs=0.015)
    assert high == pytest.approx(middle + grown * (plain_high - middle), abs=0.015)


def test_the_interval_is_the_same_each_time_and_depends_on_the_seed() -> None:
    random = np.random.default_rng(0)
    values = [random.normal(0, 0.1, 40) for _ in range(3)]
    assert interval(values) == interval(values)
    assert interval(values, seed=1) != interval(values)
    assert interval([np.full(9, math.log(2))]) == pytest.approx((2, 2))
    with pytest.raises(UsageError, match="at least one value"):
        interval([])


@pytest.mark.parametrize(
    ("low", "high", "bound", "expected"),
    [
        (1.03, 1.05, 0.02, "faster"),
        (1.03, 1.05, 0.04, "ambiguous"),
        (1.05, 40.0, 0.02, "faster"),
        (0.90, 0.97, 0.02, "slower"),
        (0.99, 1.015, 0.02, "same"),
        (1 / 1.0199, 1.0199, 0.02, "same"),
        (1.00, 1.03, 0.02, "ambiguous"),
        (0.97, 1.00, 0.02, "ambiguous"),
        (0.97, 1.03, 0.02, "unstable"),
        (0.97, 1.03, 0.04, "same"),
        (1.00, 1.30, 0.02, "unstable"),
        (1.00, 1.30, 0.04, "ambiguous"),
    ],
)
def test_the_verdict_on_an_interval(low: float, high: float, bound: float, expected: str) -> None:
    assert verdict(low, high, bound) == expected
    exchanged = {"faster": "slower", "slower": "faster"}.get(expected, expected)
    assert verdict(1 / high, 1 / low, bound) == exchanged


def test_equal_variants_on_an_idle_machine_are_the_same_or_not_told() -> None:
    found = verdicts(1, IDLE)
    assert found["same"] >= 55
    assert found["faster"] + found["slower"] == 0
    assert verdicts(1, 0.01)["same"] >= 99


@pytest.mark.parametrize(("within", "between"), [(BUSY, 0.01), (0.1, 0.02), (0.3, 0)])
def test_noise_is_never_told_as_a_difference(within: float, between: float) -> None:
    found = verdicts(1, within, between)
    assert found["faster"] + found["slower"] <= 3
    assert found["unstable"] >= 45
    assert set(found) <= set(VERDICTS)


def test_real_differences_are_found() -> None:
    assert verdicts(1.05, IDLE)["faster"] >= 95
    assert verdicts(1 / 1.05, IDLE)["slower"] >= 95
    assert verdicts(1.2, BUSY, 0.01)["faster"] >= 95


def test_a_large_ratio_is_faster_however_unstable() -> None:
    assert verdicts(3.9, 0.3) == {"faster": 100}


def test_the_quick_mode_tells_large_ratios_and_says_little_of_small_ones() -> None:
    found: Counter[str] = Counter()
    for seed in range(100):
        simulation = Simulation(seed, processes=1, rounds=5)
        base = simulation.variant(1, 0)
        assert compare_variants(base, simulation.variant(1.3, IDLE), 0.02).verdict == "faster"
        found[compare_variants(base, simulation.variant(1, BUSY), 0.02).verdict] += 1
    assert found["faster"] + found["slower"] <= 5


def test_pairing_cancels_the_load() -> None:
    simulation = Simulation(1)
    base, variant = simulation.variant(1, 0), simulation.variant(1.05, 0.005)
    paired = compare_variants(base, variant, 0.02)
    assert paired.verdict == "faster"
    assert paired.ratio == pytest.approx(1.05, abs=0.01)
    assert paired.p is not None
    assert paired.p < 1e-6
    assert (paired.rounds, paired.processes) == (45, 5)
    shuffled = [sorted(process) for process in variant]
    assert compare_variants(base, shuffled, 0.02).verdict != "faster", "rounds out of order are no pairs"


def test_the_spread_is_that_of_the_rounds_and_ignores_outliers() -> None:
    simulation = Simulation(2, rounds=200)
    base, variant = simulation.variant(1, 0), simulation.variant(1, 0.05)
    variant[0][7] *= 100
    spread = compare_variants(base, variant, 0.02).spread
    assert spread == pytest.approx(0.05, rel=0.15)


def test_a_noisy_run_of_the_first_variant_leaves_what_it_shows_itself_ambiguous() -> None:
    simulation = Simulation(4)
    base, aa = simulation.variant(1, 0), simulation.variant(1.03, 0.005)
    found = compare_variants(base, aa, 0.02, aa)
    assert (found.verdict, found.reason[:44]) == ("ambiguous", "the interval does not lie beyond that of the")
    same = compare_variants(base, simulation.variant(1, 0.005), 0.02, aa)
    assert (same.verdict, same.reason[:31]) == ("ambiguous", "the A/A baseline's ratio is 1.0")
    assert compare_variants(base, simulation.variant(1, 0.005), BOUNDS["step"], aa).verdict == "same"
    wide = compare_variants(base, simulation.variant(1, 0.3), 0.02, aa)
    assert (wide.verdict, wide.reason[:16]) == ("unstable", "the interval is "), "which says less than ambiguous"


@pytest.mark.parametrize(("speed", "verdict"), [(3.9, "faster"), (0.2, "slower")])
@pytest.mark.parametrize("aa", [1, 0.95, 1.05])
def test_noise_does_not_hide_a_certain_difference(speed: float, aa: float, verdict: str) -> None:
    assert verdicts(speed, 0.01, aa=aa) == {verdict: 100}


def test_a_noisy_machine_makes_no_difference_of_equal_variants() -> None:
    found = verdicts(1, 0.3, aa=1, rounds=5)
    assert found["faster"] + found["slower"] <= 2


NOISE = TimingComparison("", ratio=1.0, low=0.68, high=1.33)


@pytest.mark.parametrize(
    ("low", "high", "noise", "expected"),
    [
        (0.16, 0.22, NOISE, "slower"),
        (1 / 0.22, 1 / 0.16, NOISE, "faster"),
        (0.16, 0.69, NOISE, "ambiguous"),
        (1.32, 2.0, NOISE, "ambiguous"),
        (0.16, 0.22, TimingComparison("", ratio=0.18, low=0.15, high=0.3), "ambiguous"),
        (
            1.1,
            1.2,
            TimingComparison("", ratio=1.5, low=1.4, high=1.6),
            "ambiguous",
        ),  # slower than the variant itself was
        (0.99, 1.01, NOISE, "same"),
        (0.99, 1.01, TimingComparison("", ratio=1.05, low=0.9, high=1.2), "ambiguous"),
        (1.00, 1.03, NOISE, "ambiguous"),
        (0.5, 2.0, NOISE, "unstable"),
        (2.0, 3.0, TimingComparison("not measured"), "ambiguous"),
    ],
)
def test_a_comparison_beside_the_noise_of_the_machine(
    low: float, high: float, noise: TimingComparison, expected: str
) -> None:
    found = statistics.beside_noise(statistics.judged(math.sqrt(low * high), low, high, 0.02), noise, 0.02)
    assert found.verdict == expected
    assert (found.low, found.high) == (low, high)
    assert bool(found.reason) == (expected in ("ambiguous", "unstable"))


def test_what_has_no_interval_is_left_as_it_is() -> None:
    few = TimingComparison("not measured", "4 rounds; a verdict needs 5")
    assert statistics.beside_noise(few, NOISE, 0.02) == few


def test_a_run_without_its_second_first_variant_is_ambiguous() -> None:
    simulation = Simulation(4)
    base, variant = simulation.variant(1, 0), simulation.variant(3.9, 0.01)
    found = compare_variants(base, variant, 0.02, [[] for _ in base])
    assert (found.verdict, found.reason) == ("ambiguous", "the A/A baseline was not measured")


def test_too_few_rounds_are_not_measured() -> None:
    found = compare_variants([[1.0, 1.0], [1.0, 1.0, 1.0]], [[0.5, 0.5], [0.5, 0.5]], 0.02)
    assert found == TimingComparison("not measured", "4 rounds; a verdict needs 5", rounds=4, processes=2)
    assert compare_variants([[]], [[1.0]], 0.02).verdict == "not measured"
    assert compare_runs([[1.0] * 9], [[1.0] * 4], 0.02).reason == "4 rounds; a verdict needs 5"
    assert compare_runs([], [[1.0] * 9], 0.02).verdict == "not measured"
    assert compare_variants([[1.0] * 5], [[0.5] * 5], 0.02).verdict == "faster"


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_refused(bad: float) -> None:
    with pytest.raises(UsageError, match="cannot be the time of a call"):
        compare_variants([[1.0] * 9], [[1.0] * 8 + [bad]], 0.02)


def test_processes_that_cannot_be_paired_are_refused() -> None:
    with pytest.raises(UsageError, match="2 processes of one variant cannot be paired with 1"):
        compare_variants([[1.0], [1.0]], [[1.0]], 0.02)


def test_statistics_and_alerts_need_no_framework() -> None:
    code = (
        "import sys, ampcheck.bench.core.statistics, ampcheck.bench.run.alerts; "
        "print(*{'torch', 'jax', 'scipy'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "\n"


# ---- two runs


def runs_told_apart(between: float, change: float = 1.0, runs: int = 100) -> Counter[str]:
    """The verdicts on two runs of 5 × 9 samples with 1 % of noise within processes."""
    found: Counter[str] = Counter()
    random = np.random.default_rng(8)
    for _ in range(runs):
        before, after = (
            [list(np.exp(random.normal(random.normal(0, between), 0.01, 9)) / speed) for _ in range(5)]
            for speed in (1.0, change)
        )
        found[compare_runs(before, after, 0.02).verdict] += 1
    return found


def test_two_runs() -> None:
    assert runs_told_apart(0.005)["same"] >= 80
    assert runs_told_apart(0.005, 1.1) == {"faster": 100}
    assert runs_told_apart(0.005, 0.9) == {"slower": 100}
    noise = runs_told_apart(0.05)
    assert noise["faster"] + noise["slower"] <= 6


def chance_differences(runs: int = 100) -> float:
    """Return how often the rank test at 5 % tells two runs apart whose processes differ more than their rounds."""
    random = np.random.default_rng(8)
    told = 0
    for _ in range(runs):
        before, after = ([list(np.exp(random.normal(random.normal(0, 0.05), 0.01, 9))) for _ in range(5)] for _ in "ab")
        told += (compare_runs(before, after, 0.02).p or 0) < 0.05
    return told / runs


def test_the_rank_test_counts_processes() -> None:
    assert chance_differences() <= 0.1


def test_two_runs_of_one_process_are_told_by_their_samples() -> None:
    before, after = [[1.0, 1.0, 1.0, 1.1, 1.1]], [[0.9, 0.9, 0.9, 1.1, 1.1]]
    assert compare_runs(before, after, 0.02).p == statistics.mann_whitney(before[0], after[0])
    faster = compare_runs([[1.0] * 5], [[0.9] * 5], 0.02)
    assert (faster.verdict, faster.ratio) == ("faster", pytest.approx(1 / 0.9))
    itself = compare_runs(before, before, 0.02)
    assert (itself.low or 1) < 1 < (itself.high or 1), "the two sides are drawn apart"


def test_the_rank_test_can_overrule_the_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "mann_whitney", lambda one, two: 0.2)
    found = compare_runs([[1.0] * 5], [[0.9] * 5], 0.02)
    assert found.verdict == "ambiguous"
    assert found.reason == "the interval says faster, the rank test finds no difference (p = 0.20)"


def test_the_u_test_agrees_with_all_arrangements() -> None:
    random = np.random.default_rng(2)
    for shift in (0, 0.8, 2):
        values = np.round(np.concatenate([random.normal(0, 1, 6), random.normal(shift, 1, 6)]), 1)
        every = [sum_of_ranks(values, chosen) for chosen in itertools.combinations(range(12), 6)]
        middle, seen = np.mean(every), every[0]
        exact = np.mean([abs(value - middle) >= abs(seen - middle) - 1e-9 for value in every])
        assert statistics.mann_whitney(values[:6], values[6:]) == pytest.approx(exact, abs=0.05)


def sum_of_ranks(values: Array, chosen: Sequence[int]) -> float:
    """The ranks of some of the values, equal ones sharing theirs, summed: the U statistic but for a constant."""
    return float(sum((values < values[i]).sum() + (values == values[i]).sum() / 2 for i in chosen))


def test_the_signed_rank_test_agrees_with_all_signs() -> None:
    values = np.array([0.3, -0.1, 0.5, 0.7, 0.2, -0.4, 0.9, 1.1, 0.6])
    ranks = np.argsort(np.argsort(np.abs(values))) + 1
    seen, middle = ranks[values > 0].sum(), ranks.sum() / 2
    every = [sum(itertools.compress(ranks, signs)) for signs in itertools.product((0, 1), repeat=9)]
    exact = np.mean([abs(value - middle) >= abs(seen - middle) for value in every])
    assert statistics.signed_rank(values) == pytest.approx(exact, abs=0.01)


def test_ties_and_zeros_in_rank_tests() -> None:
    assert statistics.mann_whitney([1.0] * 5, [1.0] * 5) == 1
    assert statistics.signed_rank([0.0] * 5) == 1
    assert statistics.signed_rank([0.0, 0.0, *[0.1] * 12]) == statistics.signed_rank([0.1] * 12) < 0.01
    with pytest.raises(UsageError, match="both sides"):
        statistics.mann_whitney([], [1.0])
