"""`lint` and `doctor` on programs in users' style: each finds the mistake that its file is named after, and no other.

A line `# also: RULE, RULE` names what follows from the mistake. `complete/` has longer scripts with several.
"""

from __future__ import annotations

import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from ampcheck import doctor
from ampcheck.cli.main import main
from ampcheck.tools.catalogue import RULES
from ampcheck.tools.doctor import Doctor, Enough
from ampcheck.tools.lint import TRAINING, lint_source

HERE = Path(__file__).parents[1] / "programs_with_mistakes"
PROGRAMS = sorted(HERE.glob("*.py"))
COMPLETE = sorted(HERE.glob("complete/*.py"))


def wanted(file: Path, how: str) -> tuple[set[str], set[str]]:
    """Return the rules that a tool has to find, and those that it may find."""
    text = file.read_text()
    mistakes = {file.stem.rpartition("-")[0]} - {"right"}
    for line in re.findall("^# mistakes: (.*)", text):
        mistakes |= set(line.split(", "))
    also = {rule for line in re.findall("^# also: (.*)", text, re.MULTILINE) for rule in line.split(", ")}
    assert mistakes | also <= set(RULES) | {""}
    mistakes.discard("")
    return {rule for rule in mistakes if how in RULES[rule].found}, mistakes | also


def run(file: Path) -> Doctor:
    with doctor(steps=20) as watching, suppress(Enough):
        runpy.run_path(str(file), run_name="__main__")
    return watching


@pytest.mark.parametrize("file", [*PROGRAMS, *COMPLETE], ids=lambda file: file.stem)
def test_lint(file: Path) -> None:
    must, may = wanted(file, "static")
    found = {report.rule for report in lint_source(file.read_text(), file.name, list(TRAINING))}
    assert must <= found <= may


@pytest.mark.parametrize("file", [*PROGRAMS, *COMPLETE], ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
def test_doctor(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(file)])
    must, may = wanted(file, "dynamic")
    watching = run(file)
    found = {one.rule for one in watching.findings}
    assert must <= found <= may, watching.screen(everything=True)
    assert all(file.name in one.place for one in watching.findings if one.rule in must), watching.screen()


def test_every_rule_has_two_shapes() -> None:
    named = [file.stem.rpartition("-")[0] for file in PROGRAMS]
    assert [rule for rule in TRAINING if named.count(rule) < 2] == []


@pytest.mark.parametrize("file", COMPLETE, ids=lambda file: file.stem)
@pytest.mark.filterwarnings("ignore")
def test_the_first_screen_holds_the_answer(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [*sys.path])
    for command, how in (("lint", "static"), ("doctor", "dynamic")):
        assert main([command, str(file)]) == 1
        lines = capsys.readouterr().out.splitlines()
        assert all(len(line) <= 100 or str(file) in line for line in lines)
        first = "\n".join(lines[:24])
        assert [rule for rule in wanted(file, how)[0] if rule not in first] == []
