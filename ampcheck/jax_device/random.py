"""Where random numbers come from: counter-based keys, so that a seed fixes what follows, also inside `jit`.

The default generator is seeded by `torch.manual_seed`. An op may be given a CPU `torch.Generator` or this module's.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import torch


class State:
    """A stream of random keys: the seed, and how many keys were drawn."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.drawn = seed, 0
        self._lock = threading.Lock()

    def manual_seed(self, seed: int) -> None:
        """Start the stream of that seed anew."""
        with self._lock:
            self.seed, self.drawn = seed, 0

    def key(self) -> np.ndarray[Any, np.dtype[np.uint32]]:
        """The next raw threefry key: two words mixed of seed and count on the host, without a device op."""
        with self._lock:
            self.drawn += 1
            drawn = self.drawn
        mixed = np.random.SeedSequence([self.seed & (2**64 - 1), drawn])
        return mixed.generate_state(2, np.uint32)


default = State()


class _Traced(threading.local):
    base: Any = None
    drawn = 0


_traced = _Traced()


@contextlib.contextmanager
def traced(base: Any) -> Iterator[None]:
    """Inside, keys are derived from `base`, a traced raw key, on this thread."""
    before = _traced.base, _traced.drawn
    _traced.base, _traced.drawn = base, 0
    try:
        yield
    finally:
        _traced.base, _traced.drawn = before


def next_key(generator: torch.Generator | None) -> Any:
    """The raw key for one random op."""
    if generator is not None:
        return np.asarray(torch.randint(2**32, (2,), generator=generator, dtype=torch.int64).numpy(), np.uint32)
    if _traced.base is not None:
        _traced.drawn += 1
        return jax.random.fold_in(_traced.base, _traced.drawn)
    return default.key()
