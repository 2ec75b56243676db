"""Numbers with units, and the table of a terminal."""

from __future__ import annotations

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import VariantResult
from tests.report.made_bench import made_group


@pytest.mark.parametrize(
    ("shown", "want"),
    [
        (table.seconds(1.2345e-3), "1.23 ms"),
        (table.seconds(0.99996e-3), "1.00 ms"),
        (table.seconds(4e-8), "40.0 ns"),
        (table.seconds(12.0), "12.0 s"),
        (table.seconds(None), "–"),
        (table.count(2.5e12, "FLOP/s"), "2.50 TFLOP/s"),
        (table.count(12.0, "B/s"), "12.0 B/s"),
        (table.memory(3 << 20), "3.00 MiB"),
        (table.memory(12), "12 B"),
        (table.error(2.94e-3), "2.9e-03"),
        (table.error(0.0), "0"),
        (table.memory(None) + table.error(None), "––"),
    ],
)
def test_numbers_have_three_digits_and_a_unit(shown: str, want: str) -> None:
    assert shown == want


@pytest.mark.parametrize(
    ("variant", "time", "ratio"),
    [
        (
            VariantResult("x", "faster", seconds=1.0, speed=3.414, speed_low=3.38, speed_high=3.4449),
            "1.00 s",
            "3.41× [3.38, 3.44]",
        ),
        (VariantResult("x", "invalid", seconds=1.0, speed=3.4), "(1.00 s)", "–"),
        (VariantResult("x", "first", seconds=1.0), "1.00 s", "–"),
        (VariantResult("x", "not measured", at_least=5.0, at_most=0.0123), "≥ 5.00 s", "≤ 0.0123×"),
        (VariantResult("x", "not measured", at_least=5.0), "≥ 5.00 s", "–"),
        (VariantResult("x", "slower", seconds=1.0, speed=0.5, at_least=0.9, at_most=0.6), "1.00 s", "0.500×"),
    ],
)
def test_a_figure_has_its_interval_and_no_ratio_without_validity(variant: VariantResult, time: str, ratio: str) -> None:
    assert (table.time(variant), table.ratio(variant)) == (time, ratio)


def test_speeds_beside_the_default_are_shown_below_the_group() -> None:
    group = made_group("mm-512")
    assert "fp32-default" not in table.table([group])
    bf16 = group.variants[2]
    bf16.default_speed, bf16.default_low, bf16.default_high, bf16.default_verdict = 0.83, 0.82, 0.84, "slower"
    (line,) = (line for line in table.table([group]).splitlines() if "fp32-default" in line)
    assert line.endswith(": bf16 0.830× [0.820, 0.840] slower")


def test_the_variants_of_a_group_are_below_each_other_with_both_times() -> None:
    lines = table.table([made_group("mm-512")]).splitlines()
    assert " ".join(lines[0].split()) == "workload device compiler variant time speed [95 %] verdict error"
    assert lines[2].split() == ["mm-512", "cpu", "eager", "fp32", "1.00", "ms", "–", "baseline", "1.2e-07"]
    assert lines[4].split()[:3] == ["bf16", "333", "µs"]
    assert "3.00× [2.97, 3.03]     faster" in lines[4]
    assert table.table([]) == "Nothing was measured."


def test_what_is_not_valid_has_its_reason_below_and_no_ratio() -> None:
    group = made_group("mm-512", estimate=True, note="from a cost model")
    bad, absent = group.variants[2], group.variants[3]
    bad.verdict, bad.reason = "invalid", "the kernel received fp32"
    absent.verdict, absent.seconds = "not measured", None
    lines = table.table([group]).splitlines()
    assert lines[2].startswith("mm-512 (estimate)")
    assert "(333 µs)  –" in lines[4]
    assert "3.00×" not in "\n".join(lines)
    assert [line.split("└")[1].strip() for line in lines if "└" in line] == [
        "bf16 invalid: the kernel received fp32",
        "fp16 not measured: no reason was given",
        "from a cost model",
    ]


def test_a_reason_of_several_lines_stays_below_its_own_group() -> None:
    groups = [made_group("mm-16"), made_group("mm-64")]
    groups[0].variants[3].verdict, groups[0].variants[3].reason = "invalid", "one\ntwo"
    lines = table.table(groups).splitlines()
    assert lines[6] == "  └ fp16 invalid: one two"
    assert lines[7].startswith("mm-64")
