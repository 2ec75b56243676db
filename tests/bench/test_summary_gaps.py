"""Rounds that lack a variant, or hold what cannot be, become groups that say so."""

from __future__ import annotations

import math
from typing import Any

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import Rounds
from ampcheck.bench.core.peaks import Peaks
from ampcheck.bench.run import ceilings
from ampcheck.errors import UsageError
from tests.bench.summary_rounds import SPEEDS, one, processes, variant


def test_an_error_that_is_no_number_is_the_worst_one() -> None:
    rounds = processes(SPEEDS)
    for measured, error in zip(rounds, (0.1, math.nan, 0.2, None, 0.3), strict=True):
        measured.facts["bf16"] = {"error": error}
    assert variant(one(rounds), "bf16").error == math.inf


def test_what_is_invalid_keeps_its_numbers_and_has_no_speed() -> None:
    rounds = processes(SPEEDS)
    rounds[2].facts["bf16"] = {"invalid": "no bf16 kernel was seen", "error": 0.01}
    group = one(rounds)
    found = variant(group, "bf16")
    assert (found.verdict, found.reason) == ("invalid", "no bf16 kernel was seen")
    assert (found.speed, found.error) == (None, 0.01)
    assert found.seconds is not None
    assert variant(group, "bf16-native").verdict == "slower"


def test_nothing_is_compared_with_an_invalid_first_variant() -> None:
    rounds = processes(SPEEDS)
    rounds[0].facts["fp32"] = {"invalid": "TF32 was on"}
    group = one(rounds)
    assert variant(group, "fp32").verdict == "invalid"
    for name in ("fp32-aa", "bf16", "bf16-native"):
        found = variant(group, name)
        assert (found.verdict, found.speed) == ("not measured", None)
        assert found.reason == "fp32, which it is compared with, is invalid: TF32 was on"
        assert found.seconds is not None


@pytest.mark.parametrize("names", [("fp32", "fp32-aa", "bf16"), ("fp32", "bf16", "bf16-native")])
def test_a_failed_first_variant_is_still_the_first(names: tuple[str, ...]) -> None:
    rounds = processes({name: SPEEDS[name] for name in names})
    for measured in rounds:
        del measured.samples["fp32"], measured.cpu["fp32"]
        measured.failed["fp32"] = "out of memory"
    group = one(rounds)
    assert (group.variants[0].name, group.variants[0].verdict, group.variants[0].reason) == (
        "fp32",
        "not measured",
        "out of memory",
    )
    assert {result.verdict for result in group.variants} == {"not measured"}
    assert variant(group, "bf16").reason == "fp32, which it is compared with, is not measured: out of memory"


def test_failed_variants() -> None:
    rounds = processes(SPEEDS)
    for measured in rounds:
        del measured.samples["bf16"]
        measured.failed["bf16"] = "no kernel"
    del rounds[1].samples["bf16-native"]
    rounds[1].failed["bf16-native"] = "out of memory"
    group = one(rounds)
    assert (variant(group, "bf16").verdict, variant(group, "bf16").reason) == ("not measured", "no kernel")
    native = variant(group, "bf16-native")
    assert (native.verdict, native.processes) == ("slower", 4)
    assert native.reason == "failed in 1 of 5 processes: out of memory"


def test_a_failed_second_first_variant_makes_the_others_ambiguous() -> None:
    rounds = processes(SPEEDS)
    for measured in rounds:
        del measured.samples["fp32-aa"]
        measured.failed["fp32-aa"] = "out of memory"
    group = one(rounds)
    assert variant(group, "fp32-aa").verdict == "not measured"
    assert (variant(group, "bf16").verdict, variant(group, "bf16").reason) == (
        "ambiguous",
        "the A/A baseline was not measured",
    )
    rounds = processes(SPEEDS)
    rounds[0].facts["fp32-aa"] = {"invalid": "was not waited for"}
    group = one(rounds)
    assert (variant(group, "fp32-aa").verdict, variant(group, "bf16").verdict) == ("invalid", "ambiguous")


def test_variants_without_samples_and_with_too_few() -> None:
    rounds = processes(SPEEDS, count=1)
    rounds[0].facts["fp16"] = {"first": 0.1}
    rounds[0].samples["bf16"] = rounds[0].samples["bf16"][:4]
    group = one(rounds)
    assert (variant(group, "fp16").verdict, variant(group, "fp16").reason) == (
        "not measured",
        "no process has a sample of it",
    )
    bf16 = variant(group, "bf16")
    assert (bf16.verdict, bf16.speed, bf16.reason) == ("not measured", None, "4 rounds; a verdict needs 5")


def test_more_than_the_peak_is_invalid() -> None:
    seen = []

    def peaks(device: str, precision: str) -> float | None:
        seen.append((device, precision))
        return {"fp32": 1e12, "bf16": 2e12}.get(precision)  # bf16 runs at about 1.05e12, fp32 at 2.7e11

    group = one(processes(SPEEDS), peaks=peaks)
    assert variant(group, "bf16").share == pytest.approx(0.52, abs=0.02)
    assert variant(group, "bf16-native").share is None
    assert variant(group, "bf16").verdict == "faster"
    assert set(seen) == {("cpu", "fp32"), ("cpu", "bf16"), ("cpu", "bf16-native")}

    group = one(processes(SPEEDS), peaks=lambda device, precision: 7.7e11 if precision == "bf16" else None)
    bf16 = variant(group, "bf16")
    assert (bf16.verdict, bf16.speed) == ("invalid", None)
    assert bf16.reason.startswith("1.04 TFLOP/s where the device can do 770 GFLOP/s at most: the clock stopped")
    assert (bf16.share, bf16.ceiling) == (None, "above the published ceiling")


def test_a_share_above_one_is_none() -> None:
    rate = variant(one(processes(SPEEDS)), "bf16").flops_per_second
    assert rate is not None
    for factor, verdict in ((1.01, "faster"), (1.03, "invalid")):
        bf16 = variant(one(processes(SPEEDS), peaks=lambda device, precision: rate / factor), "bf16")  # noqa: B023
        assert (bf16.verdict, bf16.share, bf16.ceiling) == (verdict, None, "above the published ceiling")
    bf16 = variant(one(processes(SPEEDS), peaks=lambda device, precision: rate), "bf16")
    assert (bf16.verdict, bf16.share, bf16.ceiling) == ("faster", 1, "")


def test_a_share_of_a_measured_ceiling() -> None:
    group = one(processes(SPEEDS))
    rate = variant(group, "bf16").flops_per_second
    assert rate is not None
    ceilings.share([group], {"cpu": Peaks("cpu", {"fp32": 2 * rate, "bf16": rate / 2}, None, "here", True)})
    assert (variant(group, "fp32").share or 1) < 0.2
    assert (variant(group, "bf16").share, variant(group, "bf16").ceiling) == (None, "above the measured ceiling")


DEFAULT_SPEEDS = {"fp32": 1.0, "fp32-aa": 1.0, "fp32-default": 4.0, "bf16": 2.0, "bf16-native": 8.0}


def test_lower_precisions_are_compared_with_the_default_too() -> None:
    group = one(processes(DEFAULT_SPEEDS))
    bf16, native = variant(group, "bf16"), variant(group, "bf16-native")
    assert (bf16.verdict, bf16.default_verdict) == ("faster", "slower")
    assert bf16.default_speed == pytest.approx(0.5, rel=0.02)
    assert bf16.default_low is not None
    assert bf16.default_high is not None
    assert bf16.default_low < bf16.default_speed < bf16.default_high
    assert (native.verdict, native.default_verdict) == ("faster", "faster")
    assert all(not variant(group, name).default_verdict for name in ("fp32", "fp32-aa", "fp32-default"))
    assert not variant(one(processes(SPEEDS)), "bf16").default_verdict, "where the group has no such variant"


def test_a_default_that_does_not_count_is_compared_with_nothing() -> None:
    rounds = processes(DEFAULT_SPEEDS)
    rounds[0].facts["fp32-default"] = {"invalid": "it was not shortened"}
    bf16 = variant(one(rounds), "bf16")
    assert (bf16.verdict, bf16.default_speed, bf16.default_verdict) == ("faster", None, "")


@pytest.mark.parametrize(("precision_check", "at_most"), [("mm in bf16", True), ("", False)])
def test_a_variant_that_was_given_up_has_a_bound_and_a_speed_only_with_its_precision_check(
    precision_check: str, at_most: bool
) -> None:
    rounds = processes({"fp32": 1.0, "fp32-aa": 1.0})
    for measured, seconds in zip(rounds, (0.5, 0.25, 0.75, 1.0, 2.0), strict=True):
        measured.failed["bf16"] = "no time for rounds"
        measured.facts["bf16"] = {"at_least": seconds, "precision_check": precision_check}
    group = one(rounds)
    bf16, high = variant(group, "bf16"), variant(group, "fp32").high
    assert high is not None
    assert (bf16.verdict, bf16.reason, bf16.at_least) == ("not measured", "no time for rounds", 0.25)
    assert (bf16.speed, bf16.at_most) == (None, high / 0.25 if at_most else None)
    assert table.ratio(bf16) == (f"≤ {high / 0.25:.5f}×" if at_most else "–")
    assert table.time(bf16) == "≥ 250 ms"


def test_a_bound_says_nothing_beside_a_first_variant_that_does_not_count() -> None:
    rounds = processes({"fp32": 1.0})
    rounds[0].facts["fp32"] = {"invalid": "TF32 was on"}
    rounds[0].failed["bf16"], rounds[0].facts["bf16"] = "no time", {"at_least": 1.0, "precision_check": "mm in bf16"}
    bf16 = variant(one(rounds), "bf16")
    assert (bf16.at_least, bf16.at_most) == (1.0, None)


@pytest.mark.parametrize("bad", [0.0, math.nan, -1e-3])
def test_a_sample_that_is_no_time_makes_its_variant_invalid(bad: float) -> None:
    rounds = processes(SPEEDS)
    rounds[3].samples["bf16"][2] = bad
    group = one(rounds)
    found = variant(group, "bf16")
    assert (found.verdict, found.seconds) == ("invalid", None)
    assert found.reason == f"a sample of {bad:g} s cannot be the time of a call"
    assert variant(group, "bf16-native").verdict == "slower"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"samples": {"fp32": ["fast"]}}, "could not convert"),
        ({"samples": {"fp32": 3}}, "not iterable"),
        ({"facts": {"fp32": {"colour": 1}}}, "'colour' is not a fact of a variant"),
        ({"facts": {"fp32": {"memory": math.inf}}}, "infinity"),
        ({"facts": {"fp32": 3}}, "not iterable"),
    ],
)
def test_damaged_rounds_are_refused(damage: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^the rounds of cpu/eager/mm-512 hold something.*{message}"):
        one([Rounds("mm-512", "cpu", "eager", 0, **damage)])
