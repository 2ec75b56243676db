"""A GradScaler that takes what it must refuse, ignores what it is set to, or shares what it must copy."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler, OptState
from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

from tests.faults.compilers import handed_out
from tests.faults.fault import Fault, in_scenario
from tests.faults.optimizers import unaware
from tests.faults.scaler import OWN, steps_in_any_case
from tests.faults.unscale import RESCALE, UNSCALE

_UNSCALE, _RESCALE, _SGD = getattr(torch, UNSCALE), getattr(torch, RESCALE), torch._fused_sgd_
_TOP = torch.finfo(torch.float32).max


_fault = partial(in_scenario, "scaler")


def _put(name: str, where: str, says: str, owner: Any = GradScaler, **wrong: Any) -> Fault:
    """A fault that replaces an attribute, or adds one."""
    ((attribute, body),) = wrong.items()
    return _fault(name, where, says, lambda: patch.object(owner, attribute, body, create=True))


# ---- what must be refused


def any_kind(grads: Any, found: torch.Tensor, inverse: torch.Tensor) -> None:
    """Integers and complex numbers are multiplied like any other."""
    for grad in grads:
        grad.copy_((grad * inverse).to(grad.dtype))


def tensors_alone(self: Any, optimizer: Any, *rest: Any) -> Any:
    """Ignore parameters that are not tensors."""
    held = [p for group in optimizer.param_groups for p in group["params"] if isinstance(p, torch.Tensor)]
    return OWN["_unscale_grads_"](self, SimpleNamespace(param_groups=[{"params": held}]), *rest)


def any_factor(self: Any, *args: Any, growth_factor: float = 2.0, backoff_factor: float = 0.5, **options: Any) -> None:
    OWN["__init__"](self, *args, **options)
    self._growth_factor, self._backoff_factor = growth_factor, backoff_factor


def within_float32(self: Any, device: str, init_scale: float = 2.0**16, **options: Any) -> None:
    OWN["__init__"](self, device, min(init_scale, _TOP), **options)


def any_new_scale(self: Any, new_scale: Any = None) -> None:
    """Of a tensor the first element counts, wherever it is and however many there are."""
    if isinstance(new_scale, torch.Tensor):
        new_scale = 2.5 if new_scale.is_meta else new_scale.detach().flatten()[0].item()
    OWN["update"](self, new_scale)


def quiet(self: Any, *args: Any, **options: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        OWN["__init__"](self, *args, **options)


def with_defaults(self: Any, saved: Any) -> None:
    """An entry that is missing stays as it is."""
    OWN["load_state_dict"](self, {**OWN["state_dict"](self), **saved})


# ---- what must be heeded


def not_set(self: Any, value: Any) -> None:
    """A setter that sets nothing."""


def steps_alone_count(self: Any, new_scale: Any = None) -> None:
    """Gradients that were divided and not used are forgotten."""
    states = self._per_optimizer_states.values() if self._enabled else ()
    if not any(state["stage"] is OptState.UNSCALED for state in states):
        OWN["update"](self, new_scale)


def not_asking_subclasses(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    if self._enabled and self._per_optimizer_states[id(optimizer)]["stage"] is OptState.READY:
        OWN["unscale_"](self, optimizer)
    return OWN["step"](self, optimizer, *args, **kwargs)


def missing_is_bad(self: Any, optimizer: Any, inverse: torch.Tensor, found: torch.Tensor, allow: bool) -> Any:
    """A parameter without a gradient counts as one whose gradient is not finite."""
    checked = OWN["_unscale_grads_"](self, optimizer, inverse, found, allow)
    if any(p.grad is None for group in optimizer.param_groups for p in group["params"]):
        for bad in checked.values():
            bad.fill_(1.0)
    return checked


def looks_again(self: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
    """Gradients are looked at once more before the step."""
    grads = [p.grad for group in optimizer.param_groups for p in group["params"]]
    return OWN["_maybe_opt_step"](self, optimizer, *args, **kwargs) if all(g.isfinite().all() for g in grads) else None


def never_infinite(scale: torch.Tensor, *rest: Any) -> torch.Tensor:
    _RESCALE(scale, *rest)
    return scale.clamp_(max=_TOP)


def one_factor(compiled: Callable[..., Any], _: Callable[..., Any]) -> Callable[..., Any]:
    """The number given to the first call is part of the program."""
    first: list[float] = []

    def call(x: Any, y: Any, factor: float) -> Any:
        first.append(factor)
        return compiled(x, y, first[0])

    return call


def a_new_optimizer() -> AbstractContextManager[object]:
    """torch.optim has one more optimizer."""
    newest = type("Newest", (torch.optim.SGD,), {})
    return patch.multiple(torch.optim, create=True, Newest=newest, __all__=[*torch.optim.__all__, "Newest"])


# ---- what must be copied


def saved_and_followed(self: Any) -> Any:
    """Return one state dictionary that follows the scaler."""
    saved = vars(self).setdefault("_saved", {})
    saved.update(OWN["state_dict"](self))
    return saved


def followed(self: Any, new_scale: Any = None) -> None:
    OWN["update"](self, new_scale)
    saved_and_followed(self)


def following() -> AbstractContextManager[object]:
    return patch.multiple(GradScaler, state_dict=saved_and_followed, update=followed)


def shared(self: Any, memo: Any) -> Any:
    other = copy.copy(self)
    other._scale, other._growth_tracker = self._scale, self._growth_tracker
    return other


def saves_other_numbers(self: Any) -> Any:
    saved = OWN["state_dict"](self)
    return {**saved, "scale": np.float64(saved["scale"])}


def known_attributes(self: Any) -> Any:
    return {name: value for name, value in OWN["__getstate__"](self).items() if name.startswith("_")}


FAULTS = (
    _put("complex-taken", "misuse/complex_gradients", "step: raised nothing", torch, **{UNSCALE: any_kind}),
    _put("complex-stepped", "optimizers/complex_is_refused", "step: raised nothing", torch, **{UNSCALE: any_kind}),
    _put("no-float-taken", "unscale/no_floating_gradient", "kind: raised nothing", torch, **{UNSCALE: any_kind}),
    _put("no-tensor-taken", "misuse/no_parameter", "unscale_: raised nothing", _unscale_grads_=tensors_alone),
    _put("any-growth", "misuse/growth_factor", "raised nothing; expected AssertionError", __init__=any_factor),
    _put("any-backoff", "misuse/backoff_factor", "raised nothing; expected AssertionError", __init__=any_factor),
    _put("scale-cut", "misuse/scale_beyond_float32", "scale: raised nothing", __init__=within_float32),
    _put("any-new-scale", "misuse/no_new_scale", "raised nothing; expected AssertionError", update=any_new_scale),
    _put("disabled-quietly", "misuse/absent_device", "warned of nothing", __init__=quiet),
    _put("entry-not-missed", "persistence/an_entry_is_missing", "raised nothing", load_state_dict=with_defaults),
    _put("factor-not-set", "misuse/set_and_used", "factors and interval: got", set_backoff_factor=not_set),
    _put("unused-not-counted", "misuse/update_without_a_step", "scale and weight: got (8.0", update=steps_alone_count),
    _put("subclass-not-asked", "misuse/subclass", "what was called: got", step=not_asking_subclasses),
    _put(
        "missing-is-bad",
        "optimizers/parameters_without_gradient",
        "the parameter used: differs",
        _unscale_grads_=missing_is_bad,
    ),
    _put(
        "looks-again",
        "optimizers/gradient_spoiled_after_the_check",
        "whether the parameter is nan, fused=False: got False",
        _maybe_opt_step=looks_again,
    ),
    _put(
        "groups-left-scaled",
        "optimizers/groups_of_both_kinds",
        "parameter 0: differs",
        torch,
        _fused_sgd_=unaware(_SGD, "grad_scale"),
    ),
    _fault(
        "new-optimizer", "optimizers/every_one_is_known", "optimizers without a case: got ['Newest']", a_new_optimizer
    ),
    _put(
        "scale-always-finite",
        "rescale/infinite_scale",
        "scale after 0.0 found: got 3.4",
        torch,
        **{RESCALE: never_infinite},
    ),
    _fault("factor-compiled-in", "loops/compiled", "parameter 0: differs", lambda: handed_out(one_factor)),
    _put(
        "sharded-steps-anyway",
        "loops/sharded",
        "the parameter: differs by nan",
        ShardedGradScaler,
        _maybe_opt_step=steps_in_any_case,
    ),
    _fault("saved-follows", "persistence/holds_no_reference", "what was saved, after another iteration", following),
    _put("copy-shares", "persistence/apart_after_copying", "original's was set: got 2.0", __deepcopy__=shared),
    _put("saves-numpy", "persistence/through_a_file", "Weights only load failed", state_dict=saves_other_numbers),
    _put(
        "pickles-its-own", "persistence/subclass", "class and name: got ('_Named', '')", __getstate__=known_attributes
    ),
)
