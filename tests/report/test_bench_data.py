"""The run groups of benchmarks in a site, their changes, packing, sizes and colours; no browser is needed."""

import math
import re
from pathlib import Path
from typing import Any

import pytest

from ampcheck.bench.core.model import VariantResult
from ampcheck.errors import UsageError
from ampcheck.report import build
from ampcheck.report.benchmarks import pages
from ampcheck.report.benchmarks.history import KINDS, BenchHistory, changes, conditions, listed, load, steps
from tests.cli_support import refused
from tests.report.made_bench import day, made_group, two_run_groups, written
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
    from ampcheck.cli import main

    (tmp_path / "runs").mkdir()
    write(tmp_path / "runs" / "a.jsonl", [make("mm")])
    (tmp_path / "published" / "bench").mkdir(parents=True)
    written(tmp_path / "published" / "bench" / "b.jsonl", [made_group("conv-64")])
    written(tmp_path / "bench" / "c.jsonl", [made_group("mm-512")])
    assert main.main(["report", f"--reports={tmp_path}"]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'site' / 'index.html'}\n"
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
