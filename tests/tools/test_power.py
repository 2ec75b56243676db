"""Mutants of source change what functions do and are undone; they are drawn by a seed, tried, counted and shown."""

import json
from pathlib import Path

import pytest
import torch

from ampcheck.cli import main
from ampcheck.errors import UsageError
from ampcheck.report.conformance import pages
from ampcheck.tools.power import measure
from ampcheck.tools.power.kernels import KernelMutant, injected
from ampcheck.tools.power.source import SourceMutant, Target, applied, generate

MODULE = "torch.amp.autocast_mode"
MUTANTS = list(generate(Target(MODULE)))


def _mutant(function: str, change: str) -> SourceMutant:
    return next(each for each in MUTANTS if each.function == function and each.change == change)


def test_a_dropped_statement_is_felt_and_undone() -> None:
    exits = _mutant("autocast.__exit__", "without `torch.set_autocast_enabled(self.device, self.prev)`")
    with applied(exits):
        with torch.autocast("cpu"):
            pass
        assert torch.is_autocast_enabled("cpu")
    torch.set_autocast_enabled("cpu", False)
    with torch.autocast("cpu"):
        pass
    assert not torch.is_autocast_enabled("cpu")


def test_a_default_is_changed_and_put_back() -> None:
    with applied(_mutant("autocast.__init__", "`False` for `True`")), torch.autocast("cpu"):
        assert not torch.is_autocast_enabled("cpu")
    with torch.autocast("cpu"):
        assert torch.is_autocast_enabled("cpu")


@pytest.mark.parametrize(
    ("change", "shape", "dtype"),
    [
        ("policy dropped", (2, 2), torch.float32),
        ("a dimension too many", (1, 2, 2), torch.bfloat16),
        ("wrong dtype", (2, 2), torch.float64),
    ],
)
def test_a_kernel_is_changed_and_put_back(change: str, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    one = torch.ones(2, 2)
    with torch.autocast("cpu"):
        with injected(KernelMutant("cpu", "cpu", "AutocastCPU", "mm", "downcast", change)):
            wrong = torch.mm(one, one)
        assert (wrong.shape, wrong.dtype, torch.mm(one, one).dtype) == (shape, dtype, torch.bfloat16)


def test_a_target_may_name_what_its_statements_mention() -> None:
    found = list(generate(Target("torch.utils.checkpoint", about="autocast")))
    assert {each.function for each in found} >= {"_get_autocast_kwargs", "CheckpointFunction.backward"}
    assert "set_device_states" not in {each.function for each in found}


def test_a_seed_decides_what_is_drawn() -> None:
    drawn = measure.draw(MUTANTS, 20, seed=3)
    assert (len(set(drawn)), drawn) == (20, measure.draw(MUTANTS, 20, seed=3))
    assert drawn != measure.draw(MUTANTS, 20, seed=5)
    assert measure.draw(MUTANTS, 10**6, seed=0) == MUTANTS


def test_figures_have_denominators_and_name_survivors(tmp_path: Path) -> None:
    killed = measure.MutantOutcome(MUTANTS[0], "fail", "eager/context/a-cpu", "eager/context", 1)
    survived = measure.MutantOutcome(MUTANTS[1], "", "", "eager/state", 7)
    nightly = measure.MutantOutcome(MUTANTS[2], "fail", "jit/ambient/a-cpu", "jit/ambient", 9, nightly=True)
    assert "1 of 2 mutants (50.0%), drawn from 500;" in measure.text(measure.fields([killed, survived], 500, ["cpu"]))
    figures = measure.fields([killed, survived, nightly], 500, ["cpu"])
    text = measure.text(figures)
    assert "1 of 3 mutants (33.3%), drawn from 500, with those of nightly runs 2 (66.7%);" in text
    assert f"torch/amp/autocast_mode.py:{MUTANTS[1].line}" in text
    assert measure.rule_of("eager/relations/wide-mm-bf16-cpu") == "eager/relations/wide"
    assert measure.rule_of("eager/downcast/mm-fp32-bf16-cpu") == "eager/downcast"
    file = tmp_path / "power.json"
    file.write_text(json.dumps(figures), encoding="utf-8")
    assert pages.power(file)["rows"] == [{"name": MODULE, "killed": 1, "nightly": 2, "mutants": 3}]
    file.write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="ampcheck power --json"):
        pages.power(file)


def test_each_reason_not_to_count_holds_for_some_mutant_and_for_few() -> None:
    mutants = [each for target in (*measure.TARGETS, *measure.COMPARING) for each in generate(target)]
    reasons = {mutant: measure.why_equivalent(mutant) for mutant in mutants}
    assert {why for _, _, why in measure.EQUIVALENT} == set(reasons.values()) - {""}
    assert sum(bool(why) for why in reasons.values()) < 0.1 * len(mutants)
    figures = measure.fields(measure.set_aside(mutants), 500, ["cpu"])
    assert (figures["mutants"], figures["survivors"]) == (0, [])
    assert all(why in measure.text(figures) for why in reasons.values())


@pytest.mark.nightly
def test_a_measurement_kills_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["power", "--rule", "context", "--sample", "6", "--work", str(tmp_path)]
    assert main.main(command) == 0
    first = capsys.readouterr().out
    assert "torch.amp.autocast_mode" in first
    assert (main.main(command), capsys.readouterr().out) == (0, first)
