"""A cache of casts that keeps too much, too little or the wrong thing.

PyTorch's own cache lies in C++. Where a fault needs another one, the kernel of `mm` gets a cache of its own, which
`torch.clear_autocast_cache` empties like PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault
from tests.faults.kernels import Call, kernel
from tests.faults.regions import region

autocast = torch.amp.autocast_mode.autocast
_EXIT = autocast.__exit__
_CLEAR = torch.clear_autocast_cache
Test = Callable[[Call, torch.Tensor], bool]


def promised(call: Call, t: torch.Tensor) -> bool:
    """Whether PyTorch keeps the cast of a tensor."""
    return (
        torch.is_autocast_cache_enabled()
        and t.dtype == torch.float32
        and t.is_leaf
        and t.requires_grad
        and not t._is_view()
        and not torch.is_inference_mode_enabled()
    )


def by_identity(call: Call, t: torch.Tensor) -> Hashable:
    """What PyTorch keeps a cast under: the tensor, its dtype, and whether gradients are recorded."""
    return id(t), call.low, torch.is_grad_enabled()


def caching(
    name: str,
    *says: str,
    keeps: Test = promised,
    key: Callable[[Call, torch.Tensor], Hashable] = by_identity,
    clears: bool = True,
    strong: bool = True,
    rule: str = "cache",
) -> Fault:
    """A fault of a cache that `mm` has on its own.

    `keeps`: whether a cast is kept. `key`: under what. `clears`: whether clearing empties it. `strong`: whether the
    tensor is kept alive, so that its identity is not used again.
    """
    kept: dict[Hashable, tuple[Any, torch.Tensor]] = {}

    def cast(call: Call, t: torch.Tensor) -> torch.Tensor:
        if not call.eligible(t):
            return t
        if t.dtype == call.low or not keeps(call, t):
            return t.to(call.low)
        place = key(call, t)
        if place not in kept:
            kept[place] = (t if strong else None, t.to(call.low))
        return kept[place][1]

    def clear() -> None:
        _CLEAR()
        if clears:
            kept.clear()

    def plant() -> AbstractContextManager[object]:
        kept.clear()
        stack = ExitStack()
        stack.enter_context(kernel("cpu", "mm", lambda call: call.run(lambda place, t: cast(call, t))))
        stack.enter_context(patch.object(torch, "clear_autocast_cache", clear))
        stack.callback(kept.clear)
        return stack

    return Fault(name, rule, plant, says, ("--device=cpu",))


def _functions(name: str, *says: str, **wrong: Callable[..., Any]) -> Fault:
    def plant() -> AbstractContextManager[object]:
        stack = ExitStack()
        for function, body in wrong.items():
            stack.enter_context(patch.object(torch, function, body))
        stack.callback(_CLEAR)
        return stack

    return Fault(name, "cache", plant, says, ("--device=cpu",))


def clear_nothing() -> None:
    pass


def exit_clears_always(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    torch.clear_autocast_cache()
    return out


def exit_of_disabled_clears(self: Any, *exc: Any) -> Any:
    out = _EXIT(self, *exc)
    if not self._enabled:
        torch.clear_autocast_cache()
    return out


def exit_clears_without_exception_only(self: Any, *exc: Any) -> Any:
    if exc[0] is None:
        return _EXIT(self, *exc)
    with patch.object(torch, "clear_autocast_cache", clear_nothing):
        return _EXIT(self, *exc)


def _when(**ignored: bool) -> Test:
    """`promised`, without some of its conditions."""

    def keeps(call: Call, t: torch.Tensor) -> bool:
        conditions = {
            "setting": torch.is_autocast_cache_enabled(),
            "dtype": t.dtype == torch.float32,
            "leaf": t.is_leaf,
            "grad": t.requires_grad,
            "view": not t._is_view(),
            "inference": not torch.is_inference_mode_enabled(),
        }
        return all(holds for condition, holds in conditions.items() if condition not in ignored)

    return keeps


def detached(call: Call, t: torch.Tensor) -> torch.Tensor:
    """A cast that was made without gradient, as if kept from a forward under no_grad."""
    with torch.no_grad():
        return t.to(call.low)


def _losing_gradient(name: str, *says: str) -> Fault:
    def plant() -> AbstractContextManager[object]:
        return kernel("cpu", "mm", lambda call: call.run(lambda p, t: detached(call, t) if call.eligible(t) else t))

    return Fault(name, "cache", plant, says, ("--device=cpu",))


FAULTS = (
    caching("cache-never-used", keeps=lambda call, t: False),
    caching("cache-never-cleared", clears=False),
    _functions("clear-does-nothing", clear_autocast_cache=clear_nothing),
    region("cache-dropped-at-inner-exit", "cache", exit=exit_clears_always),
    region("cache-dropped-by-disabled-region", "cache", exit=exit_of_disabled_clears),
    region("cache-kept-by-an-exception", "cache", exit=exit_clears_without_exception_only),
    caching("cache-ignores-setting", keeps=_when(setting=True)),
    caching("cache-of-low-leaves", keeps=_when(dtype=True)),
    caching("cache-of-results", keeps=_when(leaf=True)),
    caching("cache-without-grad", keeps=_when(grad=True)),
    caching("cache-of-views", keeps=_when(view=True, leaf=True)),
    caching("cache-in-inference-mode", keeps=_when(inference=True)),
    caching("cache-ignores-dtype", key=lambda call, t: (id(t), torch.is_grad_enabled())),
    caching("cache-ignores-grad-mode", key=lambda call, t: (id(t), call.low)),
    caching("cache-by-address", key=lambda call, t: (t.data_ptr(), call.low, torch.is_grad_enabled()), strong=False),
    caching("cache-by-shape", key=lambda call, t: (t.shape, call.low, torch.is_grad_enabled())),
    _losing_gradient("cast-loses-gradient"),
)
