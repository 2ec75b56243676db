"""The pages in a real browser, opened from disk as a reader opens them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ampcheck.report import build
from ampcheck.report.conformance.pages import NAV
from ampcheck.report.history import load
from ampcheck.report.site import render
from ampcheck.runner.deviations import Deviation
from ampcheck.runner.record import STATUSES, read
from ampcheck.runner.summarize import GROUPS, compare
from tests.report.made_bench import many_run_groups
from tests.report.made_runs import make, many, write

PAGES = [*NAV.values(), "case.html"]
DEVIATING = "eager/promote/dot-bf16-bf16-cpu"
FAILING = "eager/promote/mm-bf16-bf16-cpu"
EVIL = 'got <img src=x onerror=alert(1)>; expected "torch.float32"'


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three run groups: a whole one, an interrupted one, and one with every status."""
    folder = tmp_path_factory.mktemp("runs")
    ops = [f"op{number}" for number in range(30)]
    first = [make(op, device=device) for op in ops for device in ("cpu", "virtual:cuda")]
    base = [*first, make("mm"), make("gone"), make("repaired", "fail", message="got torch.bfloat16")]
    mm = {"message": f"{EVIL}\nand a second line", "torch": "import torch\nprint('<b>')", "node": "n"}
    last = [
        *first,
        make("mm", "fail", pytest="pytest 'x::y[mm-bf16-bf16-cpu]' --device=cpu", **mm),
        make("dot", "deviation", deviation="promote-mixed-low", message="raised"),
        make("other", "deviation", deviation="gone-by, idle", message="raised"),
        make("repaired"),
        make("repaired", device="virtual:cuda", amp="fp16"),
        *(make(f"shows_{status}", status, rule="downcast") for status in STATUSES),
    ]
    return [
        write(folder / "1.jsonl", base, started="2026-11-18T02:00:00Z"),
        write(folder / "2.jsonl", base[:9], started="2026-11-19T02:00:00Z", footer=False, cases=len(base)),
        write(folder / "3.jsonl", last, started="2026-11-20T02:00:00Z"),
    ]


@pytest.fixture(scope="module")
def site(runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(runs, tmp_path_factory.mktemp("built") / "site").parent


def rows(browser: Any) -> list[str]:
    return browser.evaluate("[...document.querySelectorAll('#matrix button[data-op]')].map(b => b.dataset.op)")


@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_from_disk_in_every_setting(page: str, dark: bool, width: int, site: Path, browser: Any) -> None:
    assert_opens(browser, site / page, FAILING if page == "case.html" else "", width, dark=dark)
    background = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)")


def assert_opens(browser: Any, file: Path, fragment: str, width: int, *, dark: bool) -> None:
    """A page has one title and no problem, and is no wider than the window."""
    browser.show(width, dark=dark)
    browser.open(file, fragment)
    assert browser.problems == []
    assert browser.evaluate("document.querySelectorAll('h1').length") == 1
    bar = browser.evaluate("innerWidth - document.documentElement.clientWidth")
    assert browser.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width - bar, width]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_can_be_used_without_eyes_or_mouse(page: str, site: Path, browser: Any) -> None:
    assert_usable(browser, site / page, FAILING if page == "case.html" else "open=mm" if page == "matrix.html" else "")
    headless = "[...document.querySelectorAll('table')].filter(t => !t.querySelector('thead th[scope=col]')).length"
    assert browser.evaluate(headless) == 0
    browser.press("Tab")
    assert browser.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
    assert browser.problems == []


def assert_usable(browser: Any, file: Path, fragment: str = "") -> None:
    """Fields have labels, colours have words, and the keyboard reaches what scrolls."""
    browser.show()
    browser.open(file, fragment)
    unnamed = "[...document.querySelectorAll('input, select')].filter(f => !f.labels.length).map(f => f.name)"
    assert browser.evaluate(unnamed) == []
    bare = "[...document.querySelectorAll('.chip')].filter(c => !/[a-z]{4}/.test(c.textContent)).map(c => c.outerHTML)"
    assert browser.evaluate(bare) == [], "a status or a verdict is told by words too"
    boxes = "[...document.querySelectorAll('table')].every(t => t.closest('.scroll[tabindex][role=region]'))"
    assert browser.evaluate(boxes), "a wide table scrolls in a box that the keyboard reaches"
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "main", "the skip link comes first"


def test_health_says_first_what_changed(site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / "index.html")
    text = browser.text()
    assert text.index("Changed since the previous run") < text.index("Cases by device and status")
    tiles = browser.evaluate("[...document.querySelectorAll('.tile a')].map(a => a.innerText)")
    assert tiles == ["1 regressed", "1 fixed", "0 changed", "1 removed", "13 added"], "against the whole run"
    assert "1 run in between passed over" in text
    assert browser.evaluate("document.querySelector('#main table tbody a').textContent") == FAILING
    interrupted = browser.text("tr.cut")
    assert "9 of 63" in interrupted
    assert "the run was interrupted" in interrupted
    assert "virtual: dtypes and casts only" in text
    assert "cuda was not tested: no CUDA device was found." in text
    assert "%" not in text


def test_an_interrupted_newest_run_is_marked_everywhere(runs: list[Path], tmp_path: Path, browser: Any) -> None:
    build(runs[:2], tmp_path)
    for page in PAGES:
        browser.open(tmp_path / page)
        assert "This run was interrupted." in browser.text("footer")
    browser.open(tmp_path / "index.html")
    assert "The run was interrupted. 9 of 63 cases ran" in browser.text(".state.grey")
    browser.open(tmp_path / "matrix.html")
    assert "This run was interrupted." in browser.text("#summary")
    assert (tmp_path / "badge.svg").read_text().count("#6b7280") == 1


def test_every_filter_narrows_and_is_kept_in_the_address(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html")
    whole = len(rows(browser))
    assert whole == 30 + 4 + len(STATUSES)
    for name, value, want in (
        ("q", "MM eager", ["mm"]),
        ("rule", "downcast", sorted(f"shows_{status}" for status in STATUSES)),
        ("status", "deviation", ["dot", "other", "shows_deviation"]),
        (
            "status",
            "red",
            ["mm", *sorted(f"shows_{s}" for s in ("broken", "crash", "error", "fail", "fixed", "missing", "timeout"))],
        ),
        ("amp", "fp16", ["repaired"]),
        ("deviation", "promote-mixed-low", ["dot"]),
        ("deviation", "gone-by", ["other"]),
        ("deviation", "idle", ["other"]),
        ("device", "virtual:cuda", sorted([*(f"op{n}" for n in range(30)), "repaired"])),
        ("suite", "eager", None),
    ):
        browser.open(site / "matrix.html")
        browser.fill(name, value)
        found = rows(browser)
        assert want is None or found == want, (name, value)
        address = browser.evaluate("location.hash")
        browser.open(site / "matrix.html", address.removeprefix("#"))
        assert rows(browser) == found, f"{address} shows what was filtered"
        assert browser.evaluate(f"document.forms[0].elements.{name}.value") == value
        assert browser.problems == []


def test_filters_combine_and_clear(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "device=cpu&status=pass&q=repaired")
    assert rows(browser) == ["repaired"]
    assert browser.evaluate("document.querySelectorAll('#matrix thead th').length") == 2
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    assert len(rows(browser)) == 44
    assert browser.evaluate("location.hash") == ""
    browser.open(site / "matrix.html", "device=elsewhere")
    assert browser.text("#summary") == "0 cases in 0 rows, 0 of them red.", "an unknown value shows nothing, not all"


def test_an_earlier_run_and_the_order_can_be_chosen(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "run=2026-11-18T02:00:00Z&q=gone")
    assert rows(browser) == ["gone"]
    browser.open(site / "matrix.html", "sort=red")
    assert rows(browser)[0] == "mm"
    browser.open(site / "matrix.html", "run=2020-01-01T02:00:00Z")
    assert "The linked run is not here; this is the newest." in browser.text("#summary")


def test_a_row_opens_with_the_keyboard_to_its_cases(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "q=repaired")
    browser.evaluate("document.querySelector('#matrix button').focus()")
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#q=repaired&open=repaired"
    assert browser.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    links = "[...document.querySelectorAll('td.open a')].map(a => a.getAttribute('href'))"
    assert browser.evaluate(links) == [
        "case.html#eager/promote/repaired-bf16-bf16-cpu",
        "case.html#eager/promote/repaired-bf16-fp16-vcu",
    ]
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#q=repaired"


def test_a_case_has_its_rule_difference_reproductions_and_history(site: Path, browser: Any) -> None:
    browser.open(site / "case.html", FAILING)
    text = browser.text()
    assert "promote: eligible arguments are cast to the widest dtype among them" in text
    assert EVIL in text
    assert "and a second line" in text
    assert browser.evaluate("document.querySelectorAll('main img, main b').length") == 0
    blocks = browser.evaluate("[...document.querySelectorAll('pre')].map(p => p.textContent)")
    assert blocks == ["pytest 'x::y[mm-bf16-bf16-cpu]' --device=cpu", "import torch\nprint('<b>')"]
    history = browser.evaluate(
        "[...document.querySelectorAll('[aria-label=History] tbody tr')].map(r => r.innerText.split('\\t').join(' | '))"
    )
    assert [line.split(" | ")[0] for line in history] == [f"2026-11-{day}T02:00:00Z" for day in (20, 19, 18)]
    assert ["fail" in history[0], "not reached" in history[1], "as promised" in history[2]] == [True] * 3
    assert browser.problems == []


def test_a_case_as_promised_has_the_pytest_line_that_the_suite_would_give(site: Path, browser: Any) -> None:
    browser.open(site / "case.html", "eager/promote/op1-bf16-bf16-vcu")
    # "op1" is not an overload, so its cases are a scenario's: the function has its name.
    assert (
        browser.text("pre") == "pytest suites/eager --rule=promote -k 'test_op1[bf16-bf16-vcu]' --device=virtual:cuda"
    )
    assert "As promised: no difference was found." in browser.text()
    assert "virtual: dtypes and casts only" in browser.text()
    browser.open(site / "case.html", "eager/promote/dot-bf16-bf16-cpu")
    assert browser.text("pre") == "pytest suites/eager --rule=promote -k 'test_promote[dot-bf16-bf16-cpu]' --device=cpu"


def test_copying_puts_the_text_on_the_clipboard(site: Path, browser: Any) -> None:
    browser.open(site / "case.html", FAILING)
    browser.evaluate(
        "navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); };"
        "document.querySelector('.repro button').click()"
    )
    assert browser.evaluate("new Promise(r => setTimeout(() => r(window.copied), 50))").startswith("pytest 'x::y")
    assert browser.evaluate("document.getElementById('said').textContent") == "Copied."


@pytest.mark.parametrize("fragment", ["eager/promote/none-bf16-bf16-cpu", "%E0%A4%A"])
def test_a_case_that_is_not_there_is_said_so(fragment: str, site: Path, browser: Any) -> None:
    browser.open(site / "case.html", fragment)
    assert "No such case" in browser.text()
    assert browser.problems == []


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of a run with two causes, the second with a name that must not become markup."""
    folder = tmp_path_factory.mktemp("faulty")
    about = {"cause": "fail: no kernel for … (ops.py in run)", "traceback": f"Traceback …\n  {EVIL}", "torch": "x"}
    large = [make(f"op{n}", "fail", message="no kernel", **about) for n in range(3)]
    small = [make("odd", "crash", message=EVIL, cause=f"crash: {EVIL}"), make("fine")]
    path = write(folder / "r.jsonl", [*small, *large], footer=False)
    footer = {"kind": "footer", "counts": {}, "stale": [], "reproduced": {large[0].key: "reproduces"}}
    path.write_text(path.read_text() + json.dumps(footer) + "\n")
    return build([path], folder / "site").parent


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_the_first_page_lists_causes_and_leads_to_their_cases(faulty: Path, dark: bool, browser: Any) -> None:
    browser.show(dark=dark)
    browser.open(faulty / "index.html")
    text = browser.text()
    assert text.index("Needs a person") < text.index("Cases by device and status")
    assert "4 red cases by cause, the largest first." in text
    lines = browser.evaluate("[...document.querySelectorAll('.causes tbody tr')].map(r => r.innerText.split('\\t'))")
    assert [line[0].split()[0] for line in lines] == ["3", "1"]
    assert lines[0][2] == "no kernel for … (ops.py in run)"
    assert "In plain torch it reproduces." in lines[0][4]
    assert lines[1][2] == EVIL
    assert "plain torch" not in lines[1][4]
    assert browser.evaluate("document.querySelectorAll('main img').length") == 0
    href = browser.evaluate("document.querySelector('.causes tbody a').getAttribute('href')")
    page, _, fragment = href.partition("#")
    browser.open(faulty / page, fragment)
    assert rows(browser) == ["op0", "op1", "op2"]
    assert browser.evaluate("document.forms[0].elements.cause.value") == "fail: no kernel for … (ops.py in run)"
    browser.open(faulty / "matrix.html", "cause=elsewhere")
    assert rows(browser) == []
    assert browser.problems == []


def test_a_case_shows_its_cause_and_traceback(faulty: Path, browser: Any) -> None:
    browser.open(faulty / "case.html", "eager/promote/op0-bf16-bf16-cpu")
    blocks = browser.evaluate("[...document.querySelectorAll('pre')].map(p => p.textContent)")
    assert blocks[0] == f"Traceback …\n  {EVIL}"
    headings = browser.evaluate("[...document.querySelectorAll('h3')].map(h => h.textContent)")
    assert headings == ["Traceback", "With pytest", "In plain torch: it reproduces"]
    assert browser.evaluate("[...document.querySelectorAll('.facts a')].map(a => a.textContent)")[-1].startswith(
        "fail: no"
    )
    browser.open(faulty / "case.html", "eager/promote/fine-bf16-bf16-cpu")
    assert "Traceback" not in browser.text()
    assert "cause" not in browser.text(".facts")
    assert browser.problems == []


def test_deviations_are_listed_with_reason_and_cases(runs: list[Path], tmp_path: Path, browser: Any) -> None:
    about = {"kind": "deviation", "raises": "raised", "torch": ">=2.11", "added": "2026-11-20"}
    link = "https://github.com/pytorch/pytorch/pull/191125"
    entries = [
        Deviation(id="promote-mixed-low", cases=("promote/dot-*",), reason="It refuses.", link=link, **about),
        Deviation(
            id="idle",
            cases=("promote/none-*",),
            but=("promote/none-fp16-*",),
            devices=("cpu",),
            reason="None.",
            link="unreported",
            file="mine.toml",
            **about,
        ),
    ]
    for name, text in render(load(runs), entries).items():
        (tmp_path / name).write_text(text)
    browser.open(tmp_path / "deviations.html", "promote-mixed-low")
    entry = browser.text("#promote-mixed-low")
    assert "It refuses." in entry
    assert browser.evaluate("document.querySelector('#promote-mixed-low dd a').href") == link
    links = "[...document.querySelectorAll('#promote-mixed-low .keys a')].map(a => a.textContent)"
    assert browser.evaluate(links) == [DEVIATING]
    assert "0 in this run: the run has no case it speaks of" in browser.text("#idle")
    assert "not reported yet" in browser.text("#idle")
    assert "promote/none-* but promote/none-fp16-* on cpu" in browser.text("#idle")
    assert "gone-by" in browser.text("article:nth-last-of-type(2)")  # one case of two entries
    unknown = browser.text("article:last-of-type")
    assert "idle" in unknown
    assert "none here covers these cases" in unknown


@pytest.mark.parametrize(("a", "b"), [(0, 2), (2, 0), (1, 2), (0, 1)])
def test_the_compare_page_agrees_with_the_library(a: int, b: int, runs: list[Path], site: Path, browser: Any) -> None:
    both = [read(runs[a]), read(runs[b])]
    want = compare(*both)
    names = [run.header["started"] for run in both]
    browser.open(site / "compare.html", f"a={names[0]}&b={names[1]}")
    plain = browser.text("#counts").replace("\u00a0", " ")
    counts = ", ".join(f"{len(want.group(name))} {name}" for name in GROUPS)
    assert plain == f"{want.common} common cases, {want.unchanged} unchanged: {counts}."
    headings = browser.evaluate("[...document.querySelectorAll('#comparison h2')].map(h => h.id)")
    assert headings == [name for name in GROUPS if want.group(name)]
    for name in headings:
        shown = f"[...document.querySelectorAll('[aria-label={name}] tbody a')].map(a => a.textContent).sort()"
        assert browser.evaluate(shown) == [change.key for change in want.group(name)]
    assert ("was interrupted" in browser.text()) == (1 in (a, b))


# ---- the site at 20 000 cases; its speed: bench/bench_site.py


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


RUN_GROUPS, SERIES = 400, 75


@pytest.fixture(scope="module")
def big_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of such a site."""
    folder = tmp_path_factory.mktemp("big")
    devices = [{"name": f"device{number}", "has_values": True} for number in range(8)]
    judged = [
        write(folder / f"{day}.jsonl", many(20_000, day), started=f"2026-11-{day}T02:00:00Z", devices=devices)
        for day in (19, 20)
    ]
    return build([*judged, *many_run_groups(folder / "bench", RUN_GROUPS, SERIES)], folder / "site").parent


@pytest.mark.nightly
def test_the_site_is_below_five_megabytes(big_site: Path) -> None:
    size = {file.name: file.stat().st_size for file in big_site.iterdir()}
    assert sum(size.values()) < 5_000_000, size
    data = json.loads((big_site / "bench_data.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert (len(data["runs"]), len(data["series"])) == (RUN_GROUPS, 4 * SERIES)


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
