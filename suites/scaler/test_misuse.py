"""Rule misuse: a call that GradScaler does not support is refused in words that name it, or does nothing.

Parts: calls; the settings a scaler is made with or given later. Source: torch/amp/grad_scaler.py of PyTorch 2.13.
"""

import warnings
from collections import namedtuple
from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from ampcheck.checks.training import iterate, one_process, trained
from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("misuse")


def _after_calls(amp: Amp, *calls: str, fused: bool = False, **options: Any) -> tuple[Any, torch.nn.Parameter, Any]:
    """Return a scaler on which some calls were made in turn, with the weight and the optimizer of them."""
    make = partial(torch.optim.SGD, fused=True) if fused else torch.optim.SGD
    weight, optimizer, scaler = trained(amp, make=make, init_scale=8.0, **options)
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


def _call_out_of_order(amp: Amp, case: str, fused: bool = False) -> None:
    calls, last, text = REFUSED[case]
    scaler, weight, optimizer = _after_calls(amp, *calls, fused=fused)
    before = amp.values(weight), amp.values(weight.grad), scaler.state_dict()
    amp.assert_raises(f"{last} after {', '.join(calls)}", RuntimeError, text, lambda: getattr(scaler, last)(optimizer))
    after = amp.values(weight), amp.values(weight.grad), scaler.state_dict()
    amp.assert_equal("weight, gradient and scaler after that", after, before)
    if "step" not in calls:
        scaler.step(optimizer)
    scaler.update()
    amp.assert_equal("tracker after the iteration", scaler.state_dict()["_growth_tracker"], 1)


@scenario(case=REFUSED, values=True, dtypes="default")
def test_out_of_turn(amp: Amp, case: str) -> None:
    """Each call of an iteration is made once, in order; any other raises a RuntimeError and changes nothing."""
    _call_out_of_order(amp, case)


@scenario(case=REFUSED, values=True, dtypes="default")
def test_out_of_turn_when_fused(amp: Amp, case: str) -> None:
    """The same holds for an optimizer that divides and skips by itself (step: a fused one is always called)."""
    _call_out_of_order(amp, case, fused=True)


@scenario(call=named(divide="unscale_", step="step", update="update"), values=True, dtypes="default")
def test_nothing_scaled(amp: Amp, call: str) -> None:
    """Before any output is scaled a call that needs the scale raises an error that names the call and the remedy."""
    scaler, weight, optimizer = _after_calls(amp)
    weight.grad = torch.ones_like(weight)
    given = () if call == "update" else (optimizer,)
    text = f"Attempted {call} but _scale is None.  This may indicate your script did not use scaler.scale"
    amp.assert_raises(f"{call} at the start", AssertionError, text, lambda: getattr(scaler, call)(*given))
    found = amp.values(weight), amp.values(weight.grad)
    amp.assert_equal("weight and gradient after it", found, ([1.0, 1.0], [1.0, 1.0]))


@scenario(calls=["nothing", "a_step_of_no_gradients"], values=True, dtypes="default")
def test_update_of_nothing(amp: Amp, calls: str) -> None:
    """update raises where no gradient was checked since the last one (update: "No inf checks were recorded")."""
    scaler, weight, optimizer = _after_calls(amp, "backward", "step", "update")
    if calls != "nothing":
        weight.grad = None
        scaler.unscale_(optimizer)
    amp.assert_raises("update", AssertionError, "No inf checks were recorded prior to update.", scaler.update)
    amp.assert_equal("tracker after it", scaler.state_dict()["_growth_tracker"], 1)


@scenario(values=True, dtypes="default")
def test_update_without_a_step(amp: Amp) -> None:
    """Gradients that were divided and not used count in the update (update: data collected from optimizers)."""
    scaler, weight, _ = _after_calls(amp, "backward", "unscale_", "update", growth_interval=1)
    amp.assert_equal("scale and weight", (scaler.get_scale(), amp.values(weight)), (16.0, [1.0, 1.0]))


@scenario(frozen=["frozen", "never_used"], values=True, dtypes="default")
def test_no_gradients(amp: Amp, frozen: str) -> None:
    """A step of an optimizer whose parameters all have no gradient is an error that says nothing was checked."""
    scaler, _, _ = _after_calls(amp, "backward")
    weight = torch.nn.Parameter(torch.ones(2, device=amp.type), requires_grad=frozen != "frozen")
    optimizer = torch.optim.SGD([weight], lr=0.5)
    text = "No inf checks were recorded for this optimizer."
    amp.assert_raises("its step", AssertionError, text, lambda: scaler.step(optimizer))
    amp.assert_raises("its step, the second time", AssertionError, text, lambda: scaler.step(optimizer))


@scenario(values=True, dtypes="default")
def test_half_gradients(amp: Amp) -> None:
    """Float16 gradients are refused by step as by unscale_, and none is divided (unscale_: weights are float32)."""
    wide = torch.nn.Parameter(torch.ones(2, device=amp.type))
    half = torch.nn.Parameter(torch.ones(2, dtype=torch.float16, device=amp.type))
    optimizer = torch.optim.SGD([wide, half], lr=0.5)
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0)
    scaler.scale(wide.sum() + half.sum().float()).backward()
    for call in (scaler.step, scaler.unscale_):
        amp.assert_raises(call.__name__, ValueError, "Attempting to unscale FP16 gradients.", partial(call, optimizer))
    amp.assert_equal("gradients after it", (amp.values(wide.grad), amp.values(half.grad)), ([8.0, 8.0], [8.0, 8.0]))
    amp.assert_equal("weights after it", (amp.values(wide), amp.values(half)), ([1.0, 1.0], [1.0, 1.0]))


@scenario(how=["keyword", "none_by_keyword", "position"], values=True, dtypes="default")
def test_closure(amp: Amp, how: str) -> None:
    """A closure is refused while scaling, however it is given, and not called (step: "not currently supported")."""
    scaler, weight, optimizer = _after_calls(amp, "backward")
    called: list[str] = []
    given = (lambda: called.append("called"),) if how == "position" else ()
    named = {"closure": None if how.startswith("none") else lambda: called.append("called")} if not given else {}
    text, call = "Closure use is not currently supported if GradScaler is enabled.", partial(scaler.step, optimizer)
    amp.assert_raises(f"step with a closure by {how}", RuntimeError, text, partial(call, *given, **named))
    amp.assert_equal("calls of the closure, and weight", (called, amp.values(weight)), ([], [1.0, 1.0]))


@scenario(values=True, dtypes="default")
def test_no_parameter(amp: Amp) -> None:
    """A parameter that is not a tensor is refused and named by its class (unscale_)."""
    scaler, _, optimizer = _after_calls(amp, "backward")
    optimizer.param_groups[0]["params"].append("bias")
    text = "expected param to be torch.Tensor, got str"
    amp.assert_raises("unscale_", AssertionError, text, lambda: scaler.unscale_(optimizer))


Pair = namedtuple("Pair", ["loss", "auxiliary"])  # as short as in a user's program


@scenario(kind=["float", "none", "in_a_list", "text", "mapping"], values=True, dtypes="default")
def test_no_output(amp: Amp, kind: str) -> None:
    """scale refuses anything but a tensor or an iterable of tensors (scale: "Tensor or iterable of Tensors")."""
    one = torch.ones((), device=amp.type)
    given: Any = {"float": 1.0, "none": None, "in_a_list": [one, 1.0], "text": "loss", "mapping": {"loss": one}}[kind]
    scaler = torch.amp.GradScaler(amp.type)
    text = "outputs must be a Tensor or an iterable of Tensors"
    amp.assert_raises(f"scale of {kind}", ValueError, text, lambda: scaler.scale(given))


@scenario(kind=["list", "tuple", "nested", "generator", "empty", "named"], values=True, dtypes="default")
def test_containers(amp: Amp, kind: str) -> None:
    """Outputs in a container come back scaled, lists as lists and tuples as tuples (scale: "iterable of Tensors")."""
    one, two = torch.ones((), device=amp.type), torch.full((2,), 0.5, device=amp.type)
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    both = [4.0, [2.0, 2.0]]
    given, want = {
        "list": ([one, two], ("list", both)),
        "tuple": ((one, two), ("tuple", both)),
        "nested": ([one, (two, [one])], ("list", [4.0, ("tuple", [[2.0, 2.0], ("list", [4.0])])])),
        "generator": ((each for each in (one, two)), ("iterable", both)),
        "empty": ([], ("list", [])),
        "named": (Pair(one, two), ("Pair", both)),
    }[kind]

    def shown(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return amp.values(value)
        kind = type(value).__name__ if isinstance(value, (list, tuple)) else "iterable"
        return kind, [shown(each) for each in value]

    try:
        amp.assert_equal(f"scale of {kind}", shown(scaler.scale(given)), want)
    except TypeError as error:
        amp.assert_equal(f"what scale of {kind} raised", str(error), "")
    amp.assert_equal("scale after it", scaler.get_scale(), 4.0)


# ---- settings
def _scale_after_iteration(scaler: torch.amp.GradScaler, amp: Amp, by: float = 1.0) -> float:
    """Return the scale after an iteration whose gradients are `by`."""
    weight, optimizer, _ = trained(amp)
    iterate(weight, optimizer, scaler, by)
    return scaler.get_scale()


@scenario(value=named(one=1.0, below=0.5, negative=-2.0, not_a_number=float("nan")), values=True, dtypes="default")
def test_growth_factor(amp: Amp, value: float) -> None:
    """A growth factor that is not above 1 is refused (__init__: "The growth factor must be > 1.0.")."""
    text = "The growth factor must be > 1.0."
    amp.assert_raises(f"{value}", AssertionError, text, lambda: torch.amp.GradScaler(amp.type, growth_factor=value))


@scenario(value=named(one=1.0, above=2.0, not_a_number=float("nan")), values=True, dtypes="default")
def test_backoff_factor(amp: Amp, value: float) -> None:
    """A backoff factor that is not below 1 is refused (__init__: "The backoff factor must be < 1.0.")."""
    text = "The backoff factor must be < 1.0."
    amp.assert_raises(f"{value}", AssertionError, text, lambda: torch.amp.GradScaler(amp.type, backoff_factor=value))


@scenario(values=True, dtypes="default")
def test_scale_beyond_float32(amp: Amp) -> None:
    """A scale that float32 does not hold is refused where it is needed first, and by update (torch.full, fill_)."""
    text = "value cannot be converted to type float without overflow"
    one = torch.ones((), device=amp.type)
    scaler = torch.amp.GradScaler(amp.type, init_scale=1e39)
    amp.assert_raises("scale", RuntimeError, text, lambda: scaler.scale(one))
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    scaler.scale(one)
    amp.assert_raises("update", RuntimeError, text, lambda: scaler.update(1e39))
    amp.assert_equal("scale after it", scaler.get_scale(), 4.0)


@scenario(values=True, dtypes="default")
def test_set_and_used(amp: Amp) -> None:
    """The getters return the factors and interval that were set, and the next update uses them (set_growth_factor…)."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0)
    scaler.set_growth_factor(4.0)
    scaler.set_backoff_factor(0.125)
    scaler.set_growth_interval(1)
    got = (scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    amp.assert_equal("factors and interval", got, (4.0, 0.125, 1))
    amp.assert_equal("scale after an iteration", _scale_after_iteration(scaler, amp), 32.0)
    amp.assert_equal("scale after an overflow", _scale_after_iteration(scaler, amp, float("inf")), 4.0)


NEW_SCALES = {
    "float": 2.5,
    "no_dimension": torch.tensor(2.5),
    "one_element": torch.tensor([2.5]),
    "float64": torch.tensor(2.5, dtype=torch.float64),
    "int": 2,
    "two_elements": torch.tensor([2.5, 3.5]),
    "requires_grad": torch.tensor(2.5, requires_grad=True),
    "elsewhere": torch.tensor(2.5, device="meta"),
}


def _with_new_scale(amp: Amp, form: str) -> tuple[torch.amp.GradScaler, Any]:
    """Return a scaler whose scale is on the device, and a new scale for it."""
    scaler, given = torch.amp.GradScaler(amp.type, init_scale=4.0), NEW_SCALES[form]
    scaler.scale(torch.ones((), device=amp.type))
    if isinstance(given, torch.Tensor) and form != "elsewhere":
        given = given.detach().to(amp.type).requires_grad_(form == "requires_grad")
    return scaler, given


@scenario(form=["float", "no_dimension", "one_element", "float64", "int"], values=True, dtypes="default")
def test_new_scale(amp: Amp, form: str) -> None:
    """A new scale is a number, or a tensor of one element on the scaler's device (update: "float or 1-element")."""
    scaler, given = _with_new_scale(amp, form)
    try:
        scaler.update(given)
    except (AttributeError, RuntimeError) as error:
        amp.assert_equal(f"what update by {form} raised", f"{type(error).__name__}: {error}", "")
        return
    amp.assert_equal(f"scale updated by {form}", scaler.get_scale(), 2.0 if form == "int" else 2.5)


@scenario(form=["two_elements", "requires_grad", "elsewhere"], values=True, dtypes="default")
def test_no_new_scale(amp: Amp, form: str) -> None:
    """Other tensors are refused by an error that names the requirement, and the scale is kept (update)."""
    scaler, given = _with_new_scale(amp, form)
    text = "new_scale should be a float or a 1-element"
    amp.assert_raises(f"update by {form}", AssertionError, text, lambda: scaler.update(given))
    amp.assert_equal("scale after it", scaler.get_scale(), 4.0)


@scenario(values=True, dtypes="default")
def test_absent_device(amp: Amp) -> None:
    """A scaler for absent CUDA warns that it is disabled, for each spelling of the device (__init__)."""
    if torch.cuda.is_available():
        amp.assert_equal("whether a scaler for CUDA is enabled", torch.amp.GradScaler("cuda").is_enabled(), True)
        return
    made: Any
    for given, made in (("cuda", partial(torch.amp.GradScaler, "cuda")), (None, torch.amp.GradScaler)):
        scaler = amp.assert_warns(f"GradScaler({given!r})", UserWarning, "CUDA is not available.  Disabling.", made)
        amp.assert_equal("whether it is enabled", scaler.is_enabled(), False)
    amp.assert_no_warning("GradScaler('cuda', enabled=False)", lambda: torch.amp.GradScaler("cuda", enabled=False))


@scenario(given=["with_an_index", "as_a_device"], values=True, dtypes="default", types=("cpu",))
def test_absent_device_in_other_words(amp: Amp, given: str) -> None:
    """Absent CUDA disables the scaler, for each spelling of the device (amp.html: `type` of a torch.device)."""
    if torch.cuda.is_available():
        amp.assert_equal("CUDA", torch.amp.GradScaler("cuda:0").is_enabled(), True)
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        scaler = torch.amp.GradScaler("cuda:0" if given == "with_an_index" else torch.device("cuda"))
    amp.assert_equal("whether it is enabled", scaler.is_enabled(), False)


@scenario(values=True, dtypes="default", types=("cpu",))
def test_unknown_device(amp: Amp) -> None:
    """An unknown device type is refused, as torch.autocast refuses it (amp.html: `type` of a torch.device)."""
    amp.assert_raises("GradScaler('cpux')", RuntimeError, "cpux", lambda: torch.amp.GradScaler("cpux"))


@scenario(values=True, dtypes="default")
def test_does_nothing(amp: Amp) -> None:
    """With enabled=False step is the optimizer's own and all other calls do nothing (amp.html: enabled)."""
    weight, optimizer, scaler = trained(amp, growth_factor=0.5, backoff_factor=2.0, enabled=False)
    loss, outputs = weight.sum(), [weight]
    amp.assert_equal("whether scale returned what it was given", scaler.scale(loss) is loss, True)
    amp.assert_equal("whether scale returned the list it was given", scaler.scale(outputs) is outputs, True)
    amp.assert_equal("what scale makes of no output", scaler.scale("loss"), "loss")
    loss.backward()
    for turn in (1, 2):
        amp.assert_equal(f"unscale_, time {turn}", scaler.unscale_(optimizer), None)
    amp.assert_equal("gradient after it", amp.values(weight.grad), [1.0, 1.0])
    amp.assert_equal("step with a closure", scaler.step(optimizer, closure=lambda: 3.5), 3.5)
    weight.grad = torch.full_like(weight, float("inf"))
    amp.assert_equal("step with a gradient that is infinite", scaler.step(optimizer), None)
    amp.assert_equal("weight after both", amp.values(weight), [-float("inf")] * 2)
    for given in (None, 2.0, "no scale"):
        amp.assert_equal(f"update({given!r})", scaler.update(given), None)
    amp.assert_equal("scale", (scaler.get_scale(), scaler.is_enabled(), scaler.state_dict()), (1.0, False, {}))


@scenario(what=["growth_factor", "backoff_factor", "growth_interval"], values=True, dtypes="default")
def test_getters_where_disabled(amp: Amp, what: str) -> None:
    """A disabled scaler still reports the values it was made with (amp.html: other methods become no-ops)."""
    given: dict[str, Any] = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 7}
    scaler = torch.amp.GradScaler(amp.type, enabled=False, **given)
    try:
        amp.assert_equal(f"get_{what}()", getattr(scaler, f"get_{what}")(), given[what])
    except AttributeError as error:
        amp.assert_equal(f"what get_{what}() raised", str(error), "")


# ---- the scaler of FSDP
AS_PLAIN: dict[str, Callable[[Amp], None]] = {
    **{case: partial(test_out_of_turn, case=case) for case in REFUSED},
    "divided_at_first": partial(test_nothing_scaled, call="unscale_"),
    **{f"{call}_at_first": partial(test_nothing_scaled, call=call) for call in ("step", "update")},
    **{f"new_scale_{form}": partial(test_new_scale, form=form) for form in ("float", "no_dimension", "one_element")},
    **{f"{form}": partial(test_no_new_scale, form=form) for form in ("two_elements", "requires_grad", "elsewhere")},
    **{f"scaled_{kind}": partial(test_containers, kind=kind) for kind in ("list", "tuple", "nested", "empty")},
    "scaled_number": partial(test_no_output, kind="float"),
    "updated_by_nothing": partial(test_update_of_nothing, calls="nothing"),
    "updated_without_a_step": test_update_without_a_step,
    "set_and_used": test_set_and_used,
    "disabled": test_does_nothing,
}
"""What a sharded scaler takes and refuses as the plain one does, by code of its own."""


@scenario(call=AS_PLAIN, values=True, dtypes="default", types=("cpu",))
def test_of_a_sharded_scaler(amp: Amp, call: str) -> None:
    """FSDP's scaler, in a group of one process, keeps to these rules, too (fsdp/sharded_grad_scaler.py)."""
    with patch("torch.amp.GradScaler", ShardedGradScaler), one_process():
        AS_PLAIN[call](amp)


@scenario(given=["one", "listed", "listed_late"], dtypes="default", types=("cpu",))
def test_sharded_elsewhere(amp: Amp, given: str) -> None:
    """FSDP's scaler names the device of an output that it does not take (_is_supported_device)."""
    scaler, output = ShardedGradScaler(amp.type), torch.ones((), device="meta")
    if given == "listed_late":
        scaler.scale(torch.ones(()))
    text, scaled = "Expected supported device, got meta", output if given == "one" else [output]
    amp.assert_raises("scale", AssertionError, text, lambda: scaler.scale(scaled))


# ---- the default device
@scenario(kind=["plain", "fused", "sharded"], slope=named(finite=1.0, infinite=float("inf")), types=("cpu",))
def test_default_elsewhere(amp: Amp, kind: str, slope: float) -> None:
    """A scaler keeps what it has where the outputs are, whatever the default device is (scale; torch.device)."""
    with one_process(), patch("torch.amp.GradScaler", ShardedGradScaler if kind == "sharded" else torch.amp.GradScaler):
        make = partial(torch.optim.SGD, fused=kind == "fused")
        weight, optimizer, scaler = trained(amp, make=make, init_scale=8.0, growth_interval=1)
        for early in (True, False):
            weight.grad = None
            with torch.device("meta"):
                loss = scaler.scale(weight.sum() * slope)
            loss.backward()
            with torch.device("meta"):
                if early:
                    scaler.unscale_(optimizer)
                scaler.step(optimizer)
                scaler.update()
        finite = slope == 1.0
        amp.assert_equal("the scale", scaler.get_scale(), 32.0 if finite else 2.0)
        amp.assert_equal("the weight", amp.values(weight), [0.0 if finite else 1.0] * 2)
