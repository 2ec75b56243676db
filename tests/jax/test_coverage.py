"""The figures of docs/jax_ops.md and of models: what is measured, how it is judged, what the page says; the guide."""

import re

import pytest
import torch
import torch.nn.functional as F

from scripts.jax_models.models import MODELS
from scripts.jax_models.training import STEPS, Row, rows
from tests.cli_support import ROOT, python

PAGE = ROOT / "docs" / "jax_ops.md"


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
    given = {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": "--xla_force_host_platform_device_count=4"}
    assert python("-c", EXAMPLES, ROOT / "docs" / "jax_device.md", **given) == "ran\n"


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


# Dynamo's own slips, which say nothing of the device.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated"),
]


def trained(name: str, dtype: str, *ways: str) -> list[Row]:
    return list(rows(MODELS[name], dtype, list(ways)))


def test_training() -> None:
    """The other models and dtypes are those of nightly.yml, which runs `python -m scripts.jax_models`."""
    for row in trained("tied-decoder", "fp32", "eager", "jit"):
        assert row.verdict == "agrees", f"{row.way}: {row.reason}"
        assert len(row.losses) == STEPS
        assert row.difference is not None
        assert row.difference <= 1e-5


def test_an_op_that_rounds_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = F.gelu

    def rounding(x: torch.Tensor) -> torch.Tensor:
        return exact(x.bfloat16()).float() if x.device.type == "jax" else exact(x)

    monkeypatch.setattr(F, "gelu", rounding)
    (row,) = trained("tied-decoder", "fp32", "eager")
    assert row.verdict == "differs"
    assert row.reason.startswith("the loss of step ")
    assert row.reason.endswith(", bound 1e-05")
