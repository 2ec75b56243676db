"""Models that the device trains as the CPU does, how a wrong training is noticed, and the command that measures."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from scripts.jax_models import __main__ as command
from scripts.jax_models.models import MODELS
from scripts.jax_models.training import STEPS, Row, Training, compare, rows

# Dynamo's own slips, which say nothing of the device.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated"),
]
OWN = [name for name, model in MODELS.items() if model.library == "torch"]
LIBRARIES = [name for name in MODELS if name not in OWN]


def trained(name: str, dtype: str, *ways: str) -> list[Row]:
    return list(rows(MODELS[name], dtype, list(ways)))


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        pytest.param(name, dtype, marks=[pytest.mark.nightly] * ((name, dtype) != ("tied-decoder", "fp32")))
        for name in OWN
        for dtype in ("fp32", "bf16", "fp16")
    ],
)
def test_training(name: str, dtype: str) -> None:
    for row in trained(name, dtype, "eager", "jit", *(["compile"] if dtype != "fp32" else [])):
        assert row.verdict == "agrees", f"{row.way}: {row.reason}"
        assert row.difference is not None
        assert len(row.losses) == STEPS
        assert dtype != "fp32" or row.difference <= 1e-5


@pytest.mark.nightly
@pytest.mark.parametrize("way", ["eager", "jit"])
@pytest.mark.parametrize("name", LIBRARIES)
@pytest.mark.filterwarnings("ignore")  # the libraries' own
def test_models_of_libraries(name: str, way: str) -> None:
    if not importlib.util.find_spec(MODELS[name].library):
        pytest.skip(f"{MODELS[name].library} is not installed: pip install 'ampcheck[models]'")
    (row,) = trained(name, "fp32", way)
    assert row.verdict == "agrees", row.reason


@pytest.mark.nightly
def test_untied_weights_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nn.Module, "_apply", vars(nn.Module._apply)["__wrapped__"])
    (row,) = trained("tied-decoder", "fp32", "eager")
    assert row.verdict == "differs"
    assert row.reason.startswith("tied parameters are none, on the CPU words.weight = head.weight; the loss of step ")


def test_an_op_that_rounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = F.gelu

    def rounding(x: torch.Tensor) -> torch.Tensor:
        return exact(x.bfloat16()).float() if x.device.type == "jax" else exact(x)

    monkeypatch.setattr(F, "gelu", rounding)
    (row,) = trained("tied-decoder", "fp32", "eager")
    assert row.verdict == "differs"
    assert row.reason.startswith("the loss of step ")
    assert row.reason.endswith(", bound 1e-05")


def judged(found: list[float], wanted: list[float], dtype: str = "fp32", exact: list[float] | None = None) -> Row:
    trainings = [Training(losses, 1, 1, []) for losses in (found, wanted, exact or wanted)]
    return compare(MODELS["tied-decoder"], dtype, *trainings)


def test_judgement() -> None:
    falling = [4 - i / 10 for i in range(STEPS)]
    off = [*falling[:5], falling[5] + 1e-3, *falling[6:]]
    assert judged(falling, falling).verdict == judged(off, falling, "bf16").verdict == "agrees"
    assert judged(off, falling).reason == "the loss of step 6 is 3.501, on the CPU 3.5, bound 1e-05"
    assert "the loss of step 6 is nan" in judged([*falling[:5], float("nan"), *falling[6:]], falling).reason
    far, rounded = [loss + 0.08 for loss in falling], [loss + 0.06 for loss in falling]
    assert judged(far, falling, "bf16").reason == "the loss of step 10 is 3.18, on the CPU 3.1, bound 0.03"
    assert judged(far, falling, "bf16", rounded).verdict == "differs"
    assert judged(rounded, falling, "bf16", rounded).verdict == "agrees"
    assert judged(falling[::-1], falling[::-1]).reason == "the CPU learned nothing: 3.1 became 4"


@pytest.mark.nightly
def test_what_raises_is_a_row(monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(x: torch.Tensor) -> torch.Tensor:
        raise RuntimeError(f"no {x.device.type} in /home/me/site-packages/lib/a.py:3")

    monkeypatch.setattr(F, "gelu", failing)
    (row,) = trained("tied-decoder", "fp32", "eager")
    assert row.verdict == "not measured"
    assert row.reason == "the CPU does not train it: RuntimeError: no cpu in lib/a.py:3"
    exact = torch.nn.functional.log_softmax
    monkeypatch.setattr(F, "log_softmax", lambda x, dim: exact(x, dim) if x.device.type == "cpu" else failing(x))
    (row,) = trained("lstm-ctc", "fp32", "eager")
    assert (row.verdict, row.reason) == ("raises", "RuntimeError: no jax in lib/a.py:3")


WORKER = """
import json, os, sys, time
from ampcheck.runner.worker import answers
channel = answers()
name, dtype, *ways = sys.argv[1:]
for way in ways:
    if way == "jit":
        os._exit(3)
    if way == "compile":
        time.sleep(1000)
    print(json.dumps({"model": name, "dtype": dtype, "way": way, "verdict": "agrees"}), file=channel)
"""


@pytest.fixture
def _planted_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "COMMAND", [sys.executable, "-c", WORKER])


@pytest.mark.nightly
@pytest.mark.usefixtures("_planted_worker")
def test_a_process_that_ends_or_hangs_costs_a_row() -> None:
    found: list[Row] = []
    command.measure("lstm-ctc", "fp32", ["eager", "jit", "compile"], 10, found.append)
    assert [(row.way, row.verdict, row.reason) for row in found] == [
        ("eager", "agrees", ""),
        ("jit", "raises", "the process ended with exit code 3"),
        ("compile", "raises", "it took over 10 s"),
    ]


CHOICE = ["--models", "lstm-ctc", "--dtypes", "fp32", "--ways", "eager,jit", "--run-file"]


@pytest.mark.usefixtures("_planted_worker")
def test_the_command_keeps_rows_and_shows_them(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "run.jsonl"
    assert command.main([*CHOICE, str(file)]) == 1
    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [line["kind"] for line in lines] == ["header", "row", "row", "footer"]
    shown = capsys.readouterr().out
    assert "| `lstm-ctc` | recurrent, CTC |" in shown
    assert shown.endswith("- lstm-ctc (fp32 jit): the process ended with exit code 3\n")
    assert command.main(["--table", str(file)]) == 1
    assert capsys.readouterr().out == shown
    assert command.main([*CHOICE, str(file)]) == 2, "a run file is never written over"
