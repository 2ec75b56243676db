"""The two ops of `GradScaler`, and what it does itself with gradients, done wrongly.

Each fault is planted above the dispatcher, where `GradScaler` calls what it replaces, so it is the same on every
device.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from tests.faults.fault import Fault
from tests.faults.regions import replaced

SCALER = torch.amp.GradScaler
UNSCALE = "_amp_foreach_non_finite_check_and_unscale_"
RESCALE = "_amp_update_scale_"
_UNSCALE, _RESCALE, _GRADS = getattr(torch, UNSCALE), getattr(torch, RESCALE), SCALER._unscale_grads_


def mutant(
    name: str, rule: str, where: Any, cases: str, *says: str, device: str = "cpu", **wrong: Callable[..., Any]
) -> Fault:
    """A fault that replaces functions of `where`, looked for in the cases of the rule that `cases` selects."""
    return Fault(name, rule, lambda: replaced(where, **wrong), says, "scaler", device, only=cases)


# ---- the op that unscales


def without(left_out: Callable[[int, torch.Tensor, int], bool]) -> Callable[..., None]:
    """The op without the gradients for which `left_out` says so, given a number, a gradient and how many there are."""

    def unscale(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
        given = list(grads)
        _UNSCALE([grad for n, grad in enumerate(given) if not left_out(n, grad, len(given))], found, inverse)

    return unscale


def blind_to(bad: Callable[[torch.Tensor], torch.Tensor]) -> Callable[..., None]:
    """The op, to which elements for which `bad` is true look finite."""

    def unscale(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
        before, given = found.clone(), list(grads)
        others = any(bool((~grad.isfinite() & ~bad(grad)).any()) for grad in given)
        _UNSCALE(given, found, inverse)
        if not others:
            found.copy_(before)

    return unscale


def stops_at_an_empty_one(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    given = list(grads)
    empty = next((n for n, grad in enumerate(given) if grad.numel() == 0), len(given))
    _UNSCALE(given[:empty], found, inverse)


def twice(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    _UNSCALE(grads, found, inverse)
    _UNSCALE(grads, found, inverse)


def forgets_what_was_found(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    found.zero_()
    _UNSCALE(grads, found, inverse)


def narrows(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    """float64 is multiplied in float32."""
    _UNSCALE(grads, found, inverse)
    for grad in grads:
        grad.copy_(grad.float())


def mends(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    """Replace values that are not finite by zero, so that nobody sees them later."""
    _UNSCALE(grads, found, inverse)
    for grad in grads:
        grad.copy_(torch.where(grad.isfinite(), grad, torch.zeros_like(grad)))


def last_unseen(grad: torch.Tensor) -> torch.Tensor:
    return torch.arange(grad.numel()).reshape(grad.shape).to(grad.device) == grad.numel() - 1


# ---- GradScaler's own part


def dense_only(self: Any, optimizer: Any, *args: Any) -> Any:
    """Sparse gradients are left out."""
    sparse = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None and p.grad.is_sparse]
    kept = [p.grad for p in sparse]
    for p in sparse:
        p.grad = None
    out = _GRADS(self, optimizer, *args)
    for p, grad in zip(sparse, kept, strict=True):
        p.grad = grad
    return out


def takes_half(self: Any, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
    return _GRADS(self, optimizer, inverse, found, True)


def inverse_is_off(self: Any, optimizer: Any, inverse: Any, found: Any, allow_fp16: bool) -> Any:
    return _GRADS(self, optimizer, inverse * (1 + 2.0**-20), found, allow_fp16)


# ---- the op that updates the scale


def rescale(change: Callable[..., Any]) -> Callable[..., Any]:
    """The op with its arguments as `change` makes them."""

    def update(*args: Any) -> Any:
        return _RESCALE(*change(*args))

    return update


backs_off_by_growth = rescale(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1 / grow, interval))


def keeps_the_tracker(scale: Any, tracker: Any, found: Any, *rest: Any) -> Any:
    before = tracker.clone()
    out = _RESCALE(scale, tracker, found, *rest)
    if found.item():
        tracker.copy_(before)
    return out


def grows_past_the_top(scale: Any, tracker: Any, found: Any, grow: float, *rest: Any) -> Any:
    before = scale.item()
    out = _RESCALE(scale, tracker, found, grow, *rest)
    if math.isinf(torch.tensor(before * grow, dtype=torch.float32).item()) and not found.item() and not tracker.item():
        scale.fill_(math.inf)
    return out


def faults(device: str) -> tuple[Fault, ...]:
    """Every fault of this file, to be caught on a device."""

    def on(name: str, where: Any, cases: str, *says: str, **wrong: Callable[..., Any]) -> Fault:
        return mutant(name, "unscale", where, cases, *says, device=device, **wrong)

    def op(name: str, cases: str, *says: str, wrong: Callable[..., Any]) -> Fault:
        return on(name, torch, cases, *says, **{UNSCALE: wrong})

    def update(name: str, cases: str, *says: str, wrong: Callable[..., Any]) -> Fault:
        return mutant(name, "rescale", torch, cases, *says, device=device, **{RESCALE: wrong})

    return (
        op("unscale-skips-last", "many", "gradient 1 of 2", wrong=without(lambda n, _, count: n == count - 1 > 0)),
        op("unscale-cuts-long-lists", "many", "gradient 110 of 111", wrong=without(lambda n, _, count: n >= 110)),
        op(
            "unscale-skips-non-contiguous",
            "layout",
            "the view: differs",
            wrong=without(lambda n, grad, _: not grad.is_contiguous()),
        ),
        op("unscale-skips-scalars", "layout-scalar or layout", "the view", wrong=without(lambda n, g, _: g.dim() == 0)),
        op("unscale-stops-at-empty", "empty", "a gradient of [5]", wrong=stops_at_an_empty_one),
        op("unscale-blind-to-nan", "each_place and single", "found_inf with nan", wrong=blind_to(torch.isnan)),
        op("unscale-blind-to-minus-inf", "each_place and half", "found_inf with -inf", wrong=blind_to(torch.isneginf)),
        op("unscale-blind-to-last-element", "each_place and brain", "inf at 18 of 19", wrong=blind_to(last_unseen)),
        op("unscale-twice", "sizes", "gradient of 1025 elements", wrong=twice),
        op(
            "unscale-forgets-found",
            "found_is_kept",
            "found_inf after [1.0, 2.0]: got 0.0",
            wrong=forgets_what_was_found,
        ),
        op("unscale-narrows-float64", "sizes-double or sizes", "gradient of 1025 elements", wrong=narrows),
        op("unscale-mends-infinities", "each_place and single", "inf at 0 of 1 became: got '0.0'", wrong=mends),
        on("unscale-dense-only", SCALER, "sparse", "the gradient: differs", _unscale_grads_=dense_only),
        on("unscale-sums-unseen", torch.Tensor, "overflow_by", "what was found: got 0.0", coalesce=lambda self: self),
        on("unscale-takes-half", SCALER, "half_is_refused", "raised nothing", _unscale_grads_=takes_half),
        on("unscale-inverse-is-off", SCALER, "divides", "gradient 0 at", _unscale_grads_=inverse_is_off),
        update(
            "grows-one-late",
            "interval",
            "scale and tracker after 1999: got (4.0, 2000)",
            wrong=rescale(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, interval + 1)),
        ),
        update(
            "grows-one-early",
            "interval",
            "scale and tracker after 1998: got (8.0, 0)",
            wrong=rescale(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, max(interval - 1, 1))),
        ),
        update("backs-off-by-growth", "factors", "scale backed off", wrong=backs_off_by_growth),
        update(
            "two-found-are-none",
            "overflow",
            "with 2.0 found",
            wrong=rescale(lambda s, t, f, *rest: (s, t, (f == 1).float(), *rest)),
        ),
        update("tracker-not-reset", "overflow", "(2.0, 2); expected (2.0, 0)", wrong=keeps_the_tracker),
        update("grows-past-float32", "top_of", "got (inf, 0)", wrong=grows_past_the_top),
    )


FAULTS = faults("cpu")
