"""torchax under test: when it can be, what is seen of it, and that its deviations are strict.

Importing torchax gives PrivateUse1 its name for good, so whatever needs torchax runs in a process of its own.
"""

import json
import sys
from argparse import Namespace
from collections import Counter
from itertools import compress
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from ampcheck.checks.cases import op_cases, smoke
from ampcheck.devices import torchax as module
from ampcheck.devices.base import Device
from ampcheck.devices.registry import absent, groups, known, select
from ampcheck.devices.torchax import OLDEST, Torchax, TorchTorchax
from ampcheck.errors import UsageError
from ampcheck.runner.collect import CASE, Collector, chooses
from ampcheck.runner.record import read
from ampcheck.runner.run import suites_folder
from tests.cli_support import PROGRAMS, python, run

DEVICES = [Torchax(), TorchTorchax()]


# ---- whether it is there


@pytest.fixture(autouse=True)
def _without_the_jax_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other tests make the device jax in this process, beside which torchax is not there."""
    monkeypatch.delitem(sys.modules, "ampcheck.jax_device", raising=False)


@pytest.mark.parametrize("device", DEVICES, ids=lambda device: device.token)
@pytest.mark.parametrize("package", ["jax", "torchax"])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, device: Device, package: str) -> None:
    monkeypatch.setattr(module, "find_spec", lambda name: None if name == package else object())
    assert device.unavailable() == f"{package} is not installed; the extra ampcheck[jax] brings it"


def test_a_torchax_too_old_for_this_torch_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "version", lambda name: "0.0.13")
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    wanted = f"torchax 0.0.13 cannot be imported on torch 2.13.0+cpu (google/torchax#101); {OLDEST} can"
    assert Torchax().unavailable() == wanted
    monkeypatch.setattr(torch, "__version__", "2.12.1+cpu")
    assert Torchax().unavailable() is None
    monkeypatch.setattr(torch, "__version__", "2.13.0+cpu")
    monkeypatch.setattr(module, "version", lambda name: OLDEST)
    assert Torchax().unavailable() is None


def test_it_is_not_there_beside_the_jax_device(monkeypatch: pytest.MonkeyPatch) -> None:
    assert Torchax().unavailable() is None
    monkeypatch.setitem(sys.modules, "ampcheck.jax_device", ModuleType("ampcheck.jax_device"))
    assert "ampcheck.jax_device was loaded first" in str(Torchax().unavailable())


def test_asking_imports_neither_jax_nor_torchax() -> None:
    assert python("-c", PROGRAMS["torchax-asked"]) == "set()\n"


# ---- when it is chosen


def test_it_is_chosen_by_name_and_by_whole_runs() -> None:
    assert not {"torchax", "torchax:torch-autocast"} & {device.name for device in select([])}
    assert [device.name for device in select(["torchax", "torchax:torch-autocast"])] == [d.name for d in DEVICES]
    assert absent()["torchax"].startswith("a run has it where it is named, or where no option chooses cases: ")
    assert "torchax" not in absent(tested=["torchax"])
    assert [d.name for d in DEVICES] in groups([], on_request=True)
    assert [d.name for d in DEVICES] not in groups([])
    assert not any(device.on_request for name, device in known().items() if not name.startswith("torchax"))


def test_a_run_that_does_not_name_it_has_its_smoke_cases(pytestconfig: pytest.Config) -> None:
    collector = Collector(pytestconfig, ["cpu", "torchax"])
    cases = [case for device in collector.devices.values() for case in op_cases(device, "downcast", "eager")]
    items = [Mock(stash={CASE: case}, get_closest_marker=lambda name: None) for case in cases]
    out = collector.choose(items)
    assert {item.stash[CASE].device for item in out} == {"torchax"}
    kept = [case for case in cases if case.device == "torchax"]
    assert [i.stash[CASE] for i in items if i.stash[CASE] in kept] == list(compress(kept, smoke(kept)))


@pytest.mark.parametrize(("chosen", "part"), [({}, False), ({"keyword": "mm"}, True), ({"rule": ["cache"]}, True)])
def test_a_run_of_chosen_cases_is_no_whole(pytestconfig: pytest.Config, chosen: dict[str, object], part: bool) -> None:
    option = Namespace(**vars(pytestconfig.option) | {"keyword": "", "smoke": False} | chosen)
    assert chooses(Mock(option=option, args=[suites_folder()]), suites_folder()) == part
    assert chooses(Mock(option=option, args=[suites_folder() / "eager"]), suites_folder())


def test_one_type_of_two_backends_is_refused() -> None:
    with pytest.raises(UsageError) as raised:
        select(["jax", "torchax"])
    assert str(raised.value) == (
        "devices 'jax' and 'torchax' cannot be tested in one run: both are of type 'jax', and a process has one "
        "backend of a type; run them one after the other"
    )


@pytest.mark.nightly
def test_one_run_tests_both(tmp_path: Path) -> None:
    options = ("--suite=eager", "--rule=downcast", "--op=addbmm", "--amp-dtype=bf16", "-n1", "--run-file=one.jsonl")
    done = run(tmp_path, "run", "--device=jax", "--device=torchax", "--device=cpu", *options, code=0)
    found = read(tmp_path / "one.jsonl")
    by_device = Counter(result.device for result in found.results.values())
    assert set(by_device) == {"jax", "torchax", "cpu"} == {device["name"] for device in found.header["devices"]}
    assert found.header["cases"] == by_device.total() == len(found.results)
    assert "; devices: jax, torchax, cpu" in done.stderr + done.stdout


# ---- what is seen

GIVEN = "argument 0 of aten::{} was given as fp32 and reached the kernel as {}; expected {}"
MISTAKES = [
    ("", "mm-fp32-bf16-txo", ""),
    ("del amp.autocast_policy[torch.ops.aten.mm.default]", "mm-fp32-bf16-txo", GIVEN.format("mm", "fp32", "bf16")),
    (
        "amp.autocast_policy[torch.ops.aten.mse_loss.default] = amp.CastPolicy.LOWER_PRECISION_FP",
        "mse_loss-fp32-bf16-txo",
        GIVEN.format("mse_loss", "bf16", "fp32"),
    ),
    (
        PROGRAMS["torchax-twice"],
        "mm-fp32-bf16-txo",
        "autocast made 4 casts of the arguments of aten::mm; expected 2",
    ),
    ("", "conv1d-fp32-bf16-txo", "output 0 of aten::conv1d is fp32; expected bf16"),
    ("", "quantile.scalar+nearest-fp32-bf16-txo", "unsupported: OperatorNotFound: "),
]
QUESTIONS = {
    "casts nothing": ("torchax:torch-autocast", "[check('mm-fp32-fp16-txt'), check('mm-fp16-fp16-txt')]", ""),
    "reproduction": (
        "torchax",
        "ForwardCheck().program(case('mm-fp64-bf16-txo'), device, "
        "'argument 0 of aten::mm was given as fp64 and reached the kernel as bf16')",
        "",
    ),
    **{name + before: ("torchax", f"check({name!r})", before) for before, name, _ in MISTAKES},
}


@pytest.fixture(scope="module")
def answers() -> dict[str, Any]:
    """What one process that has torchax says to each of `QUESTIONS`: device, expression, what is planted before it."""
    said = python("-c", PROGRAMS["torchax-script"], json.dumps(list(QUESTIONS.values())))
    return dict(zip(QUESTIONS, json.loads(said.splitlines()[-1]), strict=True))


@pytest.mark.parametrize(("before", "name", "words"), MISTAKES)
def test_a_planted_mistake_is_named(answers: dict[str, Any], before: str, name: str, words: str) -> None:
    found = answers[name + before]
    if words:
        assert words in str(found)
    else:
        assert found == []


def test_torch_autocast_is_seen_to_cast_nothing(answers: dict[str, Any]) -> None:
    found = answers["casts nothing"]
    assert GIVEN.format("mm", "fp32", "fp16") in found[0][0]
    assert found[1] == []


@pytest.mark.nightly
def test_a_reproduction_is_torchax_s_own(answers: dict[str, Any]) -> None:
    program = answers["reproduction"]
    assert "with torchax.amp.autocast('jax', dtype=torch.bfloat16):" in program
    assert "ampcheck" not in program
    assert "FAIL output 0 of aten::mm is bf16; expected fp64" in python("-c", program)


# ---- its deviations


@pytest.mark.nightly
def test_a_small_selection_is_green(tmp_path: Path) -> None:
    options = [f"--op={op}" for op in ("mm", "linear", "cat", "prod")]
    devices = [f"--device={device.name}" for device in DEVICES]
    run(tmp_path, "run", "--run-file=run.jsonl", *options, *devices, code=0)
    found = read(tmp_path / "run.jsonl").results.values()
    for device in DEVICES:
        assert {"pass", "deviation"} <= {result.status for result in found if result.device == device.name}
