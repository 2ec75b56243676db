"""Exports are what other programs read: pytest-benchmark itself, CSV, Markdown, github-action-benchmark's schema."""

from __future__ import annotations

import csv
import io
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.run import exports
from ampcheck.bench.run.runfile import BenchRun, read
from tests.report.made_bench import HEADER, made_group, two_run_groups, written


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


def test_pytest_benchmark_statistics_are_those_it_computes_itself(run: BenchRun) -> None:
    theirs = pytest.importorskip("pytest_benchmark.stats").Stats()
    saved = json.loads(exports.pytest_benchmark_json(run))
    (found,) = [one for one in saved["benchmarks"] if one["fullname"] == "cpu/eager/mm-1024/bf16"]
    values = [v for process in exports.samples(run.path)["cpu/eager/mm-1024"]["bf16"] for v in process]
    for value in values:
        theirs.update(value)
    want = theirs.as_dict()
    assert found["stats"].keys() >= want.keys()
    # Its quartiles follow another rule, so what hangs on them may differ by a sample.
    for name in ("min", "max", "mean", "stddev", "rounds", "median", "ops", "total", "stddev_outliers"):
        assert found["stats"][name] == pytest.approx(want[name]), name
    assert found["stats"]["iqr"] == pytest.approx(want["iqr"], rel=0.2)
    assert found["extra_info"]["speed"] == pytest.approx(4.1)
    assert saved["machine_info"]["versions"] == HEADER["versions"]


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


def test_the_summary_counts_and_gives_reasons(run: BenchRun) -> None:
    text = exports.as_markdown(run)
    assert "1 invalid" in text
    assert "1 not measured" in text
    assert "| mm-1024 | cpu | eager | bf16 | fp32 10.5 ms | 2.56 ms | 4.10× [4.06, 4.14] | faster | 2.9e-03 |" in text
    assert "| mm-16 | cpu | eager | fp16 | fp32 2.56 µs | (5.12 µs) | – | invalid |" in text
    assert "mm-1024 (estimate)" in text
    assert "- cpu/eager/mm-16: fp16 invalid: no cast was seen: &lt;img src=x" in text


def test_an_incomplete_run_is_said_so(tmp_path: Path) -> None:
    cut = read(written(tmp_path / "cut.jsonl", [made_group()], footer=False))
    assert "**Incomplete:** the run was interrupted." in exports.as_markdown(cut)
    whole = read(written(tmp_path / "whole.jsonl", [made_group()]))
    assert "Incomplete" not in exports.as_markdown(whole)
    whole.footer = {"interrupted": True}
    assert "**Incomplete:**" in exports.as_markdown(whole)


def estimates(folder: Path, present: Sequence[str], interrupted: bool = True, **header: Any) -> BenchRun:
    """A file of estimates of some workloads."""
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
