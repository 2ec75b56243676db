"""History and Compare of benchmarks in a real browser: what is packed, steps, colours, any two run groups."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.run import alerts
from ampcheck.report import build
from ampcheck.report.benchmarks.changes import KINDS, changes
from ampcheck.report.benchmarks.pages import NAV
from ampcheck.report.benchmarks.run_groups import load
from tests.report.made_bench import day, made_group, many_run_groups, two_run_groups, written

PAGES = list(NAV.values())


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return two_run_groups(tmp_path_factory.mktemp("run_groups"))


@pytest.fixture(scope="module")
def site(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(paths, tmp_path_factory.mktemp("built") / "site").parent


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Sixty run groups of twelve groups; every tenth makes a step."""
    return many_run_groups(tmp_path_factory.mktemp("long"), 60, 12)


@pytest.fixture(scope="module")
def long_site(long: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(long, tmp_path_factory.mktemp("built") / "site").parent


def fill(browser: Any, name: str, value: str) -> None:
    browser.evaluate(
        f"{{ const f = document.forms[0].elements[{json.dumps(name)}]; f.value = {json.dumps(value)};"
        " f.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


def texts(browser: Any, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.innerText)")


# ---- history


def decoded(browser: Any, name: str, column: str) -> list[float | None]:
    """A column of a series as the page decodes it."""
    find = f"ampbench.data.series.findIndex((_, s) => ampbench.name(s) === {json.dumps(name)})"
    return browser.evaluate(f"[...ampbench.columns({find}).{column}].map(v => Number.isNaN(v) ? null : v)")


def test_the_page_decodes_what_python_packed(long: list[Path], long_site: Path, browser: Any) -> None:
    browser.open(long_site / "bench_history.html")
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


def test_absent_run_groups_and_reasons_come_back(site: Path, browser: Any) -> None:
    browser.open(site / "bench_history.html")
    assert decoded(browser, "cpu/eager/gone-op/bf16", "seconds")[1] is None
    assert decoded(browser, "virtual:<b>x</b>/eager/new-op/bf16", "seconds")[0] is None
    find = "ampbench.data.series.findIndex((_, s) => ampbench.name(s) === 'cpu/eager/mm-16/fp16')"
    assert browser.evaluate(f"ampbench.columns({find}).reason(1)").startswith("no cast was seen")
    assert browser.evaluate(f"ampbench.columns({find}).verdicts") == ["slower", "invalid"]


def test_the_band_is_what_an_alert_must_exceed(tmp_path: Path, browser: Any) -> None:
    times = [1e-3 * (1 + 0.04 * math.sin(37 * n)) for n in range(40)]
    paths = [
        written(tmp_path / f"{n}.jsonl", [made_group("mm-512", seconds=time)], [], started=day(n))
        for n, time in enumerate(times)
    ]
    build(paths, tmp_path / "site")
    browser.open(tmp_path / "site/bench_history.html")
    find = "ampbench.data.series.findIndex((_, s) => ampbench.name(s) === 'cpu/eager/mm-512/fp32')"
    run_group, low, high = browser.evaluate(f"ampband({find}, 0).at(-1)")
    before = times[run_group - alerts.BASELINE : run_group]
    move = alerts.moved([*before, 2e-3, 2e-3, 2e-3])
    assert run_group == 39
    assert move is not None
    middle = math.sqrt(low * high)
    assert high / middle == pytest.approx(move.threshold, rel=2e-3)
    assert 2e-3 * move.ratio == pytest.approx(middle, rel=2e-3)
    assert move.threshold > 1.055, "the spread decides, not the smallest step"


def test_steps_and_version_changes_are_marked(long_site: Path, browser: Any) -> None:
    browser.show()
    browser.open(long_site / "bench_history.html", "only=steps")
    marked = texts(browser, ".card h2")
    assert len(marked) >= 2
    assert any(text.startswith("mm-16") and "cpu" in text for text in marked)
    events = " ".join(texts(browser, ".events li"))
    assert "torch 2.12.0 → 2.13.0" in events
    assert "step, fp32 slower: 0.7" in events
    assert browser.evaluate("document.querySelectorAll('.chart line.step').length") >= 2
    assert browser.evaluate("document.querySelectorAll('.chart line.moved').length") >= 2
    assert browser.problems == []


def test_hiding_a_variant_leaves_the_colours_of_the_others(long_site: Path, browser: Any) -> None:
    browser.open(long_site / "bench_history.html", "q=cpu/eager/mm-16")
    strokes = "[...document.querySelectorAll('.chart svg path[style*=stroke]')].map(p => p.style.stroke)"
    before = browser.evaluate(strokes)
    assert before == ["var(--a0)", "var(--a0)", "var(--a3)", "var(--a4)"]
    browser.evaluate("document.querySelector('#variants input[value=fp32]').click()")
    assert browser.evaluate(strokes) == before[1:]
    assert browser.evaluate("location.hash") == "#q=cpu%2Feager%2Fmm-16&hide=fp32"
    browser.open(long_site / "bench_history.html", "q=cpu/eager/mm-16&hide=fp32&hide=bf16")
    assert browser.evaluate(strokes) == ["var(--a0)", "var(--a4)"]
    assert browser.evaluate("document.querySelector('#variants input[value=bf16]').checked") is False


def test_history_shows_ratios_and_fewer_run_groups(long_site: Path, browser: Any) -> None:
    browser.open(long_site / "bench_history.html", "q=cpu/eager/mm-16&show=speed&run_groups=30")
    assert "30 run groups" in browser.text("#summary")
    labels = "[...document.querySelectorAll('.chart svg > text')].map(t => t.textContent).join(' ')"
    assert "3×" in browser.evaluate(labels)
    fill(browser, "show", "")
    assert "×" not in browser.evaluate(labels)
    assert "ns" in browser.evaluate(labels)


# ---- compare


def test_the_compare_page_agrees_with_the_library(paths: list[Path], site: Path, browser: Any) -> None:
    history = load(paths)
    assert history.newest
    assert history.previous
    want: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for change in changes(history.previous, history.newest):
        want[change.kind].add(f"{change.key}/{change.variant}")
    browser.open(site / "bench_compare.html")
    headings = browser.evaluate("[...document.querySelectorAll('#comparison h2')].map(h => h.id)")
    assert headings == [kind for kind in KINDS if want[kind]]
    for kind, names in want.items():
        label = "unchanged" if kind == "rest" else kind
        found = texts(browser, f"[aria-label='{label}'] tbody th")
        assert {text.replace("estimate", "").replace(" ", "/", 1).replace(" ", "") for text in found} == names, kind
    assert "p = 0.012" in browser.text("#slower ~ .scroll")
    assert "two-run test" in browser.text()


def test_older_pairs_are_compared_by_intervals_and_say_so(long_site: Path, browser: Any) -> None:
    browser.open(long_site / "bench_compare.html", f"a={day(-60)}&b={day(-1)}".replace("+", "%2B"))
    text = browser.text()
    assert "Only medians and ranges of these run groups are kept here" in text
    assert "torch went from 2.12.0 to 2.13.0." in text
    assert "(intervals compared)" in text
    slower = texts(browser, "[aria-label=slower] tbody th")
    assert {name.partition(" ")[0] for name in slower} >= {"cpu/eager/mm-16"}
    browser.evaluate("document.getElementById('swap').click()")
    faster = texts(browser, "[aria-label=faster] tbody th")
    assert {name.partition(" ")[0] for name in faster} >= {"cpu/eager/mm-16"}
    assert browser.problems == []


def test_a_linked_run_group_that_is_not_here_is_said(site: Path, browser: Any) -> None:
    browser.open(site / "bench_compare.html", "a=2020-01-01T02:00:00Z")
    assert "The linked run group 2020-01-01T02:00:00Z is not here" in browser.text()
