"""Nightly alerts on simulated series whose steps are known."""

import math
import random
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import pairwise

import pytest

from ampcheck.bench.run import alerts as module
from ampcheck.bench.run.alerts import Alert, RunFigures, alerts, marks, moved
from ampcheck.errors import UsageError

NOISE = 0.03
WINDOW = module.RECENT + module.BASELINE
VERSIONS = {"torch": "2.12.0"}


def noisy(seed: int, levels: Sequence[float]) -> list[float]:
    """A figure a run group, about 1 ms times that run group's level."""
    generator = random.Random(seed)
    return [1e-3 * level * math.exp(generator.gauss(0, NOISE)) for level in levels]


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
