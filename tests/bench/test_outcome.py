"""A run ends with the fastest variants, what is invalid, and an exit code that known gaps do not change."""

from __future__ import annotations

from pathlib import Path

import pytest

from ampcheck.bench.run.outcome import SHOWN, summary
from ampcheck.bench.session import BenchOutcome
from tests.report.made_bench import PLAIN, made_group

WIDENED = "6 of 18 products compute in fp32: what is fp16 is widened for them"


def test_the_fastest_come_first_and_all_verdicts_are_counted() -> None:
    speeds = {"mm-64": 1.5, "mm-512": 4.0, "mm-1024": 2.0}
    groups = [made_group(name, variants={**PLAIN, "bf16": speed}) for name, speed in speeds.items()]
    overhead = made_group("enter", variants={"fresh": 1.0, "reused": 9.0}, kind="overhead")
    first, *rows = summary([*groups, overhead], {}).splitlines()
    assert first == "Beside float32 3 slower, 3 faster. The fastest:"
    assert [row.split()[-1] for row in rows] == ["mm-512", "mm-1024", "mm-64"]
    assert rows[0].split() == ["4.00×", "[3.96,", "4.04]", "bf16", "cpu", "eager", "mm-512"]
    many = summary([made_group(f"mm-{n}") for n in range(SHOWN + 3)], {}).splitlines()
    assert (len(many), many[-1]) == (SHOWN + 2, "  and 3 more")
    assert summary([made_group(variants={"fp32": 1.0, "bf16": 0.5})], {}) == "Beside float32 1 slower."


@pytest.mark.parametrize(
    ("workload", "device", "variant", "reason", "platform", "known"),
    [
        ("sdpa", "jax", "fp16", WIDENED, "cpu", True),
        ("transformer-step", "jax", "fp16-native", "6 of 18 products are not in fp16: bmm received fp32", "cpu", True),
        ("sdpa", "jax", "bf16", WIDENED, "cpu", False),
        ("sdpa", "jax", "fp16", WIDENED, "tpu", False),
        ("sdpa", "cpu", "fp16", WIDENED, "cpu", False),
        ("mm-512", "jax", "fp16", WIDENED, "cpu", False),
        ("sdpa", "jax", "fp16", "autocast cast nothing: dot_general received fp32", "cpu", False),
    ],
)
def test_a_known_gap_fails_no_run_and_is_named_in_one_line(
    workload: str, device: str, variant: str, reason: str, platform: str, known: bool
) -> None:
    group = made_group(workload, device, compiler="jit", variants={"fp32": 1.0, variant: 2.0})
    group.variants[1].verdict, group.variants[1].reason = "invalid", reason
    groups, platforms = [made_group(), group], {device: platform}
    last = summary(groups, platforms).splitlines()[-1]
    name = f"{device}/jit/{workload} {variant}"
    assert last.startswith(
        f"{'Known gap, which fails no run' if known else 'Invalid, so that this run fails'}: {name}: "
    )
    assert BenchOutcome(Path("x"), groups, platforms=platforms).counts is known
