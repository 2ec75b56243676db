"""A GradScaler, its two ops, and the fused steps under it, done wrongly.

Ops are replaced above the dispatcher, where `GradScaler` calls them, so a mutant is the same on every device.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler, OptState, _refresh_per_optimizer_state
from torch.distributed.fsdp import sharded_grad_scaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.faults.compilers import handed_out
from tests.faults.mutant import (
    CPU,
    JAX,
    Change,
    Inject,
    Mutant,
    every,
    fresh,
    mutants,
    put,
    returns,
    then,
    within,
    wrap,
)
from tests.faults.regions import quietly

Tensor = torch.Tensor
TOP = torch.finfo(torch.float32).max


def scaler(**changes: Change) -> Inject:
    """Replace methods of GradScaler."""
    return wrap(GradScaler, **changes)


def unscaling(change: Change) -> Inject:
    """Replace the op that divides gradients and looks for what is not finite."""
    return wrap(torch, _amp_foreach_non_finite_check_and_unscale_=change)


def rescaling(change: Change) -> Inject:
    """Replace the op that updates the scale."""
    return wrap(torch, _amp_update_scale_=change)


# ---- the op that unscales


def without(left_out: Callable[[int, Tensor, int], bool]) -> Inject:
    """Leave out the gradients for which `left_out` says so, given a number, a gradient and how many there are."""

    def unscale(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
        given = list(grads)
        own([grad for n, grad in enumerate(given) if not left_out(n, grad, len(given))], found, inverse)

    return unscaling(unscale)


def blind_to(bad: Callable[[Tensor], Tensor]) -> Inject:
    """Take elements for which `bad` is true for finite ones."""

    def unscale(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
        before, given = found.clone(), list(grads)
        others = any(bool((~grad.isfinite() & ~bad(grad)).any()) for grad in given)
        own(given, found, inverse)
        if not others:
            found.copy_(before)

    return unscaling(unscale)


def last_element(grad: Tensor) -> Tensor:
    return torch.arange(grad.numel()).reshape(grad.shape).to(grad.device) == grad.numel() - 1


def stops_at_an_empty_one(own: Any, grads: Any, *rest: Tensor) -> None:
    given = list(grads)
    own(given[: next((n for n, grad in enumerate(given) if grad.numel() == 0), len(given))], *rest)


def each(change: Callable[[Tensor], Tensor]) -> Change:
    """Change gradients afterwards."""

    def unscale(own: Any, grads: Any, *rest: Tensor) -> None:
        own(grads, *rest)
        for grad in grads:
            grad.copy_(change(grad))

    return unscale


def forgets_what_was_found(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    found.zero_()
    own(grads, found, inverse)


def checks_the_first_alone(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    own(grads[:1], found, inverse)
    for grad in grads[1:]:
        grad.mul_(inverse.to(grad))


def any_kind(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    """Multiply integers and complex numbers like any other."""
    for grad in grads:
        grad.copy_((grad * inverse).to(grad.dtype))


def each_alone(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    """Take a list on two devices."""
    for grad in grads:
        own([grad], found.to(grad.device), inverse.to(grad.device))


def without_bfloat16(own: Any, grads: Any, *rest: Tensor) -> None:
    if any(grad.dtype == torch.bfloat16 for grad in grads):
        raise NotImplementedError("\"_amp_foreach_non_finite_check_and_unscale_cpu\" not implemented for 'BFloat16'")
    own(grads, *rest)


def sees_4096(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    """Look for what is not finite among the first 4096 elements of each gradient alone."""
    before, given = found.clone(), list(grads)
    seen = any(not bool(grad.reshape(-1)[:4096].isfinite().all()) for grad in given)
    own(given, found, inverse)
    if not seen:
        found.copy_(before)


UNSCALE = {
    "unscale-skips-last": without(lambda n, _, count: n == count - 1 > 0),
    "unscale-sees-4096": unscaling(sees_4096),
    "unscale-cuts-long-lists": without(lambda n, _, count: n >= 110),
    "unscale-skips-non-contiguous": without(lambda n, grad, _: not grad.is_contiguous()),
    "unscale-skips-scalars": without(lambda n, grad, _: grad.dim() == 0),
    "unscale-stops-at-empty": unscaling(stops_at_an_empty_one),
    "unscale-blind-to-nan": blind_to(torch.isnan),
    "unscale-blind-to-minus-inf": blind_to(torch.isneginf),
    "unscale-blind-to-last-element": blind_to(last_element),
    "unscale-twice": unscaling(lambda own, *given: (own(*given), own(*given))[1]),
    "unscale-forgets-found": unscaling(forgets_what_was_found),
    "unscale-narrows-float64": unscaling(each(lambda grad: grad.float())),
    "unscale-mends-infinities": unscaling(each(lambda grad: torch.where(grad.isfinite(), grad, grad.new_zeros(())))),
    "unscale-checks-the-first-alone": unscaling(checks_the_first_alone),
    "unscale-takes-any-kind": unscaling(any_kind),
    "unscale-without-bfloat16": unscaling(without_bfloat16),
    "unscale-sums-unseen": put(Tensor, coalesce=lambda self: self),
}

# ---- the op that updates the scale


def given(change: Callable[..., Any]) -> Inject:
    """Update the scale with other arguments."""
    return rescaling(lambda own, *args: own(*change(*args)))


def keeps_the_tracker(own: Any, scale: Any, tracker: Any, found: Any, *rest: Any) -> Any:
    before = tracker.clone()
    out = own(scale, tracker, found, *rest)
    if found.item():
        tracker.copy_(before)
    return out


def keeps_counting_after_growth(own: Any, scale: Any, tracker: Any, *rest: Any) -> Any:
    before = float(scale)
    own(scale, tracker, *rest)
    return tracker.fill_(1) if float(scale) > before else scale


def grows_past_the_top(own: Any, scale: Any, tracker: Any, found: Any, grow: float, *rest: Any) -> Any:
    before = scale.item()
    out = own(scale, tracker, found, grow, *rest)
    if math.isinf(torch.tensor(before * grow, dtype=torch.float32).item()) and not found.item() and not tracker.item():
        scale.fill_(math.inf)
    return out


RESCALE = {
    "grows-one-late": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, interval + 1)),
    "grows-one-early": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, max(interval - 1, 1))),
    "never-backs-off": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1.0, interval)),
    "backs-off-by-growth": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1 / grow, interval)),
    "two-found-are-none": given(lambda s, t, f, *rest: (s, t, (f == 1).float(), *rest)),
    "tracker-not-reset": rescaling(keeps_the_tracker),
    "counts-after-growth": rescaling(keeps_counting_after_growth),
    "grows-past-float32": rescaling(grows_past_the_top),
    "scale-always-finite": rescaling(lambda own, scale, *rest: (own(scale, *rest), scale.clamp_(max=TOP))[1]),
}

# ---- unscale_, step, update


def parameters(optimizer: Any) -> list[Any]:
    return [parameter for group in optimizer.param_groups for parameter in group["params"]]


def of_some(choose: Callable[[Any, Any], list[Any]]) -> Inject:
    """Unscale some parameters of an optimizer alone: `choose(optimizer, inverse)`."""
    return scaler(
        _unscale_grads_=lambda own, self, optimizer, inverse, *rest: own(
            self, SimpleNamespace(param_groups=[{"params": choose(optimizer, inverse)}]), inverse, *rest
        )
    )


def of_its_device(optimizer: Any, inverse: Tensor) -> list[Any]:
    return [parameter for parameter in parameters(optimizer) if parameter.device.type == inverse.device.type]


def group(optimizer: Any, chosen: slice) -> list[Any]:
    groups = optimizer.param_groups[chosen] or optimizer.param_groups
    return [parameter for group in groups for parameter in group["params"]]


def steps_in_any_case(own: Any, self: Any, optimizer: Any, state: Any, *args: Any, **kwargs: Any) -> Any:
    return optimizer.step(*args, **kwargs)


def looks_again(own: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    finite = all(parameter.grad.isfinite().all() for parameter in parameters(optimizer))
    return own(self, optimizer, *args, **kwargs) if finite else None


def ready_again(own: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Take an optimizer that had its turn for a fresh one."""
    if self._enabled and self._per_optimizer_states[id(optimizer)]["stage"] is not OptState.READY:
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY
    return own(self, optimizer, *args, **kwargs)


def ready_afterwards(own: Any, self: Any, optimizer: Any) -> None:
    own(self, optimizer)
    if self._enabled:
        self._per_optimizer_states[id(optimizer)]["stage"] = OptState.READY


def unscales_late() -> Inject:
    """Do nothing when the caller calls `unscale_`; `step` unscales by itself."""
    own = GradScaler.unscale_

    def step(own_step: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
        with put(GradScaler, unscale_=own)(""):
            return own_step(self, optimizer, *args, **kwargs)

    return scaler(unscale_=returns(None), step=step)


def steps_without_gradients(own: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if all(parameter.grad is None for parameter in parameters(optimizer)):
        return optimizer.step(*args, **kwargs)
    return own(self, optimizer, *args, **kwargs)


def refusing_first_place(own: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if args:
        raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
    return own(self, optimizer, **kwargs)


def forgetting_failures(own: Any, self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Take back what a fused step was told where it raises, which PyTorch does not."""
    try:
        return own(self, optimizer, *args, **kwargs)
    except Exception:
        for name in ("grad_scale", "found_inf"):
            vars(optimizer).pop(name, None)
        raise


def updates_by_nothing(own: Any, self: Any, new_scale: Any = None) -> None:
    states = self._per_optimizer_states.values()
    if not self._enabled or new_scale is not None or any(state["found_inf_per_device"] for state in states):
        own(self, new_scale)
    self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)


def first_optimizer_alone(self: Any) -> None:
    for state in list(self._per_optimizer_states.values())[1:] if self._enabled else ():
        state["found_inf_per_device"].clear()


def double_scale(self: Any) -> None:
    if self._enabled:
        self._scale.mul_(2.0)


def scales_by(factor: float) -> Change:
    """Scale a tensor although the scaler is disabled."""
    return lambda own, self, outputs: (
        outputs * factor if isinstance(outputs, Tensor) and not self._enabled else own(self, outputs)
    )


def any_factor(
    own: Any, self: Any, *args: Any, growth_factor: Any = 2.0, backoff_factor: Any = 0.5, **rest: Any
) -> None:
    own(self, *args, **rest)
    self._growth_factor, self._backoff_factor = growth_factor, backoff_factor


def on_cuda_alone(own: Any, self: Any, device: str = "cuda", *args: Any, **options: Any) -> None:
    own(self, device, *args, **options)
    self._enabled = self._enabled and device != "cpu"


def as_given_where_listed(own: Any, self: Any, outputs: Any) -> Any:
    """Round what is scaled in a list or a tuple to the dtype that it had."""
    got = own(self, outputs)
    listed = isinstance(outputs, (list, tuple)) and all(isinstance(each, Tensor) for each in outputs)
    return type(outputs)(one.to(each.dtype) for one, each in zip(got, outputs, strict=True)) if listed else got


LOSSSCALE = {
    "scaler-steps-in-any-case": scaler(_maybe_opt_step=steps_in_any_case),
    "scaler-leaves-inference-mode": scaler(scale=within(partial(torch.inference_mode, False))),
    "scaler-returns-nothing": scaler(step=lambda own, *args, **kwargs: (own(*args, **kwargs), None)[1]),
    "scaled-list-keeps-its-dtype": scaler(scale=as_given_where_listed),
    "scaler-doubles-when-scaling": scaler(scale=then(double_scale)),
    "scaler-new-scale-ignored": scaler(update=lambda own, self, new=None: own(self) if new is None else None),
}
MISUSE = {
    "scaler-stepped-twice": scaler(step=ready_again),
    "scaler-no-gradients-taken": scaler(step=steps_without_gradients),
    "scaler-update-of-nothing": scaler(update=updates_by_nothing),
    "scaler-scales-when-disabled": scaler(scale=scales_by(1.0)),
    "scaler-tuples-for-lists": scaler(
        scale=lambda own, self, outputs: (lambda out: tuple(out) if isinstance(out, list) else out)(own(self, outputs))
    ),
}
MORE_MISUSE = {
    "sharded-takes-another-scale": wrap(
        ShardedGradScaler, update=lambda own, self, new=None: own(self, 4.0 if isinstance(new, float) else new)
    ),
    "sharded-takes-any-device": put(sharded_grad_scaler, _is_supported_device=lambda tensor: True),
    "default-device-decides": wrap(torch, full=lambda own, *given, device=None, **rest: own(*given, **rest)),
    "no-tensor-taken": of_some(lambda optimizer, _: [p for p in parameters(optimizer) if isinstance(p, Tensor)]),
    "device-by-its-type": scaler(
        __init__=lambda own, self, device="cuda", *rest, **options: own(
            self, str(device).split(":")[0], *rest, **options
        )
    ),
    "device-asked-of-autocast": scaler(
        __init__=lambda own, self, device="cuda", *rest, **options: (
            torch.autocast(device, enabled=False),
            own(self, device, *rest, **options),
        )[1]
    ),
    "anything-scaled": scaler(
        scale=lambda own, self, outputs: own(self, outputs) if isinstance(outputs, (Tensor, list)) else outputs
    ),
    "closure-in-first-place-refused": scaler(step=refusing_first_place),
    "any-factor": scaler(__init__=any_factor),
    "scale-cut": scaler(
        __init__=lambda own, self, device, init_scale=2.0**16, **rest: own(self, device, min(init_scale, TOP), **rest)
    ),
    "disabled-quietly": scaler(__init__=quietly),
    "factor-not-set": scaler(set_backoff_factor=returns(None)),
}

UNSCALE_AND_GROUPS = {
    "half-is-unscaled": scaler(
        _unscale_grads_=lambda own, self, o, inverse, found, half: own(self, o, inverse, found, True)
    ),
    "inverse-is-off": scaler(
        _unscale_grads_=lambda own, self, o, inverse, *rest: own(self, o, inverse * (1 + 2.0**-20), *rest)
    ),
    "undivided": scaler(
        _unscale_grads_=lambda own, self, o, inverse, *rest: own(self, o, torch.ones_like(inverse), *rest)
    ),
    "dense-only": of_some(
        lambda optimizer, _: [p for p in parameters(optimizer) if p.grad is None or not p.grad.is_sparse]
    ),
}

# ---- saving and loading


def saving(change: Callable[[Any, dict[str, Any]], dict[str, Any]], method: str = "state_dict") -> Inject:
    """Change what an enabled scaler saves or pickles: `change(scaler, what it is)`."""

    def save(own: Any, self: Any) -> Any:
        saved = own(self)
        return change(self, saved) if self._enabled else saved

    return scaler(**{method: save})


def loads_without(entry: str, attribute: str) -> Change:
    def load(own: Any, self: Any, saved: Any) -> None:
        before: Any = getattr(self, attribute, None)
        kept: Any = before.clone() if isinstance(before, Tensor) else before
        own(self, saved)
        if isinstance(before, Tensor):
            before.copy_(kept)
        elif self._enabled and entry in saved:
            setattr(self, attribute, kept)

    return load


def not_pickled(own: Any, self: Any) -> Any:
    raise TypeError("cannot pickle 'GradScaler' object")


PERSISTENCE = {
    "scaler-tracker-stale-when-saved": saving(
        lambda self, saved: {**saved, "_growth_tracker": self._init_growth_tracker}
    ),
    "scaler-saves-tensors": saving(
        lambda self, saved: {**saved, **({"scale": self._scale} if self._scale is not None else {})}
    ),
    "scaler-scale-not-loaded": scaler(load_state_dict=loads_without("scale", "_scale")),
    "scaler-loads-nothing": scaler(load_state_dict=lambda own, self, saved: own(self, saved) if saved else None),
}
MORE_PERSISTENCE = {
    "growth-factor-not-loaded": scaler(load_state_dict=loads_without("growth_factor", "_growth_factor")),
    "entry-not-missed": scaler(load_state_dict=lambda own, self, saved: own(self, {**self.state_dict(), **saved})),
    "saves-numpy": saving(lambda self, saved: {**saved, "scale": np.float64(saved["scale"])}),
    "pickles-its-own": saving(
        lambda self, kept: {name: value for name, value in kept.items() if name.startswith("_")}, "__getstate__"
    ),
    "not-pickled": scaler(__getstate__=not_pickled),
}

# ---- optimizers and loops


def unaware(kernel: str, *names: str) -> Inject:
    """Let a fused kernel ignore some of what the scaler tells it."""
    return wrap(torch, **{kernel: lambda own, *args, **options: own(*args, **{**options, **dict.fromkeys(names)})})


def a_new_optimizer() -> Inject:
    newest = type("Newest", (torch.optim.SGD,), {})
    return put(torch.optim, Newest=newest, __all__=[*torch.optim.__all__, "Newest"])


def one_factor(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """Make the number given to the first call a part of the program."""
    factors: list[float] = []
    return lambda x, y, factor: compiled(x, y, (factors.append(factor), factors[0])[1])


OPTIMIZERS = {
    "scaler-later-groups-undivided": of_some(lambda optimizer, _: group(optimizer, slice(0, 1))),
    "fused-ignores-found-inf": unaware("_fused_adam_", "found_inf"),
    "fused-ignores-grad-scale": unaware("_fused_adam_", "grad_scale"),
    "fused-sgd-ignores-grad-scale": unaware("_fused_sgd_", "grad_scale"),
    "failed-step-forgotten": scaler(step=forgetting_failures),
    "looks-again": scaler(_maybe_opt_step=looks_again),
    "new-optimizer": a_new_optimizer(),
}
LOOPS = {
    "unscaled-twice": scaler(unscale_=ready_afterwards),
    "clipped-before-unscaling": fresh(unscales_late),
    "first-optimizer-alone": scaler(
        update=lambda own, self, new=None: (first_optimizer_alone(self), own(self, new))[1]
    ),
    "disabled-scales": scaler(scale=scales_by(1 + 2.0**-10)),
    "tracker-not-loaded": scaler(load_state_dict=lambda own, self, saved: own(self, {**saved, "_growth_tracker": 0})),
    "on-cuda-alone": scaler(__init__=on_cuda_alone),
    "factor-compiled-in": handed_out(one_factor),
    "sharded-steps-anyway": wrap(ShardedGradScaler, _maybe_opt_step=steps_in_any_case),
    "sharded-scales-as-the-plain": wrap(ShardedGradScaler, scale=lambda own, *given: GradScaler.scale(*given)),
    "sharded-refuses-fp16": wrap(
        ShardedGradScaler, _unscale_grads_=lambda own, *given: GradScaler._unscale_grads_(*given[:-1], False)
    ),
}
_ON_JAX = (
    "unscale-skips-last",
    "unscale-blind-to-nan",
    "unscale-blind-to-minus-inf",
    "unscale-forgets-found",
    "unscale-checks-the-first-alone",
    "grows-one-late",
    "grows-one-early",
    "never-backs-off",
    "backs-off-by-growth",
    "tracker-not-reset",
    "counts-after-growth",
    "grows-past-float32",
    "inverse-is-off",
    "half-is-unscaled",
    "fused-ignores-found-inf",
    "fused-ignores-grad-scale",
    "first-optimizer-alone",
)


def _everything() -> tuple[Mutant, ...]:
    alone = (
        *mutants("scaler/unscale", {**UNSCALE, **UNSCALE_AND_GROUPS}),
        *mutants("scaler/rescale", RESCALE),
        *mutants("scaler/misuse", MORE_MISUSE),
        *mutants("scaler/persistence", MORE_PERSISTENCE),
        *mutants("scaler/optimizers", OPTIMIZERS),
        *mutants("scaler/loops", LOOPS),
    )
    return (
        *mutants("scaler/lossscale", LOSSSCALE, (CPU, JAX)),
        *mutants("scaler/misuse", MISUSE, (CPU, JAX)),
        *mutants("scaler/persistence", PERSISTENCE, (CPU, JAX)),
        *mutants("scaler/lossscale", {"other-device-undivided": of_some(of_its_device)}, [JAX]),
        *mutants("scaler/unscale", {"two-devices-taken": unscaling(each_alone)}, [JAX]),
        *(each for mutant in alone for each in (every([mutant], JAX) if mutant.name in _ON_JAX else [mutant])),
    )


MUTANTS = _everything()
