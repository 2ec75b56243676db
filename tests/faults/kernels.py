"""Putting a wrong kernel in the place of an op's autocast kernel.

The replacement does what a backend's C++ wrapper does (exclude the region's autocast key, change the arguments, run the
op), so the suite cannot tell it from a backend's own mistake.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import count
from typing import Any

import torch
from torch.library import Library, get_kernel

from ampcheck.observe.recorder import overload
from tests.faults.fault import Fault

KEYS = {
    "cpu": "AutocastCPU",
    "virtual:cuda": "AutocastCUDA",
    "virtual:xpu": "AutocastXPU",
    "virtual:mps": "AutocastMPS",
    "jax": "AutocastPrivateUse1",
}


@dataclass(frozen=True)
class Call:
    """One call of an op that entered its autocast kernel.

    `type`: the region's device type. `op`: the overload. `registered`: PyTorch's own autocast kernel, run on the call's
    arguments; for an op without a policy, the op as it is.
    """

    type: str
    op: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    registered: Callable[[], Any]

    @property
    def low(self) -> torch.dtype:
        """The region's dtype."""
        return torch.get_autocast_dtype(self.type)

    @property
    def other(self) -> torch.dtype:
        """The lower precision that the region does not have."""
        return torch.float16 if self.low == torch.bfloat16 else torch.bfloat16

    def eligible(self, tensor: torch.Tensor) -> bool:
        """Return whether autocast may cast the tensor."""
        return tensor.is_floating_point() and tensor.dtype != torch.float64 and tensor.device.type == self.type

    def tensors(self) -> list[torch.Tensor]:
        """The tensor arguments in order, lists flattened."""
        found: list[torch.Tensor] = []
        self.run(lambda place, tensor: found.append(tensor) or tensor, call=lambda *args, **kwargs: None)
        return found

    def run(
        self,
        change: Callable[[int, torch.Tensor], torch.Tensor] = lambda place, tensor: tensor,
        call: Callable[..., Any] | None = None,
        **extra: Any,
    ) -> Any:
        """Run the op, or `call`, outside of autocast, with each tensor replaced by `change(its place, it)`."""
        places = count()
        args = _changed(self.args, change, places)
        kwargs = {name: _changed(value, change, places) for name, value in self.kwargs.items()}
        return (call or self.op)(*args, **kwargs, **extra)

    def cast(self, dtype: torch.dtype, unless: Callable[[int, torch.Tensor], bool] = lambda place, t: False) -> Any:
        """Run the op with every eligible tensor cast to `dtype`, except those that `unless` picks out."""
        return self.run(lambda place, t: t.to(dtype) if self.eligible(t) and not unless(place, t) else t)


def _changed(value: Any, change: Callable[[int, torch.Tensor], torch.Tensor], places: Iterator[int]) -> Any:
    """An argument with its tensors replaced. No closure calls itself here: such a cycle would keep tensors alive."""
    if isinstance(value, torch.Tensor):
        return change(next(places), value)
    if isinstance(value, (tuple, list)):
        return type(value)([_changed(item, change, places) for item in value])
    return value


Body = Callable[[Call], Any]


@contextmanager
def kernel(device: str, name: str, body: Body) -> Iterator[None]:
    """Run `body` wherever the overload's autocast kernel would run, under the device's key."""
    key = KEYS[device]
    key_set = torch._C.DispatchKeySet(getattr(torch._C.DispatchKey, key))
    op = overload(name)
    has_policy = torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", key)
    original = get_kernel(f"aten::{name}", key) if has_policy else None
    type_ = device.removeprefix("virtual:")

    def wrong(keyset: torch._C.DispatchKeySet, *args: Any, **kwargs: Any) -> Any:
        if original is not None:
            registered = partial(original.call_boxed, keyset, *args, **kwargs)
        else:
            registered = partial(op, *args, **kwargs)
        with torch._C._ExcludeDispatchKeyGuard(key_set):
            return body(Call(type_, op, args, kwargs, registered))

    library = Library("aten", "IMPL")
    try:
        with warnings.catch_warnings():
            # To replace a kernel is the purpose; PyTorch warns of it.
            warnings.filterwarnings("ignore", message="(?s).*(overrid|Overrid)", category=UserWarning)
            library.impl(name, wrong, key, with_keyset=True, allow_override=True)
        yield
    finally:
        library._destroy()


def wrong(name: str, rule: str, device: str, op: str, body: Body, says: tuple[str, ...] = (), **chosen: Any) -> Fault:
    """A fault of one op on one device: its autocast kernel does `body`."""

    def inject() -> AbstractContextManager[None]:
        return kernel(device, op, body)

    return Fault(name, rule, inject, says or (f"aten::{op}",), device=device, op=op, **chosen)


def outputs(value: Any, change: Callable[[int, torch.Tensor], torch.Tensor]) -> Any:
    """A kernel's result with each tensor replaced by `change(its place, it)`."""
    if isinstance(value, torch.Tensor):
        return change(0, value)
    changed = [change(place, item) if isinstance(item, torch.Tensor) else item for place, item in enumerate(value)]
    return changed if isinstance(value, list) else tuple(changed)
