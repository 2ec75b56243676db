"""The runs of a site, their packing, its badge and summary; no browser is needed."""

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ampcheck.errors import UsageError
from ampcheck.report import build
from ampcheck.report.conformance import pages
from ampcheck.report.conformance.data import cases, number, union
from ampcheck.report.history import load
from ampcheck.runner.record import read
from tests.report.made_bench import made_group, written
from tests.report.made_runs import make, write


def run_group(day: int, hour: int = 2) -> str:
    return f"2026-11-{day:02}T{hour:02}:00:00Z"


def test_without_a_run_file_or_a_folder_nothing_is_written(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="there is no run file to make a site of"):
        build([], tmp_path / "site")
    (tmp_path / "damaged.jsonl").write_text("hello\n")
    with pytest.raises(UsageError, match="line 1: not JSON"):
        build([tmp_path / "damaged.jsonl"], tmp_path / "site")
    assert not (tmp_path / "site").exists()
    (tmp_path / "site").write_text("mine")
    with pytest.raises(UsageError, match=r"the page .*site/\S+ cannot be written: "):
        build([write(tmp_path / "run.jsonl", [make("mm")])], tmp_path / "site")
    assert (tmp_path / "site").read_text() == "mine"


def test_about_shows_its_three_figures(tmp_path: Path) -> None:
    run, counts = write(tmp_path / "run.jsonl", [make("mm")]), tmp_path / "coverage.json"
    row = {"device": "cpu", "key": "AutocastCPU", "cells": 5000, "reachable": 2000, "each_run": 30, "nightly": 1995}
    counts.write_text(json.dumps({"torch": "2.13.0", "devices": [row]}))

    def about(*figures: Path) -> str:
        return build([run], tmp_path / "site", *figures).with_name("about.html").read_text(encoding="utf-8")

    page = about(counts)
    assert f"<strong>99.8 %</strong> of {number(2000)} reachable cells" in page
    row["not_passed"] = {"failed": 2, "deviation": 1, "unsupported": 0}
    surface = {"sentence": "The cases call 95.1%.", "missing": {"has no kernel": ["native_norm", "mm"]}}
    counts.write_text(json.dumps({"torch": "2.13.0", "ran": True, "devices": [row], "surface": surface}))
    files = []
    for name, nightly in (("cpu", 9), ("own", 8)):
        killed = {"killed": 8, "nightly": nightly, "mutants": 9}
        figures = {"torch": "2.13.0", "devices": [name], **killed, "generated": 70, "survivors": [f"of {name}"]}
        files.append(tmp_path / f"{name}.json")
        files[-1].write_text(json.dumps({**figures, "modules": [{"name": f"m.{name}", **killed}]}))
    page = about(counts, *files)
    assert "The cases that ran and passed reach <strong>99.8 %</strong>" in page
    assert "The cases call 95.1%." in page
    assert "has no kernel: native_norm, mm" in page
    assert '<td class="num">3</td><td class="num">2</td></tr>' in page
    assert "The cases of every run kill <strong>8 of 9</strong> mutants of PyTorch 2.13.0, drawn from 70" in page
    assert "with those of nightly runs <strong>9</strong>" in page
    assert "The tests of ampcheck kill <strong>8 of 9</strong> mutants" in page
    assert all(text in page for text in ("<li>of cpu</li>", "<li>of own</li>", "m.cpu", "m.own"))
    bare = about()
    assert not any(title in bare for title in ("States of ops", "Power"))


@pytest.mark.parametrize("text", ["", "[]", '{"torch": "2.13.0", "devices": [{"device": "cpu"}]}'])
def test_a_damaged_file_of_counts_is_a_usage_error(tmp_path: Path, text: str) -> None:
    counts = tmp_path / "coverage.json"
    counts.write_text(text)
    with pytest.raises(UsageError, match=r"coverage\.json is no file of counts; write one with ampcheck coverage"):
        build([write(tmp_path / "run.jsonl", [make("mm")])], tmp_path / "site", counts)


def test_files_of_one_run_group_are_one_run(tmp_path: Path) -> None:
    paths = [
        write(tmp_path / "cpu.jsonl", [make("mm")], started=run_group(20, 2)),
        write(tmp_path / "gpu.jsonl", [make("mm", device="cuda")], started=run_group(20, 4), manifest="b"),
        write(tmp_path / "old.jsonl", [make("dot")], started=run_group(19, 2)),
        write(tmp_path / "again.jsonl", [make("mm", "fail")], started=run_group(20, 6)),
        write(tmp_path / "torch.jsonl", [make("mv")], started=run_group(20, 7), versions={"torch": "2.12.0"}),
    ]
    history = load([*paths, paths[0]])
    assert [len(run.results) for run in history.runs] == [1, 2, 1, 1]
    assert [part["file"] for part in history.runs[1].header["parts"]] == ["gpu.jsonl", "again.jsonl"]


def test_the_newest_runs_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    paths = [write(tmp_path / f"{day}.jsonl", [make("mm")], started=run_group(day)) for day in range(1, 24)]
    history = load(paths)
    assert (len(history.runs), history.left_out, history.newest.header["started"]) == (20, 3, run_group(23))
    build(paths, tmp_path / "site")
    page = (tmp_path / "site/history.html").read_text()
    assert "Only the newest 20 runs are shown; 3 older run files are left out" in page


def test_the_previous_run_has_the_same_torch_if_there_is_one(tmp_path: Path) -> None:
    other = {"versions": {"torch": "2.12.0"}}
    first = write(tmp_path / "1.jsonl", [make("mm")], started=run_group(17))
    second = write(tmp_path / "2.jsonl", [make("mm")], started=run_group(18), **other)
    newest = write(tmp_path / "4.jsonl", [make("mm")], started=run_group(20))
    foreign = write(tmp_path / "3.jsonl", [make("dot")], started=run_group(19))
    for paths, want in (
        ([first, second, foreign], run_group(17)),
        ([second, foreign], run_group(18)),
        ([foreign], None),
    ):
        previous = load([newest, *paths]).previous
        assert (previous.header["started"] if previous else None) == want


def test_a_short_or_interrupted_run_in_between_is_passed_over(tmp_path: Path) -> None:
    ops = [make(f"op{number}") for number in range(4)]
    whole = write(tmp_path / "1.jsonl", ops, started=run_group(17))
    cut = write(tmp_path / "2.jsonl", ops[:3], started=run_group(18), footer=False)
    short = write(tmp_path / "3.jsonl", ops[:1], started=run_group(19))
    newest = write(tmp_path / "4.jsonl", ops, started=run_group(20))
    for paths, want in (([whole, cut, short], whole), ([cut, short], short), ([cut], cut)):
        previous = load([newest, *paths]).previous
        assert previous.path == want
    build([newest, whole, cut, short], tmp_path / "site")
    assert "2 runs in between passed over" in (tmp_path / "site/index.html").read_text()


def test_an_odd_id_and_an_alias_are_kept(tmp_path: Path) -> None:
    odd = make("mm", id="something-else-cpu")
    aliased = make("_grid_sampler_2d_cpu_fallback", id="_grid_sampler_2d_fallback-bf16-bf16-cpu")
    history = load([write(tmp_path / "run.jsonl", [odd, aliased, make("dot")])])
    packed = cases(history, {"mm", "dot", "_grid_sampler_2d_cpu_fallback"})
    place = {result.id: number for number, result in enumerate(union(history))}
    assert packed["ids"] == {place["something-else-cpu"]: "something-else-cpu"}
    assert packed["written"] == {"_grid_sampler_2d_cpu_fallback": "_grid_sampler_2d_fallback"}
    assert packed["scenarios"] == []


def test_pages_escape_what_files_hold(tmp_path: Path) -> None:
    evil = "<script>alert(1)</script>"
    results = [make("mm", "fail", message=evil, torch=evil), make("dot", "deviation", deviation=evil)]
    devices = [{"name": "cpu", "has_values": True, "model": evil}]
    run = write(tmp_path / "r.jsonl", results, absent={"x": evil}, command=[evil], devices=devices)
    group = made_group(evil, "cpu", family=evil, note=evil)
    group.variants[2].reason = group.variants[2].precision_check = evil
    speeds = written(tmp_path / "b.jsonl", [group], versions={evil: evil}, machine={"model": evil})
    build([run, speeds], tmp_path / "site")
    for file in (tmp_path / "site").glob("*"):
        if file.suffix in (".html", ".md", ".svg"):  # in a script a text is not markup
            assert evil not in file.read_text(), file.name
    assert "&lt;script&gt;" in (tmp_path / "site/index.html").read_text()


@pytest.mark.parametrize(
    ("statuses", "footer", "text", "color"),
    [
        (["pass"] * 1234, True, "1 234 as promised", "green"),
        (["pass", "deviation"], True, "1 as promised · 1 known deviation", "green"),
        (["pass", "deviation", "deviation", "fail"], True, "1 red · 1 as promised · 2 known deviations", "red"),
        (["pass"], False, "incomplete: 1 of 1 ran", "grey"),
        ([], True, "not measured", "grey"),
        (["fail"], False, "1 red · incomplete: 1 of 1 ran", "red"),
        (["missing"], True, "1 red · not measured", "red"),
    ],
)
def test_badge(statuses: list[str], footer: bool, text: str, color: str, tmp_path: Path) -> None:
    results = [make(f"op{number}", status) for number, status in enumerate(statuses)]
    run = read(write(tmp_path / "run.jsonl", results, footer=footer))
    plain = pages.message(run)[0].replace("\N{NO-BREAK SPACE}", " ")
    assert (plain, pages.message(run)[1]) == (text, color)
    assert json.loads(pages.shields(run))["color"] == pages.COLORS[color]
    assert json.loads(pages.shields(run))["schemaVersion"] == 1
    root = ElementTree.fromstring(pages.svg(run))
    assert root.attrib["aria-label"] == f"ampcheck: {pages.message(run)[0]}"


def test_the_summary_leads_with_the_verdict_and_the_changes(tmp_path: Path) -> None:
    before = write(tmp_path / "1.jsonl", [make("mm"), make("dot")], started=run_group(19))
    after = write(tmp_path / "2.jsonl", [make("mm", "fail", message="got a|b"), make("dot")], started=run_group(20))
    text = pages.exports(load([before, after]))["summary.md"]
    assert "**1 case is red on cpu.** 2 of 2 cases ran." in text
    assert text.index("1 regressed, 0 fixed") < text.index("| device |")
    assert r"`eager/promote/mm-bf16-bf16-cpu` pass → fail: got a\|b" in text
    cut = read(write(tmp_path / "3.jsonl", [make("mm")], footer=False, cases=9))
    assert "**Nothing is red so far; the run was interrupted.** 1 of 9 cases ran.\n" in pages.summary(cut)
