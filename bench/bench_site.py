"""Time how the site opens and filters at 43 000 cases and 400 run groups of 300 benchmark series, in headless Chromium.

    pytest bench/bench_site.py

The limits are absolute, so they mean something on an idle machine alone: below 1.5 s to open, 0.2 s to filter.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.report.conftest import browser  # noqa: F401  # a fixture
from tests.report.test_pages import big_site  # noqa: F401  # a fixture

OPEN, FILTER = 1500, 200
"""Milliseconds."""


def fastest(browser: Any, page: Path, script: str, query: str = "") -> float:  # noqa: F811  # the fixture's value
    """Return the least of three openings of a page, each by what `script` measures after typing `query`."""
    found = []
    for _ in range(3):
        browser.open(page)
        if query:
            browser.fill("q", query)
        found.append(browser.evaluate(script))
    assert browser.problems == []
    return min(found)


@pytest.mark.parametrize(
    ("page", "measure", "query"),
    [
        ("ops", "filter", "mm"),
        ("matrix", "matrix", "operator_01 bf16"),
        ("deviations", "filter", "promote"),
        ("bench", "filter", "mm 64"),
        ("history", "history", "mm 64"),
        ("compare", "compare", "mm 64"),
    ],
)
def test_a_page_with_a_filter(page: str, measure: str, query: str, big_site: Path, browser: Any) -> None:  # noqa: F811
    last, file = f"performance.getEntriesByName('{measure}').at(-1)", big_site / f"{page}.html"
    browser.show()
    # From the start of the navigation, so it holds reading and decoding the data too.
    assert fastest(browser, file, f"{last}.startTime + {last}.duration") < OPEN
    assert fastest(browser, file, f"{last}.duration", query) < (OPEN if page == "matrix" else FILTER)


@pytest.mark.parametrize("page", ["index", "about"])
def test_a_page_without_one(page: str, big_site: Path, browser: Any) -> None:  # noqa: F811
    loaded = "performance.getEntriesByType('navigation')[0].domContentLoadedEventEnd"
    assert fastest(browser, big_site / f"{page}.html", loaded) < OPEN
