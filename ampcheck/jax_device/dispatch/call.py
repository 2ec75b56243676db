"""The arguments of a call, taken apart: what is part of the program, and what is given to it anew each time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import torch

from ampcheck.jax_device.annotations import NAME, Kwargs, Tree
from ampcheck.jax_device.dispatch.schema import Argument, Kind
from ampcheck.jax_device.storage import transfer
from ampcheck.jax_device.storage.arrays import alias, contents, wrap
from ampcheck.jax_device.storage.layout import Layout, contiguous
from ampcheck.jax_device.torch_private import conj, neg_view


class Slot(NamedTuple):
    """How a tensor argument is read: which of the program's arrays it lies in, its place there, its PyTorch dtype.

    `conj` and `neg` are PyTorch's lazy bits: some overloads (mm, clone) get tensors that have them.
    """

    place: int
    layout: Layout | None
    dtype: torch.dtype
    conj: bool = False
    neg: bool = False


class NumberSlot(NamedTuple):
    """A number that is given anew at each call: which of the program's numbers, and its Python type."""

    place: int
    kind: type


class Fixed(NamedTuple):
    """A number that is part of the program. Its type is kept beside it, because 1, 1.0 and True are equal."""

    kind: type
    value: complex


Taken = Any
"""An argument as a program is found by it: slots and fixed numbers in tuples, or a plain value."""
Key = tuple[Any, ...]
"""What programs are found by; it is hashed."""


class Call:
    """The arguments of one call, taken apart into a key, arrays and numbers."""

    def __init__(
        self, name: str, named: Mapping[str, Argument], static: bool, args: Sequence[Tree], kwargs: Kwargs
    ) -> None:
        self.arrays: list[jax.Array | np.ndarray] = []
        self.numbers: list[Tree] = []
        self.generator: torch.Generator | None = None
        self._shapes: list[tuple[int, ...]] = []
        self._name, self._static = name, static
        given = [(a, self._taken(a, value)) for a, value in zip(named.values(), args, strict=False)]
        by_name = {key: self._taken(named[key], value) for key, value in kwargs.items()}
        self.args = tuple(value for a, value in given if a.kind is not Kind.GENERATOR)
        self.kwargs = {key: value for key, value in by_name.items() if named[key].kind is not Kind.GENERATOR}
        # The default dtype is that of factories, and of what an op computes of integers.
        self.key = (self.args, tuple(self.kwargs.items()), tuple(self._shapes), torch.get_default_dtype())

    def _taken(self, argument: Argument, value: Tree) -> Taken:
        kind = argument.kind
        if kind is Kind.TENSOR:
            return self._tensor(value)
        if kind is Kind.TENSORS:
            return tuple(self._tensor(v) for v in value) if value is not None else None
        if kind is Kind.GENERATOR:
            self.generator = value
            return None
        if kind is Kind.NUMBER:
            return self._number(value)
        if kind is Kind.NUMBERS:
            return tuple(self._number(v) for v in value)
        return tuple(value) if isinstance(value, (list, torch.Size)) else value

    def _number(self, value: Tree) -> Taken:
        if value is None or isinstance(value, str):
            return value
        # A `SymFloat` is no float to isinstance, and must not be asked for its value.
        if value.__class__ is torch.SymFloat:  # a number that jit traces
            self.numbers.append(value.node.traced)
            return NumberSlot(len(self.numbers) - 1, torch.SymFloat)
        if self._static:
            return Fixed(type(value), value)
        self.numbers.append(value)
        return NumberSlot(len(self.numbers) - 1, type(value))

    def _tensor(self, value: Tree) -> Taken:
        if value is None:
            return None
        if not isinstance(value, torch.Tensor):
            return self._number(value)
        if value.device.type != NAME:
            value = transfer.guest(value, self._name)
            if not isinstance(value, torch.Tensor):
                self.arrays.append(value)
                self._shapes.append(())
                return Slot(len(self.arrays) - 1, None, transfer.dtype_of(value))
        array = contents(value)
        self.arrays.append(array)
        self._shapes.append(array.shape)
        # Most tensors are all of their storage: no layout is then part of the key, nor read in the program.
        natural = array.shape == value.shape and value.is_contiguous()
        layout = None if natural else Layout.of(value)
        return Slot(len(self.arrays) - 1, layout, value.dtype, value.is_conj(), value.is_neg())


def given_again(call: Call) -> tuple[list[Tree], Kwargs]:
    """Return the arguments of a call again, tensors on its arrays, without its generator."""

    def given(taken: Taken) -> Tree:
        if isinstance(taken, Slot):
            whole = wrap(jax.numpy.asarray(call.arrays[taken.place]))
            whole = whole if taken.layout is None else alias(whole, *taken.layout)
            whole = neg_view(whole) if taken.neg else whole
            return conj(whole) if taken.conj else whole
        if isinstance(taken, NumberSlot):
            return call.numbers[taken.place]
        if isinstance(taken, Fixed):
            return taken.value
        return [given(v) for v in taken] if isinstance(taken, tuple) else taken

    return [given(v) for v in call.args], {name: given(v) for name, v in call.kwargs.items()}


def meta(call: Call, taken: Taken) -> Tree:
    """Return the argument for PyTorch's Meta kernel."""
    if isinstance(taken, Slot):
        size = call.arrays[taken.place].shape if taken.layout is None else taken.layout.size
        stride = contiguous(size) if taken.layout is None else taken.layout.stride
        return torch.empty_strided(size, stride, dtype=taken.dtype, device="meta")
    if isinstance(taken, NumberSlot):
        return 1.0 if taken.kind is torch.SymFloat else call.numbers[taken.place]
    if isinstance(taken, Fixed):
        return taken.value
    if isinstance(taken, tuple):
        return [meta(call, v) for v in taken]
    return torch.device("meta") if isinstance(taken, torch.device) else taken
