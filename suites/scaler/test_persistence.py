"""Rule persistence: a GradScaler that is saved and loaded, pickled or copied goes on as the one it was made of.

Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler.state_dict and torch/amp/grad_scaler.py.
"""

import copy
import io
import pickle
from typing import Any

import pytest
import torch

from ampcheck.checks.training import iterate, trained
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("persistence")

KEYS = ["scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker"]
ENDS = {
    "pickled": lambda scaler: pickle.loads(pickle.dumps(scaler)),
    "deep_copy": copy.deepcopy,
    "saved": lambda scaler: _loaded_copy(scaler),
}
STAGES = ("new", "scaled", "divided", "stepped", "updated")


def _loaded_copy(scaler: torch.amp.GradScaler) -> torch.amp.GradScaler:
    """Return a scaler with other options that has loaded this one's."""
    other = torch.amp.GradScaler(scaler._device, 3.0, 3.0, 0.125, 9)
    other.load_state_dict(scaler.state_dict())
    return other


def _at_stage(amp: Amp, stage: str) -> tuple[torch.amp.GradScaler, torch.nn.Parameter, Any]:
    """Return a scaler at a stage of its second iteration, with the weight and the optimizer of it."""
    options = {"growth_factor": 4.0, "backoff_factor": 0.25, "growth_interval": 5}
    weight, optimizer, scaler = trained(amp, lr=0.0, init_scale=64.0, **options)
    if stage != "new":
        iterate(weight, optimizer, scaler)
        scaler.scale(weight.sum()).backward()
    if stage in ("divided", "stepped", "updated"):
        scaler.unscale_(optimizer)
    if stage in ("stepped", "updated"):
        scaler.step(optimizer)
    if stage == "updated":
        scaler.update()
    return scaler, weight, optimizer


@scenario(stage=STAGES, values=True, dtypes="default")
def test_what_it_holds(amp: Amp, stage: str) -> None:
    """At every stage the state has five entries, plain numbers, unchanged by the calls in between (state_dict)."""
    scaler, _, _ = _at_stage(amp, stage)
    saved = scaler.state_dict()
    amp.assert_equal("entries", sorted(saved), sorted(KEYS))
    amp.assert_equal("their types", [type(saved[key]) for key in KEYS], [float, float, float, int, int])
    count = {"new": 0, "updated": 2}.get(stage, 1)
    amp.assert_equal("their values", [saved[key] for key in KEYS], [64.0, 4.0, 0.25, 5, count])


@scenario(stage=["new", "updated"], end=ENDS, values=True, dtypes="default")
def test_goes_on(amp: Amp, stage: str, end: str) -> None:
    """The scaler at the other end goes through the same scales as the one it came from (state_dict, __getstate__)."""
    scaler, _, _ = _at_stage(amp, stage)
    other = ENDS[end](scaler)
    seen: list[list[dict[str, Any]]] = []
    for one in (scaler, other):
        weight, optimizer, _ = trained(amp, lr=0.0)
        found = [one.state_dict()]
        for by in (1.0, 1.0, 1.0, float("nan"), 1.0):
            iterate(weight, optimizer, one, by)
            found.append(one.state_dict())
        seen.append(found)
    amp.assert_equal("what the other one goes through", seen[1], seen[0])
    want = [64.0, 64.0] if stage == "updated" else [16.0, 16.0]
    amp.assert_equal("scales on the way", [each["scale"] for each in seen[0]][-2:], want)


@scenario(stage=STAGES, end=["pickled", "deep_copy"], values=True, dtypes="default")
def test_middle_of_an_iteration(amp: Amp, stage: str, end: str) -> None:
    """Between unscale_ and update pickling a scaler raises an error; before and after it works (__getstate__)."""
    scaler, _, _ = _at_stage(amp, stage)
    if stage in ("divided", "stepped"):
        text = "may only be pickled at the beginning of an iteration, or at the end after scaler.update()"
        amp.assert_raises(f"{end} when {stage}", AssertionError, text, lambda: ENDS[end](scaler))
    else:
        got = ENDS[end](scaler).state_dict()
        amp.assert_equal(f"what is saved of one {end} when {stage}", got, scaler.state_dict())


@scenario(values=True, dtypes="default")
def test_apart_after_copying(amp: Amp) -> None:
    """A copy and its original do not move each other (__getstate__)."""
    scaler, weight, optimizer = _at_stage(amp, "updated")
    other = copy.deepcopy(scaler)
    scaler.update(2.0)
    amp.assert_equal("scale of the copy after the original's was set", other.get_scale(), 64.0)
    iterate(weight, optimizer, other, float("inf"))
    amp.assert_equal("scales after an overflow of the copy's", (scaler.get_scale(), other.get_scale()), (2.0, 16.0))


@scenario(made=["lazy", "made"], values=True, dtypes="default")
def test_loaded_before_or_after_the_first_output(amp: Amp, made: str) -> None:
    """A loaded scale and count hold whether or not an output was scaled before (load_state_dict)."""
    weight, optimizer, scaler = trained(amp, lr=0.0)
    if made == "made":
        iterate(weight, optimizer, scaler)
    saved = {"scale": 12.0, "growth_factor": 3.0, "backoff_factor": 0.5, "growth_interval": 4, "_growth_tracker": 3}
    scaler.load_state_dict(saved)
    amp.assert_equal("what is saved of it then", scaler.state_dict(), saved)
    amp.assert_equal("a scaled one", amp.values(scaler.scale(torch.ones((), device=amp.type))), 12.0)
    iterate(weight, optimizer, scaler)
    amp.assert_equal("scale after an iteration, the fourth", scaler.get_scale(), 36.0)


@scenario(values=True, dtypes="default")
def test_getters_after_loading(amp: Amp) -> None:
    """Loading sets the values that the getters return (load_state_dict, get_growth_factor and others)."""
    scaler = torch.amp.GradScaler(amp.type)
    scaler.load_state_dict(dict(zip(KEYS, [5.0, 7.0, 0.75, 11, 2], strict=True)))
    got = (scaler.get_scale(), scaler.get_growth_factor(), scaler.get_backoff_factor(), scaler.get_growth_interval())
    amp.assert_equal("scale, factors and interval", got, (5.0, 7.0, 0.75, 11))


@scenario(values=True, dtypes="default")
def test_not_enabled(amp: Amp) -> None:
    """A disabled scaler saves an empty state and loads any; an enabled one refuses the empty state (state_dict)."""
    off, on = torch.amp.GradScaler(amp.type, enabled=False), torch.amp.GradScaler(amp.type, init_scale=4.0)
    amp.assert_equal("what one that is not enabled saves", off.state_dict(), {})
    off.load_state_dict(on.state_dict())
    off.load_state_dict({})
    amp.assert_equal("whether it is enabled after loading", (off.is_enabled(), off.get_scale()), (False, 1.0))
    text = "The source state dict is empty, possibly because it was saved from a disabled instance of GradScaler."
    amp.assert_raises("loading an empty one", RuntimeError, text, lambda: on.load_state_dict(off.state_dict()))
    amp.assert_equal("scale after that", on.get_scale(), 4.0)
    for end in ("pickled", "deep_copy"):
        other = ENDS[end](off)
        amp.assert_equal(f"one that is not enabled, {end}", (other.is_enabled(), other.state_dict()), (False, {}))


@scenario(missing=KEYS, values=True, dtypes="default")
def test_an_entry_is_missing(amp: Amp, missing: str) -> None:
    """A state that lacks an entry is refused by a KeyError that names it (load_state_dict: what state_dict gave)."""
    scaler, _, _ = _at_stage(amp, "updated")
    given = {key: value for key, value in scaler.state_dict().items() if key != missing}
    amp.assert_raises(f"loading without {missing}", KeyError, missing, lambda: scaler.load_state_dict(given))


@scenario(values=True, dtypes="default")
def test_refused_as_a_whole(amp: Amp) -> None:
    """A refused state changes nothing (load_state_dict: "Should be an object returned from a call to state_dict")."""
    scaler, _, _ = _at_stage(amp, "updated")
    before = scaler.state_dict()
    given = dict(zip(KEYS[:-1], [5.0, 7.0, 0.75, 11], strict=True))
    try:
        scaler.load_state_dict(given)
    except KeyError:
        amp.assert_equal("what is saved of it after a refused one", scaler.state_dict(), before)
        return
    amp.assert_equal("whether loading was refused", False, True)


@scenario(values=True, dtypes="default")
def test_through_a_file(amp: Amp) -> None:
    """A saved state goes through torch.save and torch.load(weights_only=True) (amp_examples.html: save and resume)."""
    scaler, _, _ = _at_stage(amp, "updated")
    file = io.BytesIO()
    torch.save(scaler.state_dict(), file)
    file.seek(0)
    amp.assert_equal("what comes back", torch.load(file, weights_only=True), scaler.state_dict())


@scenario(end=["pickled", "deep_copy"], values=True, dtypes="default")
def test_subclass(amp: Amp, end: str) -> None:
    """A subclass stays one, with what it added (__getstate__, __setstate__)."""
    scaler = _Named(amp.type, init_scale=8.0)
    scaler.name = "first"
    scaler.scale(torch.ones((), device=amp.type))
    other = ENDS[end](scaler)
    amp.assert_equal("class and name", (type(other).__name__, other.name), ("_Named", "first"))
    amp.assert_equal("what is saved of it", other.state_dict(), scaler.state_dict())


class _Named(torch.amp.GradScaler):
    name = ""
