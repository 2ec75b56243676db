"""The figures of docs/jax_ops.md and of models: what is measured, how it is judged, what the page says; the guide."""

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

from scripts.jax_coverage import driver, judge, measure
from scripts.jax_coverage.page import Row as OpRow
from scripts.jax_models import __main__ as command
from scripts.jax_models.models import MODELS
from scripts.jax_models.training import STEPS, Row, Training, compare, rows
from tests.cli_support import LIMIT, PROGRAMS, ROOT, python

PAGE = ROOT / "docs" / "jax_ops.md"


@pytest.mark.nightly
def test_rows_say_what_the_device_does() -> None:
    command = (sys.executable, "-c", PROGRAMS["coverage-faults"])
    settings = driver.Settings(samples=3, seconds=LIMIT, processes=1, command=command)
    found: list[OpRow] = []
    names = ("add", "nn.functional.dropout", "sin", "trunc", "sinh", "mm")
    driver.sweep([("jax", name) for name in names], settings, found.append)
    rows = {row.op: row for row in found}
    assert [(r.run, r.agreeing) for r in (rows["add"], rows["nn.functional.dropout"], rows["mm"])] == [(3, 3)] * 3
    assert "the result is wrong: " in rows["sin"].reason
    assert rows["sin"].agreeing == 0
    assert "a second call gives another result" in rows["trunc"].reason
    assert rows["sinh"].reason.startswith("crash: the process ended with 7")


@pytest.mark.nightly
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    options = ["--ops=abs,topk", "--samples=2", "--processes=1", f"--json={tmp_path / 'kept'}", f"--write={written}"]
    said = python("-m", "scripts.jax_coverage", *options, JAX_PLATFORMS="cpu")
    text = written.read_text(encoding="utf-8")
    assert consistent(text) == []
    assert {row[0]: row[1:3] for row in table(text, "Every op")} == {"abs": ["1", "1"], "topk": ["2", "2"]}
    assert "jax: 3 of 3 samples agree, all of 2 of 2 ops" in said


@pytest.mark.nightly
def test_the_examples_of_the_guide_run() -> None:
    given = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert python("-c", PROGRAMS["coverage-examples"], ROOT / "docs" / "jax_device.md", **given) == "ran\n"


def table(text: str, title: str) -> list[list[str]]:
    """Return the rows of the table under a title of the page, without its head."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def consistent(text: str) -> list[str]:
    """Return what on the page contradicts its own rows."""
    every = table(text, "Every op")
    ours = [(int(row[1]), int(row[2])) for row in every]
    samples_said, ops_said = (row[1] for row in table(text, "Totals"))
    wrong = []
    for said, part, whole in (
        (samples_said, sum(a for _, a in ours), sum(n for n, _ in ours)),
        (ops_said, sum(n == a for n, a in ours), len(ours)),
    ):
        right = f"{part} of {whole} ({100 * part / whole:.1f} %)"
        wrong += [f"{said}; the rows say {right}"] if said != right else []
    failing = [row[:3] for row in table(text, "Ops that do not fully agree on the device")]
    return wrong + ["the failing ops are others"] * (failing != [row[:3] for row in every if row[1] != row[2]])


def test_the_published_page_agrees_with_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert consistent(text) == []
    assert len(table(text, "Every op")) > 600
    agree, run = map(int, table(text, "Totals")[0][1].split(" (")[0].split(" of "))
    assert agree / run >= 0.95


NAN, WHOLE = float("nan"), torch.ones(2, dtype=torch.int64)
DIFFERENCES: dict[str, tuple[object, object, str]] = {
    "nan": (torch.tensor([NAN, 1.0]), torch.tensor([NAN, 1.0]), ""),
    "nan alone": (torch.tensor([NAN, 1.0]), torch.tensor([0.0, 1.0]), "Mismatched elements: 1 / 2 (50.0%)"),
    "value": (torch.tensor([1, 2.5]), torch.tensor([1, 2.0]), "Greatest absolute difference: 0.5 at index (1,)"),
    "shape": (torch.ones(2, 1), torch.ones(2), "'shape' do not match: torch.Size([2, 1]) != torch.Size([2])"),
    "dtype": (WHOLE.int(), WHOLE, "the result is wrong: The values for attribute 'dtype' do not match: torch.int32"),
    "number": ((torch.ones(2), 3), (torch.ones(2), 4), "output 1 is 3; the CPU's is 4"),
    "count": ((torch.ones(2),), (torch.ones(2), 4), "gave 1 outputs; the CPU gives 2"),
    "float64": (WHOLE.double() + 1e-6, WHOLE.double(), "Greatest absolute difference: "),
}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_difference_is_named(name: str) -> None:
    actual, expected, words = DIFFERENCES[name]
    found = judge.difference(actual, expected, measure.RTOL, measure.ATOL)
    assert words in found if words else found == ""


Draw = Callable[[], torch.Tensor]
DRAWS: dict[str, tuple[Draw, Draw, bool]] = {
    "rand": (lambda: torch.rand(8), lambda: torch.rand(8), True),
    "cauchy": (lambda: torch.empty(8).cauchy_(), lambda: torch.empty(8).cauchy_(), True),
    "narrower": (lambda: torch.rand(8) * 0.5, lambda: torch.rand(8), False),
    "shifted": (lambda: torch.randn(8) + 1.0, lambda: torch.randn(8), False),
    "constant": (lambda: torch.zeros(8), lambda: torch.empty(8).cauchy_(), False),
    "too many ones": (lambda: (torch.rand(8) < 0.8).float(), lambda: (torch.rand(8) < 0.5).float(), False),
    "dtype": (lambda: torch.rand(8, dtype=torch.float64), lambda: torch.rand(8), False),
    "infinite": (lambda: torch.rand(8) / 0.0, lambda: torch.rand(8), False),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_of_another_distribution_are_told(name: str) -> None:
    mine, theirs, agree = DRAWS[name]
    torch.manual_seed(5)
    drawn = [theirs() for _ in range(64)]
    torch.manual_seed(3)
    assert (judge.distribution([mine() for _ in range(64)], drawn) == "") is agree


def trained(name: str, dtype: str, *ways: str) -> list[Row]:
    return list(rows(MODELS[name], dtype, list(ways)))


@pytest.mark.nightly
def test_training() -> None:
    """The other models and dtypes are those of nightly.yml, which runs `python -m scripts.jax_models`."""
    for row in trained("tied-decoder", "fp32", "eager", "jit"):
        assert row.verdict == "agrees", f"{row.way}: {row.reason}"
        assert len(row.losses) == STEPS
        assert row.difference is not None
        assert row.difference <= 1e-5


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
    tied, untied = (Training(falling, 1, 1, names) for names in ([["words.weight", "head.weight"]], []))
    reason = "tied parameters are none, on the CPU words.weight = head.weight"
    assert compare(MODELS["tied-decoder"], "fp32", untied, tied, tied).reason == reason


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


@pytest.fixture
def _planted_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "COMMAND", [sys.executable, "-c", PROGRAMS["coverage-worker"]])


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
    assert (command.main(["--table", str(file)]), capsys.readouterr().out) == (1, shown)
    assert command.main([*CHOICE, str(file)]) == 2, "a run file is never written over"
