"""`ampcheck entered`: which kernels the op cases and PyTorch's own lists enter, and that a missed one is named."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from ampcheck import samples
from ampcheck.cli import main
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.registry import known
from ampcheck.errors import UsageError
from ampcheck.samples.describe import Op
from ampcheck.samples.torch_testing import internal
from ampcheck.spec.policies import minor
from ampcheck.tools.coverage.kernels import Entered, by_suite, recording
from ampcheck.tools.coverage.upstream_lists import by_upstream_lists, entries
from tests.cli_support import LIMIT, ROOT

NAMES = ("cpu", "virtual:cuda", "virtual:xpu", "virtual:mps", "virtual:mtia")

# On torch 2.13: registered, and entered by PyTorch's own lists.
FIGURES = {
    "cpu": (127, 37),
    "virtual:cuda": (119, 92),
    "virtual:xpu": (117, 34),
    "virtual:mps": (95, 0),
    "virtual:mtia": (117, 0),
}

Both = Mapping[str, tuple[Entered, Entered]]


@pytest.fixture(scope="module")
def measured() -> Both:
    devices = [known()[name] for name in NAMES]
    return dict(zip(NAMES, zip(by_suite(devices), by_upstream_lists(devices), strict=True), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_kernel_is_entered(measured: Both, name: str) -> None:
    suite, lists = measured[name]
    assert suite.missed == []
    assert suite.entered == suite.registered
    assert lists.registered == suite.registered
    assert lists.entered < suite.entered
    if minor(torch.__version__) == "2.13":
        assert (len(suite.entered), len(lists.entered)) == FIGURES[name]


def test_what_pytorchs_lists_miss_is_named(measured: Both) -> None:
    missed = measured["virtual:cuda"][1].missed
    assert {"einsum", "norm.Scalar", "norm.ScalarOpt_dim", "scaled_dot_product_attention"} <= set(missed)
    assert "mm" not in missed


def test_einsums_row_is_left_out_as_on_cuda() -> None:
    device = known()["virtual:cuda"]
    with device.activate():
        assert "einsum" not in {entry.op for entry in entries(device)}


def _without(*names: str) -> Mapping[str, Op]:
    return {name: op for name, op in samples.catalogue().items() if name not in names}


@pytest.mark.parametrize(("device", "other"), [("virtual:mps", "lstm_cell"), ("virtual:mtia", "atan2")])
def test_an_op_missing_from_the_catalogue_is_reported(
    device: str, other: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fewer = _without("mm", other)
    monkeypatch.setattr(samples, "catalogue", lambda: fewer)
    assert main.main(["entered", "--device", device, "--json"]) == 1
    missed = json.loads(capsys.readouterr().out)[0]["missed"]
    assert missed == sorted({"mm", other} & set(known()[device].policies()))
    assert main.main(["entered", "--device", device]) == 1
    row = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(device))
    assert row.endswith(", ".join(missed))


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
        assert torch.ops.aten.log.default is not None
    assert entered == {("AutocastCPU", "mm")}
    with torch.autocast("cpu"):
        assert torch.linalg.inv(torch.eye(2).bfloat16()).dtype == torch.float32
        assert torch.mm(a, a).dtype == torch.bfloat16
    assert entered == {("AutocastCPU", "mm")}


def test_the_output_is_clean() -> None:
    command = [sys.executable, "-m", "ampcheck", "entered", "--device", "cpu"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert "AutocastCPU" in done.stdout
    assert "PyTorch's lists miss on cpu: _convolution.deprecated, " in done.stdout


class _Bare(Cpu):
    name = "bare"
    key = "AutocastHPU"


@pytest.mark.parametrize("measure", [by_suite, by_upstream_lists])
def test_a_key_without_policies_is_refused(measure: Callable[[list[Device]], object]) -> None:
    device: Device = _Bare()
    with pytest.raises(UsageError, match=r"^no autocast policies are registered under AutocastHPU, the key of device"):
        measure([device])


def test_an_unknown_device_ends_with_two(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["entered", "--device", "abacus"]) == 2
    assert "there is no device named 'abacus'" in capsys.readouterr().err


@pytest.mark.nightly
def test_importing_pytorchs_test_library_changes_nothing_else() -> None:
    program = """
import sys
import hypothesis, torch
before = hypothesis.settings.get_current_profile_name(), torch._C.ScriptFunction.__call__, torch.backends.flags_frozen()
from ampcheck.samples.torch_testing import internal
assert "torch.testing._internal.common_utils" not in sys.modules
internal("common_methods_invocations")
assert "torch.testing._internal.common_utils" in sys.modules
assert sys.modules["hypothesis"] is hypothesis
after = hypothesis.settings.get_current_profile_name(), torch._C.ScriptFunction.__call__, torch.backends.flags_frozen()
assert before == after, (before, after)
assert after[2] is False
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_library_that_is_not_there_is_one_sentence() -> None:
    with pytest.raises(UsageError, match=r"^torch.testing._internal.no_such_lists cannot be imported: No module named"):
        internal("no_such_lists")


_PLUGIN = """
import contextlib, json, pathlib
from ampcheck.tools.coverage.kernels import recording

stack = contextlib.ExitStack()

def pytest_sessionstart(session):
    global entered
    entered = stack.enter_context(recording(["AutocastCPU"]))

def pytest_sessionfinish(session):
    stack.close()
    pathlib.Path({path!r}).write_text(json.dumps(sorted(overload for _, overload in entered)))
"""


@pytest.mark.nightly
def test_the_suite_files_enter_every_kernel_as_they_run(tmp_path: Path) -> None:
    path = tmp_path / "entered.json"
    (tmp_path / "entered_recorder.py").write_text(_PLUGIN.format(path=str(path)))
    rules = ["suites/eager/test_ops.py", *(f"--rule={rule}" for rule in ("downcast", "upcast", "promote"))]
    chosen = ["--device", "cpu", "--amp-dtype", "bf16", "--no-run-file", "-q", "-p", "entered_recorder"]
    done = subprocess.run(
        [sys.executable, "-m", "pytest", *rules, *chosen],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-2000:]
    assert set(json.loads(path.read_text())) == set(known()["cpu"].policies())
