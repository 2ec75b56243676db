"""Rule lossscale: GradScaler scales outputs, unscales gradients once, skips bad steps and adapts its scale.

The scale backs off after a gradient that is not finite, whose step is skipped, and grows after growth_interval
iterations without one. Random programs, compared with the model in `ampcheck/spec/scaler.py`, come from a fixed seed; a
`--nightly` run adds many from the seed that `--hypothesis-seed` gives or else from the day's date, which is in the run
file. Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler and torch/amp/grad_scaler.py.
"""

from collections.abc import Callable
from math import inf, nan
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.amp import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampcheck.checks.training import one_process, step_and_update
from ampcheck.programs.scaler import ScalerExplorer
from ampcheck.programs.search import Search
from ampcheck.runner.suite import Amp, Product, named, scenario

pytestmark = pytest.mark.rule("lossscale")


def _weights(amp: Amp, count: int = 3) -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.tensor([1.0, 2.0 + n], device=amp.type)) for n in range(count)]


def _made(
    amp: Amp, lr: float = 0.5, make: Any = torch.optim.SGD, count: int = 3, **options: Any
) -> tuple[list[torch.nn.Parameter], Any, torch.amp.GradScaler]:
    weights = _weights(amp, count)
    return weights, make(weights, lr=lr), torch.amp.GradScaler(amp.type, **options)


def _set_gradients(scaler: torch.amp.GradScaler, weights: list[torch.nn.Parameter], bad: dict[int, float]) -> None:
    """Set the gradient of each weight to 1, but for those in `bad`, whose first element has the value given there."""
    factors = [torch.tensor([bad.get(n, 1.0), 1.0]).to(weight) for n, weight in enumerate(weights)]
    total = torch.stack([(weight * by).sum().float() for weight, by in zip(weights, factors, strict=True)]).sum()
    scaler.scale(total).backward()


def _iterate(scaler: torch.amp.GradScaler, optimizer: Any, weights: list[torch.nn.Parameter]) -> tuple[float, int]:
    """One iteration as it is documented. Returns the scale and the tracker after it."""
    optimizer.zero_grad()
    _set_gradients(scaler, weights, {})
    step_and_update(scaler, optimizer)
    saved = scaler.state_dict()
    return saved["scale"], saved["_growth_tracker"]


@scenario(values=True, dtypes="default")
def test_before_the_first_output(amp: Amp) -> None:
    """The scale is the initial one until an output is scaled (get_scale)."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=24.0)
    amp.assert_equal("scale at the start", scaler.get_scale(), 24.0)
    amp.assert_equal("tracker at the start", scaler.state_dict()["_growth_tracker"], 0)
    amp.assert_equal("scaled one", amp.values(scaler.scale(torch.ones((), device=amp.type))), 24.0)
    amp.assert_equal("scale after it", scaler.get_scale(), 24.0)


@scenario(values=True, dtypes="default")
def test_two_of_one_scaler(amp: Amp) -> None:
    """Of two optimizers only the one with the overflow is skipped; the scale backs off for both (amp_examples.html)."""
    one, two = _weights(amp), _weights(amp)
    first, second = torch.optim.SGD(one, lr=1.0), torch.optim.SGD(two, lr=1.0)
    scaler = torch.amp.GradScaler(amp.type, init_scale=16.0)
    for bad_one, bad_two, moved_one, moved_two, scale in (
        ({0: inf}, {}, False, True, 8.0),
        ({}, {2: nan}, True, False, 4.0),
        ({1: nan}, {1: inf}, False, False, 2.0),
        ({}, {}, True, True, 2.0),
    ):
        before = amp.values(one[1]), amp.values(two[1])
        first.zero_grad()
        second.zero_grad()
        _set_gradients(scaler, one, bad_one)
        _set_gradients(scaler, two, bad_two)
        step_and_update(scaler, first, second)
        where = f"with overflows in {sorted(bad_one)} and {sorted(bad_two)}"
        amp.assert_equal(f"whether the first moved {where}", amp.values(one[1]) != before[0], moved_one)
        amp.assert_equal(f"whether the second moved {where}", amp.values(two[1]) != before[1], moved_two)
        amp.assert_equal(f"scale {where}", scaler.get_scale(), scale)


@scenario(values=True, dtypes="default")
def test_spoiled_before_clipping(amp: Amp) -> None:
    """The gradients at unscale_ decide, though clipping then hides or spreads an infinity (unscale_, step)."""
    for hide in (True, False):
        weights, optimizer, scaler = _made(amp, lr=1.0, init_scale=4.0)
        _set_gradients(scaler, weights, {1: nan})
        scaler.unscale_(optimizer)
        for weight in weights:
            weight.grad = torch.zeros_like(weight) if hide else torch.full_like(weight, nan)
        scaler.step(optimizer)
        amp.assert_equal(f"weight after a skipped step, hide={hide}", amp.values(weights[0]), [1.0, 2.0])


@scenario(values=True, dtypes="default")
def test_given_to_the_step(amp: Amp) -> None:
    """Arguments go on to optimizer.step, and its value comes back; None for a skipped one (step)."""
    got: list[object] = []

    class Told(torch.optim.SGD):
        def step(self, *args: Any, **kwargs: Any) -> Any:
            got.append((args, kwargs))
            super().step()
            return 7.5

    weights, optimizer, scaler = _made(amp, make=Told, init_scale=2.0)
    _set_gradients(scaler, weights, {})
    amp.assert_equal("what step returned", scaler.step(optimizer, 1, two=2), 7.5)
    scaler.update()
    _set_gradients(scaler, weights, {0: nan})
    amp.assert_equal("what a skipped step returned", scaler.step(optimizer, 3), None)
    amp.assert_equal("what the optimizer was given", got, [((1,), {"two": 2})])


@scenario(values=True, dtypes="default")
def test_set_by_hand(amp: Amp) -> None:
    """update(new_scale) sets the scale, keeps the count, and leaves the number given alone afterwards (update)."""
    weights, optimizer, scaler = _made(amp, lr=0.125, init_scale=4.0, growth_interval=2)
    _iterate(scaler, optimizer, weights)
    given = torch.full((), 64.0, device=amp.type)
    for new, want in ((3.0, 3.0), (given, 64.0)):
        scaler.update(new)
        amp.assert_equal(f"scale set to {want}", scaler.get_scale(), want)
        amp.assert_equal("tracker after it", scaler.state_dict()["_growth_tracker"], 1)
    given.fill_(5.0)
    amp.assert_equal("scale after the tensor given was changed", scaler.get_scale(), 64.0)
    amp.assert_equal("scale and tracker after an iteration", _iterate(scaler, optimizer, weights), (128.0, 0))
    amp.assert_equal("the tensor given, after that", amp.values(given), 5.0)


@scenario(values=True, dtypes="default")
def test_interval_met_late(amp: Amp) -> None:
    """An interval made smaller than the iterations so far is met in the next one (amp.html: growth_interval ones)."""
    weights, optimizer, scaler = _made(amp, lr=0.0, init_scale=4.0, growth_interval=2000)
    for _ in range(5):
        _iterate(scaler, optimizer, weights)
    scaler.set_growth_interval(3)
    seen = [_iterate(scaler, optimizer, weights)[0] for _ in range(6)]
    amp.assert_equal("whether the scale has grown six iterations later", seen[-1] > 4.0, True)


@scenario(values=True, dtypes="default")
def test_inference_came_first(amp: Amp) -> None:
    """A loss scaled in inference mode, as in a validation before training, does not stop the training (scale)."""
    weights, optimizer, scaler = _made(amp, init_scale=4.0)
    with torch.inference_mode():
        amp.assert_equal("scaled loss", amp.values(scaler.scale(torch.ones((), device=amp.type))), 4.0)
    try:
        amp.assert_equal("scale and tracker after an iteration", _iterate(scaler, optimizer, weights), (4.0, 1))
    except RuntimeError as error:
        amp.assert_equal("what training raised", str(error).split(".")[0], "")


@scenario(values=True, dtypes="default")
def test_known_by_itself(amp: Amp) -> None:
    """An optimizer made after another one is gone is not taken for it (amp.html: since the last update)."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    seen: set[int] = set()
    for _ in range(200):
        weights = _weights(amp, 1)
        optimizer: Any = torch.optim.SGD(weights, lr=0.5)
        _set_gradients(scaler, weights, {})
        again = id(optimizer) in seen
        seen.add(id(optimizer))
        try:
            scaler.step(optimizer)
        except RuntimeError as error:
            amp.assert_equal("what step said to an optimizer that is new", str(error), "")
            return
        if again:
            break
        del optimizer
    amp.assert_equal("weight of the last", amp.values(weights[0]), [0.5, 1.5])


@scenario(scale=named(small=2.0**-10, zero=0.0), values=True, dtypes="default")
def test_divided_into_overflow(amp: Amp, scale: float) -> None:
    """A gradient that is not finite once it is divided does not reach the weights (step: to avoid corrupting them)."""
    weights, optimizer, scaler = _made(amp, count=1, init_scale=4.0)
    _iterate(scaler, optimizer, weights)
    scaler.update(scale)  # what many overflows in a row make of it
    weights[0].grad = torch.full_like(weights[0], 2.0**125 if scale else 0.0)
    scaler.step(optimizer)
    finite = all(torch.isfinite(amp.host(weight)).all().item() for weight in weights)
    amp.assert_equal("whether the weights are finite", finite, True)


@scenario(values=True, dtypes="default")
def test_stays_below_infinity(amp: Amp) -> None:
    """A scale that float32 does not hold once it has grown stays, and counting begins anew (pytorch#98828)."""
    weights, optimizer, scaler = _made(
        amp, lr=0.0, count=1, init_scale=2.0**120, growth_factor=2.0**6, growth_interval=2
    )
    seen = [_iterate(scaler, optimizer, weights) for _ in range(6)]
    top = 2.0**126
    want = [(2.0**120, 1), (top, 0), (top, 1), (top, 0), (top, 1), (top, 0)]
    amp.assert_equal("scale and tracker after each iteration", seen, want)


@scenario(values=True, dtypes="default", types=("cpu",))
def test_sharded_stays_below_infinity(amp: Amp) -> None:
    """So does that of FSDP's scaler, which updates it by code of its own (fsdp/sharded_grad_scaler.py)."""
    with patch("torch.amp.GradScaler", ShardedGradScaler), one_process():
        test_stays_below_infinity(amp)


# ---- outputs of each kind
DTYPES = {"half": torch.float16, "brain": torch.bfloat16, "single": torch.float32, "double": torch.float64}
HELD: dict[str, Callable[[list[torch.Tensor]], Any]] = {
    "alone": lambda outputs: outputs[0],
    "list": list,
    "tuple": tuple,
    "nested": lambda outputs: [outputs[:2], tuple(outputs[2:])],
    "iterator": iter,
}
"""What is given to `scale`, made of outputs."""
NUMBERS = [torch.full(size, number) for number in (0.125, -5.0) for size in ((), (3,), (5000,))]
"""A loss, a vector and one of more elements than a vector of a kernel; at a scale of 2 ** 14, five is too much for
float16."""

OUTPUTS = Product({"scaler": ("plain", "sharded"), "held": tuple(HELD), "dtype": tuple(DTYPES)})


@scenario(OUTPUTS, values=True, dtypes="default", types=("cpu", "cuda", "jax"))
def test_outputs(amp: Amp, scaler: str, held: str, dtype: str) -> None:
    """Each output is multiplied in the dtype that the product has; a sharded scaler keeps its dtype (scale).

    So a loss of float16 does not overflow, for the scale is float32 and both are numbers, but a vector of it does.
    """
    for numbers in [[number] for number in NUMBERS] if held == "alone" else [NUMBERS]:
        made = (GradScaler if scaler == "plain" else ShardedGradScaler)(amp.type, init_scale=2.0**14)
        outputs = [number.to(DTYPES[dtype]).to(amp.type).requires_grad_() for number in numbers]
        got: Any = made.scale(HELD[held](outputs))
        flat = [got] if held == "alone" else [*got[0], *got[1]] if held == "nested" else list(got)
        amp.assert_equal("how many outputs come back", len(flat), len(numbers))
        if held in ("list", "tuple", "nested"):
            amp.assert_equal("what they are in", type(got), tuple if held == "tuple" else list)
        for one, output, number in zip(flat, outputs, numbers, strict=False):
            what = f"output of {list(number.shape)} {DTYPES[dtype]} of {number.reshape(-1)[0]}"
            product = torch.result_type(number.to(DTYPES[dtype]), torch.tensor(2.0**14))
            want = (number.double() * 2.0**14).to(DTYPES[dtype] if scaler == "sharded" else product)
            amp.assert_equal(f"dtype of the scaled {what}", one.dtype, want.dtype)
            amp.assert_equal(f"whether the scaled {what} is right", amp.host(one).equal(want), True)
            (gradient,) = torch.autograd.grad(one.sum(), output)
            want = torch.full_like(number, 2.0**14).to(DTYPES[dtype])
            amp.assert_identical(f"gradient of the {what}", gradient, want)


# ---- weights in two places
@scenario(bad=["here", "there", "nowhere"], values=True, dtypes="default")
def test_two_places(amp: Amp, bad: str) -> None:
    """Weights on the device and on the host in one optimizer: an overflow in either skips all (unscale_)."""
    here = torch.nn.Parameter(torch.ones(2, device=amp.type))
    there = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([here, there], lr=1.0)
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    losses = [(here * (inf if bad == "here" else 0.5)).sum(), (there * (nan if bad == "there" else 0.25)).sum()]
    for loss in scaler.scale(losses):
        loss.backward()
    step_and_update(scaler, optimizer)
    want = ([0.5, 0.5], [0.75, 0.75]) if bad == "nowhere" else ([1.0, 1.0], [1.0, 1.0])
    amp.assert_equal("weights after the step", (amp.values(here), amp.values(there)), want)
    amp.assert_equal("scale after it", scaler.get_scale(), 4.0 if bad == "nowhere" else 2.0)


# ---- random calls
@scenario(kind=["iterations", "any_order"], values=True, dtypes="default")
def test_random(amp: Amp, kind: str, request: pytest.FixtureRequest) -> None:
    """Random calls on up to three optimizers, on the device and the host (amp.html#torch.amp.GradScaler)."""
    explorer = ScalerExplorer(amp.device, Search.of(request.config.option))
    if found := explorer.explore(orderly=kind == "iterations"):
        amp.differences.append(found[0])
        amp.script = explorer.script(found[1])
    amp.looked_at += explorer.compared
