"""Rounds of several processes become groups: medians, ratios, verdicts, and reasons where there is none."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from ampcheck.bench.model import (
    ArmResult,
    Group,
    MachineryWorkload,
    OpWorkload,
    Rounds,
    Spec,
    StepWorkload,
    Workload,
)
from ampcheck.bench.summary import summarize
from ampcheck.errors import UsageError

MM = OpWorkload(
    name="mm-512",
    family="matmul",
    policy="downcast",
    base="mm",
    size=512,
    flops=2 * 512**3,
    moved=lambda width: 3 * 512 * 512 * width,
    inputs=(Spec((512, 512)), Spec((512, 512))),
    call=torch.mm,
)
STEP = StepWorkload(
    name="mlp",
    family="steps",
    policy="mixed",
    samples=64,
    model=lambda: torch.nn.Linear(2, 2),
    inputs=(),
    loss=torch.nn.functional.mse_loss,
)
COPY = OpWorkload(
    name="copy", family="policies", policy="upcast", moved=lambda width: 8.0 * width, inputs=(), call=torch.clone
)
ENTER = MachineryWorkload(name="enter", family="machinery", policy="", make=lambda device: {})
CATALOGUE: dict[str, Workload] = {workload.name: workload for workload in (MM, STEP, COPY, ENTER)}

SPEEDS = {"fp32": 1.0, "fp32-again": 1.0, "bf16": 3.9, "bf16-native": 0.5}


def processes(speeds: dict[str, float], workload: str = "mm-512", noise: float = 0.005, count: int = 5) -> list[Rounds]:
    """What processes measure of arms that run at some speeds; fp32 takes a millisecond."""
    random = np.random.default_rng(1)
    out = []
    for process in range(count):
        load = np.exp(random.normal(0, 0.1, 9))
        samples = {
            arm: [float(value) for value in 1e-3 / speed * load * np.exp(random.normal(0, noise, 9))]
            for arm, speed in speeds.items()
        }
        cpu = {arm: [value / 2 for value in values] for arm, values in samples.items()}
        out.append(Rounds(workload, "cpu", "eager", process, samples, cpu))
    return out


def one(rounds: list[Rounds], **options: Any) -> Group:
    """The only group of some rounds."""
    (group,) = summarize(rounds, CATALOGUE, **options)
    return group


def arm(group: Group, name: str) -> ArmResult:
    """An arm that must be there."""
    found = group.arm(name)
    assert found is not None
    return found


def test_speeds_and_verdicts() -> None:
    group = one(processes(SPEEDS))
    assert {result.name: result.verdict for result in group.arms} == {
        "fp32": "first",
        "fp32-again": "same",
        "bf16": "faster",
        "bf16-native": "slower",
    }
    bf16 = arm(group, "bf16")
    assert bf16.speed == pytest.approx(3.9, rel=0.01)
    assert bf16.speed_low is not None
    assert bf16.speed_high is not None
    assert bf16.speed_low < bf16.speed < bf16.speed_high
    assert (bf16.rounds, bf16.processes) == (45, 5)
    assert arm(group, "fp32").speed is None


def test_times_are_pooled_over_processes() -> None:
    rounds = processes(SPEEDS)
    values = [value for one in rounds for value in one.samples["bf16"]]
    found = arm(one(rounds), "bf16")
    assert found.seconds == np.median(values)
    assert (found.low, found.high) == tuple(np.percentile(values, [5, 95]))
    assert found.cpu_seconds == pytest.approx(np.median(values) / 2)


def test_the_workload_gives_the_facts_of_the_group_and_its_rates() -> None:
    group = one(processes(SPEEDS))
    assert (group.family, group.kind, group.policy, group.base, group.size) == ("matmul", "op", "downcast", "mm", 512)
    assert (group.key, group.flops, group.note) == ("cpu/eager/mm-512", 2 * 512**3, "")
    for name, width in (("fp32", 4), ("fp32-again", 4), ("bf16", 2), ("bf16-native", 2)):
        found = arm(group, name)
        assert found.seconds is not None
        assert found.flops_per_second == pytest.approx(2 * 512**3 / found.seconds)
        assert found.bytes_per_second == pytest.approx(3 * 512 * 512 * width / found.seconds)
        assert found.intensity == pytest.approx(2 * 512**3 / (3 * 512 * 512 * width))
        assert found.share is None


def test_without_counted_flops_there_is_no_intensity() -> None:
    found = arm(one(processes(SPEEDS, "copy")), "fp32")
    assert found.seconds is not None
    assert found.bytes_per_second == pytest.approx(32 / found.seconds)
    assert (found.flops_per_second, found.intensity) == (None, None)


def test_a_step_has_the_bound_of_steps() -> None:
    speeds = {"fp32": 1.0, "fp32-again": 1.03, "bf16": 2.0}
    step, op = one(processes(speeds, "mlp")), one(processes(speeds))
    assert (step.kind, step.samples, arm(step, "bf16").verdict) == ("step", 64, "faster")
    assert (op.kind, arm(op, "bf16").verdict, arm(op, "fp32-again").verdict) == ("op", "ambiguous", "ambiguous")
    assert arm(op, "bf16").reason.startswith("the A/A arm's ratio is 1.03")


def test_machinery_is_compared_with_its_first_variant() -> None:
    group = one(processes({"fresh": 1.0, "reused": 1.6}, "enter"))
    assert [(result.name, result.verdict) for result in group.arms] == [("fresh", "first"), ("reused", "faster")]
    assert (group.kind, group.arms[1].flops_per_second, group.arms[1].intensity) == ("machinery", None, None)


def test_an_unknown_workload_is_summarized_without_its_facts() -> None:
    group = one(processes(SPEEDS, "of-another-version"))
    assert (group.family, group.kind, group.flops) == ("", "op", 0)
    assert group.note == "this version does not know the workload"
    assert arm(group, "bf16").verdict == "faster"


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
    assert [group.arms[0].processes for group in groups] == [3, 2, 5]
    assert summarize([], CATALOGUE) == []


def test_facts_are_pooled() -> None:
    rounds = processes(SPEEDS)
    for i, measured in enumerate(rounds):
        measured.facts["bf16"] = {
            "error": 1e-3 * (1 + i % 3),
            "memory": 100 + i % 2,
            "compile": float(i**2),
            "first": float(i),
            "proof": "bf16 kernels" if i else "",
        }
    found = arm(one(rounds), "bf16")
    assert (found.error, found.memory, found.compile, found.first) == (3e-3, 101, 4.0, 2.0)
    assert found.proof == "bf16 kernels"
    rounds[0].facts["bf16"]["proof"] = "no kernel seen"
    assert arm(one(rounds), "bf16").proof == "no kernel seen; bf16 kernels"


def test_an_error_that_is_no_number_is_the_worst_one() -> None:
    rounds = processes(SPEEDS)
    for measured, error in zip(rounds, (0.1, math.nan, 0.2, None, 0.3), strict=True):
        measured.facts["bf16"] = {"error": error}
    assert arm(one(rounds), "bf16").error == math.inf


def test_what_is_invalid_keeps_its_numbers_and_has_no_speed() -> None:
    rounds = processes(SPEEDS)
    rounds[2].facts["bf16"] = {"invalid": "no bf16 kernel was seen", "error": 0.01}
    group = one(rounds)
    found = arm(group, "bf16")
    assert (found.verdict, found.reason) == ("invalid", "no bf16 kernel was seen")
    assert (found.speed, found.error) == (None, 0.01)
    assert found.seconds is not None
    assert arm(group, "bf16-native").verdict == "slower"


def test_nothing_is_compared_with_an_invalid_first_arm() -> None:
    rounds = processes(SPEEDS)
    rounds[0].facts["fp32"] = {"invalid": "TF32 was on"}
    group = one(rounds)
    assert arm(group, "fp32").verdict == "invalid"
    for name in ("fp32-again", "bf16", "bf16-native"):
        found = arm(group, name)
        assert (found.verdict, found.speed) == ("not measured", None)
        assert found.reason == "fp32, which it is compared with, is invalid: TF32 was on"
        assert found.seconds is not None


@pytest.mark.parametrize("names", [("fp32", "fp32-again", "bf16"), ("fp32", "bf16", "bf16-native")])
def test_a_failed_first_arm_is_still_the_first(names: tuple[str, ...]) -> None:
    rounds = processes({name: SPEEDS[name] for name in names})
    for measured in rounds:
        del measured.samples["fp32"], measured.cpu["fp32"]
        measured.failed["fp32"] = "out of memory"
    group = one(rounds)
    assert (group.arms[0].name, group.arms[0].verdict, group.arms[0].reason) == (
        "fp32",
        "not measured",
        "out of memory",
    )
    assert {result.verdict for result in group.arms} == {"not measured"}
    assert arm(group, "bf16").reason == "fp32, which it is compared with, is not measured: out of memory"


def test_failed_arms() -> None:
    rounds = processes(SPEEDS)
    for measured in rounds:
        del measured.samples["bf16"]
        measured.failed["bf16"] = "no kernel"
    del rounds[1].samples["bf16-native"]
    rounds[1].failed["bf16-native"] = "out of memory"
    group = one(rounds)
    assert (arm(group, "bf16").verdict, arm(group, "bf16").reason) == ("not measured", "no kernel")
    native = arm(group, "bf16-native")
    assert (native.verdict, native.processes) == ("slower", 4)
    assert native.reason == "failed in 1 of 5 processes: out of memory"


def test_a_failed_second_first_arm_makes_the_others_ambiguous() -> None:
    rounds = processes(SPEEDS)
    for measured in rounds:
        del measured.samples["fp32-again"]
        measured.failed["fp32-again"] = "out of memory"
    group = one(rounds)
    assert arm(group, "fp32-again").verdict == "not measured"
    assert (arm(group, "bf16").verdict, arm(group, "bf16").reason) == ("ambiguous", "the A/A arm was not measured")
    rounds = processes(SPEEDS)
    rounds[0].facts["fp32-again"] = {"invalid": "was not waited for"}
    group = one(rounds)
    assert (arm(group, "fp32-again").verdict, arm(group, "bf16").verdict) == ("invalid", "ambiguous")


def test_arms_without_samples_and_with_too_few() -> None:
    rounds = processes(SPEEDS, count=1)
    rounds[0].facts["fp16"] = {"first": 0.1}
    rounds[0].samples["bf16"] = rounds[0].samples["bf16"][:4]
    group = one(rounds)
    assert (arm(group, "fp16").verdict, arm(group, "fp16").reason) == (
        "not measured",
        "no process has a sample of it",
    )
    bf16 = arm(group, "bf16")
    assert (bf16.verdict, bf16.speed, bf16.reason) == ("not measured", None, "4 rounds; a verdict needs 5")


def test_more_than_the_peak_is_invalid() -> None:
    seen = []

    def peaks(device: str, precision: str) -> float | None:
        seen.append((device, precision))
        return {"fp32": 1e12, "bf16": 2e12}.get(precision)  # bf16 runs at about 1.05e12, fp32 at 2.7e11

    group = one(processes(SPEEDS), peaks=peaks)
    assert arm(group, "bf16").share == pytest.approx(0.52, abs=0.02)
    assert arm(group, "bf16-native").share is None
    assert arm(group, "bf16").verdict == "faster"
    assert set(seen) == {("cpu", "fp32"), ("cpu", "bf16"), ("cpu", "bf16-native")}

    group = one(processes(SPEEDS), peaks=lambda device, precision: 7.7e11 if precision == "bf16" else None)
    bf16 = arm(group, "bf16")
    assert (bf16.verdict, bf16.speed) == ("invalid", None)
    assert bf16.reason == f"{bf16.share:.0%} of the device's peak: the clock stopped before the work was done"
    assert bf16.share == pytest.approx(1.36, abs=0.03)


@pytest.mark.parametrize("bad", [0.0, math.nan, -1e-3])
def test_a_sample_that_is_no_time_makes_its_arm_invalid(bad: float) -> None:
    rounds = processes(SPEEDS)
    rounds[3].samples["bf16"][2] = bad
    group = one(rounds)
    found = arm(group, "bf16")
    assert (found.verdict, found.seconds) == ("invalid", None)
    assert found.reason == f"a sample of {bad:g} s is no time that a call can take"
    assert arm(group, "bf16-native").verdict == "slower"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"samples": {"fp32": ["fast"]}}, "could not convert"),
        ({"samples": {"fp32": 3}}, "not iterable"),
        ({"facts": {"fp32": {"colour": 1}}}, "'colour' is no fact of an arm"),
        ({"facts": {"fp32": {"memory": math.inf}}}, "infinity"),
        ({"facts": {"fp32": 3}}, "not iterable"),
    ],
)
def test_damaged_rounds_are_refused(damage: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=rf"^the rounds of cpu/eager/mm-512 hold something.*{message}"):
        one([Rounds("mm-512", "cpu", "eager", 0, **damage)])


def test_noise_is_unstable_and_says_how_wide() -> None:
    noisy = one(processes({"fp32": 1.0, "bf16": 1.0}, noise=0.3))
    assert arm(noisy, "bf16").verdict == "unstable"
    assert arm(noisy, "bf16").reason.endswith("equal arms lie within ±2%")
