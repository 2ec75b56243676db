"""A GradScaler, its two ops, and the fused steps under it, done wrongly.

Ops are replaced above the dispatcher, where `GradScaler` calls them, so a mutant is the same on every device.
"""

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.faults.compilers import handed_out
from tests.faults.mutant import Change, Inject, mutants, put, wrap

Tensor = torch.Tensor
TOP = torch.finfo(torch.float32).max


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


def places(grad: Tensor) -> Tensor:
    """Return the place of each element, from 0."""
    return torch.arange(grad.numel()).reshape(grad.shape).to(grad.device)


def stops_at_an_empty_one(own: Any, grads: Any, *rest: Tensor) -> None:
    given = list(grads)
    own(given[: next((n for n, grad in enumerate(given) if grad.numel() == 0), len(given))], *rest)


def forgets_what_was_found(own: Any, grads: Any, found: Tensor, inverse: Tensor) -> None:
    found.zero_()
    own(grads, found, inverse)


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


def grows_past_the_top(own: Any, scale: Any, tracker: Any, found: Any, grow: float, *rest: Any) -> Any:
    before = scale.item()
    out = own(scale, tracker, found, grow, *rest)
    if math.isinf(torch.tensor(before * grow, dtype=torch.float32).item()) and not found.item() and not tracker.item():
        scale.fill_(math.inf)
    return out


# ---- optimizers and loops


def fused_adam(**fixed: Any) -> Inject:
    """Give the fused kernel of Adam some options in place of its own."""
    return wrap(torch, _fused_adam_=lambda own, *args, **options: own(*args, **{**options, **fixed}))


def one_factor(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """Make the number given to the first call a part of the program."""
    factors: list[float] = []
    return lambda x, y, factor: compiled(x, y, (factors.append(factor), factors[0])[1])


MUTANTS = mutants(
    {
        "scaler/unscale": {
            "unscale-sees-4096": blind_to(lambda grad: places(grad) >= 4096),
            "unscale-skips-non-contiguous": without(lambda n, grad, _: not grad.is_contiguous()),
            "unscale-stops-at-empty": unscaling(stops_at_an_empty_one),
            "unscale-blind-to-last-element": blind_to(lambda grad: places(grad) == grad.numel() - 1),
            "unscale-twice": unscaling(lambda own, *given: (own(*given), own(*given))[1]),
            "unscale-takes-any-kind": unscaling(any_kind),
            "unscale-without-bfloat16": unscaling(without_bfloat16),
            "unscale-sums-unseen": put(Tensor, coalesce=lambda self: self),
        },
        "scaler/unscale cpu jax": {
            "unscale-skips-last": without(lambda n, _, count: n == count - 1 > 0),
            "unscale-blind-to-nan": blind_to(torch.isnan),
            "unscale-forgets-found": unscaling(forgets_what_was_found),
        },
        "scaler/unscale jax": {"two-devices-taken": unscaling(each_alone)},
        "scaler/rescale": {
            "two-found-are-none": given(lambda s, t, f, *rest: (s, t, (f == 1).float(), *rest)),
            "scale-always-finite": rescaling(lambda own, scale, *rest: (own(scale, *rest), scale.clamp_(max=TOP))[1]),
        },
        "scaler/rescale cpu jax": {
            "grows-one-late": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, back, interval + 1)),
            "never-backs-off": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1.0, interval)),
            "backs-off-by-growth": given(lambda s, t, f, grow, back, interval: (s, t, f, grow, 1 / grow, interval)),
            "tracker-not-reset": rescaling(keeps_the_tracker),
            "grows-past-float32": rescaling(grows_past_the_top),
        },
        "scaler/optimizers": {
            "fused-adam-without-decay": fused_adam(weight_decay=0.0),
            "sharded-steps-anyway": wrap(
                ShardedGradScaler, _maybe_opt_step=lambda own, self, optimizer, state, *a, **k: optimizer.step(*a, **k)
            ),
            "deprecated-halves-the-scale": wrap(
                torch.cpu.amp.GradScaler,
                __init__=lambda own, self, init_scale, **rest: own(self, init_scale / 2, **rest),
            ),
        },
        "scaler/optimizers cpu jax": {
            "fused-ignores-found-inf": fused_adam(found_inf=None),
            "fused-ignores-grad-scale": fused_adam(grad_scale=None),
        },
        "scaler/loops": {
            "factor-compiled-in": handed_out(one_factor),
            "sharded-scales-as-the-plain": wrap(ShardedGradScaler, scale=lambda own, *given: GradScaler.scale(*given)),
            "sharded-refuses-fp16": wrap(
                ShardedGradScaler, _unscale_grads_=lambda own, *given: GradScaler._unscale_grads_(*given[:-1], False)
            ),
        },
    }
)
