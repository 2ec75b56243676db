"""A GradScaler that saves, loads or pickles wrongly."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from typing import Any

import torch
from torch.amp.grad_scaler import _refresh_per_optimizer_state

from tests.faults.scaler import OWN, fault


def stale_scale(self: Any) -> Any:
    return {**OWN["state_dict"](self), "scale": self._init_scale} if self._enabled else {}


def stale_tracker(self: Any) -> Any:
    return {**OWN["state_dict"](self), "_growth_tracker": self._init_growth_tracker} if self._enabled else {}


def saves_tensors(self: Any) -> Any:
    scale = self._scale if self._enabled else None
    return OWN["state_dict"](self) if scale is None else {**OWN["state_dict"](self), "scale": scale}


def _pickles_without(**lost: object) -> Callable[..., Any]:
    def getstate(self: Any) -> Any:
        kept = OWN["__getstate__"](self)
        return {**kept, **lost} if self._enabled else kept

    return getstate


def pickles_at_any_time(self: Any) -> Any:
    stages = vars(self).pop("_per_optimizer_states", None)
    try:
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
        return OWN["__getstate__"](self)
    finally:
        if stages is not None:
            self._per_optimizer_states = stages


def _loads_without(entry: str, attribute: str) -> Callable[..., Any]:
    def load(self: Any, saved: Any) -> None:
        before: Any = getattr(self, attribute, None)
        kept: Any = before.clone() if isinstance(before, torch.Tensor) else before
        OWN["load_state_dict"](self, saved)
        if isinstance(before, torch.Tensor):
            before.copy_(kept)
        elif self._enabled and entry in saved:
            setattr(self, attribute, kept)

    return load


def loads_nothing_of_nothing(self: Any, saved: Any) -> None:
    if saved:
        OWN["load_state_dict"](self, saved)


FAULTS = (
    fault("scale-stale-when-saved", "persistence", "scale", state_dict=stale_scale),
    fault("tracker-stale-when-saved", "persistence", "their values", state_dict=stale_tracker),
    fault("saves-tensors", "persistence", "their types", state_dict=saves_tensors),
    fault(
        "pickle-loses-interval", "persistence", "growth_interval", __getstate__=_pickles_without(_growth_interval=2000)
    ),
    fault(
        "pickle-loses-tracker", "persistence", "_growth_tracker", __getstate__=_pickles_without(_init_growth_tracker=0)
    ),
    fault("pickles-at-any-time", "persistence", "when divided: raised nothing", __getstate__=pickles_at_any_time),
    fault(
        "tracker-not-loaded",
        "persistence",
        "_growth_tracker",
        load_state_dict=_loads_without("_growth_tracker", "_init_growth_tracker"),
    ),
    fault("scale-not-loaded", "persistence", "scale", load_state_dict=_loads_without("scale", "_scale")),
    fault(
        "loads-nothing", "persistence", "loading an empty one: raised nothing", load_state_dict=loads_nothing_of_nothing
    ),
)

JAX = tuple(fault.on_jax() for fault in FAULTS)
"""Those that the jax device must notice, too."""
