"""Rounds of several processes become groups: medians, ratios and verdicts, also where something is missing."""

import math
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import Group, Rounds
from ampcheck.bench.run import ceilings
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.exports import samples
from ampcheck.bench.run.runfile import read
from ampcheck.bench.run.summary import summarize
from ampcheck.errors import UsageError
from tests.report.made_bench import made_group, rounds_of, written

SPEEDS = {"fp32": 1.0, "fp32-aa": 1.0, "bf16": 3.9, "bf16-native": 0.5}


def processes(speeds: dict[str, float], workload: str = "mm-512") -> list[Rounds]:
    """Return the rounds of five processes whose variants run at some speeds; fp32 takes a millisecond."""
    return rounds_of(made_group(workload, variants=speeds))


def one(rounds: list[Rounds], **options: Any) -> Group:
    (group,) = summarize(rounds, **options)
    return group


def test_each_kind_of_workload_has_its_bound_and_its_first_variant() -> None:
    speeds = {"fp32": 1.0, "fp32-aa": 1.03, "bf16": 2.0}
    step, op = one(processes(speeds, "mlp-step")), one(processes(speeds))
    assert (step.kind, step.samples, step.variant("fp32-aa").verdict) == ("step", 128, "same")
    assert (op.kind, op.variant("bf16").verdict, op.variant("fp32-aa").verdict) == ("op", "faster", "ambiguous")
    enter = one(processes({"fresh": 1.0, "reused": 1.6}, "region-enter"))
    assert [(result.name, result.verdict) for result in enter.variants] == [("fresh", "first"), ("reused", "faster")]
    assert (enter.kind, enter.variants[1].flops_per_second) == ("overhead", None)
    unknown = one(processes(SPEEDS, "of-another-version"))
    assert (unknown.family, unknown.kind, unknown.flops) == ("", "op", 0)
    assert (unknown.note, unknown.variant("bf16").verdict) == ("this version does not know the workload", "faster")


def test_facts_are_pooled() -> None:
    rounds = processes(SPEEDS)
    for i, measured in enumerate(rounds):
        facts = {"error": 1e-3 * (1 + i % 3), "memory": 100 + i % 2, "compile": float(i**2), "first": float(i)}
        measured.facts["bf16"] = {**facts, "precision_check": "bf16 kernels" if i else "no kernel seen"}
    found = one(rounds).variant("bf16")
    assert (found.error, found.memory, found.compile, found.first) == (3e-3, 101, 4.0, 2.0)
    assert found.precision_check == "no kernel seen; bf16 kernels"
    rounds[1].facts["bf16"], rounds[2].facts["bf16"] = {"error": math.nan}, {"error": None}
    assert one(rounds).variant("bf16").error == math.inf, "an error that is no number is the worst one"


# ---- groups that an earlier version judged


def reread(folder: Path, group: Group) -> Group:
    path = folder / f"{len(list(folder.iterdir()))}.jsonl"  # a file is never written over
    return read(written(path, [group], [])).groups[group.key]


def test_files_of_the_first_schema_are_read_with_the_names_of_today(tmp_path: Path) -> None:
    overhead = made_group("enter", variants={"fresh": 1.0, "reused": 1.7}, kind="overhead", family="overhead", flops=0)
    groups = [made_group(), overhead]
    groups[0].variant("fp32-aa").reason = "failed in 1 of 5 processes: equal variants"
    names = {
        '"variants":': '"arms":',
        '"precision_check":': '"proof":',
        '"overhead"': '"machinery"',
        'fp32-aa"': 'fp32-again"',
        "equal variants": "equal arms",
        '"compiler":': '"executor":',
        '"bench-3"': '"bench-1"',
    }
    for footer in (True, False):  # without one the groups are made of the rounds
        new = written(tmp_path / f"new-{footer}.jsonl", groups, footer=footer)
        text = new.read_text()
        for name, before in names.items():
            assert name in text
            text = text.replace(name, before)
        old = tmp_path / f"old-{footer}.jsonl"
        old.write_text(text)
        assert read(old).groups == read(new).groups
        assert samples(old) == samples(new)
        old.write_text(text.replace('"bench-1"', '"bench-0"'))
        with pytest.raises(UsageError, match="has schema 'bench-0'"):
            read(old)


@pytest.mark.parametrize(
    ("bf16", "verdict"), [((0.18, 0.16, 0.22), "slower"), ((5, 4, 6), "faster"), ((0.9, 0.8, 0.95), "ambiguous")]
)
def test_files_of_earlier_versions_are_judged_anew(tmp_path: Path, bf16: tuple[float, ...], verdict: str) -> None:
    group = made_group()
    for name, interval in (("bf16", bf16), ("fp32-aa", (0.95, 0.68, 1.33))):
        found = group.variant(name)
        found.speed, found.speed_low, found.speed_high = interval
    before, invalid = group.variant("bf16"), group.variant("fp16")
    before.verdict = "ambiguous" if verdict != "ambiguous" else "slower"
    before.reason = "the A/A baseline's ratio is 0.950, outside ±2%; failed in 1 of 5 processes: no memory"
    invalid.verdict, invalid.reason = "invalid", "the kernel received fp32"
    again = reread(tmp_path, group)
    found = again.variant("bf16")
    assert found.verdict == verdict
    assert found.reason.endswith("failed in 1 of 5 processes: no memory")
    assert ("A/A" in found.reason) is (verdict == "ambiguous")
    assert again.variant("fp16") == invalid, "what does not count is not judged again"


def test_estimates_of_an_earlier_version_are_compared_with_the_default(tmp_path: Path) -> None:
    speeds = {"fp32": 1.0, "fp32-default": 4.0, "bf16": 2.0, "fp16": 4.01, "bf16-native": 8.0}
    estimate = made_group(device="tpu-v5e", variants=speeds, estimate=True)
    again = reread(tmp_path, estimate)
    told = {one.name: (one.default_speed, one.default_verdict) for one in again.variants}
    assert told == {
        "fp32": (None, ""),
        "fp32-default": (None, ""),
        "bf16": (pytest.approx(0.5), "slower"),
        "fp16": (pytest.approx(4.01 / 4), "same"),
        "bf16-native": (pytest.approx(2.0), "faster"),
    }
    estimate.variant("fp32-default").verdict = "ambiguous"
    assert reread(tmp_path, estimate).variant("bf16").default_verdict == "ambiguous"
    measured = reread(tmp_path, made_group(variants=speeds))
    assert not any(one.default_verdict for one in measured.variants), "a median does not show a difference"


# ---- rounds that lack a variant, or hold what cannot be


def test_a_variant_that_does_not_count_costs_no_other() -> None:
    rounds = processes(SPEEDS)
    rounds[2].facts["bf16"] = {"invalid": "no bf16 kernel was seen", "error": 0.01}
    rounds[1].failed["bf16-native"] = "out of memory"
    del rounds[1].samples["bf16-native"]
    for measured in rounds:
        measured.failed["fp16"] = "no kernel"
    group = one(rounds)
    bf16, native, fp16 = (group.variant(name) for name in ("bf16", "bf16-native", "fp16"))
    assert (bf16.verdict, bf16.reason) == ("invalid", "no bf16 kernel was seen")
    assert (bf16.speed, bf16.error, bf16.seconds is None) == (None, 0.01, False), "its numbers are kept"
    assert (native.verdict, native.processes) == ("slower", 4)
    assert native.reason == "failed in 1 of 5 processes: out of memory"
    assert (fp16.verdict, fp16.reason) == ("not measured", "no kernel")


@pytest.mark.parametrize("names", [("fp32", "fp32-aa", "bf16"), ("fp32", "bf16", "bf16-native")])
@pytest.mark.parametrize(("verdict", "reason"), [("invalid", "TF32 was on"), ("not measured", "out of memory")])
def test_nothing_is_compared_with_a_first_that_is_invalid(names: tuple[str, ...], verdict: str, reason: str) -> None:
    rounds = processes({name: SPEEDS[name] for name in names})
    for measured in rounds:
        if verdict == "invalid":
            measured.facts["fp32"] = {"invalid": reason}
        else:
            del measured.samples["fp32"]
            measured.failed["fp32"] = reason
        measured.failed["fp16"], measured.facts["fp16"] = "no time", {"at_least": 1.0, "precision_check": "mm in fp16"}
    group = one(rounds)
    first = group.variants[0]
    assert (first.name, first.verdict, first.reason) == ("fp32", verdict, reason)
    for name in names[1:]:
        found = group.variant(name)
        assert (found.verdict, found.speed, found.seconds is None) == ("not measured", None, False)
        assert found.reason == f"fp32, which it is compared with, is {verdict}: {reason}"
    assert (group.variant("fp16").at_least, group.variant("fp16").at_most) == (1.0, None)


def test_more_than_the_peak_is_invalid_and_no_share_is_above_one() -> None:
    asked = {("cpu", "fp32"): 1e12, ("cpu", "bf16"): 2e12, ("cpu", "bf16-native"): None}
    group = one(processes(SPEEDS), peaks=lambda *of: asked[of])  # bf16 runs at about 1.05e12, fp32 at 2.7e11
    assert group.variant("bf16").share == pytest.approx(0.52, abs=0.02)
    assert group.variant("bf16-native").share is None
    rate = group.variant("bf16").flops_per_second
    above = "above the published ceiling"
    for peak, want in (
        (rate, ("faster", 1, "")),
        (rate / 1.2, ("faster", None, above)),  # by clocks that boost
        (rate / 1.3, ("invalid", None, above)),
    ):
        bf16 = one(processes(SPEEDS), peaks=lambda _, name: peak if name == "bf16" else None).variant("bf16")  # noqa: B023
        assert (bf16.verdict, bf16.share, bf16.ceiling) == want
    assert bf16.reason.startswith("1.05 TFLOP/s where the device can do 805 GFLOP/s at most")
    winograd = processes(SPEEDS, "conv2d")
    rate = one(winograd).variant("bf16").flops_per_second
    assert one(winograd, peaks=lambda *_: rate / 2.2).variant("bf16").verdict == "faster"
    assert one(winograd, peaks=lambda *_: rate / 6).variant("bf16").verdict == "invalid"
    group = one(winograd)
    ceilings.share([group], {"cpu": Peaks("cpu", {"fp32": 2 * rate, "bf16": rate / 2}, None, "here", True)})
    assert group.variant("fp32").share < 0.2
    assert (group.variant("bf16").share, group.variant("bf16").ceiling) == (None, "above the measured ceiling")


DEFAULT_SPEEDS = {"fp32": 1.0, "fp32-aa": 1.0, "fp32-default": 4.0, "bf16": 2.0, "bf16-native": 8.0}


def test_lower_precisions_are_compared_with_the_default_too() -> None:
    group = one(processes(DEFAULT_SPEEDS))
    bf16, native = group.variant("bf16"), group.variant("bf16-native")
    assert (bf16.verdict, bf16.default_verdict) == ("faster", "slower")
    assert bf16.default_speed == pytest.approx(0.5, rel=0.02)
    assert bf16.default_low < bf16.default_speed < bf16.default_high
    assert (native.verdict, native.default_verdict) == ("faster", "faster")
    assert all(not group.variant(name).default_verdict for name in ("fp32", "fp32-aa", "fp32-default"))
    assert not one(processes(SPEEDS)).variant("bf16").default_verdict, "where the group has no such variant"
    rounds = processes(DEFAULT_SPEEDS)
    rounds[0].facts["fp32-default"] = {"invalid": "it was not shortened"}
    bf16 = one(rounds).variant("bf16")
    assert (bf16.verdict, bf16.default_speed, bf16.default_verdict) == ("faster", None, "")


@pytest.mark.parametrize(("precision_check", "at_most"), [("mm in bf16", True), ("", False)])
def test_a_variant_that_was_given_up_has_a_bound_and_when_checked_a_speed(precision_check: str, at_most: bool) -> None:
    rounds = processes({"fp32": 1.0, "fp32-aa": 1.0})
    for measured, seconds in zip(rounds, (0.5, 0.25, 0.75, 1.0, 2.0), strict=True):
        measured.failed["bf16"] = "no time for rounds"
        measured.facts["bf16"] = {"at_least": seconds, "precision_check": precision_check}
    group = one(rounds)
    bf16, high = group.variant("bf16"), group.variant("fp32").high
    assert (bf16.verdict, bf16.reason, bf16.at_least) == ("not measured", "no time for rounds", 0.25)
    assert (bf16.speed, bf16.at_most) == (None, high / 0.25 if at_most else None)
    assert table.ratio(bf16) == (f"≤ {high / 0.25:.5f}×" if at_most else "–")
    assert table.time(bf16) == "≥ 250 ms"


@pytest.mark.parametrize("bad", [0.0, math.nan, -1e-3])
def test_a_sample_that_is_no_time_makes_its_variant_invalid(bad: float) -> None:
    rounds = processes(SPEEDS)
    rounds[3].samples["bf16"][2] = bad
    group = one(rounds)
    found = group.variant("bf16")
    assert (found.verdict, found.seconds) == ("invalid", None)
    assert found.reason == f"a sample of {bad:g} s cannot be the time of a call"
    assert group.variant("bf16-native").verdict == "slower"
