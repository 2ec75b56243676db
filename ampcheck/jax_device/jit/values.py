"""Values that Python asks for while a step is traced: a number that comes later, an outcome that a trace assumes."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import NoReturn, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import torch

from ampcheck.jax_device.annotations import Function, Tree
from ampcheck.jax_device.jit.optim import Traced, TracedNumber

Value = tuple[str, tuple[int, ...], bytes]
"""What an array held, NaNs and all, for comparisons: dtype, shape, bytes."""


class Asking(BaseException):
    """The trace needs a value that no one knows yet. No Exception, so that nothing of the caller's takes it."""


def value_of(array: jax.Array) -> Value:
    """Return the value of an array that was computed."""
    found = np.asarray(array)
    return found.dtype.name, found.shape, found.tobytes()


def array_of(value: Value) -> np.ndarray:
    """Return the array that had the value."""
    dtype, shape, content = value
    return np.frombuffer(content, jnp.dtype(dtype)).reshape(shape)


class Asker(Protocol):
    """The trace that a number belongs to."""

    numbers: list[weakref.ref[DeferredNumber]]

    def ask(self, array: TracedNumber) -> np.ndarray:
        """Return what the trace assumes of an array."""

    def look(self) -> NoReturn:
        """Raise ValueNeededError."""


class DeferredNumber(Traced):
    """A number that `item()` gives in a trace, or one computed of it: Python has it after the call.

    `kind`: float, int or bool.
    """

    def __init__(self, traced: TracedNumber, kind: type, asker: Asker) -> None:
        self.traced, self.kind, self.asker = traced, kind, asker
        asker.numbers.append(weakref.ref(self))

    @classmethod
    def of(cls, array: jax.Array, asker: Asker) -> DeferredNumber:
        """Return the number of an array of one element, weakly typed as a number of Python's is."""
        kind = float if jnp.issubdtype(array.dtype, jnp.floating) else int
        wide = np.dtype(np.float64 if kind is float else np.int64)
        number = jax.lax.convert_element_type_p.bind(array.reshape(()), new_dtype=wide, weak_type=True, sharding=None)
        return cls(number, kind, asker)

    def _with(self, traced: TracedNumber, kind: type | None = None) -> DeferredNumber:
        return DeferredNumber(traced, kind or self.kind, self.asker)

    def _look(self, *_: object) -> NoReturn:
        self.asker.look()

    guard_float = str = _graph_repr = is_integer = sym_sum = _look
    pow = float_pow = _look  # of which Python makes a float, a complex number or an error
    __str__ = _look

    def guard_bool(self, *_: object) -> bool:
        """Decide which way the trace goes."""
        return bool(self.asker.ask(self.traced if self.kind is bool else self.traced != 0))

    def guard_int(self, *_: object) -> int:
        """Return how many: the value of an integer, which is a size or an index as a rule."""
        return int(self.asker.ask(self.traced)) if self.kind is int else self.asker.look()

    int_ = guard_int

    def bool_(self) -> bool:
        """Decide as `guard_bool` does, where `if` asks."""
        return self.guard_bool()

    def maybe_as_int(self) -> None:
        """Return None: the number is not known yet."""

    maybe_as_float = maybe_as_bool = maybe_as_int

    def is_float(self) -> bool:
        return self.kind is float

    def is_int(self) -> bool:
        return self.kind is int

    def is_bool(self) -> bool:
        return self.kind is bool

    def wrap_float(self, number: float) -> DeferredNumber:
        return self._with(number, float)

    def wrap_int(self, number: int) -> DeferredNumber:  # type: ignore[override]
        return self._with(number, int)

    def sym_float(self) -> DeferredNumber:
        """Return float(x)."""
        return self._with(self.traced * 1.0, float)

    def truediv(self, other: Traced) -> DeferredNumber:
        """Return x / y, where y is a number other than 0, for which Python would raise."""
        if not isinstance(other.traced, (int, float)) or not other.traced:
            self.asker.look()
        return self._with(self.traced / other.traced, float)

    float_truediv = int_truediv = truediv

    def _compare(compute: Function) -> Callable[[DeferredNumber, DeferredNumber], DeferredNumber]:  # type: ignore[misc]
        def method(self: DeferredNumber, other: DeferredNumber) -> DeferredNumber:
            return self._with(compute(jnp.asarray(self.traced), other.traced), bool)

        return method

    eq, ne = _compare(jnp.equal), _compare(jnp.not_equal)
    lt, le = _compare(jnp.less), _compare(jnp.less_equal)
    gt, ge = _compare(jnp.greater), _compare(jnp.greater_equal)


def as_number(node: DeferredNumber) -> torch.SymFloat | torch.SymInt:
    """Return the number as PyTorch gives it to Python; an outcome is a bool."""
    return torch.SymFloat(node) if node.kind is float else torch.SymInt(node)


def deferred(value: Tree) -> DeferredNumber | None:
    """Return the node of a number that comes later."""
    symbolic = isinstance(value, (torch.SymFloat, torch.SymInt, torch.SymBool))
    return value.node if symbolic and isinstance(value.node, DeferredNumber) else None
