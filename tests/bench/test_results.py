"""Rounds of several processes become groups, and groups become tables, summaries, exports and a page."""

import csv
import io
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import Group, Rounds
from ampcheck.bench.run import ceilings, exports, readme
from ampcheck.bench.run.ceilings import Peaks
from ampcheck.bench.run.exports import samples
from ampcheck.bench.run.runfile import BenchRun, read
from ampcheck.bench.run.summary import SHOWN, by_estimate, compare_with_default, summarize, summary
from ampcheck.bench.run.variants import NO_PRODUCT
from ampcheck.bench.session import BenchOutcome
from ampcheck.errors import UsageError
from ampcheck.report.benchmarks import pages
from ampcheck.report.benchmarks.history import BenchHistory, load
from tests.cli_support import ended
from tests.report.made_bench import PLAIN, made_group, rounds_of, two_run_groups, written

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
        assert (read(old).groups, samples(old)) == (read(new).groups, samples(new))
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
    assert (table.ratio(bf16), table.time(bf16)) == (f"≤ {high / 0.25:.5f}×" if at_most else "–", "≥ 250 ms")


@pytest.mark.parametrize("bad", [0.0, math.nan, -1e-3])
def test_a_sample_that_is_no_time_makes_its_variant_invalid(bad: float) -> None:
    rounds = processes(SPEEDS)
    rounds[3].samples["bf16"][2] = bad
    group = one(rounds)
    found = group.variant("bf16")
    assert (found.verdict, found.seconds) == ("invalid", None)
    assert found.reason == f"a sample of {bad:g} s cannot be the time of a call"
    assert group.variant("bf16-native").verdict == "slower"


# ---- what is made of groups: tables, the summary of a run, exports


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


# ---- the summary at the end of a run


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
        ("sdpa", "jax", "fp16", "error 5.0e-01 is beyond what fp16 gives (8e-03 at most)", "cpu", False),
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


# ---- exports


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> BenchRun:
    """A run group with an invalid variant, one not measured, an estimate, a step and overhead."""
    return read(two_run_groups(tmp_path_factory.mktemp("run_groups"))[1])


def test_pytest_benchmark_compares_two_exported_runs(run: BenchRun, tmp_path: Path) -> None:
    paths = [tmp_path / "0001_a.json", tmp_path / "0002_b.json"]
    for path in paths:
        path.write_text(exports.pytest_benchmark_json(run), encoding="utf-8")
    command = [sys.executable, "-m", "pytest_benchmark", "compare", *map(str, paths), "--group-by=fullname"]
    done = ended(command, tmp_path, code=0)
    assert "cpu/eager/mm-1024/bf16" in done.stdout
    assert "2 tests" in done.stdout
    assert "Failed to load" not in done.stdout + done.stderr


def test_no_json_holds_what_is_not_valid(run: BenchRun) -> None:
    saved = json.loads(exports.pytest_benchmark_json(run))
    left = {one["name"]: one["reason"] for one in saved["left_out"]}
    assert left["cpu/eager/mm-64/fp16"] == "RuntimeError: not implemented for 'Half'"
    assert left["tpu-v5e/jit/mm-1024/bf16"] == "an estimate"
    smaller = json.loads(exports.smaller_is_better(run))
    names = {one["fullname"] for one in saved["benchmarks"]} | {one["name"] for one in smaller}
    assert not names & {"cpu/eager/mm-16/fp16", "cpu/eager/mm-64/fp16"}
    assert "tpu-v5e/jit/mm-1024/bf16 (estimate)" in names
    (found,) = [one for one in smaller if one["name"] == "cpu/eager/mm-1024/bf16"]
    assert found["extra"] == "verdict: faster\nspeed: 4.10× [4.06, 4.14] beside fp32 (10.5 ms)\nerror: 2.9e-03"
    assert (found["unit"], found["range"]) == ("s", f"± {found['value'] * 0.025:.3g}")


def test_csv_has_every_variant_with_its_baseline_verdict_and_reason(run: BenchRun) -> None:
    rows = list(csv.DictReader(io.StringIO(exports.as_csv(run))))
    assert len(rows) == sum(len(group.variants) for group in run.groups.values())
    (bad,) = [row for row in rows if (row["workload"], row["variant"]) == ("mm-16", "fp16")]
    assert (bad["verdict"], bad["reason"][:16]) == ("invalid", "no cast was seen")
    (good,) = [r for r in rows if (r["workload"], r["device"], r["variant"]) == ("mm-1024", "cpu", "bf16")]
    assert float(good["baseline_seconds"]) / float(good["seconds"]) == pytest.approx(4.1)
    assert (good["baseline"], {row["estimate"] for row in rows if row["device"] == "tpu-v5e"}) == ("fp32", {"True"})


def test_an_incomplete_run_is_said_so(tmp_path: Path) -> None:
    cut = read(written(tmp_path / "cut.jsonl", [made_group()], footer=False))
    assert "**Incomplete:** the run was interrupted." in exports.as_markdown(cut)
    whole = read(written(tmp_path / "whole.jsonl", [made_group()]))
    assert "Incomplete" not in exports.as_markdown(whole)
    whole.footer = {"interrupted": True}
    assert "**Incomplete:**" in exports.as_markdown(whole)


def estimates(folder: Path, present: Sequence[str], interrupted: bool = True, **header: Any) -> BenchRun:
    made = [made_group(name, "tpu-v5e", estimate=True, compiler="jit") for name in present]
    run = read(written(folder / "estimates.jsonl", made, [], devices={"tpu-v5e": {}}))
    run.header |= header
    run.footer = {"interrupted": interrupted}
    return run


ASKED = ["tpu-v5e/jit/mm-1024", "tpu-v5e/jit/add"]
COMMAND = ["ampcheck", "bench", "--device", "tpu-v5e", "--filter", "mm-1024", "--filter=add"]


@pytest.mark.parametrize("header", [{"groups": ASKED}, {"command": COMMAND}], ids=["groups", "an older file"])
def test_estimates_are_complete_by_their_groups(tmp_path: Path, header: dict[str, Any]) -> None:
    whole = estimates(tmp_path, ["mm-1024", "add"], **header)
    assert exports.incomplete(whole) == ""
    whole.footer, whole.note = None, "the run was interrupted"  # ended after the last group
    assert exports.incomplete(whole) == ""
    del whole.groups["tpu-v5e/jit/add"]
    assert exports.incomplete(whole) == "1 of 2 estimates is missing: tpu-v5e/jit/add"
    whole.footer, whole.note = {"interrupted": False}, ""
    assert exports.incomplete(whole) == "1 of 2 estimates is missing: tpu-v5e/jit/add"
    whole.groups.clear()
    assert exports.incomplete(whole).startswith("2 of 2 estimates are missing: ")


def test_a_run_that_measured_too_is_interrupted(tmp_path: Path) -> None:
    mixed = estimates(tmp_path, ["mm-1024"], groups=[*ASKED, "cpu/eager/add"])
    assert exports.incomplete(mixed) == "the run was interrupted"
    mixed.header = {"devices": {"tpu-v5e": {}, "cpu": {}}, "command": COMMAND}
    assert exports.incomplete(mixed) == "the run was interrupted"
    mixed.header = {"devices": {"tpu-v5e": {}}, "command": [*COMMAND, "--filter", "of-another-version"]}
    assert exports.incomplete(mixed) == "the run was interrupted", "nobody can tell what it was asked for"


# ---- the picture and tables of docs/benchmarks.md

COLUMN = ("cpu", "eager")


def column(**fields: object) -> dict[tuple[str, str], dict[str, Group]]:
    """A column of one workload, in which bf16 is four times as fast."""
    return {COLUMN: {"mm-64": made_group("mm-64", seconds=4e-3, variants={"fp32": 1, "bf16": 4}, **fields)}}


@pytest.mark.parametrize(
    ("verdict", "words"),
    [("faster", "4.00 ms → 1.00 ms, **4.00×** faster"), ("invalid", "invalid"), ("not measured", "not measured")],
)
def test_a_cell_has_both_times_and_the_ratio_of_what_counts(verdict: str, words: str) -> None:
    made = column()
    bf16 = made[COLUMN]["mm-64"].variants[1]
    bf16.verdict, bf16.speed = verdict, 4.0 if verdict == "faster" else None
    text = readme.markdown(made)
    assert words in text
    assert ("ms" in text) == ("ms" in words)
    estimate = column(estimate=True)
    assert "cpu eager (estimate)" in readme.markdown(estimate)
    assert "cpu eager (estimate)" in readme.picture(estimate)


def tpu(device: str, *speeds: tuple[str, float]) -> tuple[tuple[str, str], dict[str, Group]]:
    """A column of estimates: by workload, how fast bf16 is beside a default that takes a quarter of float32's time."""
    groups = {}
    for workload, speed in speeds:
        variants = {"fp32": 1, "fp32-default": 4, "bf16": 4 * speed}
        groups[workload] = made_group(workload, device, seconds=4e-3, variants=variants, compiler="jit", estimate=True)
        compare_with_default(groups[workload], by_estimate)
    return (device, "jit"), groups


def test_a_tpu_has_a_column_beside_its_default() -> None:
    columns = dict([tpu("tpu-v5e", ("mm-1024", 0.8), ("mm-8192", 0.99))])
    text = readme.markdown(columns)
    assert "| tpu-v5e jit (estimate), float32 in full" in text
    assert "| tpu-v5e jit (estimate), float32 by default" in text
    assert "4.00 ms → 1.25 ms, **3.20×** faster" in text
    assert "1.00 ms → 1.25 ms, **0.80×** slower" in text
    assert "1.00 ms → 1.01 ms, **0.99×** same" in text
    assert "beside its default" in readme.picture(columns)
    assert "by default" not in readme.markdown(column())


def test_the_sentence_counts_where_autocast_is_slower_than_the_default() -> None:
    columns = dict([tpu("tpu-v5e", ("mm-1024", 0.8), ("mm-8192", 0.99), ("add", 1.3)), tpu("tpu-v6e", ("add", 0.5))])
    assert readme.sentence(columns).endswith(
        "bf16 under autocast is slower in 2 of 3 workloads (1 of them by more than 2%) on tpu-v5e and in 1 of 1 "
        "workloads on tpu-v6e.\n"
    )
    assert readme.sentence(column()) == ""
    without = dict([tpu("tpu-v5e", ("add", 0.8))])
    default = without["tpu-v5e", "jit"]["add"].variants[1]
    default.verdict, default.reason, default.seconds = "not measured", NO_PRODUCT, None
    without["tpu-v5e", "jit"]["add"].variants[2].default_speed = None
    assert readme.sentence(without) == "", "without a product there is nothing to shorten"
    assert "no product" in readme.markdown(without)


# ---- what the pages show of the published files


@pytest.fixture(scope="module")
def history() -> BenchHistory:
    return load(sorted(readme.PUBLISHED.glob("*.jsonl")))


def test_the_pages_have_the_speed_beside_the_default(history: BenchHistory) -> None:
    groups = {group.device: group for group in pages.results(history, [])["groups"] if group.workload == "mm-1024"}
    assert [table.ratio(groups["tpu-v5e"].variant("bf16"))] == ["2.41×"]
    assert [table.default_ratio(groups["tpu-v5e"].variant(name)) for name in ("fp32", "fp32-default")] == ["", ""]
    defaults = {device: table.default_ratio(group.variant("bf16")) for device, group in groups.items()}
    assert defaults == {"cpu": "", "jax": "", "tpu-v5e": "0.832× slower", "tpu-v6e": "0.864× slower"}


def test_the_page_has_what_the_published_files_say() -> None:
    text = readme.PAGE.read_text(encoding="utf-8")
    between = text.split(readme.BEGIN)[1].split(readme.END)[0]
    assert between == readme.text(readme.published()), "run python -m ampcheck.bench.run.readme"
    assert between.count("**") >= 20
