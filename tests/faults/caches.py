"""A cache of casts that keeps too much, too little or the wrong thing.

PyTorch's own cache lies in C++. Where a fault needs another one, the kernel of `mm` gets another cache, which
`torch.clear_autocast_cache` empties like PyTorch's.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch

from tests.faults.fault import Fault
from tests.faults.kernels import Call, kernel
from tests.faults.regions import autocast, region, replaced

_EXIT = autocast.__exit__
_CLEAR = torch.clear_autocast_cache
_PRODUCTS = ("mm", "matmul", "baddbmm", "linear")
Test = Callable[[Call, torch.Tensor], bool]


def promised(call: Call, t: torch.Tensor) -> bool:
    """Return whether PyTorch caches the cast of a tensor."""
    return (
        torch.is_autocast_cache_enabled()
        and t.dtype == torch.float32
        and t.is_leaf
        and t.requires_grad
        and not t._is_view()
        and not torch.is_inference_mode_enabled()
        and not torch._C._is_cached_tensor(t)
    )


def by_identity(call: Call, t: torch.Tensor) -> Hashable:
    """Return PyTorch's cache key: the tensor, its dtype, and whether gradients are recorded."""
    return id(t), call.low, torch.is_grad_enabled()


def without_grad_mode(call: Call, t: torch.Tensor) -> Hashable:
    """A cast made while no gradients are recorded serves later, when they are."""
    return id(t), call.low


def cache(
    keeps: Test = promised,
    key: Callable[[Call, torch.Tensor], Hashable] = by_identity,
    clears: bool = True,
    strong: bool = True,
) -> AbstractContextManager[object]:
    """Products with another cache while entered.

    `keeps`: whether a cast is cached. `key`: its key. `clears`: whether clearing empties it. `strong`: whether the
    tensor is kept alive, so that its identity is not used again.
    """
    cached: dict[Hashable, tuple[torch.Tensor | None, torch.Tensor]] = {}

    def cast(call: Call, t: torch.Tensor) -> torch.Tensor:
        if not call.eligible(t) or t.dtype == call.low:
            return t
        if not keeps(call, t):
            return t.to(call.low)
        place = key(call, t)
        if place not in cached:
            cached[place] = (t if strong else None, t.to(call.low))
        return cached[place][1]

    def clear() -> None:
        _CLEAR()
        if clears:
            cached.clear()

    stack = ExitStack()
    for op in _PRODUCTS:
        stack.enter_context(kernel("cpu", op, lambda call: call.run(lambda place, t: cast(call, t))))
    stack.enter_context(replaced(torch, clear_autocast_cache=clear))
    stack.callback(cached.clear)
    return stack


def caching(name: str, *says: str, suite: str = "eager", **how: Any) -> Fault:
    """A fault of a cache that products have on their own; `how` as `cache` takes it."""
    return Fault(name, "cache", lambda: cache(**how), says, suite)


def _clearing(name: str, *says: str, clear: Callable[[], None]) -> Fault:
    def inject() -> AbstractContextManager[object]:
        stack = ExitStack()
        stack.enter_context(replaced(torch, clear_autocast_cache=clear))
        stack.callback(_CLEAR)
        return stack

    return Fault(name, "cache", inject, says)


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
    with replaced(torch, clear_autocast_cache=clear_nothing):
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
            "registered": not torch._C._is_cached_tensor(t),
        }
        return all(holds for condition, holds in conditions.items() if condition not in ignored)

    return keeps


def detached(call: Call, t: torch.Tensor) -> torch.Tensor:
    """A cast that was made without gradient, as if kept from a forward under no_grad."""
    with torch.no_grad():
        return t.to(call.low)


def _losing_gradient(name: str, *says: str) -> Fault:
    def inject() -> AbstractContextManager[object]:
        return kernel("cpu", "mm", lambda call: call.run(lambda p, t: detached(call, t) if call.eligible(t) else t))

    return Fault(name, "cache", inject, says, "autograd")


FAULTS = (
    caching("cache-never-used", "casts of a leaf used by three products", keeps=lambda call, t: False),
    caching("cache-never-cleared", "casts in the next outermost region: got 0", clears=False),
    _clearing("clear-does-nothing", "casts in the next outermost region: got 0", clear=clear_nothing),
    region("cache-dropped-at-inner-exit", "cache", "casts after an inner region: got 1", exit=exit_clears_always),
    region("cache-dropped-by-disabled-region", "cache", "disabled inner region: got 1", exit=exit_of_disabled_clears),
    region(
        "cache-kept-by-an-exception",
        "cache",
        "casts in the next region: got 0",
        exit=exit_clears_without_exception_only,
    ),
    caching("cache-ignores-setting", "casts without the cache: got 1", keeps=_when(setting=True)),
    caching("cache-of-low-leaves", "leaf: got 1; expected 3", keeps=_when(dtype=True)),
    caching("cache-of-results", "casts of a result: got 1", keeps=_when(leaf=True)),
    caching("cache-without-grad", "casts of a plain tensor: got 1", keeps=_when(grad=True)),
    caching("cache-of-views", "casts of a view of a leaf: got 1", keeps=_when(view=True, leaf=True)),
    caching("cache-in-inference-mode", "inference mode", keeps=_when(inference=True), key=without_grad_mode),
    caching("cache-of-registered", "casts of a registered tensor: got 1", keeps=_when(registered=True)),
    caching("cache-ignores-grad-mode", "requires grad", suite="autograd", key=without_grad_mode),
    caching(
        "cache-by-address",
        "product with weight",
        key=lambda call, t: (t.data_ptr(), call.low, torch.is_grad_enabled()),
        strong=False,
    ),
    caching("cache-by-shape", "two leaves", key=lambda call, t: (t.shape, call.low, torch.is_grad_enabled())),
    _losing_gradient("cast-loses-gradient", "gradient"),
)
