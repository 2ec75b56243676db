"""Two runs compared, and the rank tests, whose p values are counted out or known from elsewhere."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Sequence

import numpy as np
import pytest

from ampcheck.bench.core import statistics
from ampcheck.bench.core.statistics import Array, compare_runs
from ampcheck.errors import UsageError


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


def test_a_rank_test_that_counts_samples_of_one_process_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(statistics, "MIN_PROCESSES", 99)
    assert chance_differences() > 0.3


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


def test_rank_tests_agree_with_scipy() -> None:
    scipy = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    for _ in range(20):
        a, b = np.round(random.normal(0, 1, 20), 1), np.round(random.normal(0.4, 1, 15), 1)
        expected = scipy.mannwhitneyu(a, b, method="asymptotic").pvalue
        assert statistics.mann_whitney(a, b) == pytest.approx(expected)
        expected = scipy.wilcoxon(b, method="approx", correction=True).pvalue
        assert statistics.signed_rank(b) == pytest.approx(expected)
