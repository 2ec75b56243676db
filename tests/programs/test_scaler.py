"""Programs of a GradScaler: torch does what the reference does, faults in torch are found, and what is printed runs."""

import itertools

import pytest
import torch

from ampcheck.devices.registry import known
from ampcheck.programs.scaler import (
    OPTIMIZERS,
    OptimizerPlan,
    ParameterPlan,
    ScalerExplorer,
    ScalerProgram,
    ScalerRun,
    backward,
    setup,
)
from tests.cli_support import python

CPU = ParameterPlan("cpu")
ONE = OptimizerPlan("sgd", ((CPU,),))
RELOADED = "scaler = reload(GradScaler('cpu', init_scale=3.0, growth_factor=3.0, growth_interval=7), scaler)"
LINES = {
    "backward": backward(0, ONE)[0],
    "overflow": backward(0, ONE, "forward", 0, "nan")[0],
    "unscale": "scaler.unscale_(o0)",
    "step": "scaler.step(o0)",
    "update": "scaler.update()",
    "set": "scaler.update(8.0)",
    "zero": "o0.zero_grad()",
    "pickle": "scaler = loads(dumps(scaler))",
    "reload": RELOADED,
}


@pytest.mark.parametrize("first", list(LINES))
def test_torch_does_as_the_reference_in_all_orders(first: str) -> None:
    """Every sequence of four calls, refused ones among them."""
    made = setup([ONE], "cpu", "init_scale=4.0, growth_interval=2")
    for rest in itertools.product(LINES, repeat=3):
        lines = tuple(LINES[name] for name in (first, *rest))
        assert ScalerRun(ScalerProgram(made, lines, watched=rest[0] == first)).difference() is None


PLANS = (
    OptimizerPlan("momentum", ((CPU, ParameterPlan("cpu", "bf16")), (ParameterPlan("cpu", "fp64"),))),
    OptimizerPlan("sgd", ((ParameterPlan("cpu", kind="sparse"), ParameterPlan("cpu", kind="unused")),)),
    OptimizerPlan("fused", ((CPU,),)),
    OptimizerPlan("adam", ((CPU, ParameterPlan("cpu", kind="frozen")),)),
    OptimizerPlan("rmsprop", ((CPU,),)),
)
EVERY = ScalerProgram(
    setup(PLANS, "cpu", "growth_interval=1"),
    (
        *(line for number, plan in enumerate(PLANS) for line in backward(number, plan)),
        "scaler.unscale_(o0)",
        "clip(o0)",
        *(f"scaler.step(o{number})" for number in range(5)),
        "scaler.step(o0)",
        "scaler = loads(dumps(scaler))",
        "scaler.update()",
        *(f"o{number}.zero_grad(set_to_none={number % 2 == 0})" for number in range(5)),
        "corrupt_grad(p1_0, inf)",  # sparse and set to zero, so it has no element
        *backward(0, PLANS[0], "loss", 2, "inf"),
        *backward(1, PLANS[1], "forward", 0, "nan"),
        "corrupt_grad(p1_0, -inf)",
        *backward(2, PLANS[2], "forward", 0, "-inf"),
        *(f"scaler.step(o{number})" for number in range(5)),
        "scaler.update()",
        "scaler.step(o4, closure=None)",
        "scaler.set_growth_factor(4.0)",
        "scaler.load_state_dict({**scaler.state_dict(), 'scale': 16.0, '_growth_tracker': 1})",
        RELOADED,
        "scaler = deepcopy(scaler)",
        "scaler.update(2.0)",
        *backward(3, PLANS[3]),
        "scaler.update(torch.full((), 32.0, device='cpu'))",
        "scaler.step(o3)",
        "scaler.update()",
    ),
)


def test_a_program_with_everything() -> None:
    assert {plan.kind for plan in PLANS} == set(OPTIMIZERS)
    run = ScalerRun(EVERY)
    assert run.difference() is None
    assert run.compared > 600


def test_a_fault_is_found_by_a_small_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    found = ScalerExplorer(known()["cpu"]).explore(orderly=True)
    assert found is not None
    assert len(found[1].lines) <= 5
    assert "scaler.step(o0)" in found[1].lines


def test_a_difference_names_the_line_and_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    made = setup([ONE], "cpu", "init_scale=4.0")
    harmless = LINES["backward"], LINES["step"], LINES["overflow"], LINES["zero"], LINES["update"]
    assert ScalerRun(ScalerProgram(made, harmless)).difference() is None
    found = ScalerRun(ScalerProgram(made, (LINES["overflow"], LINES["step"]))).difference()
    assert found is not None
    assert found.startswith("step 2, scaler.step(o0): parameter 0 of optimizer 0, which had no step is")
    assert found.endswith("; the watch says: step 1 of optimizer0 was taken")


def test_a_reproduction_runs_and_shows_what_happens() -> None:
    script = ScalerExplorer(known()["cpu"]).script(EVERY)
    assert "ampcheck" not in script
    said = python("-c", script)
    assert said.count("raised") == 5
    assert "'scale': 131072.0" in said
