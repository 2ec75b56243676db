"""Optimizers that do not skip, loops that do not add up: `GradScaler` and the fused steps of `torch.optim` replaced."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.faults import unscale
from tests.faults.fault import Fault
from tests.faults.regions import replaced
from tests.faults.unscale import SCALER, mutant, takes_half

_GRADS, _MAYBE, _STEP = SCALER._unscale_grads_, SCALER._maybe_opt_step, SCALER.step
_APART, _UPDATE, _SCALE, _LOAD = SCALER.unscale_, SCALER.update, SCALER.scale, SCALER.load_state_dict
_ADAM, _SGD = torch._fused_adam_, torch._fused_sgd_


# ---- GradScaler's own part


def first_group_alone(self: Any, optimizer: Any, *args: Any) -> Any:
    groups = optimizer.param_groups
    optimizer.param_groups = groups[:1]
    try:
        return _GRADS(self, optimizer, *args)
    finally:
        optimizer.param_groups = groups


def always_steps(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def overflowed(state: Any) -> bool:
    return any(found.item() for found in state["found_inf_per_device"].values())


def counts_skipped_steps(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    if overflowed(state):
        for kept in optimizer.state.values():
            if "step" in kept:
                kept["step"] += 1
    return _MAYBE(self, optimizer, state, *args, **kwargs)


def steps_on_zeros(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    """A skipped step is one with gradients of zero, which momentum and weight decay make a step."""
    if overflowed(state):
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                parameter.grad.zero_()
        optimizer.step()
        return None
    return _MAYBE(self, optimizer, state, *args, **kwargs)


def leaves_its_attributes(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    out = _STEP(self, optimizer, *args, **kwargs)
    optimizer.found_inf = None
    return out


def swallows_the_result(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    _STEP(self, optimizer, *args, **kwargs)


def apart_is_forgotten(self: Any, optimizer: Any) -> None:
    _APART(self, optimizer)
    if self._enabled:
        self._per_optimizer_states[id(optimizer)]["stage"] = torch.amp.grad_scaler.OptState.READY


def apart_does_nothing(self: Any, optimizer: Any) -> None:
    """Do nothing when the caller calls `unscale_`; `step` unscales by itself."""


def step_unscales_late(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    with replaced(SCALER, unscale_=_APART):
        return _STEP(self, optimizer, *args, **kwargs)


def first_optimizer_alone(self: Any, new_scale: Any = None) -> None:
    for state in list(self._per_optimizer_states.values())[1:] if self._enabled else ():
        state["found_inf_per_device"].clear()
    _UPDATE(self, new_scale)


def scales_when_disabled(self: Any, outputs: Any) -> Any:
    return _SCALE(self, outputs) if self._enabled else outputs * (1 + 2.0**-10)


def forgets_the_tracker(self: Any, state_dict: Any) -> None:
    _LOAD(self, {**state_dict, "_growth_tracker": 0})


# ---- fused kernels


def unaware(kernel: Callable[..., Any], *names: str) -> Callable[..., Any]:
    """A fused kernel that ignores some of what the scaler tells it."""

    def fused(*args: Any, **options: Any) -> Any:
        return kernel(*args, **{**options, **dict.fromkeys(names)})

    return fused


def faults(device: str) -> tuple[Fault, ...]:
    """Every fault of this file, to be caught on a device."""

    def on(
        name: str, cases: str, *says: str, rule: str = "optimizers", where: Any = SCALER, **wrong: Callable[..., Any]
    ) -> Fault:
        return mutant(name, rule, where, cases, *says, device=device, **wrong)

    def loops(name: str, cases: str, *says: str, **wrong: Callable[..., Any]) -> Fault:
        return on(name, cases, *says, rule="loops", **wrong)

    def fused(name: str, cases: str, *says: str, **wrong: Callable[..., Any]) -> Fault:
        return on(name, cases, *says, where=torch, **wrong)

    return (
        fused(
            "fused-ignores-found-inf",
            "skipped and Adam and fused",
            "parameter 0 after a gradient of inf",
            _fused_adam_=unaware(_ADAM, "found_inf"),
        ),
        fused(
            "fused-ignores-grad-scale",
            "divided_once and Adam",
            "the gradient, unscale_ called: False",
            _fused_adam_=unaware(_ADAM, "grad_scale"),
        ),
        fused(
            "fused-sgd-steps-anyway",
            "skipped and SGD and fused",
            "kept 0 momentum_buffer after",
            _fused_sgd_=unaware(_SGD, "found_inf"),
        ),
        on(
            "step-in-spite-of-nan", "skipped and Adam and loop", "after a gradient of nan", _maybe_opt_step=always_steps
        ),
        on(
            "skipped-step-counted",
            "skipped and Adam and loop",
            "kept 0 step after a gradient of inf",
            _maybe_opt_step=counts_skipped_steps,
        ),
        on(
            "skipped-step-of-zeros",
            "skipped and SGD and foreach",
            "parameter 0 after a gradient of inf",
            _maybe_opt_step=steps_on_zeros,
        ),
        on("first-step-of-zeros", "as_without_one and Adam and loop", "kept 0 step", _maybe_opt_step=steps_on_zeros),
        on("found-inf-stays", "nothing_stays", "attributes left", step=leaves_its_attributes),
        on("result-swallowed", "returned_value", "got None; expected 5", step=swallows_the_result),
        on("later-groups-scaled", "group_added", "one that was added", _unscale_grads_=first_group_alone),
        on("half-is-stepped", "half_is_refused", "raised nothing", _unscale_grads_=takes_half),
        loops("unscaled-twice", "recipe and clip_norm", "in a region: False", unscale_=apart_is_forgotten),
        loops(
            "clipped-before-unscaling",
            "recipe and clip_norm",
            "parameter 0, in a region: False: differs",
            unscale_=apart_does_nothing,
            step=step_unscales_late,
        ),
        loops("first-optimizer-alone", "recipe and several", "the scale", update=first_optimizer_alone),
        loops("disabled-scales", "disabled and typical", "parameter 0", scale=scales_when_disabled),
        loops("tracker-not-loaded", "resumed", "state after step 3", load_state_dict=forgets_the_tracker),
    )


FAULTS = faults("cpu")

_ON_JAX = (
    "unscale-skips-last",
    "unscale-blind-to-nan",
    "unscale-forgets-found",
    "unscale-inverse-is-off",
    "backs-off-by-growth",
    "tracker-not-reset",
    "fused-ignores-found-inf",
    "fused-ignores-grad-scale",
    "skipped-step-counted",
    "first-optimizer-alone",
)
JAX = tuple(fault for fault in (*unscale.faults("jax"), *faults("jax")) if fault.name in _ON_JAX)
"""Those that the jax device must notice, too."""
