"""Results for people and programs: numbers with units, tables, the summary of a run, exports."""

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core import table
from ampcheck.bench.core.model import Group
from ampcheck.bench.run import exports, readme
from ampcheck.bench.run.runfile import BenchRun, read
from ampcheck.bench.run.summary import SHOWN, by_estimate, compare_with_default, summary
from ampcheck.bench.run.variants import NO_PRODUCT
from ampcheck.bench.session import BenchOutcome
from ampcheck.report.benchmarks import pages
from ampcheck.report.benchmarks.history import BenchHistory, load
from tests.report.made_bench import PLAIN, made_group, two_run_groups, written


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
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
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
    assert good["baseline"] == "fp32"
    assert {row["estimate"] for row in rows if row["device"] == "tpu-v5e"} == {"True"}


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
    [
        ("faster", "4.00 ms → 1.00 ms, **4.00×** faster"),
        ("invalid", "invalid"),
        ("not measured", "not measured"),
    ],
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
