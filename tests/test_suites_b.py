"""The scenarios of cache, state, deprecated, defaults, errors, eligibility and modules find wrong behaviour.

Each row plants one fault in torch and names what the scenario must say; without the fault the scenario says nothing.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from ampcheck.checks.scenario import Amp
from ampcheck.devices.registry import known
from ampcheck.observe.isolation import reset
from ampcheck.observe.replay import replay
from ampcheck.spec.ids import rule_of
from tests.planted_scenarios import CASES, Case

SUITES = Path(__file__).parent.parent / "suites"
DEVICES = known()


def _module(path: str) -> ModuleType:
    spec = spec_from_file_location(path.replace("/", "_"), SUITES / f"{path}.py")
    assert spec
    assert spec.loader
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


MODULES: dict[str, dict[str, Any]] = {}
for path in (SUITES / "eager").glob("test_*.py"):
    MODULES.setdefault(rule_of(path.stem), {}).update(vars(_module(f"eager/{path.stem}")))
MODULES["gradients"] = vars(_module("autograd/test_cache"))


@pytest.fixture(autouse=True)
def _fresh_state() -> Iterator[None]:
    reset({})
    yield
    reset({})


def run(file: str, scenario: str, device: str = "cpu", /, **parameters: object) -> str:
    """What a scenario finds on a device, one difference a line."""
    amp = Amp(DEVICES[device], DEVICES[device].default_amp)
    with amp.device.activate():
        try:
            MODULES[file][f"test_{scenario}"](amp, **parameters)
        except RuntimeError as error:  # a fault may keep the scenario from going on
            amp.differences.append(str(error))
    return "\n".join(amp.differences)


_SHOWN = [f"{case.file}-{case.name}-{number}" for number, case in enumerate(CASES)]


@pytest.mark.parametrize("case", CASES, ids=_SHOWN)
def test_a_planted_fault_is_named(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(case.file, case.name, case.device, **case.parameters) == ""
    reset({})
    case.plant(monkeypatch)
    found = run(case.file, case.name, case.device, **case.parameters)
    monkeypatch.undo()
    assert case.says in found


@pytest.mark.parametrize("file", sorted({case.file for case in CASES}))
def test_every_scenario_cites_its_source(file: str) -> None:
    for name, function in MODULES[file].items():
        if name.startswith("test_"):
            text = inspect.getdoc(function) or ""
            assert "(" in text, f"{name} names no source"


def test_replay_casts_by_the_specification() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        single = torch.empty(3, 3, device="cuda")

        def call() -> list[torch.Tensor]:
            return [torch.mm(single, x), torch.exp(x), torch.sum(x), torch.atan2(x, single), torch.relu(x)]

        seen, kernels = replay(call, "cuda", "bf16", device.policies())
    assert [t.dtype for t in seen.outputs] == [torch.bfloat16, *[torch.float32] * 3, torch.float16]
    assert kernels == [("mm", ("bf16",) * 2), ("exp", ("fp32",)), ("sum", ("fp16",)), ("atan2", ("fp32",) * 2)]


def test_replay_of_the_other_overload_and_of_a_refusal() -> None:
    device = DEVICES["virtual:cuda"]
    with device.activate():
        x = torch.empty(3, 3, device="cuda", dtype=torch.float16)
        norm, _ = replay(lambda: torch.ops.aten.norm.ScalarOpt_dim(x, 2, [1]), "cuda", "fp16", device.policies())
        loss = torch.nn.functional.binary_cross_entropy
        refused, _ = replay(lambda: loss(x, x), "cuda", "fp16", device.policies())
    assert [t.dtype for t in norm.outputs] == [torch.float32]
    assert "binary_cross_entropy_with_logits" in str(refused.error)
