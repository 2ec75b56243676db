"""`lint` and `doctor` on programs in users' style: each finds the mistake a program is named after, and no other."""

import csv
import importlib
import json
import sys
import tomllib
from pathlib import Path

import pytest
import torch

from ampcheck import doctor
from ampcheck.cli.main import main
from ampcheck.errors import UsageError
from ampcheck.tools.catalogue import COSTS, RULES
from ampcheck.tools.doctor import callbacks
from scripts.mistakes import FIELDS, FIGURES, PAGES, Program, index, page, programs
from tests.cli_support import printed

ALL = programs()
FOR_EVER = tomllib.loads(Path(__file__).with_name("programs.toml").read_text(encoding="utf-8"))["for_ever"]
NAMED = {one.name: one for one in ALL}
WHOLE = [one for one in ALL if one.of == "whole"]


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_lint(program: Program) -> None:
    assert program.must("static") <= program.read() <= program.mistakes | program.also


@pytest.mark.parametrize("program", ALL, ids=lambda program: program.name)
def test_doctor(program: Program, tmp_path: Path) -> None:
    watching = program.run(tmp_path / "program.py")
    found = {one.rule for one in watching.findings}
    assert program.must("dynamic") <= found <= program.mistakes | program.also, watching.screen(everything=True)
    told = [one for one in watching.findings if one.rule in program.mistakes]
    assert all("program.py:" in one.place for one in told), watching.screen()


def test_the_figures_of_the_page_are_of_these_programs() -> None:
    with FIGURES.open(encoding="utf-8", newline="") as file:
        rows = {row["rule"]: row for row in csv.DictReader(file)}
    assert {*rows} == {*RULES, "right"}
    for name, rule in RULES.items():
        wrong = sum(name in one.mistakes for one in ALL)
        mended = sum(one.of == name and not one.mistakes for one in ALL)
        assert min(wrong, mended) >= 2, name
        found = [wrong if how in rule.found else 0 for how in ("static", "dynamic")]
        assert [int(rows[name][field]) for field in FIELDS[1:]] == [wrong, *found, mended, mended], name
    assert (PAGES / "README.md").read_text(encoding="utf-8") == index(list(rows.values()))
    assert all((PAGES / f"{rule.id}.md").read_text(encoding="utf-8") == page(rule) for rule in RULES.values())


@pytest.mark.parametrize("program", WHOLE, ids=lambda program: program.name)
@pytest.mark.filterwarnings("ignore")
def test_the_first_screen_holds_the_answer(
    program: Program, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    file = here / f"{program.name}.py"
    file.write_text(program.text, encoding="utf-8")
    for command, how in (("lint", "static"), ("doctor", "dynamic")):
        lines = printed(capsys, command, str(file), code=1).splitlines()
        assert all(len(line) <= 100 or str(file) in line for line in lines)
        first = "\n".join(lines[:24])
        assert [rule for rule in program.must(how) if rule not in first] == []


@pytest.mark.filterwarnings("ignore")
def test_the_dearest_is_told_first_and_the_screen_ends_within_24_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    with doctor() as d:
        # The first one in a step that is observed.
        for name in (
            "mask-overflow",
            "clip-before-unscale",
            "backward-in-region",
            "low-average",
            "positions-in-product",
        ):
            exec(RULES[name].wrong, {})
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
        names: dict[str, torch.nn.Module] = {}
        exec(NAMED["right-19"].text, names)
        return list(names["m"].parameters())

    alone = train()
    with doctor():
        watched = train()
    assert all(map(torch.equal, alone, watched))


@pytest.mark.parametrize(("body", "code"), [("", 0), ("raise RuntimeError('mine')", 1), ("raise SystemExit(7)", 7)])
def test_command(body: str, code: int, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = here / "train.py"
    script.write_text(f"import torch\n{body}\n")
    assert main(["doctor", "--json", "found.json", str(script)]) == code
    out, err = capsys.readouterr()
    assert "Nothing is wrong" in out
    assert json.loads((here / "found.json").read_text())["findings"] == []
    assert "ampcheck" not in err.replace(str(here), "")
    assert ("RuntimeError: mine" in err) == (code == 1)


def test_the_command_ends_after_the_steps_asked_for(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "for_ever.py").write_text(FOR_EVER)
    assert "AMP005 backward-in-region, " in printed(capsys, "doctor", "--steps", "2", "for_ever:mistaken", code=1)
    assert "Watched 3 steps" in printed(capsys, "doctor", "--steps", "3", "for_ever:train")


def test_the_catalogue() -> None:
    assert [rule.id for rule in RULES.values()] == [f"AMP{number:03}" for number in range(1, len(RULES) + 1)]
    assert {rule.costs for rule in RULES.values()} <= set(COSTS)
    assert all("# right" not in rule.wrong + rule.right and rule.wrong != rule.right for rule in RULES.values())


def test_a_library_that_owns_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The place is the program's line, and the library's is told beside it."""
    (tmp_path / "site-packages").mkdir()
    (tmp_path / "site-packages" / "loops.py").write_text(FOR_EVER.replace("while True", "for _ in range(2)"))
    monkeypatch.syspath_prepend(tmp_path / "site-packages")
    loops = importlib.import_module("loops")
    with doctor() as d:
        loops.mistaken()
    assert [(one.rule, one.module) for one in d.findings] == [("backward-in-region", "loops.py:9")]
    assert d.findings[0].place.rpartition(":")[0].endswith(Path(__file__).name)


@pytest.mark.parametrize("name", ["trainer_callback", "lightning_callback"])
def test_a_callback_of_an_absent_library(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "transformers", None)
    monkeypatch.setitem(sys.modules, "lightning.pytorch", None)
    with pytest.raises(UsageError, match="is not installed"):
        getattr(callbacks, name)()


def test_an_lstm_that_is_not_fused_is_named(tmp_path: Path) -> None:
    """PyTorch fuses none of fp16 that requires grad, on any processor (use_mkldnn in ATen/native/RNN.cpp)."""
    d = NAMED["right-29"].run(tmp_path / "program.py")
    assert [one.seen for one in d.findings] == ["LSTM was given fp16 in a region of bf16"]
