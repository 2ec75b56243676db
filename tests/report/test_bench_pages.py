"""The pages of benchmarks in a real browser, opened from disk as a reader opens them; history and compare last."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.run import alerts
from ampcheck.report import build
from ampcheck.report.benchmarks.history import KINDS, changes, load
from tests.report.made_bench import day, made_group, many_run_groups, two_run_groups, written


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return two_run_groups(tmp_path_factory.mktemp("run_groups"))


@pytest.fixture(scope="module")
def site(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    page = build(paths, tmp_path_factory.mktemp("built") / "site")
    assert page.name == "bench.html", "the first page would say that there is no run"
    return page.parent


# ---- results


def test_the_page_opens_with_what_is_worse_then_speed_then_scaling_changes_and_alerts(site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / "bench.html")
    assert browser.text(".state.red") == (
        "Worse than before. 6 variants of workloads are slower, no longer valid, or of a worse verdict."
    )
    assert browser.text(".cause").split("\n") == [
        "Where",
        "cpu/eager/mm-256/bf16, cpu/eager/mm-16/fp16, cpu/eager/mm-64/fp16 and 3 more",
        "Since",
        "2026-11-21 03:00; not so on 2026-11-20 03:00",
        "Why",
        "Not the whole machine: 1 of 7 baselines are slower, too.",
        "What to do",
        "Measure again. What stays worse is in What changed, with both times and its history.",
    ]
    headings = [text.split()[0] for text in browser.texts("h2")]
    assert headings == ["cpu", "virtual:<b>x</b>", "tpu-v5e", "Scaling:", "What", "Alerts", "Every", "How"]
    tiles = browser.texts("[aria-labelledby=changed] .tile a")
    assert tiles == ["1 flipped", "2 lost", "3 slower", "4 gone", "4 new", "1 regained", "0 faster", "17 unchanged"]
    assert browser.texts("[aria-label='Changed series'] tbody th")[0] == "cpu/eager/mm-256/bf16"
    row = browser.evaluate(
        "[...document.querySelectorAll('tbody.row')].find(b => b.dataset.text.startsWith('cpu/eager/mm-1024'))"
        ".rows[3].innerText.split(/\\s*\\t\\s*/)"
    )
    assert row[:7] == ["bf16", "10.5 ms", "2.56 ms", "4.10× [4.06, 4.14]", "▲ faster", "2.9e-03", "3.00 MiB"]


def test_what_is_not_valid_is_visible_and_has_no_ratio(site: Path, browser: Any) -> None:
    browser.open(site / "bench.html")
    bad = browser.texts("tr.bad")
    assert len(bad) == 2
    assert "(5.12 µs)\t–\t✗ invalid" in bad[0]
    assert "No cast was seen: <img src=x" in bad[0]
    assert "–\t–\t∅ not measured" in bad[1]
    assert "RuntimeError: not implemented for 'Half'." in bad[1]
    assert "fp16" not in browser.text("tr:has(a[href$='mm-64']) .vh")


def test_estimates_are_labelled_wherever_they_appear(site: Path, browser: Any) -> None:
    browser.open(site / "bench.html")
    assert browser.texts("h2:has(.est)") == ["tpu-v5e jit estimate"]
    assert browser.texts("tr.head:has(.est) a") == ["mm-1024"]
    assert browser.evaluate("document.querySelectorAll('.dot.hollow').length") == 3
    browser.open(site / "history.html", "q=tpu")
    assert browser.texts(".card h2 .est") == ["estimate"]
    browser.open(site / "compare.html", "q=tpu")
    assert browser.texts("#comparison .est") == ["estimate", "estimate"]


def shown(browser: Any) -> int:
    return browser.evaluate("[...document.querySelectorAll('tbody.row')].filter(r => r.offsetHeight).length")


def test_results_filter_and_keep_the_filter_in_the_address(site: Path, browser: Any) -> None:
    browser.open(site / "bench.html")
    assert shown(browser) == 9
    for name, value, want in (
        ("q", "mm 1024", 2),
        ("device", "tpu-v5e", 1),
        ("compiler", "jit", 1),
        ("family", "steps", 1),
        ("verdict", "invalid", 1),
        ("verdict", "not-measured", 1),
    ):
        browser.open(site / "bench.html")
        browser.fill(name, value)
        assert shown(browser) == want, (name, value)
        address = browser.evaluate("location.hash")
        browser.open(site / "bench.html", address.removeprefix("#"))
        assert shown(browser) == want, f"{address} shows what was filtered"
        assert f"{want} of 9 workloads." == browser.text("#summary")
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    assert (shown(browser), browser.evaluate("location.hash")) == (9, "")
    browser.open(site / "bench.html", "device=elsewhere")
    assert shown(browser) == 0, "an unknown value shows nothing, not all"


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sixty run groups of twelve groups; every tenth makes a step."""
    return many_run_groups(tmp_path_factory.mktemp("long"), 60, 12)


@pytest.fixture(scope="module")
def long_site(long: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(long, tmp_path_factory.mktemp("built") / "site").parent


# ---- history


def place(name: str) -> str:
    return f"ampbench.data.series.findIndex((_, s) => ampbench.name(s) === {json.dumps(name)})"


def decoded(browser: Any, name: str, column: str) -> list[float | None]:
    return browser.evaluate(f"[...ampbench.columns({place(name)}).{column}].map(v => Number.isNaN(v) ? null : v)")


def test_the_page_decodes_what_python_packed(long: list[Path], long_site: Path, browser: Any) -> None:
    browser.open(long_site / "history.html")
    history = load(long)
    for key, variant in (("cpu/eager/mm-16", "fp32"), ("jax/eager/mm-16", "bf16")):
        results = [run_group.result(key, variant) for run_group in reversed(history.run_groups)]
        for column, name in (("seconds", "seconds"), ("low", "low"), ("speed", "speed"), ("error", "error")):
            want = [getattr(result, name) for result in results]
            found = decoded(browser, f"{key}/{variant}", column)
            for one, two in zip(found, want, strict=True):
                assert (one is None) == (two is None)
                assert one is None or one == pytest.approx(two, rel=2e-3)
    assert decoded(browser, "cpu/eager/mm-16/fp32", "speed") == [None] * 60


def test_the_band_is_what_an_alert_must_exceed(tmp_path: Path, browser: Any) -> None:
    times = [1e-3 * (1 + 0.04 * math.sin(37 * n)) for n in range(40)]
    groups = [made_group("mm-512", seconds=time) for time in times]
    paths = [written(tmp_path / f"{n}.jsonl", [one], [], started=day(n)) for n, one in enumerate(groups)]
    build(paths, tmp_path / "site")
    browser.open(tmp_path / "site/history.html")
    run_group, low, high = browser.evaluate(f"ampband({place('cpu/eager/mm-512/fp32')}, 0).at(-1)")
    before = times[run_group - alerts.BASELINE : run_group]
    move = alerts.moved([*before, 2e-3, 2e-3, 2e-3])
    assert run_group == 39
    middle = math.sqrt(low * high)
    assert high / middle == pytest.approx(move.threshold, rel=2e-3)
    assert 2e-3 * move.ratio == pytest.approx(middle, rel=2e-3)
    assert move.threshold > 1.055, "the spread decides, not the smallest step"


def test_steps_and_version_changes_are_marked(long_site: Path, browser: Any) -> None:
    browser.show()
    browser.open(long_site / "history.html")
    browser.evaluate(
        "window.marks = []; window.plots = []; const draw = chart.draw; chart.draw = (place, what) => {"
        " marks.push(...what.marks.map(mark => mark.kind)); plots.push(draw(place, what)); return plots.at(-1); }"
    )
    browser.fill("only", "steps")
    marked = browser.texts(".card h2")
    assert len(marked) >= 2
    assert any(text.startswith("mm-16") and "cpu" in text for text in marked)
    events = " ".join(browser.texts(".events li"))
    assert "torch 2.12.0 → 2.13.0" in events
    assert "step, fp32 slower: 0.7" in events
    assert set(browser.evaluate("marks")) >= {"moved", "slower"}
    splits = browser.evaluate("plots.map(plot => plot.axes[1]._splits)")
    assert all(1 < len(numbers) < 10 for numbers in splits)
    assert all(n == pytest.approx(float(f"{n:.2g}")) for numbers in splits for n in numbers), "they are round"
    assert browser.problems == []


def test_arrow_keys_tell_the_ratios_or_times_of_a_run_group(long_site: Path, browser: Any) -> None:
    def last() -> str:
        browser.evaluate("document.querySelector('.chart').focus()")
        browser.press("ArrowLeft")
        browser.evaluate("new Promise(requestAnimationFrame)")
        return browser.text(".chart .u-legend")

    browser.open(long_site / "history.html", "q=cpu/eager/mm-16&show=speed&run_groups=30")
    assert "30 run groups" in browser.text("#summary")
    assert day(-1)[:10] in last()
    assert "3×" in last()
    browser.fill("show", "")
    assert "×" not in last()
    assert "ns" in last()


# ---- compare


def test_the_compare_page_agrees_with_the_library(paths: list[Path], site: Path, browser: Any) -> None:
    history = load(paths)
    want: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for change in changes(history.previous, history.newest):
        want[change.kind].add(f"{change.key}/{change.variant}")
    browser.open(site / "compare.html")
    headings = browser.evaluate("[...document.querySelectorAll('#comparison h2')].map(h => h.id)")
    assert headings == [kind for kind in KINDS if want[kind]]
    for kind, names in want.items():
        label = "unchanged" if kind == "rest" else kind
        found = browser.texts(f"[aria-label='{label}'] tbody th")
        assert {text.replace("estimate", "").replace(" ", "/", 1).replace(" ", "") for text in found} == names, kind
    assert "p = 0.012" in browser.text("#slower ~ .scroll")
    assert "two-run test" in browser.text()


def test_older_pairs_are_compared_by_intervals_and_say_so(long_site: Path, browser: Any) -> None:
    browser.open(long_site / "compare.html", f"a={day(-60)}&b={day(-1)}".replace("+", "%2B"))
    text = browser.text()
    assert "Only medians and ranges of these run groups are kept here" in text
    assert "torch went from 2.12.0 to 2.13.0." in text
    assert "(intervals compared)" in text
    slower = browser.texts("[aria-label=slower] tbody th")
    assert {name.partition(" ")[0] for name in slower} >= {"cpu/eager/mm-16"}
    browser.evaluate("document.getElementById('swap').click()")
    faster = browser.texts("[aria-label=faster] tbody th")
    assert {name.partition(" ")[0] for name in faster} >= {"cpu/eager/mm-16"}
    assert browser.problems == []


def test_a_linked_run_group_that_is_not_here_is_said(site: Path, browser: Any) -> None:
    browser.open(site / "compare.html", "a=2020-01-01T02:00:00Z")
    assert "The linked run 2020-01-01T02:00:00Z is not here" in browser.text()
