"""The figures of docs/jax_ops.md: what is measured, how it is judged, whether the page says so; and the guide."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from scripts.jax_coverage import driver, judge, samples
from scripts.jax_coverage.records import Row
from tests.cli_support import LIMIT, ROOT

PAGE = ROOT / "docs" / "jax_ops.md"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "JAX_PLATFORMS": "cpu"}


@pytest.mark.nightly
def test_rows_say_what_the_device_does() -> None:
    """Of ops on a device with faults planted (coverage_faults.py)."""
    command = (sys.executable, str(Path(__file__).parent / "coverage_faults.py"))
    settings = driver.Settings(samples=3, seconds=LIMIT, processes=1, command=command)
    found: list[Row] = []
    names = ("add", "nn.functional.dropout", "sin", "trunc", "sinh", "mm")
    driver.sweep([("jax", name) for name in names], settings, found.append)
    rows = {row.op: row for row in found}
    assert [(r.run, r.agreeing) for r in (rows["add"], rows["nn.functional.dropout"], rows["mm"])] == [(3, 3)] * 3
    assert "the result is wrong at" in rows["sin"].reason
    assert rows["sin"].agreeing == 0
    assert "a second call gives another result" in rows["trunc"].reason
    assert rows["sinh"].reason.startswith("crash: the process ended with 7")


@pytest.mark.nightly
def test_the_command_writes_the_page(tmp_path: Path) -> None:
    written = tmp_path / "page.md"
    options = [
        "--ops=abs,topk",
        "--samples=2",
        "--processes=1",
        f"--json={tmp_path / 'kept.json'}",
        f"--write={written}",
    ]
    line = [sys.executable, "-m", "scripts.jax_coverage", *options]
    done = subprocess.run(line, env=ENVIRONMENT, capture_output=True, text=True, check=False)
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


@pytest.mark.nightly
def test_the_examples_of_the_guide_run() -> None:
    line = [sys.executable, "-c", EXAMPLES, str(ROOT / "docs" / "jax_device.md")]
    env = {**ENVIRONMENT, "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    done = subprocess.run(line, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "ran", done.stderr


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


@pytest.mark.parametrize(
    ("actual", "expected", "words"),
    [
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
        (torch.ones(1, dtype=torch.float64) + 1e-6, torch.ones(1, dtype=torch.float64), "by up to 1e-06"),
    ],
    ids=["nan", "nan alone", "value", "shape", "dtype", "number", "count", "float64"],
)
def test_a_difference_is_named(actual: object, expected: object, words: str) -> None:
    found = judge.difference(actual, expected, samples.RTOL, samples.ATOL)
    assert words in found if words else found == ""


@pytest.mark.parametrize(
    ("mine", "theirs", "agree"),
    [
        (lambda: torch.rand(8), lambda: torch.rand(8), True),
        (lambda: torch.empty(8).cauchy_(), lambda: torch.empty(8).cauchy_(), True),
        (lambda: torch.rand(8) * 0.5, lambda: torch.rand(8), False),
        (lambda: torch.randn(8) + 1.0, lambda: torch.randn(8), False),
        (lambda: torch.zeros(8), lambda: torch.empty(8).cauchy_(), False),
        (lambda: torch.bernoulli(torch.full((8,), 0.8)), lambda: torch.bernoulli(torch.full((8,), 0.5)), False),
        (lambda: torch.rand(8, dtype=torch.float64), lambda: torch.rand(8), False),
        (lambda: torch.rand(8) / 0.0, lambda: torch.rand(8), False),
    ],
    ids=["rand", "cauchy", "narrower", "shifted", "constant", "too many ones", "dtype", "infinite"],
)
def test_draws_of_another_distribution_are_told(
    mine: Callable[[], torch.Tensor], theirs: Callable[[], torch.Tensor], agree: bool
) -> None:
    torch.manual_seed(5)
    drawn = [theirs() for _ in range(64)]
    torch.manual_seed(3)
    assert (judge.distribution([mine() for _ in range(64)], drawn) == "") is agree
