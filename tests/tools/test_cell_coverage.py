"""`ampcheck coverage`: impossible cells have a reason, sweeps reach all others, one that did not run is open."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ampcheck import samples
from ampcheck.checks.cells import Cell, cells, check_cells, parts, reached
from ampcheck.cli import main
from ampcheck.devices.registry import known
from ampcheck.spec.case import CELLS, Case
from ampcheck.tools.coverage.cells import count, figure
from tests.cli_support import ROOT

FEW = ("mm", "exp", "conv2d", "linalg_matrix_rank", "cat", "binary_cross_entropy")


@pytest.fixture(autouse=True)
def few_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    chosen = {name: op for name, op in samples.catalogue().items() if name in FEW}
    monkeypatch.setattr(samples, "catalogue", lambda: chosen)


def test_a_cell_that_cannot_be_has_its_reason() -> None:
    why = dict(cells(known()["virtual:cuda"]))
    assert why[Cell("mm", "fp32", "plain", "transposed", "")] == ""
    assert "dimensions enough" in why[Cell("mm", "fp32", "plain", "channels_last", "")]
    assert why[Cell("conv2d", "fp32", "plain", "channels_last", "")] == ""
    assert "fewer tensors" in why[Cell("exp", "fp32+low", "plain", "contiguous", "")]
    assert "requires grad" in why[Cell("mm", "int64", "grad", "contiguous", "")]
    assert "no gradient" in why[Cell("binary_cross_entropy", "fp32", "grad", "contiguous", "")]
    assert "fake tensor" in why[Cell("mm", "fp32", "grad", "contiguous", "dynamo")]
    mixed = Cell("conv2d", "fp64+low", "plain", "contiguous", "dynamo")  # which a fake kernel takes in eager mode
    assert "eager mode refuses" in why[mixed]
    why = dict(cells(known()["cpu"]))
    assert "eager mode refuses" in why[Cell("mm", "fp64+low", "plain", "contiguous", "export")]


@pytest.mark.parametrize("name", ["cpu", "virtual:mps"])
def test_sweeps_reach_every_cell_that_can_be(name: str) -> None:
    counted = count(known()[name])
    assert counted.nightly == counted.reachable > 10 * counted.every > 0
    assert counted.reachable + sum(counted.unreachable.values()) == counted.cells
    assert counted.open == []


def test_a_sweep_that_did_not_run_is_open() -> None:
    device = known()["virtual:mps"]
    whole = count(device)
    swept = {f"eager/downcast/mm+cells-{mode}-fp16-vmp" for mode in ("plain", "grad", "no_grad", "inference")}
    ran = {*swept} - {"eager/downcast/mm+cells-no_grad-fp16-vmp"}
    counted = count(device, ran)
    assert 0 < counted.nightly < whole.nightly
    assert any(line.startswith("mm, eager, no_grad: ") for line in counted.open)
    assert not any(line.startswith("mm, eager, plain: ") for line in counted.open)
    assert figure([whole]).startswith("The cases of a nightly run reach 100.0% of ")


def test_a_device_without_values_keeps_no_tensor_of_inference_mode() -> None:
    device, swept = known()["virtual:mps"], Case("eager", "upcast", "exp", CELLS, "", "fp16", "virtual:mps", "vmp")
    for mode in ("inference", "grad"):
        assert check_cells(replace(swept, inputs=mode), device) == []


def test_the_calls_of_a_sweep_are_cases_too() -> None:
    swept = Case("jit", "upcast", "exp", CELLS, "grad", "bf16", "cpu", "cpu", "strict")
    names = [part.name for part in parts(swept)]
    assert {"jit/upcast/exp-fp32-strict-bf16-cpu", "jit/upcast/exp-bf16-strict-bf16-cpu"} < {*names}


def test_a_case_reaches_the_cell_that_it_runs() -> None:
    device = known()["cpu"]
    made = {"device": "cpu", "token": "cpu", "amp": "bf16"}
    mixed = Case("eager", "downcast", "mm", "", inputs="fp32_fp16", **made)
    assert list(reached(mixed, device)) == [Cell("mm", "fp32+other", "plain", "contiguous", "")]
    gradient = Case("autograd", "downcast", "mm", "", inputs="fp32-grad", **made)
    assert list(reached(gradient, device)) == [Cell("mm", "fp32", "grad", "contiguous", "")]
    swept = Case("jit", "downcast", "mm", CELLS, inputs="inference", compiler="aot", **made)
    assert Cell("mm", "fp64+low", "inference", "strided", "aot") in set(reached(swept, device))
    assert list(reached(Case("eager", "fallthrough", "relu", "", inputs="fp32", **made), device)) == []


def test_the_command_prints_and_writes_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "coverage.json"
    assert main.main(["coverage", "--device", "virtual:mps", "--json", str(file)]) == 0
    out = capsys.readouterr().out
    assert out.startswith("The cases of a nightly run reach 100.0% of ")
    walked = "all 632 transitions of the model of autocast's state"
    assert walked in out
    assert walked in (ROOT / "docs/coverage/README.md").read_text()
    (row,) = json.loads(file.read_text())["devices"]
    assert row["device"] == "virtual:mps"
    assert row["nightly"] == row["reachable"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--device", "abacus"], "there is no device named 'abacus'"),
        (["gone.jsonl"], "gone.jsonl"),
        (
            ["--device", "virtual:mps", "--json", "gone/there.json"],
            "the file of counts gone/there.json cannot be written",
        ),
    ],
)
def test_bad_input_is_one_sentence(options: list[str], sentence: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["coverage", *options]) == 2
    err = capsys.readouterr().err
    assert sentence in err
    assert len(err.strip().splitlines()) == 1
