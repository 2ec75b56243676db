"""Padding by what is inside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax.numpy as jnp
import numpy as np
from jax import Array

from ampcheck.jax_device.lowering import lower
from ampcheck.jax_device.lowerings.wide import transposed, widened

Ints = np.ndarray[tuple[int, ...], np.dtype[np.int64]]
Places = Callable[[int, int, int], Ints]
"""Where each element of a padded dimension comes from, of a length and the widths before and after it."""


def _reflected(length: int, before: int, after: int) -> Ints:
    places = np.arange(-before, length + after)
    places = np.abs(places)
    return np.where(places >= length, 2 * (length - 1) - places, places)


def _replicated(length: int, before: int, after: int) -> Ints:
    return np.clip(np.arange(-before, length + after), 0, length - 1)


def _padded(self: Array, padding: Sequence[int], places: Places) -> Array:
    """Pad by `padding`, which names (before, after) of the last dimension first."""
    for i in range(len(padding) // 2):
        axis = self.ndim - 1 - i
        where = places(self.shape[axis], padding[2 * i], padding[2 * i + 1])
        self = (
            jnp.take(self, where, axis=axis, mode="clip")
            if self.size
            else jnp.zeros((*self.shape[:axis], len(where), *self.shape[axis + 1 :]), self.dtype)
        )
    return self


def _register(kind: str, places: Places) -> None:
    names = [f"{kind}_pad{dims}d" for dims in (1, 2, 3)]

    @lower(*names)
    def forward(self: Array, padding: Sequence[int]) -> Array:
        return _padded(self, padding, places)

    @lower(*(f"{name}_backward" for name in names))
    @widened
    def backward(grad_output: Array, self: Array, padding: Sequence[int]) -> Array:
        return transposed(lambda x: _padded(x, padding, places), grad_output, self.shape)


_register("reflection", _reflected)
_register("replication", _replicated)
