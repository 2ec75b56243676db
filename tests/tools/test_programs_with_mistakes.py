"""`lint` and `doctor` on programs in users' style: each finds the mistake that its file is named after, and no other.

A line `# also: RULE, RULE` names what follows from the mistake. `complete/` has longer scripts with several.
"""

import json
import re
import runpy
import sys
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from ampcheck import doctor
from ampcheck.cli.main import main
from ampcheck.errors import UsageError
from ampcheck.tools.catalogue import COSTS, RULES
from ampcheck.tools.doctor import Doctor, Enough, callbacks
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


@pytest.mark.filterwarnings("ignore")
def test_the_dearest_is_told_first_and_the_screen_ends_within_24_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with doctor() as d:
        for name in (
            "mask-overflow-2",  # in a step that is observed
            "clip-before-unscale-1",
            "backward-in-region-1",
            "low-average-1",
            "positions-in-product-1",
        ):
            runpy.run_path(str(HERE / f"{name}.py"))
    lines = d.screen().splitlines()
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 100
    costs = [COSTS.index(RULES[one.rule].costs) for one in d.findings]
    assert costs == sorted(costs)
    assert "1. loss of the run: AMP023 mask-overflow" in lines[2]


def test_pytorch_is_left_as_it_was() -> None:
    watched = [
        (torch.amp.GradScaler, "step"),
        (torch.amp.autocast, "__enter__"),
        (torch.autograd, "backward"),
        (torch.nn.utils, "clip_grad_norm_"),
    ]
    before = [getattr(*each) for each in watched]
    with doctor() as d, pytest.raises(RuntimeError, match="mine"):
        raise RuntimeError("mine")
    assert [getattr(*each) for each in watched] == before
    with pytest.raises(UsageError, match="used already"):
        d.__enter__()


def test_results_are_those_without_it() -> None:
    def train() -> list[torch.Tensor]:
        torch.manual_seed(0)
        return list(runpy.run_path(str(HERE / "right-19.py"))["m"].parameters())

    alone = train()
    with doctor():
        watched = train()
    assert all(map(torch.equal, alone, watched))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--every", "0", "x.py"], "every is 0"),
        (["--steps", "-1", "x.py"], "steps is -1"),
        (["absent.py"], "absent.py does not exist"),
        (["--json", "nowhere/x.json", "x.py"], "nowhere/x.json cannot be written"),
    ],
)
def test_bad_input(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("x.py").touch()
    assert main(["doctor", *arguments]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("body", "code"), [("", 0), ("raise RuntimeError('mine')", 1), ("raise SystemExit(7)", 7)])
def test_command(
    body: str, code: int, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import torch\n{body}\n")
    monkeypatch.setattr("sys.argv", [])
    monkeypatch.setattr("sys.path", [])
    assert main(["doctor", "--json", str(tmp_path / "found.json"), str(script)]) == code
    out, err = capsys.readouterr()
    assert "Nothing is wrong" in out
    assert json.loads((tmp_path / "found.json").read_text())["findings"] == []
    assert "ampcheck" not in err.replace(str(tmp_path), "")
    assert ("RuntimeError: mine" in err) == (code == 1)


FOR_EVER = """\
import torch
def train(inside=False):
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    while True:
        with torch.autocast("cpu"):
            loss = model(torch.randn(2, 4)).float().mean()
            if inside:
                loss.backward()
        if not inside:
            loss.backward()
        optimizer.step()
def mistaken():
    train(inside=True)
"""


def test_the_command_ends_after_the_steps_asked_for(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "for_ever.py").write_text(FOR_EVER)
    monkeypatch.syspath_prepend(tmp_path)
    assert main(["doctor", "--steps", "2", "for_ever:mistaken"]) == 1
    assert "AMP005 backward-in-region, " in capsys.readouterr().out
    assert main(["doctor", "--steps", "3", "for_ever:train"]) == 0
    assert "Watched 3 steps" in capsys.readouterr().out


def test_every_dynamic_rule_has_a_program() -> None:
    files = {file.stem.rpartition("-")[0] for file in PROGRAMS}
    assert {rule.name for rule in RULES.values() if "dynamic" in rule.found} <= files
    assert [rule.id for rule in RULES.values()] == [f"AMP{number:03}" for number in range(1, len(RULES) + 1)]
    assert {rule.costs for rule in RULES.values()} <= set(COSTS)


@pytest.mark.parametrize("name", ["trainer_callback", "lightning_callback"])
def test_a_callback_of_an_absent_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(UsageError, match="is not installed"):
        getattr(callbacks, name)()


def test_an_lstm_that_is_not_fused_is_named() -> None:
    """A processor with fp16 instructions runs the one of this program as one kernel."""
    with doctor() as d:
        runpy.run_path(str(HERE / "right-29.py"))
    fused = torch.ops.mkldnn._is_mkldnn_fp16_supported()
    seen = [one.seen for one in d.findings]
    assert seen == ([] if fused else ["LSTM was given fp16 in a region of bf16"])
