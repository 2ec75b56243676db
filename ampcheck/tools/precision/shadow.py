"""Compute a program's tensors in float64 beside it, and say which of its ops lose accuracy.

Each storage of the program has a shadow, a storage of float64 with as many elements. A kernel runs once more on the
shadows of its arguments, so that views and writes in place hold there, too. Integers, masks and random numbers are the
program's own. What is first seen without a shadow counts as exact.
"""

from collections.abc import Callable
from dataclasses import dataclass
from math import hypot, inf, isfinite, log10
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ampcheck.observe.closeness import relative_error
from ampcheck.observe.recorder import Recorder, overload_name, tensors
from ampcheck.observe.torch_private import DisableTorchFunction, pytree
from ampcheck.register.torch_private import OpOverload
from ampcheck.tools.trace import OpRecord, Trace
from ampcheck.tools.trace.recorder import TracedCall

_NARROW = (torch.float16, torch.bfloat16, torch.float32)
ROUNDS = 1e-6
"""The error below which nobody asks whether a kernel rounds or amplifies: that of float32."""


@dataclass(slots=True)
class _Shadow:
    """The float64 numbers of a storage. `error`: of what was last written there; `call`: what wrote it."""

    storage: StorageWeakRef
    dtype: torch.dtype
    exact: torch.Tensor
    error: float
    call: TracedCall | None


@dataclass(slots=True)
class Lost:
    """What an op lost. `given`, `out`: the errors of what it got and returned."""

    unit: str
    backward: bool
    given: float = 0.0
    out: float = 0.0
    _size: float = 0.0

    def returned(self, error: float, size: float) -> None:
        """Note a result: the last one of a forward call counts, of a step of the backward all together.

        A gradient that is 0 but for roundings, as that of a bias before a normalization, says nothing by itself.
        """
        if not self.backward:
            self.out = error
        elif isfinite(error) and isfinite(self.out):
            whole = hypot(self._size, size)
            self.out = hypot(self.out * self._size, error * size) / whole if whole else 0.0
            self._size = whole
        else:
            self.out = inf

    @property
    def growth(self) -> float:
        """Return how much more the op returned than it was given, in orders of magnitude, and how much of the result.

        Infinite where finite arguments gave what is not finite.
        """
        if self.given == inf or self.out <= self.given:
            return 0.0
        return min(self.out, 1.0) * log10(self.out / max(self.given, ROUNDS)) if self.out < inf else inf


class Shadows(Recorder):
    """Keeps the shadows while it is entered.

    `trace`: knows which call a kernel belongs to, or None where only shadows are wanted. `unit`: names the part of the
    program that makes the public call.
    """

    def __init__(self, trace: Trace | None = None, unit: Callable[[], str] = str) -> None:
        super().__init__(self._shadowed)
        self._trace, self._unit = trace, unit
        self._calls: dict[TracedCall, Lost] = {}
        self._known: dict[tuple[int, torch.dtype], _Shadow] = {}
        self._limit = 1024

    def exact(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return a tensor in float64, as it would be if all of the program were computed so."""
        with DisableTorchFunction():
            return self._exact(tensor).detach().clone()

    def _shadowed(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        given = list(tensors((args, kwargs)))
        if func.is_view or not any(map(_is_shadowed, given)):
            return func(*args, **kwargs)
        with DisableTorchFunction():
            call = self._trace.recorder.current() if self._trace else None
            lost = self._of(call, given)
            entries = [self._entry(x) for x in given if _is_shadowed(x)]
            want = self._in_float64(func, args, kwargs)
            written = {entry.storage.cdata: entry for entry in entries}
        out = func(*args, **kwargs)
        with DisableTorchFunction():
            found = list(tensors(want))
            writes = func._schema.is_mutable
            results = [x for x in tensors(out)] or (given if writes else [])
            for place, real in enumerate(results):
                if not _is_shadowed(real):
                    continue
                entry = written.get(StorageWeakRef(real.untyped_storage()).cdata)
                if entry is None:
                    exact = found[place] if want is not None and found[place].shape == real.shape else real
                    entry = self._put(real, exact)
                elif want is None and writes:  # refused or random: what was written counts as exact
                    entry.exact.as_strided(real.size(), real.stride(), real.storage_offset()).copy_(real)
                entry.call = call
                if lost is not None and (place == 0 or lost.backward):
                    exact = self._exact(real)
                    entry.error = relative_error(real.detach(), exact)
                    lost.returned(entry.error, float(exact.norm()))
        return out

    def _of(self, call: TracedCall | None, given: list[torch.Tensor]) -> Lost | None:
        """Return what is known of a call, with the errors of what comes into it from outside."""
        if call is None or self._trace is None:
            return None
        lost = self._calls.get(call)
        if lost is None:
            lost = self._calls[call] = Lost(self._unit() if call.func is not None else "", call.node is not None)
        for x in given:
            if _is_shadowed(x) and (entry := self._entry(x)).call is not call:
                lost.given = max(lost.given, entry.error)
        return lost

    def settle(self) -> list[tuple[OpRecord, Lost]]:
        """Return each op that ran, with what it lost, and let the program's tensors go."""
        ran = ((call.record, call, lost) for call, lost in self._calls.items() if call.record)
        found = sorted(ran, key=lambda one: one[0].number)
        units = {record.number: lost.unit for record, _, lost in found}
        for _, call, lost in found:
            lost.unit = lost.unit or (units.get(call.forward.number, "") if call.forward else "")
        self._calls.clear()
        self._known.clear()
        return [(record, lost) for record, _, lost in found]

    def _in_float64(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return what a kernel gives on the shadows; None where it draws random numbers or has no float64."""
        name = overload_name(func)
        if name.startswith("_amp_foreach"):  # takes its factor in float32 alone; a GradScaler's is a power of 2
            return func([self._exact(x) for x in args[0]], *(x.clone() for x in args[1:]))
        if torch.Tag.nondeterministic_seeded in func.tags or name.startswith("_amp_"):
            return None
        # What is written must not be written twice.
        other = torch.clone if func._schema.is_mutable else lambda x: x
        try:
            return _run(func, args, kwargs, lambda x: self._exact(x) if _is_shadowed(x) else other(x))
        except Exception:  # whatever a kernel says that has no float64
            return None

    def _entry(self, x: torch.Tensor) -> _Shadow:
        storage = x.untyped_storage()
        reference = StorageWeakRef(storage)
        known = self._known.get((reference.cdata, x.dtype))
        if known is None or known.storage.expired():
            flat = x.detach().as_strided((storage.nbytes() // x.element_size(),), (1,), 0)
            known = self._add(reference, x.dtype, flat.to(torch.float64, copy=True))
        return known

    def _put(self, x: torch.Tensor, exact: torch.Tensor) -> _Shadow:
        """Make the shadow of a new tensor."""
        reference, elements = StorageWeakRef(x.untyped_storage()), x.untyped_storage().nbytes() // x.element_size()
        if exact.dtype != torch.float64 or exact.stride() != x.stride() or x.storage_offset() != exact.storage_offset():
            flat = torch.zeros(elements, dtype=torch.float64, device=x.device)
            flat.as_strided(x.size(), x.stride(), x.storage_offset()).copy_(exact)
            exact = flat
        return self._add(reference, x.dtype, exact)

    def _add(self, reference: StorageWeakRef, dtype: torch.dtype, exact: torch.Tensor) -> _Shadow:
        if len(self._known) > self._limit:
            self._known = {key: one for key, one in self._known.items() if not one.storage.expired()}
            self._limit = max(1024, 2 * len(self._known))
        shadow = self._known[reference.cdata, dtype] = _Shadow(reference, dtype, exact, 0.0, None)
        return shadow

    def _exact(self, x: torch.Tensor) -> torch.Tensor:
        return self._entry(x).exact.as_strided(x.size(), x.stride(), x.storage_offset())


def _is_shadowed(x: torch.Tensor) -> bool:
    return x.dtype in (*_NARROW, torch.float64) and x.layout is torch.strided and not x.is_meta and type(x) in _PLAIN


_PLAIN = (torch.Tensor, torch.nn.Parameter)


def _run(func: OpOverload, args: Any, kwargs: Any, wide: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """Run a kernel in float64. `wide`: gives each tensor."""

    def change(x: Any) -> Any:
        return wide(x) if isinstance(x, torch.Tensor) else torch.float64 if x in _NARROW else x

    if overload_name(func) in ("_softmax", "_log_softmax"):  # the last argument asks for float32 out of float16
        args = (*args[:2], False)
    return func(*pytree.tree_map(change, args), **pytree.tree_map(change, kwargs))
