"""Rule programs: a program of ops and nested regions does what the other rules say of its steps.

The programs combine regions, ops, threads, exceptions, generators and weights; `ampcheck.spec.state`, a small model of
autocast in plain Python, predicts each state, kernel dtype and cast. Random programs come from a fixed seed. A
`--nightly` run adds many, from the seed that `--hypothesis-seed` gives or else from the day's date, which is in the run
file. Source: https://docs.pytorch.org/docs/2.13/amp.html and what `ampcheck/spec/state.py` cites.
"""

import pytest

from ampcheck.programs.regions import (
    Catch,
    Decorated,
    Generator,
    InferenceMode,
    Op,
    Options,
    Program,
    Raise,
    Reenter,
    Set,
    Thread,
    UseWeight,
    With,
)
from ampcheck.programs.regions.explore import RegionExplorer
from ampcheck.programs.regions.strategies import programs, weight_programs
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("programs")

STRATEGIES = {"mixed": programs, "weights": weight_programs}


@pytest.mark.parametrize("kind", list(STRATEGIES))
@scenario(dtypes="default")
def test_random(amp: Amp, kind: str, request: pytest.FixtureRequest) -> None:
    """Random programs over this device and a second one (amp.html; the sources are those of ampcheck/spec/state.py)."""
    option = request.config.option
    explorer = RegionExplorer(amp.device, nightly=option.nightly, seed=getattr(option, "hypothesis_seed", None))
    if found := explorer.explore(STRATEGIES[kind]):
        _report(amp, explorer, *found)
    amp.looked_at += explorer.compared


def _report(amp: Amp, explorer: RegionExplorer, difference: str, program: Program) -> None:
    amp.differences.append(difference)
    amp.script = explorer.script(program)


def _programs(device: str, low: str, other: str) -> dict[str, Program]:
    here, there = Options(device, low), Options(device, other)
    product = Op("mm", device, ("fp32", "fp32"))
    weight = UseWeight(device, "leaf")
    return {
        "documented_example": (
            With(here, (product, With(Options(device, enabled=False), (product,)), Op("mm", device, ("fp32", "last")))),
        ),
        "dtypes_in_turn": (With(here, (product, With(there, (product,)), product)),),
        "exception_through_regions": (Catch((With(here, (With(there, (product, Raise())),)),)), product),
        "cast_once": (With(here, (weight, weight, With(here, (weight,)), weight)), With(here, (weight,))),
        "thread_ends_a_region": (With(here, (weight, Thread((With(here, (weight,)),)), weight)),),
        "decorated_calls": (Decorated(here, (weight, weight), calls=2, around=there), product),
        "suspended_generator": (Generator(here, (product,), (product,)), product),
        "object_used_again": (Reenter(here, (product,), (product,)), product),
        "set_in_a_region": (
            With(here, (Set("dtype", device, other), product, Set("enabled", device, False), product)),
        ),
        "inference_casts_again": (With(here, (weight, InferenceMode((weight, weight)), weight)),),
        # Known deviations.
        "one_object_inside_itself": (Reenter(here, (product,), (product,), nested=True), product),
        "enabled_set_in_inference_mode": (
            InferenceMode((Set("dtype", device, low), Set("enabled", device, True), product)),
            product,
        ),
    }


NAMES = list(_programs("cpu", "bf16", "fp16"))


@pytest.mark.parametrize("name", NAMES)
@scenario()
def test_known(amp: Amp, name: str) -> None:
    """Programs written down: one for each kind of step, and those on which PyTorch deviates (spec/state.py)."""
    explorer, program = RegionExplorer(amp.device), _program(amp, name)
    if difference := explorer.difference(program):
        _report(amp, explorer, difference, program)
    amp.looked_at += explorer.compared


def _program(amp: Amp, name: str) -> Program:
    low, other = ("bf16", "fp16") if "bfloat16" in str(amp.dtype) else ("fp16", "bf16")
    return _programs(amp.type, low, other)[name]


def in_plain_torch(body: object, amp: Amp, name: str = "", **others: object) -> str:
    """A program that is written down as plain torch, for `ampcheck.reproduce`; "" for one that is drawn."""
    return RegionExplorer(amp.device).script(_program(amp, name)) if name else ""
