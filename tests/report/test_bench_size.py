"""The whole site at 20 000 cases and 400 run groups of 300 benchmark series. How fast it opens: bench/bench_site.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import build
from tests.report.made_bench import many_run_groups

pytestmark = pytest.mark.nightly

RUN_GROUPS, GROUPS = 400, 75


@pytest.fixture(scope="module")
def big_site(tmp_path_factory: pytest.TempPathFactory, many: Callable[..., Any], write: Any) -> Path:
    """The folder of such a site."""
    folder = tmp_path_factory.mktemp("big")
    devices = [{"name": f"device{number}", "has_values": True} for number in range(8)]
    judged = [
        write(folder / f"{day}.jsonl", many(20_000, day), started=f"2026-11-{day}T02:00:00Z", devices=devices)
        for day in (19, 20)
    ]
    return build([*judged, *many_run_groups(folder / "bench", RUN_GROUPS, GROUPS)], folder / "site").parent


def test_the_site_is_below_five_megabytes(big_site: Path) -> None:
    size = {file.name: file.stat().st_size for file in big_site.iterdir()}
    assert sum(size.values()) < 5_000_000, size
    data = json.loads((big_site / "bench_data.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert (len(data["runs"]), len(data["series"])) == (RUN_GROUPS, 4 * GROUPS)


@pytest.mark.parametrize(
    "page",
    ["bench", "bench_devices", "bench_history", "bench_compare", "bench_accuracy", "bench_roofline", "bench_scaling"],
)
def test_a_page_opens_without_a_problem(page: str, big_site: Path, browser: Any) -> None:
    browser.show()
    browser.open(big_site / f"{page}.html")
    assert browser.evaluate("document.querySelectorAll('main').length") == 1
    assert browser.problems == []
