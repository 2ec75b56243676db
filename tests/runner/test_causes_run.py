"""A run on a device with three faults: terminal, summary, JUnit, run file and suggestions speak of three causes."""

import json
import os
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree as xml

import pytest

from ampcheck.runner import summarize as summary
from ampcheck.runner.deviations import ENTRIES, GLOBS, as_toml, load, suggest
from ampcheck.runner.record import RED, Result, Run, grouped, read
from ampcheck.runner.run import NO, YES, reproduce
from ampcheck.runner.summarize import merge
from tests.cli_support import ROOT, ended, environment, run_pytest
from tests.report.made_runs import make
from tests.report.made_runs import write as written

BACKENDS = ROOT / "tests" / "backends"
CHOICE = ("--device=faulty", "--device-module=three_faults", "--op=mm", "--op=addmm", "--op=exp")
TABLE = tomllib.loads(Path(__file__).with_name("causes.toml").read_text(encoding="utf-8"))
MM, ADDMM, EXP = "fail: RuntimeError: no kernel", "fail: aten::addmm on faulty: argument ", "fail: ValueError: …: shape"
ENV = {**environment(), "PYTHONPATH": f"{ROOT}{os.pathsep}{BACKENDS}"}


class Found(NamedTuple):
    """A run, and what it printed."""

    run: Run
    out: str
    folder: Path


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> Found:
    folder = tmp_path_factory.mktemp("three")
    command = [sys.executable, "-m", "ampcheck", "run", *CHOICE, "--suite=eager", "--run-file=run.jsonl"]
    done = ended(command, folder, **ENV, code=1)
    return Found(read(folder / "run.jsonl"), done.stdout, folder)


def test_three_faults_are_three_causes_in_order_of_size(found: Found) -> None:
    groups = grouped(found.run.results.values())
    assert len(found.run.results) > 60
    assert [cause.text[: len(want)] for cause, want in zip(groups, (MM, ADDMM, EXP), strict=True)] == [MM, ADDMM, EXP]
    assert [{r.op for r in cause.results} for cause in groups] == [{"mm"}, {"addmm"}, {"exp"}]
    assert groups[0].text.endswith("(three_faults.py in kernel)")
    assert groups[1].text.endswith("(rule downcast)")
    assert groups[2].text.endswith("(three_faults.py in kernel)")


def test_each_red_case_keeps_cause_message_and_traceback(found: Found) -> None:
    for result in found.run.results.values():
        assert bool(result.cause) == (result.status in RED)
        assert bool(result.traceback) == (result.op in ("mm", "exp") and result.status in RED)
        if result.traceback:
            first = result.traceback.splitlines()[1]
            assert "ampcheck" not in first.replace(str(ROOT), "")
            assert "in kernel" in result.traceback
        if result.op == "mm" and result.status in RED:
            assert "see the list of kernels in its manual " + "m" * 300 in result.message


def test_the_first_screen_names_the_causes(found: Found) -> None:
    screen = found.out[: found.out.index("device    rule")]
    assert len(screen.splitlines()) <= 40
    places = [screen.index(f"  {text}", screen.index("the largest first:")) for text in (MM, ADDMM, EXP)]
    assert places == sorted(places)
    assert "red cases, 3 causes, the largest first:" in screen
    whole = ("pytest", "failed: preflight")  # told in full, as each says what to do
    assert max(len(line) for line in screen.splitlines() if not line.strip().startswith(whole)) <= 210
    lines = screen.splitlines()
    for cause in grouped(found.run.results.values()):
        at = lines.index(f"{len(cause.results):>6}  {cause.line()}")
        assert lines[at + 1].startswith(f"        such as {cause.example.key}; in plain torch it ")
        assert lines[at + 2] == f"        {cause.example.pytest}"


def test_a_reproduction_was_run_before_it_is_printed(found: Found) -> None:
    said = found.run.footer["reproduced"]
    by_op = {found.run.results[key].op: words for key, words in said.items()}
    # What raises for exp is entered by ampcheck alone.
    assert by_op == {"mm": YES, "addmm": YES, "exp": NO}
    assert found.out.count(f"in plain torch it {YES}") == 2
    assert found.out.count(f"in plain torch it {NO}") == 1
    later = Run(found.run.path, {**found.run.header, "started": "2099-01-01T00:00:00Z"}, {}, {"kind": "footer"})
    assert merge([found.run, later]).footer["reproduced"] == said  # type: ignore[index]


def test_the_summary_beside_the_run_file_has_each_cause_in_full(found: Found) -> None:
    assert summary.beside(Path("x.md")) == Path("x.summary.md")  # never the run file itself
    text = (found.folder / "run.summary.md").read_text()
    assert f"summary: {Path('run.summary.md')}" in found.out
    assert "## ampcheck" in text
    assert "| faulty |" in text
    rows = [line for line in text.splitlines() if line.startswith("| ") and "`eager/" in line]
    assert [row.partition("|")[2].split("|")[1].strip()[:16] for row in rows] == [t[:16] for t in (MM, ADDMM, EXP)]
    assert text.count("<details>") == text.count("</pre>") == 3
    assert "raise RuntimeError" in text
    assert f"or in plain torch ({NO}):" in text


def test_junit_groups_by_cause(found: Found) -> None:
    suite = xml.parse(found.folder / "run.xml").getroot()[0]
    failures = [case[0] for case in suite if len(case) and case[0].tag == "failure"]
    steps = [note for note in found.run.header.get("preflight", ()) if note.startswith("failed")]
    assert sum("type" not in failure.attrib for failure in failures) == len(steps)  # the preflight's, beside the cases
    failures = [failure for failure in failures if "type" in failure.attrib]
    assert len(failures) == sum(result.status in RED for result in found.run.results.values())
    assert {failure.attrib["type"] for failure in failures} == {r.cause for r in found.run.results.values() if r.cause}
    assert all(len(failure.attrib["message"]) <= 200 for failure in failures)
    assert any("raise ValueError" in (failure.text or "") for failure in failures)


@pytest.mark.nightly
def test_plain_pytest_says_the_same(found: Found, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli_support.environment", lambda: ENV)
    options = (f"--run-file={tmp_path / 'plain.jsonl'}", f"--junitxml={tmp_path / 'pytest.xml'}", "--tb=no")
    done = run_pytest(tmp_path, str(ROOT / "suites" / "eager"), *CHOICE, "-p", "no:xdist", *options, code=1)
    plain = read(tmp_path / "plain.jsonl")
    assert {k: r.cause for k, r in plain.results.items()} == {k: r.cause for k, r in found.run.results.items()}
    screen = done.stdout.partition("= conformance =")[2].partition("device    rule")[0]
    places = [screen.index(f"  {text}") for text in (MM, ADDMM, EXP)]
    assert places == sorted(places)
    assert len(screen.splitlines()) <= 40
    assert "in plain torch it" not in screen  # it was not run
    assert "3 causes" in (tmp_path / "plain.summary.md").read_text()
    said = xml.parse(tmp_path / "pytest.xml").getroot().iter("property")
    assert {p.attrib["value"] for p in said if p.attrib["name"] == "cause"} == {
        r.cause for r in plain.results.values() if r.cause
    }


def test_suggestions_are_one_a_cause_and_waive_each(found: Found, tmp_path: Path) -> None:
    suggestion = suggest(found.run)
    assert [entry.message[:9] for entry in suggestion.entries] == ["aten::mm ", "argument ", "aten::exp"]
    assert suggestion.left == ()
    text = as_toml(suggestion, found.run, whole=True)
    (tmp_path / "mine.toml").write_text(text.replace('reason = ""', 'reason = "Known."'))
    deviations = load(tmp_path / "mine.toml")
    for result in found.run.results.values():
        own = [deviation for deviation in deviations if deviation.covers(result.name)]
        assert len(own) == (result.status == "fail"), result.key
        for deviation in own:
            assert all(deviation.explains(line) for line in result.message.splitlines()), result.key


def test_the_policy_of_an_op_is_the_cause_of_what_depends_on_it() -> None:
    def red(op: str, rule: str, message: str, program: str = "", name: str = "") -> Result:
        found = make(op, "fail", device="mine", rule=rule, amp="fp16", message=message, torch=program)
        return replace(found, id=f"{op or name}-fp16-mine")

    wide = "argument 0 of aten::{} was given as fp32 and reached the kernel as fp32; expected fp16 (rule downcast: x)"
    scenario = "ops with a policy in {}, with the dtypes they received: got [('{}', ('fp32',))]; expected fp16"
    results = [
        red("linear", "downcast", wide.format("linear")),
        red("nn.functional.mlp", "fallthrough", f"sample 0: {wide.format('linear')}"),
        red("bmm", "downcast", wide.format("bmm")),
        red("", "modules", scenario.format("Linear", "linear"), name="layer"),
        red("", "modules", "dtype of the result: got fp32; expected fp16", "out = torch.bmm(a, b)", name="attention"),
        red("", "modules", "output 0 of GRU is fp32; expected fp16", "torch.nn.GRU(2, 2)", name="gru"),
        red("", "modules", "output 0 of LSTM is fp32; expected fp16", "torch.nn.LSTM(2, 2)", name="lstm"),
        red("", "state", "enabled after the region: got True; expected False", "linear(x)", name="leak"),
    ]
    found = {cause.text: [r.op or r.id.partition("-")[0] for r in cause.results] for cause in grouped(results)}
    said = "argument 0 of aten::{} was given as fp32 and reached the kernel as fp32; expected fp16 (rule downcast)"
    assert found == {
        f"fail: aten::linear on mine: {said.format('linear')}": ["linear", "nn.functional.mlp", "layer"],
        f"fail: aten::bmm on mine: {said.format('bmm')}": ["bmm", "attention"],
        "fail: other dtypes on mine, perhaps by one of these ops (rule modules)": ["gru", "lstm"],
        "fail: enabled after the region: got …; expected … (rule state)": ["leak"],
    }
    # Many ops with the same difference are one cause, as before.
    many = [red(f"op{n}x", "downcast", wide.format(f"op{n}x")) for n in range(30)]
    assert len(grouped(many)) == 1


# ---- bounds


def made(number: int, kind: int, **fields: str) -> Result:
    """A red case with a message that tells its kind by letters."""
    op, letters = f"op{number}", "".join("abcdefghij"[int(digit)] for digit in str(kind))
    return make(op, **{"status": "fail", "message": f"{letters} is wrong with {op}", "device": "mine", **fields})


def test_a_screen_of_many_causes_is_bounded_and_says_how_many_more() -> None:
    results = [made(n, n % 50, pytest="pytest 'x'", torch="import torch\n" * 50) for n in range(1400)]
    lines = summary.causes(results, {}, "run.md").splitlines()
    assert len(lines) <= summary.SCREEN
    assert lines[0] == "1400 red cases, 50 causes, the largest first:"
    assert f"{42 * 28:>6}  cases of 42 more causes" in lines
    text = "\n".join(summary.causes_markdown(results, {}))
    assert text.count("<details>") == summary.SHOWN
    assert "30 more causes" in text


def test_one_small_cause_is_shown_in_full() -> None:
    result = made(1, 1, pytest="pytest 'x'", torch="import torch", traceback="Traceback …\n  in kernel")
    screen = summary.causes([result], {result.key: YES}, "")
    assert "1 red case, 1 cause, the largest first:" in screen
    assert f"or in plain torch ({YES}):" in screen
    assert "  in kernel" in screen
    assert summary.causes([replace(result, status="pass")], {}, "") == ""


def test_the_pytest_of_this_python_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = made(1, 1, pytest="pytest 'x'")
    for name in ("own", "other"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "pytest").touch(0o755)
    monkeypatch.setattr("sys.executable", str(tmp_path / "own" / "python"))
    monkeypatch.chdir(tmp_path)
    for path, named in (("other", True), ("own", False), ("neither", True)):
        monkeypatch.setenv("PATH", str(tmp_path / path))
        assert ("(pytest is own/pytest)" in summary.causes([result], {}, "")) == named


def test_suggestions_of_a_half_finished_backend_are_bounded(tmp_path: Path) -> None:
    causes_of = [made(n, n % 40) for n in range(1200)]
    passing = [replace(made(n, 0), status="pass", message="") for n in range(1200, 1300)]
    run = read(written(tmp_path / "half.jsonl", [*causes_of, *passing]))
    suggestion = suggest(run)
    assert len(suggestion.entries) == 40
    text = as_toml(suggestion, run)
    assert len(text.splitlines()) < ENTRIES * (GLOBS + 13) + 10
    assert text.count("[[deviation]]") == ENTRIES
    assert "more globs: --all prints them" in text
    assert f"# {40 - ENTRIES} more causes of" in text
    assert as_toml(suggestion, run, whole=True).count("[[deviation]]") == 40
    assert len(tomllib.loads(text.replace('reason = ""', 'reason = "x"'))["deviation"]) == ENTRIES


# ---- reproductions


def said(program: str, **fields: str) -> str:
    """What is said of a program in place of a case's plain torch lines."""
    result = made(1, 1, torch=program, **fields)
    ((key, words),) = reproduce([result], os.environ)
    assert key == result.key
    return words


@pytest.mark.parametrize(("program", "fields", "shows", "why"), TABLE["programs"])
def test_a_program_is_judged_by_what_it_shows(program: str, fields: dict[str, str], shows: bool, why: str) -> None:
    assert said(program, **fields) == (YES if shows else NO + why)


def test_a_program_that_does_not_end_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ampcheck.runner.run.PROGRAM_LIMIT", 1.0)
    forever = "import time\nwhile True: time.sleep(1)"
    assert said(forever, status="timeout") == YES
    assert said(forever) == f"{NO} (it did not end within 1 s)"
    monkeypatch.setattr("ampcheck.runner.run.PROGRAMS_LIMIT", 0.0)
    assert said(forever) == "was not run, for want of time"


def test_a_case_without_a_program_is_left_out() -> None:
    assert list(reproduce([made(1, 1), made(2, 1, torch="print('FAIL x')", status="fixed")], os.environ)) == []
    json.dumps(dict(reproduce([made(1, 1, torch="print('FAIL x')")], os.environ)))
