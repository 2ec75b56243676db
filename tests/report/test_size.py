"""The site at 20 000 cases, and what page tests do where there is no browser. Its speed: bench/bench_site.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import build


def test_twenty_thousand_cases_are_drawn_and_filtered(
    tmp_path: Path, many: Callable[..., Any], write: Any, browser: Any
) -> None:
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


def test_without_chromium_the_page_tests_fail_and_say_why(
    find_chromium: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AMPCHECK_NO_BROWSER", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(pytest.fail.Exception, match=r"no chromium was found.*AMPCHECK_NO_BROWSER=1 leaves them out"):
        find_chromium()


def test_the_page_tests_are_left_out_on_request_only(
    find_chromium: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPCHECK_NO_BROWSER", "1")
    with pytest.raises(pytest.skip.Exception, match="AMPCHECK_NO_BROWSER=1: pages are not opened in a browser"):
        find_chromium()
