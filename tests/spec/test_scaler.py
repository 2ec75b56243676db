"""The model of GradScaler: what it says by itself, and that torch says the same of every short sequence of calls."""

from __future__ import annotations

import itertools
import subprocess
import sys
from math import inf, isnan, nan
from typing import Any

import pytest
import torch

from ampcheck.devices.registry import known
from ampcheck.programs.scaler.explore import ScalerExplorer
from ampcheck.programs.scaler.render import render
from ampcheck.programs.scaler.run import ScalerRun
from ampcheck.programs.scaler.steps import (
    OPTIMIZERS,
    Backward,
    Bad,
    Clip,
    CorruptGrad,
    Load,
    Optimizer,
    OptimizerStep,
    Options,
    Param,
    Pickle,
    Reload,
    ScalerProgram,
    Set,
    Step,
    Unscale,
    Update,
    ZeroGrad,
)
from ampcheck.spec import scaler as spec
from ampcheck.spec.scaler import Refused, Scaler, fits_float32, float32
from tests.cli_support import LIMIT

GOOD, BAD = {"cpu": True}, {"cpu": False}
ONE = (Optimizer("sgd", ((Param(),),)),)
CALLS: dict[str, Step] = {
    "backward": Backward(),
    "overflow": Backward(bad=Bad("forward", 0, "nan")),
    "unscale": Unscale(),
    "step": OptimizerStep(),
    "update": Update(),
    "set": Update(8.0),
    "zero": ZeroGrad(),
    "pickle": Pickle(),
    "reload": Reload(),
}


def _iterate(model: Scaler, *found: dict[str, bool]) -> list[tuple[float, int]]:
    seen = []
    for finite in found:
        model.scale()
        model.step("o", finite)
        model.update()
        seen.append((model.scale_value, model.tracker))
    return seen


# ---- the model alone


def test_grows_and_backs_off() -> None:
    model = Scaler(8.0, growth_interval=2)
    assert _iterate(model, GOOD, GOOD, GOOD, BAD, GOOD, GOOD) == [(8, 1), (16, 0), (16, 1), (8, 0), (8, 1), (16, 0)]


def test_keeps_the_promise_of_an_interval_that_was_passed() -> None:
    model = Scaler(8.0, growth_interval=9)
    _iterate(model, *[GOOD] * 5)
    model.growth_interval = 3
    assert _iterate(model, GOOD) == [(16.0, 0)]


def test_stays_where_float32_ends() -> None:
    assert _iterate(Scaler(2.0**127, growth_interval=1), GOOD, GOOD) == [(2.0**127, 0)] * 2
    assert _iterate(Scaler(2.0**-149), BAD) == [(0.0, 0)]


def test_one_bad_device_is_enough() -> None:
    model = Scaler(4.0)
    model.scale()
    model.unscale("o", {"cpu": True, "cuda": False})
    assert model.optimizers["o"].found_inf == {"cpu": False, "cuda": True}
    assert not model.step("o", {})


def test_float32() -> None:
    assert float32(1.1) == torch.tensor(1.1).item()
    assert float32(inf) == inf
    assert isnan(float32(nan))
    assert not fits_float32(1e39)
    assert fits_float32(3.4e38)
    with pytest.raises(Refused, match="without overflow"):
        float32(1e39)


@pytest.mark.parametrize(
    ("calls", "text"),
    [
        (lambda m: m.unscale("o", GOOD), "Attempted unscale_ but _scale is None"),
        (lambda m: m.step("o", GOOD), "Attempted step but _scale is None"),
        (lambda m: m.update(), "Attempted update but _scale is None"),
        (lambda m: (m.scale(), m.update()), spec.NOTHING_RECORDED),
        (lambda m: (m.scale(), m.step("o", {})), spec.NOTHING_CHECKED),
        (lambda m: (m.scale(), m.unscale("o", GOOD), m.unscale("o", GOOD)), spec.UNSCALED_TWICE),
        (lambda m: (m.scale(), m.step("o", GOOD), m.unscale("o", GOOD)), spec.UNSCALED_LATE),
        (lambda m: (m.scale(), m.step("o", GOOD), m.step("o", GOOD)), spec.STEPPED_TWICE),
        (lambda m: (m.scale(), m.unscale("o", GOOD, half=True)), spec.HALF),
        (lambda m: m.step("o", GOOD, closure=True), spec.WITH_CLOSURE),
        (lambda m: m.load({}), spec.EMPTY_STATE),
        (lambda m: (m.scale(), m.unscale("o", GOOD), m.pickled()), spec.PICKLED_EARLY),
    ],
)
def test_refuses(calls: Any, text: str) -> None:
    with pytest.raises(Refused) as caught:
        calls(Scaler())
    assert text in caught.value.text


def test_disabled_does_nothing() -> None:
    model = Scaler(growth_factor=0.5, backoff_factor=2.0, enabled=False)
    model.unscale("o", BAD)
    assert model.step("o", BAD, closure=True)
    model.update(3.0)
    model.load({})
    assert (model.scale(), model.state(), model.pickled()) == (1.0, {}, Scaler(enabled=False))


@pytest.mark.parametrize(
    ("factors", "text"), [({"growth_factor": 1.0}, spec.GROWTH), ({"backoff_factor": 1.0}, spec.BACKOFF)]
)
def test_factors(factors: Any, text: str) -> None:
    with pytest.raises(Refused, match=text):
        Scaler(**factors)
    with pytest.raises(AssertionError, match=text):
        torch.amp.GradScaler("cpu", **factors)


def test_imports_no_torch() -> None:
    code = "import sys, ampcheck.spec.scaler; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# ---- beside torch


@pytest.mark.parametrize("first", list(CALLS))
def test_torch_does_as_the_model_in_all_orders(first: str) -> None:
    """Every sequence of four calls, refused ones among them."""
    for rest in itertools.product(CALLS, repeat=3):
        program = ScalerProgram(
            ONE, tuple(CALLS[name] for name in (first, *rest)), Options(4.0), watched=rest[0] == first
        )
        assert ScalerRun(program, "cpu").difference() is None


EVERY = ScalerProgram(
    (
        Optimizer("momentum", ((Param(), Param("bf16")), (Param("fp64", "cpu"), Param(kind="frozen")))),
        Optimizer("sgd", ((Param("fp32", "cpu", "sparse"), Param(kind="unused")),)),
        Optimizer("fused", ((Param(),),)),
        Optimizer("adam", ((Param(),),)),
        Optimizer("rmsprop", ((Param(),),)),
    ),
    (
        *(Backward(n) for n in range(5)),
        Unscale(0),
        Clip(0),
        *(OptimizerStep(n) for n in range(5)),
        OptimizerStep(0),
        Pickle(),
        Update(),
        *(ZeroGrad(n, n % 2 == 0) for n in range(5)),
        Backward(0, Bad("loss", 2, "inf")),
        Backward(1, Bad("forward", 0, "nan")),
        CorruptGrad(1, 0, "-inf"),
        Backward(2, Bad("forward", 0, "-inf")),
        *(OptimizerStep(n) for n in range(5)),
        Update(),
        OptimizerStep(4, closure=True),
        Set("growth_factor", 4.0),
        Load(16.0, 1),
        Reload(),
        Pickle(copy=True),
        Update(2.0),
        Backward(3),
        Update(32.0, as_tensor=True),
        OptimizerStep(3),
        Update(),
    ),
    Options(growth_interval=1),
)


def test_a_program_with_everything() -> None:
    assert {plan.kind for plan in EVERY.optimizers} == set(OPTIMIZERS)
    run = ScalerRun(EVERY, "cpu")
    assert run.difference() is None
    assert run.compared > 600


def test_a_difference_names_the_step_and_the_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    program = ScalerProgram(
        ONE, (Backward(), OptimizerStep(), Backward(0, Bad("forward", 0, "nan")), ZeroGrad(), Update())
    )
    assert ScalerRun(program, "cpu").difference() is None
    found = ScalerRun(ScalerProgram(ONE, (Backward(0, Bad("forward", 0, "nan")), OptimizerStep())), "cpu").difference()
    assert found is not None
    assert found.startswith(
        "step 2, OptimizerStep(optimizer=0, closure=False): parameter 0 of optimizer 0, which had no step is"
    )
    assert found.endswith("; the watch says: step 1 of optimizer0 was taken")


def test_a_found_program_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.amp.GradScaler, "_maybe_opt_step", lambda self, optimizer, *_: optimizer.step())
    found = ScalerExplorer(known()["cpu"]).explore(orderly=True)
    assert found is not None
    assert [type(step) for step in found[1].steps][-1] is OptimizerStep
    assert len(found[1].steps) <= 4


def test_what_is_rendered_runs_and_shows_what_happens() -> None:
    script = render(EVERY, known()["cpu"])
    assert "ampcheck" not in script
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=LIMIT)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("raised") == 5
    assert "'scale': 131072.0" in done.stdout
