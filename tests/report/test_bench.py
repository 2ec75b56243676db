"""Benchmarks in a site: run groups, their changes, packing, sizes, colours; and the pages in a real browser."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core.model import VariantResult
from ampcheck.bench.run import alerts
from ampcheck.errors import UsageError
from ampcheck.report import build
from ampcheck.report.benchmarks import pages
from ampcheck.report.benchmarks.history import KINDS, BenchHistory, changes, conditions, listed, load, steps
from tests.cli_support import printed, refused
from tests.report.made_bench import day, made_group, many_run_groups, two_run_groups, written
from tests.report.made_runs import make, write

# ---- which run groups


def test_files_of_one_run_group_are_one_and_later_ones_replace_nothing(tmp_path: Path) -> None:
    cpu = written(tmp_path / "cpu.jsonl", [made_group("mm-512")], started="2026-11-20T02:00:00Z")
    gpu = written(tmp_path / "gpu.jsonl", [made_group("mm-512", "cuda")], started="2026-11-20T05:00:00Z")
    again = written(tmp_path / "again.jsonl", [made_group("mm-512")], started="2026-11-20T06:00:00Z")
    history = load([gpu, cpu, cpu])
    assert [len(run_group.groups) for run_group in history.run_groups] == [2]
    assert [len(g.groups) for g in load([cpu, gpu, again]).run_groups] == [2, 1], "the same group twice: two run groups"


def test_a_group_that_the_newest_run_group_lacks_is_shown_with_its_day_and_alerted(tmp_path: Path) -> None:
    old = written(tmp_path / "1.jsonl", [made_group("mm-512", "cuda"), made_group()], [], started=day(0))
    new = written(tmp_path / "2.jsonl", [made_group()], [], started=day(3))
    build([old, new], tmp_path / "site")
    page = (tmp_path / "site/bench.html").read_text()
    heads = re.findall(r'<tr class="head">.*?</tr>', page)
    assert [("last measured 2026-11-20" in head, "cuda" in head) for head in heads] == [(False, False), (True, True)]
    said = [alert.sentence for device, alert in listed(load([old, new])) if device == "cuda"]
    assert said == [f"cuda was not measured in the newest run group, the last time was {day(0)}"]


def test_the_previous_run_group_is_a_complete_one_with_half_the_groups(tmp_path: Path) -> None:
    groups = [made_group(f"mm-{n}") for n in (16, 64, 256, 1024)]
    whole = written(tmp_path / "1.jsonl", groups, [], started=day(0))
    cut = written(tmp_path / "2.jsonl", groups, started=day(1), footer=False)
    few = written(tmp_path / "3.jsonl", groups[:1], [], started=day(2))
    newest = written(tmp_path / "4.jsonl", groups, [], started=day(3))
    for paths, want in (([whole, cut, few], day(0)), ([cut, few], day(2)), ([cut], day(1)), ([], None)):
        previous = load([newest, *paths]).previous
        assert (previous.name if previous else None) == want
    page = build([cut], tmp_path / "site").read_text()
    assert "The run was interrupted. <code>ampcheck bench --resume FILE</code> measures the rest." in page


# ---- bad files


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("seconds", -1.0, "> 0"),
        ("seconds", "fast", "got `str`"),
        ("speed_low", 0, "> 0"),
        ("error", math.nan, ">= 0"),
        ("flops_per_second", math.inf, "<= 1.7"),
        ("memory", True, "got `bool`"),
        ("reason", 3, "got `int`"),
        ("verdict", "good", "matching regex"),
    ],
)
def test_what_cannot_have_been_measured_is_refused(field: str, value: Any, message: str, tmp_path: Path) -> None:
    group = made_group("mm-512")
    setattr(group.variants[2], field, value)
    path = written(tmp_path / "run.jsonl", [group], [])
    with pytest.raises(UsageError, match=rf"run.jsonl, line 2: .*{message}.* at `\$.variants\[2\].{field}`"):
        load([path])


@pytest.mark.parametrize("text", ["hello\n", "", '{"kind":"header","schema":"bench-9"}\n', "[1]\n"])
def test_the_command_refuses_a_damaged_file(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bench").mkdir()
    (tmp_path / "bench" / "x.jsonl").write_text(text)
    said = refused(capsys, "report", f"--reports={tmp_path}")
    assert "x.jsonl" in said
    assert "benchmark file" in said or "bench-9" in said or "is empty" in said
    assert not list(tmp_path.glob("site/*"))


# ---- one site of both, or of either


def test_the_command_takes_the_files_of_all_four_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / "a.jsonl", [make("mm")])
    (tmp_path / "published" / "bench").mkdir(parents=True)
    written(tmp_path / "published" / "bench" / "b.jsonl", [made_group("conv-64")])
    written(tmp_path / "bench" / "c.jsonl", [made_group("mm-512")])
    assert printed(capsys, "report", f"--reports={tmp_path}") == f"{tmp_path / 'site' / 'index.html'}\n"
    page = (tmp_path / "site/bench.html").read_text()
    assert "conv-64" in page
    assert "mm-512" in page
    whose = re.findall(r'<p class="note">(.*?) on EPYC', page)
    assert whose == ["Your own run c.jsonl of 2026-11-20"], "two files of one run group: the newest says whose"
    assert "benchmark" not in (tmp_path / "site/summary.md").read_text()


def test_pages_without_data_say_so(tmp_path: Path) -> None:
    build([write(tmp_path / "a.jsonl", [make("mm")])], tmp_path / "judged")
    for page in (tmp_path / "judged").glob("bench*.html"):
        assert "There is no benchmark here." in page.read_text(), page.name
    assert "There is no" not in (tmp_path / "judged/index.html").read_text()
    build(two_run_groups(tmp_path / "run_groups"), tmp_path / "timed")
    for name in ("index", "matrix", "case", "deviations", "about"):
        assert "There is no conformance run here." in (tmp_path / f"timed/{name}.html").read_text()
    assert not (tmp_path / "timed/badge.svg").exists()
    for name in ("bench", "ops", "compare", "history"):
        assert "There is no" not in (tmp_path / f"timed/{name}.html").read_text()


# ---- what changed


def test_changes_are_sorted_by_what_happened(tmp_path: Path) -> None:
    history = load(two_run_groups(tmp_path))
    found = changes(history.previous, history.newest)
    kinds: dict[str, set[str]] = {kind: set() for kind in KINDS}
    for change in found:
        kinds[change.kind].add(f"{change.key}/{change.variant}")
    assert kinds["flipped"] == {"cpu/eager/mm-256/bf16"}
    assert kinds["lost"] == {"cpu/eager/mm-16/fp16", "cpu/eager/mm-64/fp16"}
    assert kinds["regained"] == {"cpu/eager/mlp-step/fp16"}
    assert kinds["new"] == {f"virtual:<b>x</b>/eager/new-op/{name}" for name in ("fp32", "fp32-aa", "bf16", "fp16")}
    assert {name.rpartition("/")[0] for name in kinds["gone"]} == {"cpu/eager/gone-op"}
    assert kinds["slower"] == {f"cpu/eager/mlp-step/{variant}" for variant in ("fp32", "fp32-aa", "bf16")}
    assert kinds["faster"] == set()
    order = list(KINDS)
    assert [order.index(change.kind) for change in found] == sorted(order.index(change.kind) for change in found)
    slower = next(change for change in found if change.kind == "slower")
    assert slower.found.ratio == pytest.approx(1 / 1.3, rel=0.02)
    assert slower.found.p < 0.05


# ---- alerts and steps


def run_groups(folder: Path, levels: list[float], **more: Any) -> BenchHistory:
    """A run group for each level of the time of one group, beside four groups that do not move."""
    paths = []
    for n, level in enumerate(levels):
        noise = 1 + 0.01 * math.sin(7 * n)
        moving = made_group("mm-512", seconds=1e-3 * level * noise)
        others = [made_group(f"op{k}", seconds=1e-3 * (1 + 0.01 * math.sin(5 * n + k))) for k in range(4)]
        header = {name: values[n] for name, values in more.items()}
        paths.append(written(folder / f"{n}.jsonl", [moving, *others], [], started=day(n), **header))
    return load(paths)


def test_a_step_is_marked_where_it_began_and_alerted(tmp_path: Path) -> None:
    history = run_groups(tmp_path, [1.0] * 30 + [1.3] * 4)
    found = steps(history)
    assert {step.variant for step in found} == {"fp32", "fp32-aa", "bf16", "fp16"}
    assert {(step.key, step.run_group) for step in found} == {("cpu/eager/mm-512", day(30))}
    assert found[0].text.startswith("slower: 0.7")
    said = [alert for _, alert in listed(history) if alert.kind == "series"]
    assert {alert.series for alert in said} == {
        f"cpu/eager/mm-512/{variant}" for variant in ("fp32", "fp32-aa", "bf16", "fp16")
    }


def test_another_machine_is_a_mark_and_no_step(tmp_path: Path) -> None:
    machine = [{"model": "EPYC", "cores": 2}] * 15 + [{"model": "Xeon", "cores": 2}] * 15
    versions = [{"torch": "2.12.0"}] * 20 + [{"torch": "2.13.0"}] * 10
    history = run_groups(tmp_path, [1.0] * 15 + [2.0] * 15, machine=machine, versions=versions)
    assert steps(history) == []
    (at, other), (later, torch) = conditions(history)["cpu"]
    assert (at, later) == (day(15), day(20))
    assert "machine EPYC" in other
    assert "Xeon" in other
    assert torch == "torch 2.12.0 → 2.13.0"


def test_what_never_was_valid_is_not_missed(tmp_path: Path) -> None:
    def run_group(number: int, reason: str) -> Path:
        group = made_group("mm-512")
        group.variants[3] = VariantResult("fp16", "not measured", "no fast kernels")
        group.variants[2].verdict, group.variants[2].reason = ("invalid", reason) if reason else ("faster", "")
        return written(tmp_path / f"{number}.jsonl", [group], [], started=day(number))

    history = load([run_group(0, ""), run_group(1, "the kernel received fp32")])
    said = [alert.members for _, alert in listed(history) if alert.kind == "not measured"]
    assert said == [("cpu/eager/mm-512/bf16",)]


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
    assert pages.crossover(dict(reversed(speeds.items()))) == want


def test_sizes_without_a_valid_ratio_are_left_out(tmp_path: Path) -> None:
    ((members, curves),) = pages.axes(load(two_run_groups(tmp_path)).newest.groups)
    assert [group.size for group in members] == [16, 64, 256, 1024]
    assert [(curve.variant, [*curve.at]) for curve in curves][1:] == [("fp16", [256, 1024])]
    assert [point[0] for point in curves[1].points] == [256, 1024]


# ---- colours, figures


def test_the_charts_say_how_fast_how_exact_and_how_large_each_variant_is(tmp_path: Path) -> None:
    cpu, _, tpu = pages.boards(load(two_run_groups(tmp_path / "published")).newest, [])
    made = [board["whose"].removeprefix("Published with ampcheck, not of your machine: ") for board in (cpu, tpu)]
    assert made == [
        "measured on 2026-11-21 on EPYC, 2 cores, 1 thread",
        "estimated by a compiler on 2026-11-21 on EPYC, 2 cores, 1 thread",
    ]
    assert (cpu["device"], cpu["estimate"], tpu["device"], tpu["estimate"]) == ("cpu", False, "tpu-v5e", True)
    assert [row["workload"] for row in cpu["lead"]] == ["mlp-step", "mm-1024", "mm-256", "mm-64", "mm-16"]
    said = {s["name"]: (s["middle"], s["text"]) for s in cpu["sentences"]}
    assert said["bf16"] == ("0.6×", "as fast in the median; faster in 2 of 5 workloads, slower in 3")
    row = next(row for row in cpu["lead"] if row["workload"] == "mm-1024")
    assert [dot["text"] for dot in row["speed"]] == ["bf16 4.10× [4.06, 4.14]", "fp16 0.500× [0.495, 0.505]"]
    assert [dot["text"] for dot in row["memory"]] == ["bf16 1.00×", "fp16 1.00×"]
    invalid = next(row for row in cpu["lead"] if row["workload"] == "mm-64")
    assert [dot["text"].split()[0] for dot in invalid["speed"]] == ["bf16"], "what is not valid has no place"
    ticks = {text: at for at, text in cpu["ticks"]["speed"]}
    assert list(ticks) == ["1/4", "1", "4"]
    assert all(0 <= dot["from"] < dot["at"] < dot["from"] + dot["width"] <= 100 for dot in row["speed"])
    assert row["speed"][1]["at"] < ticks["1"] < row["speed"][0]["at"]


# ---- the pages in a real browser, opened from disk as a reader opens them; history and compare last


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
