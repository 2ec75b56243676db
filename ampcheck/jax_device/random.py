"""Where random numbers come from: counter-based keys, so that a seed fixes what follows, also inside `jit`.

The default generator is seeded by `torch.manual_seed`. An op may be given a CPU `torch.Generator`, which is drawn from,
or this module's `Generator`, which says that it is the device's. PyTorch asks a C++ hook for
`torch.Generator(device="jax")`, which a device made in Python cannot provide, so `torch.Generator` is replaced.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

import jax
import numpy as np
import torch

from ampcheck.jax_device.annotations import Device
from ampcheck.jax_device.device import index_of, replace
from ampcheck.jax_device.torch_private import CGenerator

_WORD = 2**64 - 1
RawKey = np.ndarray[tuple[int, ...], np.dtype[np.uint32]] | jax.Array
"""A threefry key of JAX: two words, on the host or in a program."""


class KeyStream:
    """A stream of random keys: the seed, and how many keys were drawn."""

    def __init__(self, seed: int = 0) -> None:
        self.seed, self.drawn = seed, 0
        self._lock = threading.Lock()

    def manual_seed(self, seed: int) -> None:
        """Start the stream of that seed anew. Raises RuntimeError for one outside [-2**63, 2**64)."""
        if not -(2**63) <= seed <= _WORD:
            raise RuntimeError(f"a seed lies between -2**63 and 2**64 - 1; this one is {seed}")
        with self._lock:
            self.seed, self.drawn = seed & _WORD, 0

    def key(self) -> RawKey:
        """Return the next raw threefry key: two words mixed of seed and count on the host, without a device op."""
        with self._lock:
            self.drawn += 1
            seed, drawn = self.seed, self.drawn
        # mixed on the host: a device op for each key would cost more than most ops
        return np.random.SeedSequence([seed & _WORD, drawn]).generate_state(2, np.uint32).astype(np.uint32)

    def get_state(self) -> torch.Tensor:
        """Return 16 bytes, as a CPU uint8 tensor: the seed and the number of keys drawn."""
        with self._lock:
            words = np.array([self.seed, self.drawn], np.uint64)
        return torch.from_numpy(words.view(np.uint8).copy())

    def set_state(self, state: torch.Tensor) -> None:
        """Go on from where `get_state` was called. Raises RuntimeError for what is no such state."""
        if state.device.type != "cpu" or state.dtype is not torch.uint8 or state.shape != (16,):
            raise RuntimeError(
                "a jax random state is a CPU uint8 tensor of 16 elements; this one is "
                f"{state.dtype} of shape {list(state.shape)} on {state.device}"
            )
        seed, drawn = state.numpy().copy().view(np.uint64)
        with self._lock:
            self.seed, self.drawn = int(seed), int(drawn)


default = KeyStream()


class DeviceGenerator(CGenerator):
    """A stream of random numbers of the jax device, apart from the default one: `torch.jax.Generator`.

    Random ops of the device accept it as `generator=`. It is a CPU generator whose `device` says jax: an op draws its
    JAX key from it, so `manual_seed`, `get_state` and the rest are the CPU generator's.
    """

    def __new__(cls, device: Device = "jax") -> DeviceGenerator:
        if isinstance(device, (str, torch.device)) and torch.device(device).type != "jax":
            raise RuntimeError(f"a torch.jax.Generator lives on the jax device, not on {device}")
        index_of(device)
        return super().__new__(cls)

    def __init__(self, device: Device = "jax") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("jax", 0)

    def clone_state(self) -> DeviceGenerator:
        return _restored(self.get_state())

    def __reduce__(self) -> tuple[Callable[[torch.Tensor], DeviceGenerator], tuple[torch.Tensor]]:  # type: ignore[override]
        return _restored, (self.get_state(),)


def _restored(state: torch.Tensor) -> DeviceGenerator:
    made = DeviceGenerator()
    made.set_state(state)
    return made


def install() -> None:
    """Replace `torch.Generator`, once a process."""
    replace(CGenerator, DeviceGenerator, "cpu")


class _Traced(threading.local):
    base: RawKey | None = None
    drawn = 0


_traced = _Traced()


@contextlib.contextmanager
def traced(base: RawKey) -> Iterator[None]:
    """Derive keys from `base`, a traced raw key, on this thread while inside."""
    before = _traced.base, _traced.drawn
    _traced.base, _traced.drawn = base, 0
    try:
        yield
    finally:
        _traced.base, _traced.drawn = before


def drew() -> bool:
    """Return whether a key was derived inside of `traced` on this thread."""
    return _traced.drawn > 0


def next_key(generator: torch.Generator | None) -> RawKey:
    """Return the raw key for one random op."""
    if generator is not None:
        if _traced.base is not None:
            raise RuntimeError(
                "an op inside of jit was given a generator, whose numbers would be the same at every call; "
                "leave it out, so that the default generator's are new at each"
            )
        drawn = torch.randint(2**32, (2,), generator=generator, dtype=torch.int64, device="cpu")
        return np.asarray(drawn.numpy(), np.uint32)
    if _traced.base is not None:
        _traced.drawn += 1
        return jax.random.fold_in(_traced.base, _traced.drawn)
    return default.key()
