"""Sizes where autocast starts to pay, colours, packed columns, plots; no browser is needed."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from ampcheck.report import build
from ampcheck.report.benchmarks import plots
from ampcheck.report.benchmarks.data import color, extra_names, pack
from ampcheck.report.benchmarks.run_groups import load
from ampcheck.report.benchmarks.scaling import Point, axes, crossing, crossover
from tests.report.made_bench import two_run_groups

# ---- sizes


@pytest.mark.parametrize(
    ("speeds", "want"),
    [
        ({16: 0.2, 64: 0.4, 256: 3.3}, "from about 117 on"),
        ({16: 1.2, 64: 1.4}, "from the smallest size on (16)"),
        ({16: 0.2, 64: 0.9}, "never up to 64"),
        ({16: 1.2, 64: 0.5, 256: 2.0}, "from about 128 on (and already at 16)"),
        ({16: 1.2, 64: 0.5}, "not at 64, the largest size; it pays at 16"),
        ({16: 1.2}, "fewer than two sizes have a valid ratio"),
    ],
)
def test_where_autocast_starts_to_pay(speeds: dict[int, float], want: str) -> None:
    assert crossover([Point(size, speed) for size, speed in reversed(speeds.items())]) == want


def test_between_two_sizes_logarithms_are_interpolated() -> None:
    assert crossing(Point(100, 0.5), Point(400, 2.0)) == pytest.approx(200)
    assert crossing(Point(100, 0.5), Point(400, 1.0)) == pytest.approx(400)


def test_sizes_without_a_valid_ratio_are_left_out(tmp_path: Path) -> None:
    history = load(two_run_groups(tmp_path))
    assert history.newest
    (axis,) = axes(history.newest.groups)
    fp16 = next(curve for curve in axis.curves if curve.variant == "fp16")
    assert (axis.sizes, fp16.left_out) == ([16, 64, 256, 1024], [16, 64])
    assert [point.size for point in fp16.points] == [256, 1024]


# ---- colours, packing, plots


def test_a_variant_has_one_colour_with_or_without_others(tmp_path: Path) -> None:
    other = extra_names(load(two_run_groups(tmp_path)))
    assert other == ["fresh", "reused"]
    assert color("bf16", other) == color("bf16", []) == color("bf16-aa", [])
    assert len({color(variant, other) for variant in ("fp32", "bf16", "fp16", "bf16-native", "fresh", "reused")}) == 6


def test_packing_is_short_and_exact() -> None:
    assert pack([0, 1, 0, -1, None, None, 5]) == "ACBB.CM"
    assert pack([]) == ""
    assert len(pack([1000 + (n % 7) for n in range(400)])) < 410


def test_plots_are_the_same_bytes_in_the_pages_colours_and_named() -> None:
    dots = [plots.Dot(1e-3 * n, 0.5 * n, n % 3, f"mm-{n} <b>", "op", n == 4) for n in range(1, 6)]
    svg = plots.scatter("one", dots, "five & more")
    assert svg == plots.scatter("one", dots, "five & more")
    assert re.findall(r"#[0-9a-f]{6}", svg) == []
    assert "var(--a0)" in svg
    assert sorted(re.findall(r"<title>(.*?)</title>", svg)) == [f"mm-{n} &lt;b&gt;" for n in range(1, 6)]
    assert 'aria-label="five &amp; more"' in svg
    other = plots.roofline("two", dots, {"bf16": 1e12, "bandwidth": 1e11}, "roof")
    assert not set(re.findall(r' id="([^"]+)"', svg)) & set(re.findall(r' id="([^"]+)"', other))
    assert all(f'id="{name}"' in svg for name in re.findall(r'(?:url\(|href=")#([^")]+)', svg))


def test_without_matplotlib_the_site_is_built_and_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = plots.importlib.util.find_spec
    monkeypatch.setattr(plots.importlib.util, "find_spec", lambda name: None if name == "matplotlib" else found(name))
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # importing it raises
    build(two_run_groups(tmp_path / "run_groups"), tmp_path / "site")
    for name in ("bench_accuracy", "bench_roofline"):
        page = (tmp_path / f"site/{name}.html").read_text()
        assert "matplotlib is not installed here" in page
        assert "<svg" not in page
        assert "mm-1024" in page, "the table has the numbers all the same"


def test_ceilings_and_estimates_are_on_the_roofline(tmp_path: Path) -> None:
    build(two_run_groups(tmp_path / "run_groups"), tmp_path / "site")
    page = (tmp_path / "site/bench_roofline.html").read_text()
    assert "bf16 2.40 TFLOP/s" in page
    assert "bandwidth 20.0 GB/s" in page
    assert "The files name no ceilings of this device." in page
    assert "mm-1024 (estimate) jit bf16" in page
