"""The pages in a real browser, opened from disk as a reader opens them."""

import importlib.resources
import json
from pathlib import Path
from typing import Any

import pytest

from ampcheck.devices.registry import known
from ampcheck.report import build
from ampcheck.report.history import load
from ampcheck.report.site import NAV, render
from ampcheck.runner.deviations import Deviation
from ampcheck.runner.record import STATUSES, read
from ampcheck.runner.summarize import GROUPS, compare
from ampcheck.tools.explain import effects
from tests.report.made_bench import many_run_groups, two_run_groups
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
    """The folder of a site of these runs and of benchmarks."""
    folder = tmp_path_factory.mktemp("built")
    return build([*runs, *two_run_groups(folder / "bench")], folder / "site").parent


def rows(browser: Any) -> list[str]:
    return browser.evaluate("[...document.querySelectorAll('#matrix button[data-op]')].map(b => b.dataset.op)")


FRAGMENTS = {"case.html": FAILING, "matrix.html": "open=mm", "ops.html": "softmax.int", "deviations.html": "gone-by"}


def violations(browser: Any) -> list[tuple[str, str, str]]:
    """What axe-core finds in the open page: rule, element, what is wrong."""
    axe = (importlib.resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    # Of rows that are alike the first are enough: each costs some milliseconds.
    browser.evaluate("document.querySelectorAll('.row:nth-of-type(n+12):not([open])').forEach(row => row.remove())")
    browser.evaluate(f"{axe}; 0")
    found = browser.evaluate("axe.run({resultTypes: ['violations']}).then(r => r.violations)")
    return [(v["id"], v["nodes"][0]["html"], v["nodes"][0]["failureSummary"]) for v in found]


@pytest.mark.parametrize("page", PAGES)
def test_a_page_opens_from_disk_and_can_be_read_by_everyone(page: str, site: Path, browser: Any) -> None:
    for width, dark in ((1280, False), (800, True), (390, True)):
        browser.show(width, dark=dark)
        browser.open(site / page, FRAGMENTS.get(page, ""))
        assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == (
            "rgb(20, 23, 27)" if dark else "rgb(255, 255, 255)"
        )
        bar = browser.evaluate("innerWidth - document.documentElement.clientWidth")
        assert browser.evaluate("[document.documentElement.scrollWidth, innerWidth]") == [width - bar, width]
        assert browser.evaluate("document.querySelectorAll('main img, main b').length") == 0, "texts are not markup"
        current = "[...document.querySelectorAll('nav [aria-current]')].map(n => n.getAttribute('href'))"
        assert (browser.evaluate(current), violations(browser)) == ([page] * (page in NAV.values()), [])
        bare = "[...document.querySelectorAll('.chip')].filter(c => !/[a-z]{3}/.test(c.textContent)).length"
        assert browser.evaluate(bare) == 0, "a status or a verdict is told by words too"
        assert browser.problems == []


@pytest.mark.parametrize(
    ("rule", "fault"),
    [
        ("color-contrast", "document.querySelector('.note').style.color = dark ? '#444' : '#bbb'"),
        *(
            pytest.param(*other, marks=pytest.mark.nightly)
            for other in (
                (
                    "select-name",
                    "{ const { device } = document.forms[0].elements; device.parentElement.replaceWith(device) }",
                ),
                ("link-name", "document.querySelector('nav a').replaceChildren()"),
                ("role-img-alt", "document.querySelector('.chart').removeAttribute('aria-label')"),
            )
        ),
    ],
)
def test_a_fault_for_some_readers_is_found(rule: str, fault: str, site: Path, browser: Any) -> None:
    for dark in (False, True):
        browser.show(390, dark=dark)
        browser.open(site / "bench.html")
        browser.evaluate(f"{{ const dark = {json.dumps(dark)}; {fault}; }}")
        assert rule in [found for found, _, _ in violations(browser)]


@pytest.mark.parametrize("page", PAGES)
def test_the_keyboard_reaches_everything(page: str, site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / page, FRAGMENTS.get(page, ""))
    browser.evaluate(
        "window.reached = new Set(); window.unseen = [];"
        "document.addEventListener('focusin', ({ target }) => { reached.add(target);"
        " if (getComputedStyle(target).outlineStyle === 'none') unseen.push(target.outerHTML); })"
    )
    used = (
        "[...document.querySelectorAll('a[href], button, input, select, summary, [tabindex=\"0\"]')]"
        ".filter(n => n.checkVisibility())"
    )
    for _ in range(browser.evaluate(f"{used}.length") + 1):
        browser.press("Tab")
    assert browser.evaluate(f"{used}.filter(n => !reached.has(n)).map(n => n.outerHTML)") == []
    assert browser.evaluate("unseen") == []
    browser.open(site / page)
    browser.press("Tab")
    browser.press("Enter")
    assert browser.evaluate("document.activeElement.id") == "main", "the skip link comes first"


def test_the_first_page_says_what_is_wrong_then_each_promise_then_what_changed(site: Path, browser: Any) -> None:
    browser.show()
    browser.open(site / "index.html")
    text = browser.text()
    assert browser.text(".state.red").startswith("8 cases are red on cpu. ")
    assert text.index("What is wrong") < text.index("Promise by promise") < text.index("Changed since the previous run")
    assert browser.texts(".devices h2")[1].split("\n")[0].endswith("virtual:cuda virtual: dtypes and casts only")
    assert browser.texts(".devices .s-red p")[0] == "Does not keep 2 of 2 rules: promote, downcast."
    tiles = browser.texts("[aria-labelledby=changed] .tile a")
    assert tiles == ["1 regressed", "1 fixed", "0 changed", "1 removed", "13 added"], "against the whole run"
    assert "1 run in between passed over" in text
    assert browser.texts(".flips tbody a")[0] == FAILING
    assert "Not tested: cuda (no CUDA device was found)." in text
    assert "%" not in text
    browser.open(site / "history.html")
    interrupted = browser.text("tr.cut")
    assert "9 of 63" in interrupted
    assert "the run was interrupted" in interrupted


def test_promises_by_devices_lead_to_their_cases_and_red_ones_come_first(site: Path, browser: Any) -> None:
    browser.open(site / "index.html")
    grid = browser.texts("table.grid tr")
    assert grid[0].split("\t") == ["rule", "cpu", "virtual:cuda"]
    assert [line.split("\t")[0].split()[0] for line in grid[1:3]] == ["downcast", "promote"]
    cells = [" ".join(text.split()) for text in browser.texts("table.grid td")[:4]]
    assert cells == ["✗ 7 red of 10", "–", "✗ 1 red of 34", "✓ 31 as promised"]
    colors = "[...document.querySelectorAll('table.grid td > *')].map(n => n.className)"
    assert browser.evaluate(colors)[:4] == ["cell s-red", "none", "cell s-red", "cell s-green"]
    page, _, fragment = browser.evaluate("document.querySelector('.cell.s-red').getAttribute('href')").partition("#")
    browser.open(site / page, fragment)
    assert len(rows(browser)) == 7
    assert "7 of them red" in browser.text("#summary")


def test_an_interrupted_newest_run_is_marked_everywhere(runs: list[Path], tmp_path: Path, browser: Any) -> None:
    build(runs[:2], tmp_path)
    for page in PAGES:
        assert "The run was interrupted." in (tmp_path / page).read_text(encoding="utf-8").split("<footer")[1]
    browser.open(tmp_path / "index.html")
    assert "Nothing is red so far; the run was interrupted. 9 of 63 cases ran" in browser.text(".state.grey")
    assert "ampcheck run --resume RUN goes on with an interrupted run" in browser.text(".state.grey")
    assert set(browser.texts(".devices .s-grey p:not(.chips)")) == {"Nothing is wrong so far."}
    browser.open(tmp_path / "matrix.html")
    assert "Incomplete: the run was interrupted." in browser.text("#summary")
    assert (tmp_path / "badge.svg").read_text().count("#6b7280") == 1


def test_every_filter_narrows_and_is_kept_in_the_address(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html")
    whole = len(rows(browser))
    assert whole == 30 + 4 + len(STATUSES)
    red = [f"shows_{status}" for status in ("broken", "crash", "error", "fail", "fixed", "missing", "timeout")]
    for name, value, want in (
        ("q", "MM eager", ["mm"]),
        ("rule", "downcast", [f"shows_{status}" for status in STATUSES]),
        ("status", "deviation", ["dot", "other", "shows_deviation"]),
        ("status", "red", ["mm", *red]),
        ("amp", "fp16", ["repaired"]),
        ("deviation", "promote-mixed-low", ["dot"]),
        ("deviation", "gone-by", ["other"]),
        ("deviation", "idle", ["other"]),
        ("device", "virtual:cuda", [*(f"op{n}" for n in range(30)), "repaired"]),
        ("suite", "eager", None),
    ):
        browser.open(site / "matrix.html")
        browser.fill(name, value)
        found = rows(browser)
        assert want is None or sorted(found) == sorted(want), (name, value)
        address = browser.evaluate("location.hash")
        browser.open(site / "matrix.html", address.removeprefix("#"))
        assert rows(browser) == found, f"{address} shows what was filtered"
        assert (browser.evaluate(f"document.forms[0].elements.{name}.value"), browser.problems) == (value, [])


def test_filters_combine_and_clear(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "device=cpu&status=pass&q=repaired")
    assert rows(browser) == ["repaired"]
    assert browser.evaluate("document.querySelectorAll('#matrix thead th').length") == 2
    browser.evaluate("document.querySelector('button[type=reset]').click()")
    assert (len(rows(browser)), browser.evaluate("location.hash")) == (44, "")
    browser.open(site / "matrix.html", "device=elsewhere")
    assert browser.text("#summary") == "0 cases in 0 rows, 0 of them red.", "an unknown value shows nothing, not all"


def test_an_earlier_run_and_the_order_can_be_chosen(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "run=2026-11-18T02:00:00Z&q=gone")
    assert rows(browser) == ["gone"]
    browser.open(site / "matrix.html")
    assert rows(browser)[0] == "mm"
    browser.open(site / "matrix.html", "sort=name")
    assert rows(browser)[:2] == ["dot", "mm"]
    browser.open(site / "matrix.html", "run=2020-01-01T02:00:00Z")
    assert "The linked run is not here; this is the newest." in browser.text("#summary")


def test_a_row_opens_with_the_keyboard_to_its_cases(site: Path, browser: Any) -> None:
    browser.open(site / "matrix.html", "q=repaired")
    browser.evaluate("document.querySelector('#matrix button').focus()")
    browser.press("Enter")
    assert browser.evaluate("location.hash") == "#q=repaired&open=repaired"
    assert browser.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    links = "[...document.querySelectorAll('td.open a')].map(a => a.getAttribute('href'))"
    case = "case.html#eager/promote/repaired-bf16"
    assert browser.evaluate(links) == [f"{case}-bf16-cpu", f"{case}-fp16-vcu"]
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
    history = [text.replace("\t", " | ") for text in browser.texts("[aria-label=History] tbody tr")]
    assert [line.split(" | ")[0] for line in history] == [f"2026-11-{day}T02:00:00Z" for day in (20, 19, 18)]
    assert ["fail" in history[0], "not reached" in history[1], "as promised" in history[2]] == [True] * 3
    assert browser.problems == []


def test_a_case_as_promised_has_the_pytest_line_that_the_suite_would_give(site: Path, browser: Any) -> None:
    browser.open(site / "case.html", "eager/promote/op1-bf16-bf16-vcu")
    # "op1" is not an overload, so its cases are a scenario's: the function has its name.
    line = "pytest suites/eager --rule=promote -k "
    assert browser.text("pre") == f"{line}'test_op1[bf16-bf16-vcu]' --device=virtual:cuda"
    assert "As promised: no difference was found." in browser.text()
    assert "deviation" not in browser.text(".facts"), "a field without a value is not shown"
    assert "virtual: dtypes and casts only" in browser.text()
    browser.open(site / "case.html", "eager/promote/dot-bf16-bf16-cpu")
    assert browser.text("pre") == f"{line}'test_promote[dot-bf16-bf16-cpu]' --device=cpu"


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
    path = write(folder / "r.jsonl", [*small, *large], closing={"reproduced": {large[0].key: "reproduces"}})
    return build([path], folder / "site").parent


def test_the_first_page_says_of_each_cause_where_since_when_why_and_what_to_do(faulty: Path, browser: Any) -> None:
    for width in (390, 1280):
        browser.show(width)
        browser.open(faulty / "index.html")
        last = "document.querySelector('.cause dd:last-of-type').getBoundingClientRect().bottom"
        assert browser.evaluate(last) < 900, "all of it is on the first screen"
    causes = browser.texts(".cause")
    assert len(causes) == 2
    for part in (
        "3 fail no kernel for … (ops.py in run)",
        "Where\ncpu, in promote",
        "Since\n2026-11-20 02:00, torch 2.13.0+cpu, the only run here",
        "Why\nPyTorch promises: eligible arguments are cast to the widest dtype among them",
        "In plain torch it reproduces.",
        "What to do\nOpen the example: it has the call in plain torch.",
        "eager/promote/op0-bf16-bf16-cpu",
    ):
        assert part in causes[0].replace("✗ ", ""), part
    assert EVIL in causes[1]
    assert "plain torch" not in causes[1]
    assert "All 4 red cases." in browser.text()
    page, _, fragment = browser.evaluate("document.querySelector('.cause a').getAttribute('href')").partition("#")
    browser.open(faulty / page, fragment)
    assert rows(browser) == ["op0", "op1", "op2"]
    assert browser.evaluate("document.forms[0].elements.cause.value") == "fail: no kernel for … (ops.py in run)"
    browser.open(faulty / "matrix.html", "cause=elsewhere")
    assert (rows(browser), browser.problems) == ([], [])


def test_what_is_wrong_with_no_case_comes_before_the_devices(tmp_path: Path, browser: Any) -> None:
    cuda = [make(op, "deviation", device="virtual:cuda", deviation="d") for op in ("mm", "dot")]
    results = [make("mm"), make("exp"), make("dot", "deviation"), make("exp", device="virtual:cuda"), *cuda]
    command = ["ampcheck", "run", "--op", "mm", "--op=dot", "--reports", "out"]
    closing = {"stale": ["d: no case matches 'x'"], "notes": ["failed: preflight"]}
    path = write(tmp_path / "r.jsonl", results, closing=closing, command=command, smoke=True)
    browser.open(build([path], tmp_path / "site"))
    assert browser.text(".state.red").startswith(
        "1 thing went wrong outside of the cases; 1 pattern of known deviations without a case. 6 of 6 cases ran. "
        "Only those of --smoke --op=mm --op=dot were asked for."
    )
    text = browser.text()
    places = ("What is wrong", "failed: preflight", "no case matches 'x'", "Differs from PyTorch in most", "Keeps its")
    assert sorted(places, key=text.index) == list(places)


def test_a_cause_is_since_the_first_run_in_which_its_cases_are_red(tmp_path: Path) -> None:
    runs = []
    for day, status in (("2026-11-18", "pass"), ("2026-11-19", "fail"), ("2026-11-20", "fail")):
        path = tmp_path / f"{day}.jsonl"
        runs.append(write(path, [make("mm", status), make("dot")], started=f"{day}T02:00:00Z"))

    def since(*paths: Path) -> str:
        text = build(paths, tmp_path / "site").read_text(encoding="utf-8")
        return text.partition("<dt>Since</dt><dd>")[2].partition("</dd>")[0]

    first = "2026-11-19 02:00, torch 2.13.0+cpu"
    assert since(*runs) == f"{first}; not red on 2026-11-18 02:00"
    assert since(*runs[1:]) == f"{first}, the first run here that has it"


def test_a_case_shows_its_cause_and_traceback(faulty: Path, browser: Any) -> None:
    browser.open(faulty / "case.html", "eager/promote/op0-bf16-bf16-cpu")
    blocks = browser.evaluate("[...document.querySelectorAll('pre')].map(p => p.textContent)")
    assert blocks[0] == f"Traceback …\n  {EVIL}"
    headings = browser.evaluate("[...document.querySelectorAll('h3')].map(h => h.textContent)")
    assert headings == ["Traceback", "With pytest", "In plain torch: it reproduces"]
    assert browser.texts(".facts a")[-1].startswith("fail: no")
    browser.open(faulty / "case.html", "eager/promote/fine-bf16-bf16-cpu")
    assert "Traceback" not in browser.text()
    assert "cause" not in browser.text(".facts")
    assert browser.problems == []


def test_deviations_are_listed_with_reason_and_cases(runs: list[Path], tmp_path: Path, browser: Any) -> None:
    about = {"kind": "deviation", "raises": "raised", "torch": ">=2.11", "added": "2026-11-20"}
    narrow: Any = {"but": ("promote/none-fp16-*",), "devices": ("cpu",)}
    link, file = "https://github.com/pytorch/pytorch/pull/191125", "ampcheck/devices/jax/deviations.toml"
    entries = [
        Deviation("promote-mixed-low", ("promote/dot-*",), reason="It refuses.", link=link, file=file, **about),
        Deviation("idle", ("promote/none-*",), reason="None.", link="unreported", file="mine.toml", **about, **narrow),
    ]
    for name, text in render(load(runs), entries).items():
        (tmp_path / name).write_text(text)
    browser.open(tmp_path / "deviations.html", "promote-mixed-low")
    assert browser.texts("main h2") == ["The device jax", "mine.toml", "Not explained here"]
    assert browser.texts("details[open] strong") == ["promote-mixed-low"], "the address opens an entry"
    entry = browser.text("#promote-mixed-low")
    assert "It refuses." in entry
    assert browser.evaluate("document.querySelector('#promote-mixed-low dd a').href") == link
    assert browser.texts("#promote-mixed-low .keys a") == [DEVIATING]
    browser.open(tmp_path / "deviations.html", "idle")
    idle = browser.text("#idle")
    assert "no case in this run" in idle
    assert "not reported yet" in idle
    assert "promote/none-* but promote/none-fp16-* on cpu" in idle
    unknown = browser.texts("section:last-of-type .entry")
    assert [text.split()[0] for text in unknown] == ["gone-by", "idle"]
    browser.fill("q", "refuses")
    assert browser.texts(".entry:not([hidden]) strong") == ["promote-mixed-low"]


def test_an_op_is_found_by_any_of_its_names_with_what_explain_says_of_it(site: Path, browser: Any) -> None:
    def found(typed: str) -> list[str]:
        browser.open(site / "ops.html")
        browser.fill("q", typed)
        return browser.evaluate("[...document.querySelectorAll('.op:not([hidden])')].map(o => o.id)")

    assert found("addmm") == ["addmm", "_addmm_activation"]
    assert "linear" in found("F.linear")
    assert found("torch.mm") == ["mm"]
    assert browser.text("#mm .policy.p-downcast") == "downcast"
    told = browser.texts("#mm h2")
    assert told[0].split()[::2] == ["On", "downcast"]
    rows = [line.split("\t") for line in browser.texts("#mm .effects tbody tr")]
    said = effects("mm", "downcast", known()["cpu"], "bf16", ("fp32",))
    want = [[", ".join(effect.given), ", ".join(effect.kernel), effect.out] for effect in said]
    assert rows[0] == want[0] == ["fp32, fp32", "bf16, bf16", "bf16"]
    assert "1 case of the newest run, 1 of them red" in browser.text("#mm")
    assert "prelu" in found("relu")
    assert browser.text("#plain").startswith("relu has no policy on any device type")
    assert found("nosuchop") == []
    assert not browser.evaluate("document.getElementById('plain').checkVisibility()")
    browser.open(site / "ops.html", "softmax.int")
    assert browser.evaluate("document.getElementById('softmax.int').open")


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
    assert ("run is incomplete" in browser.text()) == (1 in (a, b))


# ---- a large site; its speed: bench/bench_site.py

CASES, RUN_GROUPS, SERIES = 43_000, 400, 75


@pytest.fixture(scope="module")
def big_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("big")
    devices = [{"name": f"device{number}", "has_values": number < 2} for number in range(8)]
    starts = [f"2026-11-{day}T02:00:00Z" for day in (19, 20)]
    judged = [write(folder / f"{at[:10]}.jsonl", many(CASES, 1), started=at, devices=devices) for at in starts]
    return build([*judged, *many_run_groups(folder / "bench", RUN_GROUPS, SERIES)], folder / "site").parent


@pytest.mark.nightly
def test_a_large_site_is_small_on_disk_and_can_be_filtered(big_site: Path, browser: Any) -> None:
    size = {file.name: file.stat().st_size for file in big_site.iterdir()}
    assert sum(size.values()) < 4_000_000, size
    data = json.loads((big_site / "bench_data.js").read_text().partition(" = ")[2].rstrip(";\n"))
    assert (len(data["runs"]), len(data["series"])) == (RUN_GROUPS, 4 * SERIES)
    browser.show()
    browser.open(big_site / "matrix.html")
    assert "43\u00a0000 cases in 299 rows" in browser.text("#summary")
    browser.fill("q", "operator_01 bf16")
    assert len(rows(browser)) == 10
    browser.open(big_site / "case.html", "eager/promote/operator_000-fp32-bf16-device0")
    assert "operator_000" in browser.text()
    for page in PAGES:
        browser.open(big_site / page)
        assert browser.problems == []
