"""The README's benchmark picture and tables are those of the published files."""

from __future__ import annotations

import dataclasses

import pytest

from ampcheck.bench import readme
from ampcheck.bench.model import ArmResult, Group
from ampcheck.bench.runfile import BenchRun

COLUMN = ("cpu", "eager")


def group(verdict: str = "faster", speed: float | None = 4.0, **fields: object) -> Group:
    arms = [ArmResult("fp32", "first", seconds=4e-3), ArmResult("bf16", verdict, seconds=1e-3, speed=speed)]
    return dataclasses.replace(Group("mm-64", "matmul", "op", *COLUMN, arms=arms), **fields)  # type: ignore[arg-type]


def test_a_cell_has_both_times_and_the_ratio() -> None:
    text = readme.markdown({COLUMN: {"mm-64": group()}})
    assert "| mm-64" in text
    assert "4.00 ms → 1.00 ms, **4.00×** faster" in text


@pytest.mark.parametrize("verdict", ["invalid", "not measured"])
def test_what_does_not_count_is_no_number(verdict: str) -> None:
    text = readme.markdown({COLUMN: {"mm-64": group(verdict, None)}})
    assert verdict in text
    assert "ms" not in text


def test_estimates_are_called_that() -> None:
    columns = {COLUMN: {"mm-64": group(estimate=True)}}
    assert "cpu eager (estimate)" in readme.markdown(columns)
    assert "cpu eager (estimate)" in readme.picture(columns)


def test_the_newest_file_counts() -> None:
    runs = []
    for speed in (2.0, 3.0):
        one = group(speed=speed)
        runs.append(BenchRun(readme.ROOT / "x.jsonl", {}, {one.key: one}, {}, ""))
    arm = readme.chosen(runs)[COLUMN]["mm-64"].arm("bf16")
    assert arm is not None
    assert arm.speed == 3.0


def test_the_picture_is_drawn_the_same_twice() -> None:
    columns = readme.chosen(readme.published())
    assert columns
    assert readme.picture(columns) == readme.picture(columns)


def test_the_readme_has_what_the_published_files_say() -> None:
    text = (readme.ROOT / "README.md").read_text(encoding="utf-8")
    between = text.split(readme.BEGIN)[1].split(readme.END)[0]
    assert between == readme.text(readme.published()), "run python -m ampcheck.bench.readme"
    assert between.count("**") >= 20
