"""`ampcheck coverage` and `ampcheck entered`: what the cases reach is counted, and what they miss is named."""

import json
import re
import sys
import tomllib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ampcheck import samples
from ampcheck.checks.sweep import Cell, SweepCall, SweepCheck, cells, parts, reached
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.samples.surface import SurfaceLine
from ampcheck.samples.torch_testing import internal
from ampcheck.spec.case import CELLS, Case
from ampcheck.spec.policies import minor
from ampcheck.tools.coverage import surface
from ampcheck.tools.coverage.cells import count
from ampcheck.tools.coverage.kernels import by_suite, by_upstream_lists, entries, recording
from tests.cli_support import PROGRAMS, ROOT, ended, printed, run

# ---- cells

CELLS_OF = tomllib.loads(Path(__file__).with_name("cells.toml").read_text(encoding="utf-8"))


@pytest.fixture
def few_ops(monkeypatch: pytest.MonkeyPatch) -> None:
    few = ("mm", "exp", "conv2d", "linalg_matrix_rank", "cat", "binary_cross_entropy")
    chosen = {name: op for name, op in samples.catalogue().items() if name in few}
    monkeypatch.setattr(samples, "catalogue", lambda: chosen)


@pytest.mark.usefixtures("few_ops")
@pytest.mark.parametrize(("device", "cell", "reason"), CELLS_OF["reasons"])
def test_a_cell_that_cannot_be_has_its_reason(device: str, cell: list[str], reason: str) -> None:
    why = dict(cells(known()[device]))[Cell(*cell)]
    assert reason in why
    assert bool(reason) == bool(why)


@pytest.mark.usefixtures("few_ops")
@pytest.mark.parametrize("name", ["cpu", "virtual:mps"])
def test_sweeps_reach_every_cell_that_can_be(name: str) -> None:
    counted = count(known()[name])
    assert counted.nightly == counted.reachable > 10 * counted.every > 0
    assert (counted.reachable + sum(counted.unreachable.values()), counted.open) == (counted.cells, [])


@pytest.mark.usefixtures("few_ops")
def test_a_sweep_that_did_not_run_is_open() -> None:
    device = known()["virtual:mps"]
    ran = {f"eager/downcast/mm+cells-{mode}-fp16-vmp" for mode in ("plain", "grad", "inference")}
    counted = count(device, dict.fromkeys(ran, "pass"))
    assert 0 < counted.nightly < count(device).nightly
    assert any(line.startswith("mm, eager, no_grad: ") for line in counted.open)
    assert not any(line.startswith("mm, eager, plain: ") for line in counted.open)


@pytest.mark.usefixtures("few_ops")
@pytest.mark.parametrize(
    ("status", "column"),
    [("deviation", "deviation"), ("unsupported", "unsupported"), ("fail", "failed"), ("crash", "failed")],
)
def test_a_cell_whose_case_did_not_pass_is_not_covered(status: str, column: str) -> None:
    device = known()["virtual:mps"]
    key = "eager/downcast/mm+cells-plain-fp16-vmp"
    passed, counted = count(device, {key: "pass"}), count(device, {key: status})
    assert counted.nightly == 0
    assert {name: number for name, number in counted.not_passed.items() if number} == {column: passed.nightly}


def test_a_device_without_values_keeps_no_tensor_of_inference_mode() -> None:
    device, swept = known()["virtual:mps"], Case("eager", "upcast", "exp", CELLS, "", "fp16", "virtual:mps", "vmp")
    for mode in ("inference", "grad"):
        assert SweepCheck().run(replace(swept, inputs=mode), device) == []


def test_the_calls_of_a_sweep_are_cases_too() -> None:
    swept = Case("jit", "upcast", "exp", CELLS, "grad", "bf16", "cpu", "cpu", "strict")
    names = [part.name for part in parts(swept)]
    assert {"jit/upcast/exp-fp32-strict-bf16-cpu", "jit/upcast/exp-bf16-strict-bf16-cpu"} < {*names}


@pytest.mark.parametrize(("case", "cell"), CELLS_OF["reached"])
def test_a_case_reaches_the_cell_that_it_runs(case: list[str], cell: list[str]) -> None:
    made = Case(*case, "bf16", "cpu", "cpu", "aot" if case[0] == "jit" else "")
    found = set(reached(made, known()["cpu"]))
    assert Cell(*cell) in found if cell else not found


# ---- the surface of torch


@pytest.fixture
def few_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the surface be that of `quasirandom` and `nn.utils.rnn`, with one program that calls something else."""
    lines = (
        SurfaceLine("quasirandom.SobolEngine", "?", "draws by itself"),
        SurfaceLine("nn.utils.rnn.pad_sequence", ":", "NAME([a, b])"),
        SurfaceLine("nn.utils.rnn.PackedSequence", ":", "R.pack_sequence([a, b])"),
        SurfaceLine("nn.utils.rnn.unpad_sequence", ":", "R.pad_sequence([a, b])"),
        SurfaceLine("nn.utils.rnn.invert_*", "!", "takes indices"),
    )
    monkeypatch.setattr(surface, "SPACES", ("quasirandom", "nn.utils.rnn"))
    monkeypatch.setattr(surface.surface, "lines", lambda: lines)
    monkeypatch.setattr(surface, "suites_folder", lambda: ROOT / "suites" / "scaler")


@pytest.mark.usefixtures("few_names")
def test_the_surface_is_what_is_called_and_what_is_not_and_why() -> None:
    counted = surface.count()
    assert counted.rows["nn.utils.rnn"] == {"program of relations": 2, "not exercised": 5}
    assert counted.missing["draws by itself"] == ["quasirandom.SobolEngine"]
    assert "nn.utils.rnn.unpad_sequence" in counted.missing["nothing calls it"]  # its program calls something else
    assert counted.apart == {"takes indices": ["nn.utils.rnn.invert_permutation"]}
    assert "call 25.0% of the 8 public callables" in counted.table(list_open=False)
    assert "Not counted (takes indices)" in counted.table(list_open=True)


@pytest.mark.nightly
def test_the_page_of_the_surface_has_what_is_counted_now() -> None:
    counted = surface.count()
    assert counted.sentence() in (ROOT / "docs/coverage/surface.md").read_text()
    assert "nothing calls it" not in counted.missing


@pytest.mark.usefixtures("few_ops", "few_names")
def test_the_command_prints_and_writes_the_figure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "coverage.json"
    out = printed(capsys, "coverage", "--device", "virtual:mps", "--json", str(file))
    assert "100.0%" in out.splitlines()[0]
    transitions = "all 632 transitions of the model of autocast's state"
    assert transitions in out
    assert transitions in (ROOT / "docs/coverage/README.md").read_text()
    written = json.loads(file.read_text())
    assert written["surface"]["missing"]["draws by itself"] == ["quasirandom.SobolEngine"]
    (row,) = written["devices"]
    assert (row["device"], row["nightly"]) == ("virtual:mps", row["reachable"])


@pytest.mark.usefixtures("few_ops")
def test_faults_in_random_cells_are_seen(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Cpu, "compilers", ("script", "aot"))
    head, _, rows = printed(capsys, "coverage", "--try", "2", "--seed", "0", "--device", "cpu").partition("\n\n")
    assert re.match(r"cpu: 25 of 25 faults in \d+ random cells, seed 0, were noticed:", head)
    assert [row.split("  ")[0] for row in rows.splitlines()[2:]] == ["eager", "script", "aot"]
    assert rows.count("2 of 2") == 10


@pytest.mark.usefixtures("few_ops")
def test_faults_that_are_missed_are_named(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(Cpu, "compilers", ())
    monkeypatch.setattr(SweepCall, "differences", lambda _: [])
    assert "not noticed: wrong strides in Cell(" in printed(capsys, "coverage", "--try", "1", "--device", "cpu")


# ---- kernels

ENTERED = {"cpu": (127, 37), "virtual:cuda": (119, 92), "virtual:xpu": (117, 34)}
ENTERED |= {"virtual:mps": (95, 0), "virtual:mtia": (117, 0)}
"""On torch 2.13: the kernels that are registered, and those of them that PyTorch's own lists enter."""


@pytest.mark.parametrize("name", ENTERED)
def test_every_registered_kernel_is_entered(name: str) -> None:
    (suite,), (lists,) = by_suite([known()[name]]), by_upstream_lists([known()[name]])
    assert suite.missed == []
    assert suite.entered == suite.registered == lists.registered
    assert lists.entered < suite.entered
    if minor(torch.__version__) == "2.13":
        assert (len(suite.entered), len(lists.entered)) == ENTERED[name]
    if name == "virtual:cuda":
        assert {"einsum", "norm.Scalar", "scaled_dot_product_attention"} <= {*lists.missed}
        assert "mm" not in lists.missed


def test_einsums_row_is_left_out_as_on_cuda() -> None:
    device = known()["virtual:cuda"]
    with device.activate():
        assert "einsum" not in {entry.op for entry in entries(device)}


@pytest.mark.parametrize(("device", "other"), [("virtual:mps", "lstm_cell"), ("virtual:mtia", "atan2")])
def test_an_op_missing_from_the_catalogue_is_reported(
    device: str, other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = {name: op for name, op in samples.catalogue().items() if name not in ("mm", other)}
    monkeypatch.setattr(samples, "catalogue", lambda: fewer)
    missed = json.loads(printed(capsys, "entered", "--device", device, "--json", code=1))[0]["missed"]
    assert missed == sorted({"mm", other} & set(known()[device].policies()))


@pytest.mark.usefixtures("few_ops")
@pytest.mark.parametrize("name", ["virtual:mps", "virtual:mtia"])
def test_nothing_is_entered_where_autocast_stays_off(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    device = known()[name]
    on = device.autocast
    monkeypatch.setattr(device, "autocast", lambda dtype=None, **kw: on(dtype, enabled=False))
    assert by_suite([device])[0].entered == frozenset()


def test_the_recorder_changes_nothing_and_is_taken_away() -> None:
    a = torch.ones(2, 2)
    with recording(["AutocastCPU"]) as entered, torch.autocast("cpu"):
        assert torch.mm(a, a).dtype == torch.bfloat16
    with torch.autocast("cpu"):
        assert torch.linalg.inv(torch.eye(2).bfloat16()).dtype == torch.float32
        assert torch.mm(a, a).dtype == torch.bfloat16
    assert entered == {("AutocastCPU", "mm")}


@pytest.mark.nightly
def test_the_output_is_clean(tmp_path: Path) -> None:
    done = run(tmp_path, "entered", "--device", "cpu", code=0)
    assert all(line.startswith("cpu: ") for line in done.stderr.splitlines()), done.stderr  # how far it is
    assert "AutocastCPU" in done.stdout


class Bare(Cpu):
    """A device whose key no policies are registered under."""

    name = "bare"
    key = "AutocastHPU"


@pytest.mark.parametrize("measure", [by_suite, by_upstream_lists])
def test_a_key_without_policies_is_refused(measure: Callable[[list[Device]], object]) -> None:
    with pytest.raises(UsageError, match="AutocastHPU"):
        measure([Bare()])


def test_a_library_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match="no_such_lists cannot be imported"):
        internal("no_such_lists")


@pytest.mark.nightly
def test_importing_pytorchs_test_library_changes_nothing_else() -> None:
    assert ended([sys.executable, "-c", PROGRAMS["coverage-test_library"]], code=0).stderr == ""
