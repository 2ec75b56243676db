"""Ratios, intervals, verdicts and alerts on simulated samples whose truth is known."""

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import pairwise

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
from ampcheck.bench.run import alerts as module
from ampcheck.bench.run.alerts import Alert, RunFigures, alerts, marks, moved
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
        assert (verdicts(3.9, 0.01, aa=aa), verdicts(0.2, 0.01, aa=aa)) == ({"faster": 100}, {"slower": 100})


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
    assert (beside_noise(found, NOISE, 0.02), compare_variants([[]], [[1.0]], 0.02).verdict) == (found, "not measured")
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
    assert (of_two_runs(0.005, 1.1), of_two_runs(0.005, 0.9)) == ({"faster": 100}, {"slower": 100})
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


# ---- alerts over a history, on simulated series whose steps are known

SPREAD = 0.03
WINDOW = module.RECENT + module.BASELINE
VERSIONS = {"torch": "2.12.0"}


def noisy(seed: int, levels: Sequence[float]) -> list[float]:
    """A figure a run group, about 1 ms times that run group's level."""
    generator = random.Random(seed)
    return [1e-3 * level * math.exp(generator.gauss(0, SPREAD)) for level in levels]


def false_alarms(series: int = 60) -> float:
    """Return how often per series and year an alert begins though nothing changed."""
    begun = 0
    for seed in range(series):
        values = noisy(seed, [1.0] * (WINDOW + 365))
        standing = [moved(values[run - WINDOW : run]) is not None for run in range(WINDOW, len(values) + 1)]
        begun += standing[0] + sum(now and not before for before, now in pairwise(standing))
    return begun / series


def found_steps(step: float, series: int = 500) -> float:
    """The share of steps that are reported within three run groups, in the right direction."""
    found = 0
    for seed in range(series):
        values = noisy(seed, [1.0] * WINDOW + [step] * 3)
        moves = [moved(values[: WINDOW + runs]) for runs in (1, 2, 3)]
        found += any(move is not None and (move.ratio < 1) == (step > 1) for move in moves)
    return found / series


def history_of(
    series: dict[str, Sequence[float | None]],
    machine: Callable[[int], str] = lambda run: "A",
    versions: Callable[[int], dict[str, str]] = lambda run: VERSIONS,
) -> list[RunFigures]:
    """The run groups from 2026-01-01 on of some series of equal length."""
    length = len(next(iter(series.values())))
    found = [{name: values[i] for name, values in series.items()} for i in range(length)]
    return [RunFigures(day(i), figures, machine(i), versions(i)) for i, figures in enumerate(found)]


def day(run: int) -> str:
    return str(date(2026, 1, 1) + timedelta(run))


def crowd(count: int, levels: Sequence[float]) -> dict[str, Sequence[float | None]]:
    return {f"s{i:02}": noisy(100 + i, levels) for i in range(count)}


def only(found: Sequence[Alert], kind: str = "series") -> Alert:
    assert [alert.kind for alert in found] == [kind], found
    return found[0]


def test_the_rule_meets_the_bar() -> None:
    """There is one false alarm per series and year at most, and four of five steps of 10 % are found in time."""
    assert false_alarms() <= 1
    assert found_steps(1.1) >= 0.8
    assert found_steps(1 / 1.1) >= 0.8


@pytest.mark.parametrize(
    ("before", "step", "found"),
    [(30, 1.049, False), (30, 1.051, True), (30, 0.9533, False), (30, 0.9514, True), (9, 2, False), (10, 2, True)],
)
def test_five_percent_and_ten_run_groups_are_needed(before: int, step: float, found: bool) -> None:
    assert (moved([1.0] * before + [step] * 3) is not None) == found


@pytest.mark.parametrize(("level", "way"), [(1.2, "slower"), (1 / 1.2, "faster")])
def test_a_step_is_reported_alike_both_ways(level: float, way: str) -> None:
    series = {**crowd(9, [1.0] * 43), "cpu/eager/mm-512/bf16": noisy(1, [1.0] * 40 + [level] * 3)}
    found = only(alerts(history_of(series)))
    assert (found.series, found.direction, found.since) == ("cpu/eager/mm-512/bf16", way, day(40))
    assert found.ratio == pytest.approx(1 / level, rel=0.05)
    assert found.sentence.startswith(f"{found.series} is {way} since 2026-02-10: {found.ratio:.2f} × its former speed")


def test_up_to_three_in_ten_are_reported_each() -> None:
    series = {**crowd(7, [1.0] * 43), **{f"m{i}": noisy(i, [1.0] * 40 + [1.2] * 3) for i in range(3)}}
    few = {name: series[name] for name in ("s00", "m0", "m1")}  # two series are no machine
    ways = {f"m{i}": noisy(i, [1.0] * 40 + [1.2 if i % 2 else 1 / 1.2] * 3) for i in range(5)}  # not together
    for some, count in ((series, 3), (few, 2), ({**crowd(5, [1.0] * 43), **ways}, 5)):
        assert [alert.kind for alert in alerts(history_of(some))] == ["series"] * count


def test_a_slow_machine_does_not_hide_what_moved_more_or_the_other_way() -> None:
    series = crowd(8, [1.0] * 40 + [1.15] * 3)
    series["worse"] = noisy(1, [1.0] * 40 + [2.0] * 3)
    series["better"] = noisy(2, [1.0] * 40 + [0.7] * 3)
    found = [(alert.kind, alert.series, alert.direction) for alert in alerts(history_of(series))]
    assert found == [("machine", "", "slower"), ("series", "worse", "slower"), ("series", "better", "faster")]


def test_another_machine_starts_a_new_baseline_instead_of_an_alert() -> None:
    series = crowd(10, [1.0] * 40 + [2.0] * 20)
    history = history_of(series, machine=lambda run: "A" if run < 40 else "B")
    first = only(alerts(history[:41]), "not judged")
    assert first.sentence == (
        "10 series have fewer than 13 run groups on B and are not judged yet: s00, s01, s02 and 7 more; machine A → B "
        "on 2026-02-10"
    )
    assert (first.new, first.since, len(first.members)) == (True, day(40), 10)
    assert not only(alerts(history[:52]), "not judged").new
    assert alerts(history[:53]) == []
    same = alerts(history_of(series)[:43])
    assert only(same, "machine").direction == "slower", "one machine that halves its speed is reported"


def test_marks_name_every_change_of_machine_and_versions() -> None:
    history = history_of(
        {"x": [1.0] * 4},
        machine=lambda run: "B" if run == 3 else "A",
        versions=lambda run: {"torch": "2.13.0"} if run else {"torch": "2.12.0", "jax": "0.10.2"},
    )
    assert marks(history) == [(day(1), "jax 0.10.2 → absent, torch 2.12.0 → 2.13.0"), (day(3), "machine A → B")]


def test_what_was_not_measured_is_never_fine() -> None:
    series = crowd(10, [1.0] * 43)
    series["s03"] = [*series["s03"][:42], None]
    series["s04"] = [*series["s04"][:40], None, None, None]
    history = history_of(series)
    del history[-1].values["s05"]  # type: ignore[attr-defined]  # a dict here
    found = alerts(history)
    assert [(alert.kind, alert.since, alert.members, alert.new) for alert in found] == [
        ("not measured", day(42), ("s03", "s05"), True),
        ("not measured", day(40), ("s04",), False),
    ]
    assert found[1].sentence == "1 series was not measured since 2026-02-10: s04"
    empty = [*history_of(crowd(10, [1.0] * 43)), RunFigures(day(43), {}, "A", VERSIONS)]
    assert len(only(alerts(empty), "not measured").members) == 10, "a run group that measured nothing does not pass"
    history = history_of({**crowd(10, [1.0] * 43), "x": [None] * 43})
    assert only(alerts(history), "not measured").members == ("x",)


def test_bad_histories_are_refused() -> None:
    assert alerts([]) == []
    with pytest.raises(UsageError, match="2026-01-01 follows that of 2026-01-02: they are not in order"):
        alerts(history_of({"x": [1.0, 1.0]})[::-1])
    for bad in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(UsageError, match=r"^x is .* s in the run group of 2026-01-02, which no call can take"):
            alerts(history_of({"x": [1.0, bad]}))
