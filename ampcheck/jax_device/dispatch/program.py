"""One compiled XLA program per overload, shapes, dtypes, strides and static arguments, and how it is found again.

The first call of a kind asks PyTorch's Meta kernel what comes out (shapes, strides, dtypes, and the errors PyTorch
raises), and makes a `jax.jit` function that reads the tensors from their storages' arrays, runs the lowering and puts
the results into PyTorch's dtypes. Later calls find that function by a key.
"""

from __future__ import annotations

import contextlib
import ctypes
import math
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

import jax
import numpy as np
import torch

from ampcheck.jax_device import random
from ampcheck.jax_device.annotations import Kernel, Kwargs, Tree
from ampcheck.jax_device.dispatch import promotion
from ampcheck.jax_device.dispatch.call import Call, Fixed, Key, NumberSlot, Slot, Taken, given_again, meta
from ampcheck.jax_device.dispatch.results import (
    PromisedResult,
    conform,
    made,
    plain,
    promised,
    single,
    structure,
)
from ampcheck.jax_device.dispatch.schema import Kind, arguments
from ampcheck.jax_device.dispatch.shapes import varying
from ampcheck.jax_device.lowering import Lowering, compiled, short_name
from ampcheck.jax_device.random import RawKey
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import wrap
from ampcheck.jax_device.storage.layout import Columns, by_columns, read, settled
from ampcheck.jax_device.torch_private import DisableTorchFunction, disable_current_modes, pytree
from ampcheck.register.torch_private import DispatchKey, DispatchKeySet, ExcludeDispatchKeyGuard, OpOverload

_Key: Any = DispatchKey  # its members are not in torch's stubs
# AutocastIPU is where jit watches (jit/watch.py).
_AUTOCAST = DispatchKeySet(_Key.AutocastPrivateUse1).add(_Key.AutocastIPU)
# Looking at a traced value: the lowering needs it as part of the program.
VALUE_NEEDED = (
    jax.errors.ConcretizationTypeError,
    jax.errors.NonConcreteBooleanIndexError,
    jax.errors.TracerBoolConversionError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
)


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Hide what happens inside from the caller's modes and from autocast."""
    with (
        DisableTorchFunction(),
        disable_current_modes(),
        ExcludeDispatchKeyGuard(_AUTOCAST),
    ):
        yield


class Functional:
    """A functional overload on the device: called with tensors, it runs the compiled program of its lowering.

    Raises NotImplementedError, naming the overload, where it has no lowering.
    """

    def __init__(self, op: OpOverload, lowering: Lowering) -> None:
        self.op, self.lowering = op, lowering
        self.name = short_name(op)
        self.arguments = tuple(
            a._replace(kind=Kind.NUMBER) if a.name in lowering.traced and a.kind is Kind.STATIC else a
            for a in arguments(op)
        )
        self.named = {a.name: a for a in self.arguments}
        self.static = lowering.static
        self.programs: dict[Key, Kernel] = {}
        self.known: dict[Key, Kernel] = {}
        """The programs by the keys of the fast path (kernels.py)."""

    def __call__(self, *args: Tree, **kwargs: Tree) -> Tree:
        return self.run(args, kwargs)[1]

    def run(self, args: Sequence[Tree], kwargs: Kwargs) -> tuple[Kernel, Tree]:
        """Return the program of this kind of call, and what it returned."""
        with DisableTorchFunction():
            call = Call(self.name, self.named, self.static, args, kwargs)
            program = self.programs.get(call.key)
            inputs = (random.next_key(call.generator),) if self.lowering.random else ()
            if program is not None:
                return program, program(*inputs, *call.arrays, *call.numbers)
            with quietly():
                return self._first(call, inputs)

    def _first(self, call: Call, inputs: tuple[RawKey, ...]) -> tuple[Kernel, Tree]:
        program, compiled = build(self, call)
        try:
            out = program(*inputs, *call.arrays, *call.numbers)
        except VALUE_NEEDED:
            if self.static or not call.numbers or self.lowering.concrete:
                raise
            self.static = True
            return self._first(Call(self.name, self.named, True, *given_again(call)), inputs)  # the same random key
        self.programs[call.key] = program
        program_cache.add(self, call.key, compiled)
        varying.note(self.name, call)
        return program, out


def _one_dtype(name: str, taken: list[Tree]) -> None:
    """Raise RuntimeError for tensors of several dtypes."""
    dtypes = {slot.dtype: None for slot in taken if isinstance(slot, Slot)}
    if len(dtypes) > 1:
        raise RuntimeError(f"aten::{name} expected tensors of the same dtype, but got {', '.join(map(str, dtypes))}")


class ProgramCache:
    """The programs in memory. Of more than `limit`, the oldest are dropped and compiled anew where they are needed."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._added = 0
        self._made: dict[tuple[int, Key], tuple[Functional, Kernel]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._made)

    def add(self, op: Functional, key: Key, compiled: Kernel) -> None:
        """Note a new program; `compiled` is its jitted function."""
        with self._lock:
            self._made[id(op), key] = (op, compiled)
            self._added += 1
            if self._added % _LOWERED == 0:
                _forget_lowered()
            if len(self._made) > self.limit:
                self._drop(list(self._made)[: self.limit // 4 + 1])

    def clear(self) -> None:
        """Drop every program."""
        with self._lock:
            self._drop(list(self._made))
            _forget_lowered()

    def _drop(self, keys: list[tuple[int, Key]]) -> None:
        for place in keys:
            op, compiled = self._made.pop(place)
            op.programs.pop(place[1], None)
            op.known.clear()  # it finds what is left again
            if hasattr(compiled, "clear_cache"):
                compiled.clear_cache()
        _trim()


program_cache = ProgramCache(2048)
_LOWERED = 16
"""After how many programs JAX is made to forget what it compiled them from."""


def _forget_lowered() -> None:
    """Drop the StableHLO of compiled programs, which JAX keeps with an MLIR context of a megabyte for each.

    A jitted function that is called with arguments of another kind, or lowered by hand, is lowered anew.
    """
    with contextlib.suppress(ImportError, AttributeError):  # private names of JAX
        from jax._src.interpreters.pxla import _cached_lowering_to_hlo  # noqa: PLC0415  # it may be gone
        from jax._src.pjit import _pjit_lower  # noqa: PLC0415  # it may be gone

        _pjit_lower.cache_clear()
        _cached_lowering_to_hlo.cache_clear()


def _trim() -> None:
    """Give freed memory back, which glibc keeps otherwise."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def _largest(call: Call, results: Sequence[PromisedResult | None] | None) -> int:
    """Return the elements of the largest array of a call."""
    made = (math.prod(r.size) for r in results or () if r is not None)
    return max([*(a.size for a in call.arrays), *made], default=1)


def _given(
    lowering: Lowering,
    common: np.dtype | None,
    held: Sequence[jax.Array],
    numbers: Sequence[jax.Array],
    taken: Taken,
) -> Tree:
    """Return an argument as the lowering takes it, inside the program: read from `held`, in the `common` dtype."""
    if isinstance(taken, Slot):
        if lowering.columns and taken.layout is not None and (rows := by_columns(taken.layout)) is not None:
            return Columns(settled(read(held[taken.place], rows), taken.conj, taken.neg))
        value = held[taken.place] if taken.layout is None else read(held[taken.place], taken.layout)
        value = settled(value, taken.conj, taken.neg)
        if common is not None:
            value = value.astype(common)
        return wrap(value) if lowering.torch_code else value
    if isinstance(taken, NumberSlot):
        return numbers[taken.place]
    if isinstance(taken, Fixed):
        return taken.value
    return [_given(lowering, common, held, numbers, t) for t in taken] if isinstance(taken, tuple) else taken


def build(op: Functional, call: Call) -> tuple[Kernel, Kernel]:
    """Return the program of one kind of call and its jitted function: keys, arrays and numbers in; tensors out.

    It is compiled at its first use.
    """
    lowering = op.lowering
    if lowering.one_dtype:
        _one_dtype(op.name, [*call.args, *call.kwargs.values()])
    meta_args = [meta(call, a) for a in call.args]
    meta_kwargs = {name: meta(call, a) for name, a in call.kwargs.items()}
    promotion.check(op.op, meta_args)
    results, alone = (None, False) if lowering.concrete else promised(op.op, meta_args, meta_kwargs)
    common = promotion.common([*meta_args, *meta_kwargs.values()]) if lowering.promotes else None
    template_args, template_kwargs, arrays = call.args, call.kwargs, len(call.arrays)

    lengths: list[int] = []  # of the lists among the results, known once the program is traced

    def compute(*inputs: jax.Array) -> Tree:
        keys, values = inputs[: lowering.random], inputs[lowering.random :]
        given = partial(_given, lowering, common, values[:arrays], values[arrays:])
        out = lowering.compute(*keys, *map(given, template_args), **{n: given(v) for n, v in template_kwargs.items()})
        flat = pytree.tree_leaves(out)
        if results == []:  # the op only checks its arguments
            flat = []
        lengths[:] = [
            len(o) if isinstance(o, (list, tuple)) else 1 for o in (out if isinstance(out, (list, tuple)) else ())
        ]
        if lowering.torch_code:
            flat = [transfer.values(o) if isinstance(o, torch.Tensor) else o for o in flat]
        return conform(op.name, flat, results)

    run = compute if lowering.concrete else compiled(compute, _largest(call, results))
    shapes = structure(op.op, lengths)

    if results is not None and alone and (only := results[0]) is not None and plain(only):
        return single(run, only), run

    def program(*inputs: jax.Array) -> Tree:
        out = run(*inputs)
        if results == []:
            return None
        wanted = results or [None] * len(out)
        return shapes([None if a is None else made(a, r) for a, r in zip(out, wanted, strict=True)])

    return program, run
