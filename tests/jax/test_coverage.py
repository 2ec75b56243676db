"""The figures of docs/jax_ops.md: what is measured, how it is judged, and whether the page says what was measured."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from scripts.jax_coverage import driver, judge, page, samples
from scripts.jax_coverage.records import Book, Row, Sample
from tests.cli_support import LIMIT, ROOT

PAGE = ROOT / "docs" / "jax_ops.md"
VERSIONS = {"torch": "2", "jax": "0", "torchax": "0"}


def sweep(*names: str, seconds: float = LIMIT) -> dict[str, Row]:
    """The rows of ops on a device with faults planted (coverage_faults.py)."""
    command = (sys.executable, str(Path(__file__).parent / "coverage_faults.py"))
    settings = driver.Settings(samples=3, seconds=seconds, processes=1, command=command)
    rows: list[Row] = []
    driver.sweep([("jax", name) for name in names], settings, rows.append)
    return {row.op: row for row in rows}


@pytest.mark.nightly
def test_rows_say_what_the_device_does() -> None:
    rows = sweep("add", "nn.functional.dropout", "sin", "trunc", "sinh", "mm")
    assert [(r.run, r.agreeing) for r in (rows["add"], rows["nn.functional.dropout"], rows["mm"])] == [(3, 3)] * 3
    assert "the result is wrong at" in rows["sin"].reason
    assert rows["sin"].agreeing == 0
    assert "a second call gives another result" in rows["trunc"].reason
    assert rows["sinh"].reason.startswith("crash: the process ended with 7")


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    line = [sys.executable, "-m", "scripts.jax_coverage", *arguments]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.run(line, env=env, capture_output=True, text=True, check=False)


@pytest.mark.nightly
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    kept = f"--json={tmp_path / 'kept.json'}"
    done = command("--ops=abs,topk", "--samples=2", "--processes=1", kept, f"--write={written}")
    assert done.returncode == 0, done.stderr
    text = written.read_text(encoding="utf-8")
    assert consistent(text) == []
    assert {row[0]: row[1:3] for row in table(text, "Every op")} == {"abs": ["1", "1"], "topk": ["2", "2"]}
    assert "jax: 3 of 3 samples agree, all of 2 of 2 ops" in done.stdout


EXAMPLES = """
import re
import sys
from pathlib import Path

blocks = re.findall(r"```python\\n(.*?)```", Path(sys.argv[1]).read_text(encoding="utf-8"), re.S)
first, adding, sharding, *_ = blocks  # the rest is about jit
exec(first)
assert model.weight.grad.device.type == "jax"

import jax
import torch
from ampcheck.jax_device.lowering import OWN
from ampcheck.jax_device.dispatch.program import Functional

OWN.pop("addcmul", None)
exec(adding)
given = [torch.randn(2, 3) for _ in range(3)]
out = Functional(torch.ops.aten.addcmul.default, OWN["addcmul"])(*(t.to("jax") for t in given), value=2)
torch.testing.assert_close(out.cpu(), torch.addcmul(*given, value=2))

before = model(torch.ones(8, 4, device="jax")).sum().item()
exec(sharding)
assert len(jax.devices()) == 4
assert to_jax(batch).sharding.spec == PartitionSpec("batch")
assert to_jax(model(batch).detach()).sharding.spec[0] == "batch"
assert len(to_jax(model.weight.grad).sharding.device_set) == 4
assert abs(model(batch).sum().item() - before) < 1e-4
mixed = batch + torch.ones(8, 4, device="jax")
assert len(to_jax(mixed).sharding.device_set) == 4
print("ran")
"""


def test_the_examples_of_the_guide_run() -> None:
    env = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4",
    }
    line = [sys.executable, "-c", EXAMPLES, str(ROOT / "docs" / "jax_device.md")]
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ran", done.stderr


def table(text: str, title: str) -> list[list[str]]:
    """The rows of the table under a title of the page, without its head."""
    section = text.partition(f"## {title}\n")[2].partition("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[part.strip() for part in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def consistent(text: str) -> list[str]:
    """What on the page contradicts its own rows."""
    every = table(text, "Every op")
    ours = [(int(row[1]), int(row[2])) for row in every]
    theirs = [tuple(map(int, row[3].split(" of ")))[::-1] for row in every if " of " in row[3]]
    wrong = []
    for pairs, column in ((ours, 1), (theirs, 2)):
        (samples_said, ops_said) = (row[column] for row in table(text, "Totals"))
        for said, part, whole in (
            (samples_said, sum(a for _, a in pairs), sum(n for n, _ in pairs)),
            (ops_said, sum(n == a for n, a in pairs), len(pairs)),
        ):
            right = f"{part} of {whole} ({100 * part / whole:.1f} %)" if whole else "none measured"
            wrong += [f"{said}; the rows say {right}"] if said != right else []
    failing = [row[:3] for row in table(text, "Ops that do not fully agree on the device")]
    wrong += [] if failing == [row[:3] for row in every if row[1] != row[2]] else ["the failing ops are others"]
    return wrong


def book() -> Book:
    bad = Sample(4, "the result is wrong at 1 of 2 elements, a|b")
    return Book(
        [
            Row("add", "jax", [Sample(0), Sample(1)]),
            Row("sin", "jax", [Sample(0), bad], refused=1),
            Row("sin", "torchax", [Sample(0), Sample(4)]),
            Row("none", "jax", [], refused=3),
        ]
    )


def test_a_page_agrees_with_its_rows() -> None:
    text = page.page(book(), versions=VERSIONS, limit=2, rtol=1e-4, atol=1e-5)
    assert consistent(text) == []
    assert "| samples that agree | 3 of 4 (75.0 %) | 2 of 2 (100.0 %) |" in text
    assert "| sin | 2 | 1 | the result is wrong at 1 of 2 elements, a\\|b |" in text
    assert "- 4 samples that the CPU itself refuses" in text
    assert page.OTHERS in text
    assert consistent(text.replace("| add | 2 | 2 |", "| add | 2 | 1 |"))
    assert consistent(text.replace("| sin | 2 | 1 | the", "| sin | 2 | 0 | the"))


def test_the_published_page_agrees_with_its_rows() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert consistent(text) == []
    assert page.OTHERS in text
    assert len(table(text, "Every op")) > 600
    agree, run = map(int, table(text, "Totals")[0][1].split(" (")[0].split(" of "))
    assert agree / run >= 0.95


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
        (torch.ones(2), torch.ones(2), ""),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([float("nan"), 1.0]), ""),
        (torch.tensor([float("nan"), 1.0]), torch.tensor([0.0, 1.0]), "wrong at 1 of 2 elements, e.g. nan for 0.0"),
        (torch.tensor([1.0, 2.5]), torch.tensor([1.0, 2.0]), "wrong at 1 of 2 elements, by up to 0.5 (2.5 for 2)"),
        (torch.ones(2, 1), torch.ones(2), "shape [2, 1]; the CPU's has [2]"),
        (
            torch.ones(2, dtype=torch.int32),
            torch.ones(2, dtype=torch.int64),
            "is torch.int32; the CPU's is torch.int64",
        ),
        ((torch.ones(2), 3), (torch.ones(2), 4), "output 1 is 3; the CPU's is 4"),
        ((torch.ones(2),), (torch.ones(2), 4), "gave 1 outputs; the CPU gives 2"),
        (torch.tensor([7]), torch.tensor([8]), "by up to 1 (7 for 8)"),
        (torch.ones(1, dtype=torch.float64) + 1e-6, torch.ones(1, dtype=torch.float64), "by up to 1e-06"),
    ],
    ids=["equal", "nan", "nan alone", "value", "shape", "dtype", "number", "count", "integer", "float64"],
)
def test_a_difference_is_named(actual: object, expected: object, words: str) -> None:
    found = judge.difference(actual, expected, samples.RTOL, samples.ATOL)
    assert words in found if words else found == ""


def draws(make: object, count: int = 64) -> list[torch.Tensor]:
    torch.manual_seed(3)
    return [make() for _ in range(count)]  # type: ignore[operator]


def test_draws_of_one_distribution_agree() -> None:
    for make in (
        lambda: torch.rand(8),
        lambda: torch.empty(8).cauchy_(),
        lambda: torch.dropout(torch.ones(8), 0.5, True),
    ):
        torch.manual_seed(5)
        others = [make() for _ in range(64)]
        assert judge.distribution(draws(make), others) == ""


@pytest.mark.parametrize(
    ("mine", "theirs"),
    [
        (lambda: torch.rand(8) * 0.5, lambda: torch.rand(8)),
        (lambda: torch.randn(8) + 1.0, lambda: torch.randn(8)),
        (lambda: torch.randn(8) * 2.0, lambda: torch.randn(8)),
        (lambda: torch.zeros(8), lambda: torch.empty(8).cauchy_()),
        (lambda: torch.bernoulli(torch.full((8,), 0.8)), lambda: torch.bernoulli(torch.full((8,), 0.5))),
        (lambda: torch.rand(8, dtype=torch.float64), lambda: torch.rand(8)),
        (lambda: torch.rand(8) / 0.0, lambda: torch.rand(8)),
    ],
    ids=["narrower", "shifted", "wider", "constant", "too many ones", "dtype", "infinite"],
)
def test_draws_of_another_distribution_do_not(mine: object, theirs: object) -> None:
    assert judge.distribution(draws(mine), draws(theirs))
