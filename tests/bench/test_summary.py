"""Rounds of several processes become groups: medians, ratios and verdicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ampcheck.bench.core import peaks
from ampcheck.bench.core.model import Group
from ampcheck.bench.run.runfile import read
from ampcheck.bench.run.summary import summarize
from ampcheck.errors import UsageError
from tests.bench.summary_rounds import CATALOGUE, SPEEDS, one, processes, variant
from tests.report.made_bench import made_group, written


def test_speeds_and_verdicts() -> None:
    group = one(processes(SPEEDS))
    assert {result.name: result.verdict for result in group.variants} == {
        "fp32": "first",
        "fp32-aa": "same",
        "bf16": "faster",
        "bf16-native": "slower",
    }
    bf16 = variant(group, "bf16")
    assert bf16.speed == pytest.approx(3.9, rel=0.01)
    assert bf16.speed_low is not None
    assert bf16.speed_high is not None
    assert bf16.speed_low < bf16.speed < bf16.speed_high
    assert (bf16.rounds, bf16.processes) == (45, 5)
    assert variant(group, "fp32").speed is None


def test_times_are_pooled_over_processes() -> None:
    rounds = processes(SPEEDS)
    values = [value for one in rounds for value in one.samples["bf16"]]
    found = variant(one(rounds), "bf16")
    assert found.seconds == np.median(values)
    assert (found.low, found.high) == tuple(np.percentile(values, [5, 95]))
    assert found.cpu_seconds == pytest.approx(np.median(values) / 2)


def test_the_workload_gives_the_facts_of_the_group_and_its_rates() -> None:
    group = one(processes(SPEEDS))
    assert (group.family, group.kind, group.policy, group.base, group.size) == ("matmul", "op", "downcast", "mm", 512)
    assert (group.key, group.flops, group.note) == ("cpu/eager/mm-512", 2 * 512**3, "")
    for name, width in (("fp32", 4), ("fp32-aa", 4), ("bf16", 2), ("bf16-native", 2)):
        found = variant(group, name)
        assert found.seconds is not None
        assert found.flops_per_second == pytest.approx(2 * 512**3 / found.seconds)
        assert found.bytes_per_second == pytest.approx(3 * 512 * 512 * width / found.seconds)
        assert found.intensity == pytest.approx(2 * 512**3 / (3 * 512 * 512 * width))
        assert found.share is None


def test_without_counted_flops_there_is_no_intensity() -> None:
    found = variant(one(processes(SPEEDS, "copy")), "fp32")
    assert found.seconds is not None
    assert found.bytes_per_second == pytest.approx(32 / found.seconds)
    assert (found.flops_per_second, found.intensity) == (None, None)


def test_a_step_has_the_bound_of_steps() -> None:
    speeds = {"fp32": 1.0, "fp32-aa": 1.03, "bf16": 2.0}
    step, op = one(processes(speeds, "mlp")), one(processes(speeds))
    assert (step.kind, step.samples, variant(step, "bf16").verdict) == ("step", 64, "faster")
    assert (op.kind, variant(op, "bf16").verdict, variant(op, "fp32-aa").verdict) == ("op", "faster", "ambiguous")
    assert variant(op, "fp32-aa").reason.startswith("the interval does not lie beyond that of the A/A baseline, 1.0")


def test_overhead_is_compared_with_its_first_variant() -> None:
    group = one(processes({"fresh": 1.0, "reused": 1.6}, "enter"))
    assert [(result.name, result.verdict) for result in group.variants] == [("fresh", "first"), ("reused", "faster")]
    assert (group.kind, group.variants[1].flops_per_second, group.variants[1].intensity) == ("overhead", None, None)


def test_an_unknown_workload_is_summarized_without_its_facts() -> None:
    group = one(processes(SPEEDS, "of-another-version"))
    assert (group.family, group.kind, group.flops) == ("", "op", 0)
    assert group.note == "this version does not know the workload"
    assert variant(group, "bf16").verdict == "faster"


def test_the_catalogue_of_this_version_is_used_unless_another_is_given() -> None:
    from ampcheck.bench.workloads import catalogue

    name, workload = next(iter(catalogue().items()))
    (group,) = summarize(processes({"fp32": 1.0}, name))
    assert group.family == workload.family


def test_groups_keep_apart_what_differs_and_their_order() -> None:
    rounds = processes(SPEEDS) + processes(SPEEDS, "mlp")
    rounds[1].executor = rounds[2].executor = "jit"
    groups = summarize(rounds, CATALOGUE)
    assert [group.key for group in groups] == ["cpu/eager/mm-512", "cpu/jit/mm-512", "cpu/eager/mlp"]
    assert [group.variants[0].processes for group in groups] == [3, 2, 5]
    assert summarize([], CATALOGUE) == []


def test_facts_are_pooled() -> None:
    rounds = processes(SPEEDS)
    for i, measured in enumerate(rounds):
        measured.facts["bf16"] = {
            "error": 1e-3 * (1 + i % 3),
            "memory": 100 + i % 2,
            "compile": float(i**2),
            "first": float(i),
            "precision_check": "bf16 kernels" if i else "",
        }
    found = variant(one(rounds), "bf16")
    assert (found.error, found.memory, found.compile, found.first) == (3e-3, 101, 4.0, 2.0)
    assert found.precision_check == "bf16 kernels"
    rounds[0].facts["bf16"]["precision_check"] = "no kernel seen"
    assert variant(one(rounds), "bf16").precision_check == "no kernel seen; bf16 kernels"


def test_noise_is_unstable_and_says_how_wide() -> None:
    noisy = one(processes({"fp32": 1.0, "bf16": 1.0}, noise=0.3))
    assert variant(noisy, "bf16").verdict == "unstable"
    assert variant(noisy, "bf16").reason.endswith("equal variants lie within ±2%")


# ---- groups that an earlier version judged


def reread(folder: Path, group: Group, **header: Any) -> Group:
    """A group as a file gives it back."""
    return read(written(folder / "run.jsonl", [group], [], **header)).groups[group.key]


def test_files_of_the_first_schema_are_read_with_the_names_of_today(tmp_path: Path) -> None:
    overhead = made_group("enter", variants={"fresh": 1.0, "reused": 1.7}, kind="overhead", family="overhead", flops=0)
    groups = [made_group(), overhead]
    variant(groups[0], "fp32-aa").reason = "failed in 1 of 5 processes: equal variants"
    names = {
        '"variants":': '"arms":',
        '"precision_check":': '"proof":',
        '"overhead"': '"machinery"',
        'fp32-aa"': 'fp32-again"',
        "equal variants": "equal arms",
        '"bench-2"': '"bench-1"',
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
        old.write_text(text.replace('"bench-1"', '"bench-0"'))
        with pytest.raises(UsageError, match="has schema 'bench-0'"):
            read(old)


@pytest.mark.parametrize(
    ("bf16", "again", "verdict"),
    [
        ((0.18, 0.16, 0.22), (0.95, 0.68, 1.33), "slower"),
        ((5.0, 4.0, 6.0), (0.95, 0.68, 1.33), "faster"),
        ((0.9, 0.8, 0.95), (0.95, 0.68, 1.33), "ambiguous"),
    ],
)
def test_files_of_earlier_versions_are_judged_by_this_rule(
    tmp_path: Path, bf16: tuple[float, ...], again: tuple[float, ...], verdict: str
) -> None:
    group = made_group()
    for name, interval in (("bf16", bf16), ("fp32-aa", again)):
        found = variant(group, name)
        found.speed, found.speed_low, found.speed_high = interval
    variant(group, "bf16").verdict = "ambiguous" if verdict != "ambiguous" else "slower"
    variant(
        group, "bf16"
    ).reason = "the A/A baseline's ratio is 0.950, outside ±2%; failed in 1 of 5 processes: no memory"
    found = variant(reread(tmp_path, group), "bf16")
    assert found.verdict == verdict
    assert found.reason.endswith("failed in 1 of 5 processes: no memory")
    assert ("A/A" in found.reason) is (verdict == "ambiguous")


def test_what_does_not_count_is_not_judged_again(tmp_path: Path) -> None:
    group = made_group()
    bf16, fp16 = variant(group, "bf16"), variant(group, "fp16")
    bf16.verdict, bf16.reason = "invalid", "the kernel received fp32"
    fp16.verdict, fp16.reason, fp16.speed, fp16.speed_low = "not measured", "no kernel", None, None
    again = reread(tmp_path, group)
    assert variant(again, "bf16") == bf16
    assert variant(again, "fp16") == fp16


def test_a_share_above_one_of_an_earlier_version_is_none(tmp_path: Path) -> None:
    group = made_group()
    variant(group, "bf16").share, variant(group, "fp16").share = 6.4, 0.9
    again = reread(tmp_path, group)
    assert (variant(again, "bf16").share, variant(again, "bf16").ceiling) == (None, "above the measured ceiling")
    assert (variant(again, "fp16").share, variant(again, "fp16").ceiling) == (0.9, "")
    (tmp_path / "run.jsonl").unlink()
    sheet = peaks.known("NVIDIA H200")
    assert sheet is not None
    again = reread(tmp_path, group, ceilings_source={"cpu": sheet.source})
    assert variant(again, "bf16").ceiling == "above the published ceiling"


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
    (tmp_path / "run.jsonl").unlink()
    variant(estimate, "fp32-default").verdict = "ambiguous"
    assert variant(reread(tmp_path, estimate), "bf16").default_verdict == "ambiguous"
    (tmp_path / "run.jsonl").unlink()
    measured = reread(tmp_path, made_group(variants=speeds))
    assert not any(one.default_verdict for one in measured.variants), "a median does not show a difference"
