"""The pages of benchmarks in a real browser, opened from disk as a reader opens them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import build
from ampcheck.report.benchmarks.pages import NAV
from tests.report.made_bench import two_run_groups

PAGES = list(NAV.values())


@pytest.fixture(scope="module")
def paths(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return two_run_groups(tmp_path_factory.mktemp("run_groups"))


@pytest.fixture(scope="module")
def site(paths: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(paths, tmp_path_factory.mktemp("built") / "site").parent


def fill(browser: Any, name: str, value: str) -> None:
    browser.evaluate(
        f"{{ const f = document.forms[0].elements[{json.dumps(name)}]; f.value = {json.dumps(value)};"
        " f.dispatchEvent(new Event('input', {bubbles: true})); }"
    )


def texts(browser: Any, selector: str) -> list[str]:
    return browser.evaluate(f"[...document.querySelectorAll({json.dumps(selector)})].map(n => n.innerText)")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_from_disk_in_every_setting(page: str, dark: bool, width: int, site: Path, browser: Any) -> None:
    browser.show(width, dark=dark)
    browser.open(site / page)
    assert browser.problems == []
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    bar = browser.evaluate("innerWidth - document.documentElement.clientWidth")
    assert browser.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width - bar, width]
    assert browser.evaluate("document.querySelectorAll('main img, main b').length") == 0, "texts are not markup"
    ids = "[...document.querySelectorAll('[id]')].map(n => n.id)"
    assert browser.evaluate(f"{ids}.length === new Set({ids}).size")
    current = "[...document.querySelectorAll('nav [aria-current]')].map(n => n.getAttribute('href'))"
    assert browser.evaluate(current) == [page]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_used_without_eyes_or_mouse(page: str, site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / page)
    unnamed = "[...document.querySelectorAll('input, select')].filter(f => !f.labels.length).map(f => f.name)"
    assert browser.evaluate(unnamed) == []
    bare = "[...document.querySelectorAll('.chip')].filter(c => !/[a-z]{4}/.test(c.textContent)).map(c => c.outerHTML)"
    assert browser.evaluate(bare) == [], "a verdict is told by words too"
    boxes = "[...document.querySelectorAll('table')].every(t => t.closest('.scroll[tabindex][role=region]'))"
    assert browser.evaluate(boxes), "a wide table scrolls in a box that the keyboard reaches"
    plots = (
        "[...document.querySelectorAll('main svg')].map(s => s.getAttribute('role') + !!s.getAttribute('aria-label'))"
    )
    assert set(browser.evaluate(plots)) <= {"imgtrue"}
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "main", "the skip link comes first"
    assert browser.problems == []


def test_lines_can_be_told_from_the_ground_in_both_schemes(site: Path, browser: Any) -> None:
    for dark in (False, True):
        browser.show(dark=dark)
        browser.open(site / "bench_accuracy.html")
        style = "getComputedStyle(document.documentElement)"
        names = [f"--a{number}" for number in range(12)]
        colors = [browser.evaluate(f"{style}.getPropertyValue('{name}')").strip() for name in ("--bg", *names)]
        assert len(set(colors)) == 13
        for color in colors[1:]:
            assert contrast(colors[0], color) >= 3, f"{color} on {colors[0]}"
        drawn = browser.evaluate("getComputedStyle(document.querySelector('svg.plot text')).fill")
        assert drawn == ("rgb(160, 170, 181)" if dark else "rgb(86, 96, 107)")


def contrast(one: str, other: str) -> float:
    """The contrast ratio of WCAG 2.2."""

    def luminance(color: str) -> float:
        parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


# ---- results


def test_results_say_first_what_changed_then_alerts_then_both_numbers(site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / "bench.html")
    text = browser.text()
    assert text.index("What changed since") < text.index("Alerts") < text.index("Workloads")
    tiles = texts(browser, ".tile a")
    assert tiles == ["1 flipped", "2 lost", "1 regained", "4 new", "4 gone", "3 slower", "0 faster", "17 unchanged"]
    assert texts(browser, "[aria-label='Changed series'] tbody th")[0] == "cpu/eager/mm-256/bf16"
    row = browser.evaluate(
        "[...document.querySelectorAll('tbody.row')].find(b => b.dataset.text.startsWith('cpu/eager/mm-1024'))"
        ".rows[3].innerText.split(/\\s*\\t\\s*/)"
    )
    assert row[:7] == ["bf16", "10.5 ms", "2.56 ms", "4.10× [4.06, 4.14]", "▲ faster", "2.9e-03", "3.00 MiB"]


def test_what_is_not_valid_is_visible_and_has_no_ratio(site: Path, browser: Any) -> None:
    browser.open(site / "bench.html")
    bad = texts(browser, "tr.bad")
    assert len(bad) == 2
    assert "(5.12 µs)\t–\t✗ invalid" in bad[0]
    assert "No cast was seen: <img src=x" in bad[0]
    assert "–\t–\t∅ not measured" in bad[1]
    assert "RuntimeError: not implemented for 'Half'." in bad[1]
    for page in ("bench_scaling", "bench_accuracy", "bench_roofline"):
        browser.open(site / f"{page}.html")
        titles = " ".join(browser.evaluate("[...document.querySelectorAll('main svg title')].map(t => t.textContent)"))
        assert "mm-64" in titles or page == "bench_scaling"
        assert "mm-64 eager fp16" not in titles


def test_estimates_are_labelled_wherever_they_appear(site: Path, browser: Any) -> None:
    for page in ("bench", "bench_accuracy", "bench_roofline", "bench_devices"):
        browser.open(site / f"{page}.html")
        assert browser.evaluate("document.querySelectorAll('.tag.est').length") > 0, page
    browser.open(site / "bench_history.html", "q=tpu")
    assert texts(browser, ".card h2 .est") == ["estimate"]
    browser.open(site / "bench_compare.html", "q=tpu")
    assert texts(browser, "#comparison .est") == ["estimate", "estimate"]


def shown(browser: Any) -> int:
    return browser.evaluate("[...document.querySelectorAll('tbody.row')].filter(r => r.offsetHeight).length")


def test_results_filter_and_keep_the_filter_in_the_address(site: Path, browser: Any) -> None:
    browser.open(site / "bench.html")
    assert shown(browser) == 9
    for name, value, want in (
        ("q", "mm 1024", 2),
        ("device", "tpu-v5e", 1),
        ("executor", "jit", 1),
        ("family", "steps", 1),
        ("verdict", "invalid", 1),
        ("verdict", "not-measured", 1),
    ):
        browser.open(site / "bench.html")
        fill(browser, name, value)
        assert shown(browser) == want, (name, value)
        address = browser.evaluate("location.hash")
        browser.open(site / "bench.html", address.removeprefix("#"))
        assert shown(browser) == want, f"{address} shows what was filtered"
        assert f"{want} of 9 workloads." == browser.text("#summary")
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    assert (shown(browser), browser.evaluate("location.hash")) == (9, "")
    browser.open(site / "bench.html", "device=elsewhere")
    assert shown(browser) == 0, "an unknown value shows nothing, not all"


# ---- devices and sizes


def test_devices_stand_in_the_order_of_the_alphabet_without_percentages(site: Path, browser: Any) -> None:
    browser.open(site / "bench_devices.html")
    assert texts(browser, "thead th")[3:] == ["cpu", "tpu-v5e", "virtual:<b>x</b>"]
    assert "%" not in browser.text("table")
    names = texts(browser, "tbody tr th")
    assert [name for name in dict.fromkeys(names) if name.startswith("mm")] == ["mm-16", "mm-64", "mm-256", "mm-1024"]
    assert "(5.12 µs) ✗ invalid" in browser.text("tr.row[data-text^='mm-16 '][data-variant=fp16]")


def test_sizes_have_a_crossover_and_a_chart(site: Path, browser: Any) -> None:
    browser.open(site / "bench_scaling.html")
    rows = dict(line.split("\t")[:2] for line in texts(browser, "tbody tr"))
    assert rows["bf16"] == "from about 370 on"
    assert rows["fp16"] == "never up to 1024"
    assert browser.evaluate("document.querySelectorAll('.chart svg path').length") >= 3
