"""A GradScaler that scales, unscales, skips, counts or refuses wrongly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import SimpleNamespace
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler, OptState, _refresh_per_optimizer_state

from tests.faults import unscale
from tests.faults.fault import Fault
from tests.faults.regions import replaced
from tests.faults.unscale import RESCALE, UNSCALE, blind_to, rescale, without

OWN = {name: getattr(GradScaler, name) for name in vars(GradScaler) if callable(getattr(GradScaler, name))}
_UNSCALE, _RESCALE = getattr(torch, UNSCALE), getattr(torch, RESCALE)


def fault(
    name: str,
    rule: str,
    *says: str,
    op: str = "",
    only: str = "not random",
    owner: Any = GradScaler,
    **methods: Callable[..., Any],
) -> Fault:
    """A fault that replaces methods of GradScaler, or functions of torch; `op` and `only` choose cases."""

    def inject() -> AbstractContextManager[object]:
        return replaced(owner, **methods)

    return Fault(f"scaler-{name}", rule, inject, says, "scaler", op=op, only=only)


def _op(name: str, *says: str, only: str = "not random", **wrong: Callable[..., Any]) -> Fault:
    """Return a fault of `unscale` or `rescale`, the ops of a GradScaler."""
    ops = {"unscale": UNSCALE, "rescale": RESCALE}
    return fault(name, "lossscale", *says, only=only, owner=torch, **{ops[op]: body for op, body in wrong.items()})


# ---- the two ops


def _interval(by: int) -> Callable[..., Any]:
    return rescale(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, interval + by))


no_backoff = rescale(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1.0, interval))


def keeps_counting_after_growth(scale: Any, tracker: Any, found: Any, *rest: Any) -> Any:
    before = float(scale)
    _RESCALE(scale, tracker, found, *rest)
    return tracker.fill_(1) if float(scale) > before else scale


def grows_into_infinity(scale: Any, tracker: Any, found: Any, growth: float, backoff: float, interval: int) -> Any:
    before, count = float(scale), int(tracker) + 1
    _RESCALE(scale, tracker, found, growth, backoff, interval)
    return scale.fill_(before).mul_(growth) if count == interval and not float(found) else scale


def checks_the_first_alone(grads: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    _UNSCALE(grads[:1], found, inverse)
    for grad in grads[1:]:
        grad.mul_(inverse.to(grad))


def each_alone(grads: list[torch.Tensor], found: torch.Tensor, inverse: torch.Tensor) -> None:
    for grad in grads:
        _UNSCALE([grad], found.to(grad.device), inverse.to(grad.device))


# ---- unscale_, step, update


def without_the_first_group(self: Any, optimizer: Any, *rest: Any) -> Any:
    groups = optimizer.param_groups[1:] or optimizer.param_groups
    return OWN["_unscale_grads_"](self, SimpleNamespace(param_groups=groups), *rest)


def without_other_devices(self: Any, optimizer: Any, inverse: Any, *rest: Any) -> Any:
    held = [p for group in optimizer.param_groups for p in group["params"] if p.device.type == inverse.device.type]
    return OWN["_unscale_grads_"](self, SimpleNamespace(param_groups=[{"params": held}]), inverse, *rest)


def steps_in_any_case(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def forgets_momentum(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    called = OWN["_maybe_opt_step"](self, optimizer, state, *args, **kwargs)
    if any(float(found) for found in state["found_inf_per_device"].values()):
        for kept in optimizer.state.values():
            for value in kept.values():
                if isinstance(value, torch.Tensor):
                    value.mul_(0.5)
    return called


def skips_for_all(self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    found = {
        n: v for n, s in enumerate(self._per_optimizer_states.values()) for v in s["found_inf_per_device"].values()
    }
    return OWN["_maybe_opt_step"](self, optimizer, {**state, "found_inf_per_device": found}, *args, **kwargs)


def returns_nothing(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> None:
    OWN["step"](self, optimizer, *args, **kwargs)


def _ready_again(call: str) -> Callable[..., Any]:
    """Takes an optimizer that had its turn for a fresh one."""

    def rerun(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        if self._enabled and self._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY:
            self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
        return OWN[call](self, optimizer, *args, **kwargs)

    return rerun


def takes_closures(self: Any, optimizer: Any, *args: Any, closure: Any = None, **kwargs: Any) -> Any:
    return OWN["step"](self, optimizer, *args, **kwargs)


def steps_without_gradients(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if all(param.grad is None for group in optimizer.param_groups for param in group["params"]):
        return optimizer.step(*args, **kwargs)
    return OWN["step"](self, optimizer, *args, **kwargs)


def ignores_new_scale(self: Any, new_scale: Any = None) -> None:
    if new_scale is None:
        OWN["update"](self)


def counts_anew_when_set(self: Any, new_scale: Any = None) -> None:
    OWN["update"](self, new_scale)
    if new_scale is not None and self._enabled:
        self._growth_tracker.zero_()


def aliases_new_scale(self: Any, new_scale: Any = None) -> None:
    OWN["update"](self, new_scale)
    if isinstance(new_scale, torch.Tensor) and self._enabled:
        self._scale = new_scale


def keeps_stages(self: Any, new_scale: Any = None) -> None:
    kept = self._per_optimizer_states if self._enabled else None
    OWN["update"](self, new_scale)
    if kept is not None:
        self._per_optimizer_states = kept


def updates_by_nothing(self: Any, new_scale: Any = None) -> None:
    if (
        not self._enabled
        or new_scale is not None
        or any(state["found_inf_per_device"] for state in self._per_optimizer_states.values())
    ):
        OWN["update"](self, new_scale)
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


def doubles_when_scaling(self: Any, outputs: Any) -> Any:
    out = OWN["scale"](self, outputs)
    if self._enabled:
        self._scale.mul_(2.0)
    return out


def scales_although_disabled(self: Any, outputs: Any) -> Any:
    return outputs * 1.0 if isinstance(outputs, torch.Tensor) and not self._enabled else OWN["scale"](self, outputs)


def tuples_for_lists(self: Any, outputs: Any) -> Any:
    out = OWN["scale"](self, outputs)
    return tuple(out) if isinstance(out, list) else out


def skips_although_disabled(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    grads = [param.grad for group in optimizer.param_groups for param in group["params"]]
    if not self._enabled and any(grad is not None and not grad.isfinite().all() for grad in grads):
        return None
    return OWN["step"](self, optimizer, *args, **kwargs)


FAULTS = (
    _op("grows-late", "scale and tracker after each iteration", rescale=_interval(1)),
    _op("grows-early", "scale and tracker after each iteration", rescale=_interval(-1)),
    _op("never-backs-off", "scale and tracker after each iteration", rescale=no_backoff),
    _op("backs-off-by-growth", "scale and tracker after each iteration", rescale=unscale.backs_off_by_growth),
    _op("counts-over-overflow", "scale and tracker", rescale=unscale.keeps_the_tracker),
    _op("counts-after-growth", "scale and tracker", rescale=keeps_counting_after_growth),
    _op("grows-into-infinity", "(inf, 0)", rescale=grows_into_infinity),
    _op("nan-unseen", "weights and momentum after a skipped step", unscale=blind_to(torch.isnan)),
    _op("inf-unseen", "after a skipped step", unscale=blind_to(torch.isinf)),
    _op("negative-inf-unseen", "after a skipped step", unscale=blind_to(torch.isneginf)),
    _op("last-undivided", "weight", unscale=without(lambda n, _, count: n == count - 1 > 0)),
    _op("first-alone-checked", "after a skipped", unscale=checks_the_first_alone),
    _op("nan-unseen-at-random", "found_inf of optimizer", only="random", unscale=blind_to(torch.isnan)),
    fault("first-group-undivided", "lossscale", "after a skipped step", _unscale_grads_=without_the_first_group),
    fault("steps-in-any-case", "lossscale", "after a skipped step", _maybe_opt_step=steps_in_any_case),
    fault("skip-touches-momentum", "lossscale", "momentum after a skipped step", _maybe_opt_step=forgets_momentum),
    fault(
        "skip-touches-momentum-at-random",
        "lossscale",
        "which had no step is",
        only="random",
        _maybe_opt_step=forgets_momentum,
    ),
    fault("skips-for-all", "lossscale", "whether the second moved", _maybe_opt_step=skips_for_all),
    fault(
        "skips-for-all-at-random",
        "lossscale",
        "scaler.step(",
        "first in no gradient of its own",
        "the watch",
        only="random",
        _maybe_opt_step=skips_for_all,
    ),
    fault("returns-nothing", "lossscale", "what step returned: got None", step=returns_nothing),
    fault("doubles-when-scaling", "lossscale", "scale after it: got 48.0", scale=doubles_when_scaling),
    fault("new-scale-ignored", "lossscale", "scale set to 3.0: got 4.0", update=ignores_new_scale),
    fault("new-scale-resets", "lossscale", "tracker after it: got 0", update=counts_anew_when_set),
    fault("new-scale-aliased", "lossscale", "the tensor given was changed: got 5.0", update=aliases_new_scale),
    fault("stages-kept", "lossscale", "step() has already been called", update=keeps_stages),
    fault(
        "divided-twice",
        "misuse",
        "unscale_ after backward, unscale_: raised nothing",
        unscale_=_ready_again("unscale_"),
    ),
    fault("stepped-twice", "misuse", "step after backward, step: raised nothing", step=_ready_again("step")),
    fault("closure-taken", "misuse", "closure by keyword: raised nothing", step=takes_closures),
    fault("half-taken", "misuse", "expected ValueError", _unscale_grads_=unscale.takes_half),
    fault("no-gradients-taken", "misuse", "its step: raised nothing", step=steps_without_gradients),
    fault("update-of-nothing", "misuse", "update: raised nothing", update=updates_by_nothing),
    fault("scales-when-disabled", "misuse", "whether scale returned what it was given", scale=scales_although_disabled),
    fault("skips-when-disabled", "misuse", "weight after both", step=skips_although_disabled),
    fault("tuples-for-lists", "misuse", "scale of list: got ('tuple'", scale=tuples_for_lists),
)

JAX = (
    *(fault.on_jax() for fault in FAULTS if "random" not in fault.name),
    fault(
        "other-device-undivided", "lossscale", "weights after the step", _unscale_grads_=without_other_devices
    ).on_jax(),
    fault(
        "other-device-undivided-in-a-loop",
        "loops",
        "the parameter on cpu",
        op="two_devices",
        _unscale_grads_=without_other_devices,
    ).on_jax(),
    fault(
        "two-devices-taken",
        "unscale",
        "a list on two devices: raised nothing",
        op="another_device",
        owner=torch,
        **{UNSCALE: each_alone},
    ).on_jax(),
)
"""Those that the jax device must notice, too; the last three need a second device."""
