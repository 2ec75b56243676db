"""Rule misuse: `ampcheck.spec.rules` says what it promises. Sources are PyTorch 2.13's `torch/amp/grad_scaler.py`."""

from collections import namedtuple
from functools import partial
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("misuse")


def _brought_to(
    amp: Amp, *calls: str, kind: str = "SGD", fused: bool = False, **options: Any
) -> tuple[Any, torch.nn.Parameter, Any]:
    """A scaler on which some calls were made in turn, with the weight and the optimizer of them."""
    weight = torch.nn.Parameter(torch.ones(2, device=amp.type))
    optimizer = getattr(torch.optim, kind)([weight], lr=0.5, **({"fused": True} if fused else {}))
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0, **options)
    for call in calls:
        {
            "backward": lambda: scaler.scale(weight.sum()).backward(),
            "unscale_": lambda: scaler.unscale_(optimizer),
            "step": lambda: scaler.step(optimizer),
            "update": scaler.update,
        }[call]()
    return scaler, weight, optimizer


REFUSED = {
    "divided_twice": (("backward", "unscale_"), "unscale_", "unscale_() has already been called on this optimizer"),
    "divided_late": (("backward", "step"), "unscale_", "unscale_() is being called after step()."),
    "divided_and_late": (("backward", "unscale_", "step"), "unscale_", "unscale_() is being called after step()."),
    "stepped_twice": (("backward", "step"), "step", "step() has already been called since the last update()."),
    "stepped_again": (("backward", "unscale_", "step"), "step", "step() has already been called since the last"),
}


def _out_of_turn(amp: Amp, case: str, fused: bool = False) -> None:
    calls, last, text = REFUSED[case]
    scaler, weight, optimizer = _brought_to(amp, *calls, fused=fused)
    before = amp.values(weight), amp.values(weight.grad), scaler.state_dict()  # type: ignore[arg-type]
    amp.raises(f"{last} after {', '.join(calls)}", RuntimeError, text, lambda: getattr(scaler, last)(optimizer))
    after = amp.values(weight), amp.values(weight.grad), scaler.state_dict()  # type: ignore[arg-type]
    amp.expect("weight, gradient and scaler after that", after, before)
    if "step" not in calls:
        scaler.step(optimizer)
    scaler.update()
    amp.expect("tracker after the iteration", scaler.state_dict()["_growth_tracker"], 1)


@pytest.mark.parametrize("case", list(REFUSED))
@scenario(values=True, dtypes="default")
def test_out_of_turn(amp: Amp, case: str) -> None:
    """Each call of an iteration has its turn, once; another is a RuntimeError that says so, and changes nothing."""
    _out_of_turn(amp, case)


@pytest.mark.parametrize("case", list(REFUSED))
@scenario(values=True, dtypes="default")
def test_out_of_turn_when_fused(amp: Amp, case: str) -> None:
    """So it is with an optimizer that divides and skips by itself (step: a fused one is stepped in any case)."""
    _out_of_turn(amp, case, fused=True)


@pytest.mark.parametrize("call", ["unscale_", "step", "update"], ids=["divide", "step", "update"])
@scenario(values=True, dtypes="default")
def test_nothing_scaled(amp: Amp, call: str) -> None:
    """Before any output is scaled there is no scale, and a call that needs one says who asked and what to do."""
    scaler, weight, optimizer = _brought_to(amp)
    weight.grad = torch.ones_like(weight)
    given = () if call == "update" else (optimizer,)
    text = f"Attempted {call} but _scale is None.  This may indicate your script did not use scaler.scale"
    amp.raises(f"{call} at the start", AssertionError, text, lambda: getattr(scaler, call)(*given))
    amp.expect("weight and gradient after it", (amp.values(weight), amp.values(weight.grad)), ([1.0, 1.0], [1.0, 1.0]))


@pytest.mark.parametrize("calls", ["nothing", "a_step_of_no_gradients"])
@scenario(values=True, dtypes="default")
def test_update_of_nothing(amp: Amp, calls: str) -> None:
    """Where no gradient was checked since the last update there is nothing to update by, and that is an error."""
    scaler, weight, optimizer = _brought_to(amp, "backward", "step", "update")
    if calls != "nothing":
        weight.grad = None
        scaler.unscale_(optimizer)
    amp.raises("update", AssertionError, "No inf checks were recorded prior to update.", scaler.update)
    amp.expect("tracker after it", scaler.state_dict()["_growth_tracker"], 1)


@scenario(values=True, dtypes="default")
def test_update_without_a_step(amp: Amp) -> None:
    """Gradients that were divided and not used count in the update (update: data collected from optimizers)."""
    scaler, weight, _ = _brought_to(amp, "backward", "unscale_", "update", growth_interval=1)
    amp.expect("scale and weight", (scaler.get_scale(), amp.values(weight)), (16.0, [1.0, 1.0]))


@pytest.mark.parametrize("frozen", ["frozen", "never_used"])
@scenario(values=True, dtypes="default")
def test_no_gradients(amp: Amp, frozen: str) -> None:
    """A step of an optimizer whose parameters all have no gradient is an error that says nothing was checked."""
    scaler, _, _ = _brought_to(amp, "backward")
    weight = torch.nn.Parameter(torch.ones(2, device=amp.type), requires_grad=frozen != "frozen")
    optimizer = torch.optim.SGD([weight], lr=0.5)
    text = "No inf checks were recorded for this optimizer."
    amp.raises("its step", AssertionError, text, lambda: scaler.step(optimizer))
    amp.raises("its step, the second time", AssertionError, text, lambda: scaler.step(optimizer))


@scenario(values=True, dtypes="default")
def test_half_gradients(amp: Amp) -> None:
    """Float16 gradients are refused by step as by unscale_, and none is divided (unscale_: weights are float32)."""
    wide = torch.nn.Parameter(torch.ones(2, device=amp.type))
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.float16, device=amp.type))
    optimizer = torch.optim.SGD([wide, half], lr=0.5)
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0)
    scaler.scale(wide.sum() + half.sum().float()).backward()
    for call in (scaler.step, scaler.unscale_):
        text = "Attempting to unscale FP16 gradients."
        amp.raises(call.__name__, ValueError, text, partial(call, optimizer))
    amp.expect("gradients after it", (amp.values(wide.grad), amp.values(half.grad)), ([8.0, 8.0], [8.0, 8.0]))  # type: ignore[arg-type]
    amp.expect("weights after it", (amp.values(wide), amp.values(half)), ([1.0, 1.0], [1.0, 1.0]))


@scenario(values=True, dtypes="default")
def test_complex_gradients(amp: Amp) -> None:
    """A complex gradient is refused in words that name its dtype (pytorch#58228)."""
    weight = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=0.5)
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0)
    scaler.scale(torch.ones((), device=amp.type))
    weight.grad = torch.ones_like(weight)
    amp.raises("step", RuntimeError, "omplex", lambda: scaler.step(optimizer))
    amp.expect("weight after it", amp.values(weight), [1, 1])


@pytest.mark.parametrize("how", ["keyword", "none_by_keyword", "position"])
@scenario(values=True, dtypes="default")
def test_closure(amp: Amp, how: str) -> None:
    """A closure is refused while scaling, however it is given, and not called (step: "not currently supported")."""
    scaler, weight, optimizer = _brought_to(amp, "backward")
    called: list[str] = []
    given = (lambda: called.append("called"),) if how == "position" else ()
    named = {"closure": None if how.startswith("none") else lambda: called.append("called")} if not given else {}
    text = "Closure use is not currently supported if GradScaler is enabled."
    amp.raises(f"step with a closure by {how}", RuntimeError, text, lambda: scaler.step(optimizer, *given, **named))
    amp.expect("calls of the closure, and weight", (called, amp.values(weight)), ([], [1.0, 1.0]))


@scenario(values=True, dtypes="default")
def test_error_of_the_optimizer(amp: Amp) -> None:
    """An error that the optimizer raises comes through, and the step can be made again (step)."""
    scaler, weight, optimizer = _brought_to(amp, "backward")
    handle = optimizer.register_step_pre_hook(lambda *_: 1 / 0)
    amp.raises("step", ZeroDivisionError, "division by zero", lambda: scaler.step(optimizer))
    handle.remove()
    scaler.step(optimizer)
    amp.expect("weight after the second time", amp.values(weight), [0.5, 0.5])


@scenario(values=True, dtypes="default")
def test_no_parameter(amp: Amp) -> None:
    """What is no tensor among the parameters is named by its class (unscale_)."""
    scaler, _, optimizer = _brought_to(amp, "backward")
    optimizer.param_groups[0]["params"].append("bias")
    text = "expected param to be torch.Tensor, got str"
    amp.raises("unscale_", AssertionError, text, lambda: scaler.unscale_(optimizer))


Pair = namedtuple("Pair", ["loss", "auxiliary"])  # as short as in a user's program


@pytest.mark.parametrize("kind", ["float", "none", "in_a_list", "text", "mapping"])
@scenario(values=True, dtypes="default")
def test_no_output(amp: Amp, kind: str) -> None:
    """What is neither a tensor nor an iterable of tensors is refused (scale: "Tensor or iterable of Tensors")."""
    one = torch.ones((), device=amp.type)
    given: Any = {"float": 1.0, "none": None, "in_a_list": [one, 1.0], "text": "loss", "mapping": {"loss": one}}[kind]
    scaler = torch.amp.GradScaler(amp.type)
    text = "outputs must be a Tensor or an iterable of Tensors"
    amp.raises(f"scale of {kind}", ValueError, text, lambda: scaler.scale(given))


@pytest.mark.parametrize("kind", ["list", "tuple", "nested", "generator", "empty", "named"])
@scenario(values=True, dtypes="default")
def test_containers(amp: Amp, kind: str) -> None:
    """Outputs in a container come back scaled, lists and tuples as what they were (scale: "iterable of Tensors")."""
    one, two = torch.ones((), device=amp.type), torch.full((2,), 0.5, device=amp.type)
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    given: Any = {
        "list": [one, two],
        "tuple": (one, two),
        "nested": [one, (two, [one])],
        "generator": (each for each in (one, two)),
        "empty": [],
        "named": Pair(one, two),
    }[kind]

    def shown(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return amp.values(value)
        return (
            type(value).__name__ if isinstance(value, (list, tuple)) else "iterable",
            [shown(each) for each in value],
        )

    want: Any = {
        "list": ("list", [4.0, [2.0, 2.0]]),
        "tuple": ("tuple", [4.0, [2.0, 2.0]]),
        "nested": ("list", [4.0, ("tuple", [[2.0, 2.0], ("list", [4.0])])]),
        "generator": ("iterable", [4.0, [2.0, 2.0]]),
        "empty": ("list", []),
        "named": ("Pair", [4.0, [2.0, 2.0]]),
    }[kind]
    try:
        amp.expect(f"scale of {kind}", shown(scaler.scale(given)), want)
    except TypeError as error:
        amp.expect(f"what scale of {kind} raised", str(error), "")
    amp.expect("scale after it", scaler.get_scale(), 4.0)
