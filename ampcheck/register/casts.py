"""Tensors that autocast casts, the casts, and the cache of those of weights.

Source: aten/src/ATen/autocast_mode.h, `is_eligible`, `cached_cast`. Casts of float32 leaves are cached until the
outermost region ends. PyTorch's own cache is in C++ and cannot be reached from Python (`cached_cast`,
aten/src/ATen/autocast_mode.cpp). This one caches the casts of the same tensors, for as long, and differs where
`docs/findings` shows PyTorch's to be wrong: a cached cast is found by its dtype too, is dropped when its weight
changes, stays out of fake, traced and functional programs, and lets gradients be summed in the weight's dtype.
"""

import threading
import weakref
from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import FunctionCtx

from ampcheck.register.torch_private import (
    ModeKey,
    dispatch_modes,
    functorch_level,
    has_storage,
    is_rewritten,
    mode_of,
    tracing_state,
)

_FAKE, _PROXY, _FUNCTIONAL = (ModeKey.FAKE, ModeKey.PROXY, ModeKey.FUNCTIONAL)
_is_inference = torch.is_inference_mode_enabled
_is_grad = torch.is_grad_enabled


class _CachedCast(NamedTuple):
    """One cached cast, and the identity of its weight when it was made."""

    weight: weakref.ref[Tensor]
    memory: Callable[[], object]
    layout: tuple[object, ...]
    low: Tensor


class _Graph(torch.autograd.Function):
    """Makes a cast that was computed without a graph a function of its weight.

    Every use of the weight leads to this one node. Its output declares float32 gradients, so the engine widens each
    use's gradient before it sums them; summed in the lower precision they stop growing (cached-weight-gradient-in-low-
    precision in docs/findings).
    """

    @staticmethod
    def forward(ctx: FunctionCtx, weight: Tensor, holder: list[Tensor]) -> Tensor:
        # In a list, the cast is not an input of the node, so that the node's output is the very same tensor.
        (low,) = holder
        if hasattr(ctx, "set_output_grad_dtype"):  # since torch 2.14, where the other way has no effect
            ctx.set_output_grad_dtype(weight.dtype)
        else:
            low.grad_dtype = weight.dtype
        return low

    @staticmethod
    def backward(ctx: FunctionCtx, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0], None


class Cache:
    """Cached casts, found by the weight's identity and the dtype; a weight is held weakly, its casts are not.

    `memory`: returns the memory of a weight that has no storage PyTorch can read (OpaqueTensorImpl).
    """

    def __init__(self, memory: Callable[[Tensor], object] | None = None) -> None:
        self._memory = memory
        self._casts: dict[tuple[int, torch.dtype], _CachedCast] = {}
        self._lock = threading.Lock()

    def clear(self) -> None:
        """Drop every cast, in every thread."""
        self._casts.clear()

    def __len__(self) -> int:
        return len(self._casts)

    def cast(self, weight: Tensor, dtype: torch.dtype) -> Tensor:
        """Return a weight cast to a dtype, cached for the next use unless the program must not see cached casts."""
        if _is_inference() or _foreign(weight):
            return weight.to(dtype)
        place = (id(weight), dtype)
        found = self._casts.get(place)
        if found is None or not self._fresh(found, weight):
            with torch.no_grad():
                low = weight.to(dtype)
            self._keep(place, weight, low)
        else:
            low = found.low
        return self._with_graph(weight, low) if _is_grad() and not low.requires_grad else low

    def _with_graph(self, weight: Tensor, low: Tensor) -> Tensor:
        """Return the cast once it is a function of its weight; of two threads that ask for it, one makes it so."""
        with self._lock:
            if not low.requires_grad:
                low = _Graph.apply(weight, [low])
        return low

    def _keep(self, place: tuple[int, torch.dtype], weight: Tensor, low: Tensor) -> None:
        casts = self._casts

        def forget(gone: weakref.ref[Tensor]) -> None:
            found = casts.get(place)
            if found is not None and found.weight is gone:
                del casts[place]

        now = self._held(weight)
        memory = weakref.ref(now) if isinstance(now, torch.UntypedStorage) else lambda: now
        casts[place] = _CachedCast(weakref.ref(weight, forget), memory, _layout(weight), low)

    def _fresh(self, found: _CachedCast, weight: Tensor) -> bool:
        """Return whether a cached cast is of this very tensor with its present values."""
        return found.weight() is weight and found.memory() is self._held(weight) and found.layout == _layout(weight)

    def _held(self, weight: Tensor) -> object:
        """Return the memory of a weight: its storage, else what the backend gives for it, or None."""
        if has_storage(weight):
            return weight.untyped_storage()
        return None if self._memory is None else self._memory(weight)


def _layout(weight: Tensor) -> tuple[object, ...]:
    """Return properties that change with an in-place write, and with `weight.data = …` on the same storage."""
    return weight._version, weight.shape, weight.stride(), weight.storage_offset()


def _foreign(weight: Tensor) -> bool:
    """Return whether a cached cast would be a constant in a traced program, or a fake tensor outside of its mode.

    Also a tensor that CUDA graphs rewrite unnoticed, and any under functorch, whose levels end before the region does.
    """
    if tracing_state() is not None or functorch_level() is not None or is_rewritten(weight):
        return True
    if not dispatch_modes():
        return False
    if mode_of(_PROXY) is not None or mode_of(_FUNCTIONAL) is not None:
        return True
    fake = mode_of(_FAKE)
    return fake is not None and getattr(weight, "fake_mode", None) is not fake


Element = Tensor | None
"""What a list of tensors among the arguments holds."""
FLOAT32 = torch.float32
_DOUBLE = torch.float64
_cache_enabled = torch.is_autocast_cache_enabled


class Casts:
    """The casts of one device type. Kernels bind the methods they use when they are made."""

    def __init__(self, device_type: str, cache: Cache) -> None:
        self._type = device_type
        self._cached = cache.cast

    def eligible(self, tensor: Tensor) -> bool:
        """Return whether a tensor is of a floating dtype other than float64, on the device."""
        dtype = tensor.dtype
        return dtype.is_floating_point and dtype is not _DOUBLE and tensor.device.type == self._type

    def wide(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return an eligible tensor in `dtype`, another one as it is. For casts that are not cached."""
        return tensor.to(dtype) if tensor.dtype is not dtype and self.eligible(tensor) else tensor

    def low(self, tensor: Tensor, dtype: torch.dtype) -> Tensor:
        """Return the same for the region's dtype; the cast of a float32 leaf that requires grad is cached."""
        given = tensor.dtype
        if given is dtype or not self.eligible(tensor):
            return tensor
        leaf = given is FLOAT32 and tensor.requires_grad and tensor.is_leaf and not tensor._is_view()
        return self._cached(tensor, dtype) if leaf and _cache_enabled() else tensor.to(dtype)

    def wide_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `wide` to each tensor; None stays."""
        return [None if tensor is None else self.wide(tensor, dtype) for tensor in tensors]

    def low_list(self, tensors: Sequence[Element], dtype: torch.dtype) -> list[Element]:
        """Apply `low` to each tensor; None stays."""
        return [None if tensor is None else self.low(tensor, dtype) for tensor in tensors]

    def widest(self, *values: Element | Sequence[Element]) -> torch.dtype | None:
        """Return the dtype promotion goes to: the widest of the eligible tensors in tensors, lists and None.

        Of float16 and bfloat16 it is float32, which holds the values of both. None where no tensor is eligible.
        """
        found: set[torch.dtype] = set()
        for value in values:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if tensor is not None and self.eligible(tensor):
                    found.add(tensor.dtype)
        if len(found) < 2:
            return found.pop() if found else None
        top = max(dtype.itemsize for dtype in found)
        widest = [dtype for dtype in found if dtype.itemsize == top]
        return widest[0] if len(widest) == 1 else FLOAT32
