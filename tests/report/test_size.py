"""The site at 20 000 cases, and what page tests do where there is no browser. Its speed: bench/bench_site.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import build
from tests.report.made_bench import many_run_groups
from tests.report.made_runs import many, write


def test_twenty_thousand_cases_are_drawn_and_filtered(tmp_path: Path, browser: Any) -> None:
    devices = [{"name": f"device{number}", "has_values": number < 2} for number in range(8)]
    paths = [
        write(tmp_path / f"{day}.jsonl", many(20_000, day), started=f"2026-11-{day}T02:00:00Z", devices=devices)
        for day in (18, 19, 20)
    ]
    site = build(paths, tmp_path / "site").parent
    browser.show()
    browser.open(site / "matrix.html")
    assert "20\u00a0000 cases in 139 rows" in browser.text("#summary")
    browser.evaluate(
        "const q = document.forms[0].elements.q; q.value = 'operator_01 bf16';"
        "q.dispatchEvent(new Event('input', {bubbles: true}))"
    )
    assert browser.evaluate("document.querySelectorAll('#matrix button[data-op]').length") == 10
    browser.open(site / "case.html", "eager/promote/operator_000-fp32-bf16-device0")
    assert "operator_000" in browser.text()
    size = {file.name: file.stat().st_size for file in site.iterdir()}
    assert size["data.js"] < 1_000_000
    assert size["details.js"] < 1_000_000
    assert size["index.html"] < 500_000
    assert browser.problems == []


# ---- both kinds


RUN_GROUPS, GROUPS = 400, 75


@pytest.fixture(scope="module")
def big_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a site."""
    folder = tmp_path_factory.mktemp("big")
    devices = [{"name": f"device{number}", "has_values": True} for number in range(8)]
    judged = [
        write(folder / f"{day}.jsonl", many(20_000, day), started=f"2026-11-{day}T02:00:00Z", devices=devices)
        for day in (19, 20)
    ]
    return build([*judged, *many_run_groups(folder / "bench", RUN_GROUPS, GROUPS)], folder / "site").parent


@pytest.mark.nightly
def test_the_site_is_below_five_megabytes(big_site: Path) -> None:
    size = {file.name: file.stat().st_size for file in big_site.iterdir()}
    assert sum(size.values()) < 5_000_000, size
    data = json.loads((big_site / "bench_data.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert (len(data["runs"]), len(data["series"])) == (RUN_GROUPS, 4 * GROUPS)


@pytest.mark.nightly
@pytest.mark.parametrize(
    "page",
    ["bench", "bench_devices", "bench_history", "bench_compare", "bench_accuracy", "bench_roofline", "bench_scaling"],
)
def test_a_page_opens_without_a_problem(page: str, big_site: Path, browser: Any) -> None:
    browser.show()
    browser.open(big_site / f"{page}.html")
    assert browser.evaluate("document.querySelectorAll('main').length") == 1
    assert browser.problems == []
