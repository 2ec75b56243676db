"""`ampcheck.doctor`: a mistake is found under its rule, right programs have none, the dearest is told first."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

from ampcheck import doctor
from ampcheck.cli.main import main
from ampcheck.errors import UsageError
from ampcheck.tools.catalogue import COSTS, RULES
from ampcheck.tools.doctor import callbacks
from tests.tools.doctor_programs import RIGHT, WRONG, Loop, Program
from tests.tools.test_programs_with_mistakes import PROGRAMS


@pytest.mark.parametrize(
    ("rule", "program"),
    [pytest.param(rule, one, id=f"{rule}-{name}") for rule, all_ in WRONG.items() for name, one in all_.items()],
)
@pytest.mark.filterwarnings("ignore")
def test_wrong_programs(rule: str, program: Program) -> None:
    with doctor() as d:
        program()
    assert rule in {one.rule for one in d.findings}, d.screen(everything=True)
    found = next(one for one in d.findings if one.rule == rule)
    assert "doctor_programs.py:" in found.place


@pytest.mark.parametrize("name", RIGHT)
@pytest.mark.filterwarnings("ignore")
def test_right_programs(name: str) -> None:
    with doctor() as d:
        RIGHT[name]()
    assert not d.findings, d.screen(everything=True)


def test_the_dearest_is_told_first_and_the_screen_ends_within_24_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with doctor() as d:
        for rule in (
            "mask-overflow",  # in a step that is observed
            "clip-before-unscale",
            "backward-in-region",
            "low-average",
            "positions-in-product",
        ):
            next(iter(WRONG[rule].values()))()
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
        loop = Loop()
        loop.run(3)
        return [p.detach().clone() for p in loop.model.parameters()]

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
        (["--json", "nowhere/x.json", "x.py"], "its folder does not exist"),
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


def test_the_command_ends_after_the_steps_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--steps", "2", "tests.tools.doctor_programs:backward_in_region"]) == 1
    assert "AMP005 backward-in-region, tests/tools/doctor_programs.py:" in capsys.readouterr().out
    assert main(["doctor", "--steps", "3", "tests.tools.doctor_programs:for_ever"]) == 0
    assert "Watched 3 steps" in capsys.readouterr().out


def test_every_dynamic_rule_has_a_program() -> None:
    files = {file.stem.rpartition("-")[0] for file in PROGRAMS}
    assert {rule.name for rule in RULES.values() if "dynamic" in rule.found} <= {*WRONG, *files}
    assert [rule.id for rule in RULES.values()] == [f"AMP{number:03}" for number in range(1, len(RULES) + 1)]
    assert {rule.costs for rule in RULES.values()} <= set(COSTS)


@pytest.mark.parametrize("name", ["trainer_callback", "lightning_callback"])
def test_a_callback_of_an_absent_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(UsageError, match="is not installed"):
        getattr(callbacks, name)()
