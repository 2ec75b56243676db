"""`ampcheck trace`: what it runs, prints, writes and refuses."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from ampcheck.errors import UsageError
from ampcheck.tools.trace import command

PROGRAM = """
import sys
import torch

def step():
    with torch.autocast("cpu"):
        return torch.mm(torch.ones(4, 4), torch.ones(4, 4))

def shout(word):
    print(word)

class Holder:
    run = staticmethod(step)

NUMBER = 3
if __name__ == "__main__":
    print("arguments", sys.argv[1:])
    step()
    {end}
"""


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", list(sys.argv))
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "program", raising=False)
    path = tmp_path / "program.py"
    path.write_text(PROGRAM.replace("{end}", "pass"))
    return path


def test_a_script_with_arguments(script: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command(["program.py", "--sort", "x", "-v"]) == 0
    out = capsys.readouterr().out
    assert "arguments ['--sort', 'x', '-v']" in out
    assert "2 casts by autocast, 0 of them of gradients: 192 B read and written" in out
    assert "program.py:7" in out


@pytest.mark.parametrize("target", ["program:step", "program:Holder.run"])
def test_a_function(script: Path, capsys: pytest.CaptureFixture[str], target: str) -> None:
    assert command(["--sort", "bytes", "--limit", "1", target]) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[-1].startswith("1 of ")
    assert out.splitlines()[-2].startswith("mm ")


def test_json(script: Path, tmp_path: Path) -> None:
    assert command(["--json", "out.json", "program:step"]) == 0
    data = json.loads((tmp_path / "out.json").read_text())
    assert data["totals"]["casts"] == 2
    mm = data["ops"][-1]
    assert (mm["name"], mm["policy"], mm["ran_in"], mm["region"]["dtype"]) == ("mm", "downcast", "low", "bf16")


@pytest.mark.parametrize(
    ("end", "code", "shown"),
    [
        ("raise ValueError('no more')", 1, "ValueError: no more"),
        ("sys.exit(7)", 7, ""),
        ("sys.exit()", 0, ""),
        ("sys.exit('stopped')", 1, "stopped"),
    ],
)
def test_what_ran_is_shown_however_the_script_ends(
    script: Path, capsys: pytest.CaptureFixture[str], end: str, code: int, shown: str
) -> None:
    script.write_text(PROGRAM.replace("{end}", end))
    assert command(["program.py"]) == code
    shot = capsys.readouterr()
    assert "2 casts by autocast" in shot.out
    assert "downcast" in shot.out
    assert shown in shot.err


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "the following arguments are required: SCRIPT.py | MODULE:FUNCTION"),
        (["absent.py"], "absent.py does not exist; give a script, or a function as MODULE:FUNCTION"),
        (["."], ". is a folder; give a script"),
        (["absent_module:f"], "module absent_module cannot be imported: ModuleNotFoundError"),
        (["program:"], "program: names no function"),
        (["program:absent"], "module program has no function absent"),
        (["program:NUMBER"], "program:NUMBER is a int, not a function"),
        (["program:shout"], "program:shout cannot be called without arguments: missing a required argument: 'word'"),
        (["program:step", "4"], "program:step is called without arguments, but '4' was given"),
        (["--sort", "size", "program.py"], "invalid choice: 'size'"),
        (["--limit", "0", "program.py"], "--limit must be 1 or more, not 0"),
        (["--json", "absent/out.json", "program.py"], "absent/out.json cannot be written: its folder does not exist"),
    ],
)
def test_bad_input_is_refused_before_anything_runs(
    script: Path, capsys: pytest.CaptureFixture[str], argv: list[str], message: str
) -> None:
    with pytest.raises(UsageError) as refused:
        command(argv)
    assert message in str(refused.value)
    assert "arguments" not in capsys.readouterr().out


def test_a_module_that_does_not_import_is_named(script: Path, tmp_path: Path) -> None:
    (tmp_path / "broken_program.py").write_text("1 / 0\n")
    with pytest.raises(
        UsageError, match="module broken_program cannot be imported: ZeroDivisionError: division by zero"
    ):
        command(["broken_program:f"])
