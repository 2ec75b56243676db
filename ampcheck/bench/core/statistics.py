"""Compare the times of two variants, or of two runs, with an interval. Needs numpy only.

Times are compared as logarithms of ratios, so that twice as fast and half as fast are equally far from no change. All
ratios are speeds: the seconds of the base over the seconds of the other, so above 1 the other one is faster.

A sample set is what was measured of one variant: for each process its samples in seconds, in the order of the rounds.
Functions raise UsageError where a sample is not a positive finite number.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from ampcheck.errors import UsageError

Samples = Sequence[Sequence[float]]
Array = NDArray[np.float64]

BOUNDS = {"op": 0.02, "overhead": 0.02, "step": 0.04}
"""The distance from 1 that the ratio of two equal variants may have, by kind of workload."""

MIN_ROUNDS = 5
"""Fewer pairs give no verdict: an interval of four is about as wide as their range."""

TOO_WIDE = 5
"""An interval this many times as wide as the A/A band (for an op 20 %) is unstable even where one side is excluded."""

ALPHA = 0.05
"""Two runs differ only where the rank test says so at this level too."""

DRAWS = 1000
MIN_PROCESSES = 4
"""From this many processes on in both runs, the rank test compares medians of processes. Samples of one process share
its memory layout and its neighbours on the machine, and would count as more evidence than they are."""


@dataclass(frozen=True, slots=True)
class TimingComparison:
    """One variant or run beside another.

    `ratio` is a speed, with its 95 % interval; `p`, of two runs, that of the rank test for no difference; `rounds` the
    pairs, or the samples of the smaller run.
    """

    verdict: str
    reason: str = ""
    ratio: float | None = None
    low: float | None = None
    high: float | None = None
    p: float | None = None
    rounds: int = 0
    processes: int = 0


def judged(ratio: float, low: float, high: float, bound: float) -> TimingComparison:
    """Judge the interval of a speed, whatever the noise of the machine.

    `bound`: how far from 1 counts as the same, e.g. 0.02; its band is 1/1.02 to 1.02, so that exchanging the variants
    exchanges faster and slower. ambiguous: either "same" or one of the others. unstable: the interval holds the whole
    band, so that all three are possible, or is `TOO_WIDE` times as wide as the band.
    """
    edge = math.log1p(bound)
    bottom, top = math.log(low), math.log(high)
    within = -edge <= bottom and top <= edge
    if verdict := "faster" if bottom > edge else "slower" if top < -edge else "same" if within else "":
        return TimingComparison(verdict, "", ratio, low, high)
    unstable = (bottom < -edge and top > edge) or top - bottom > TOO_WIDE * 2 * edge
    reason = f"the interval is {low:.3g} to {high:.3g}, equal variants lie within ±{bound:.0%}"
    return TimingComparison("unstable" if unstable else "ambiguous", reason, ratio, low, high)


def compare_variants(base: Samples, variant: Samples, bound: float) -> TimingComparison:
    """Compare two variants of one run by log(base / variant) of each round that both have.

    Raises UsageError where the two have different numbers of processes: nothing tells which belong together.
    """
    if len(base) != len(variant):
        raise UsageError(f"{len(base)} processes of one variant cannot be paired with {len(variant)} of another")
    sides = zip(base, variant, strict=True)
    logs = [_logs(one[: len(two)]) - _logs(two[: len(one)]) for one, two in sides if len(one) and len(two)]
    rounds = sum(map(len, logs))
    if rounds < MIN_ROUNDS:
        return _few(rounds, len(logs))
    found = _judged(float(np.median(np.concatenate(logs))), _medians(logs), bound)
    return replace(found, rounds=rounds, processes=len(logs))


def beside_noise(found: TimingComparison, noise: TimingComparison, bound: float) -> TimingComparison:
    """Judge a comparison by the noise of its machine, the A/A baseline's comparison.

    A difference counts where the whole interval lies beyond that of the A/A baseline, however wide the latter is.
    "same" counts where the A/A baseline's ratio lies within the bound."""
    if found.low is None or found.high is None or found.verdict == "unstable":
        return found
    if noise.ratio is None or noise.low is None or noise.high is None:
        return replace(found, verdict="ambiguous", reason="the A/A baseline was not measured")
    if found.verdict in ("faster", "slower"):
        beyond = found.low > noise.high if found.verdict == "faster" else found.high < noise.low
        if beyond:
            return found
        reason = f"the interval does not lie beyond that of the A/A baseline, {noise.low:.3g} to {noise.high:.3g}"
        return replace(found, verdict="ambiguous", reason=reason)
    if abs(math.log(noise.ratio)) > math.log1p(bound):
        reason = f"the A/A baseline's ratio is {noise.ratio:.3f}, outside ±{bound:.0%}"
        return replace(found, verdict="ambiguous", reason=reason)
    return found


def compare_runs(before: Samples, after: Samples, bound: float) -> TimingComparison:
    """Compare one variant in two runs, unpaired; "faster" and "slower", of the later one, need the rank test as well.

    The machine may have changed between the runs, so compare the groups' first variants too before believing it.
    """
    sides = [[_logs(process) for process in side if len(process)] for side in (before, after)]
    rounds, processes = min(sum(map(len, side)) for side in sides), min(map(len, sides))
    if rounds < MIN_ROUNDS:
        return _few(rounds, processes)
    one, two = (np.concatenate(side) for side in sides)
    drawn = _medians(sides[0]) - _medians(sides[1], seed=1)
    found = _judged(float(np.median(one) - np.median(two)), drawn, bound)
    if processes >= MIN_PROCESSES:
        one, two = (np.array([np.median(process) for process in side]) for side in sides)
    found = replace(found, p=mann_whitney(one, two), rounds=rounds, processes=processes)
    if found.verdict in ("faster", "slower") and found.p is not None and found.p >= ALPHA:
        reason = f"the interval says {found.verdict}, the rank test finds no difference (p = {found.p:.2f})"
        return replace(found, verdict="ambiguous", reason=reason)
    return found


def mann_whitney(a: Sequence[float] | Array, b: Sequence[float] | Array) -> float:
    """Return the two-sided p of Mann and Whitney's U test that neither of two unpaired samples lies above the other.

    Normal approximation with correction for ties and continuity (Mann and Whitney 1947); 1 where all values are equal.
    Raises UsageError where one side is empty.
    """
    n, m = len(a), len(b)
    if not n or not m:
        raise UsageError("the U test needs values on both sides")
    values = np.concatenate([np.asarray(a, dtype=float), np.asarray(b, dtype=float)])
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[inverse]  # from 1, equal values sharing their mean rank
    ties = float((counts.astype(float) ** 3 - counts).sum())
    total = n + m
    variance = n * m / 12 * (total + 1 - ties / (total * (total - 1)))
    if variance <= 0:
        return 1.0
    distance = abs(float(ranks[:n].sum()) - n * (n + 1) / 2 - n * m / 2)
    return math.erfc(max(distance - 0.5, 0) / math.sqrt(2 * variance))


def _few(rounds: int, processes: int) -> TimingComparison:
    reason = f"{rounds} rounds; a verdict needs {MIN_ROUNDS}"
    return TimingComparison("not measured", reason, rounds=rounds, processes=processes)


def _judged(middle: float, drawn: Array, bound: float) -> TimingComparison:
    """Judge a median of log ratios by its bootstrap draws."""
    low, high = np.exp(np.quantile(drawn, [0.025, 0.975]))
    return judged(math.exp(middle), float(low), float(high), bound)


def _logs(samples: Sequence[float]) -> Array:
    values = np.asarray(samples, dtype=float)
    bad = values[~(np.isfinite(values) & (values > 0))]
    if bad.size:
        raise UsageError(f"a sample of {bad[0]:g} s cannot be the time of a call")
    logs: Array = np.log(values)
    return logs


def _medians(processes: Sequence[Array], seed: int = 0) -> Array:
    """Return medians of a hierarchical bootstrap: processes are drawn, then rounds within each.

    With one process only rounds are drawn, and nothing is known of what another process would have measured. Resampling
    P processes makes their spread too small by √((P-1)/P), which is put right. Simulated coverage for 5 × 9 is 0.92
    where processes differ much more than rounds, up to 0.99 where they do not differ; for two processes it can be 0.7.
    """
    counts = tuple(map(len, processes))
    pool = np.concatenate([*processes, [np.inf]])
    index, sizes = _draws(counts, seed)
    rows = np.sort(pool[index], axis=1)
    pick = np.arange(DRAWS)
    medians = (rows[pick, (sizes - 1) // 2] + rows[pick, sizes // 2]) / 2
    units = len(counts) if len(counts) > 1 else counts[0]
    middle = float(np.median(pool[:-1]))
    grown: Array = middle + math.sqrt(units / max(units - 1, 1)) * (medians - middle)
    return grown


@lru_cache(maxsize=32)
def _draws(counts: tuple[int, ...], seed: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return positions in the pooled values, a row a draw, and the number of each row that count.

    The others point behind the end. Cached, because variants and groups have the same shape.
    """
    generator = np.random.default_rng(seed)
    lengths = np.array(counts, dtype=np.intp)
    starts = np.cumsum(lengths) - lengths
    chosen = generator.integers(len(counts), size=(DRAWS, len(counts)))
    if len(counts) == 1:
        chosen[:] = 0
    within = (generator.random((DRAWS, len(counts), max(counts))) * lengths[chosen][..., None]).astype(np.intp)
    index = starts[chosen][..., None] + within
    index[np.arange(max(counts)) >= lengths[chosen][..., None]] = lengths.sum()
    return index.reshape(DRAWS, -1), lengths[chosen].sum(axis=1)
