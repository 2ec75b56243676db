"""Where random numbers come from: counter-based keys, so that a seed fixes what follows, also inside `jit`.

The default generator is seeded by `torch.manual_seed`. An op may be given a CPU `torch.Generator`, which is drawn from,
or this module's `Generator`, which says that it is the device's. PyTorch asks a C++ hook for
`torch.Generator(device="jax")`, which a device made in Python cannot provide, so `torch.Generator` is replaced.
"""

import contextlib
import gc
import secrets
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence

import jax
import numpy as np
import torch

from ampcheck.jax_device.annotations import NAME, Device
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

    def __new__(cls, device: Device = "jax") -> "DeviceGenerator":
        if isinstance(device, (str, torch.device)) and torch.device(device).type != "jax":
            raise RuntimeError(f"a torch.jax.Generator lives on the jax device, not on {device}")
        index_of(device)
        return super().__new__(cls)

    def __init__(self, device: Device = "jax") -> None:
        super().__init__()

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("jax", 0)

    def clone_state(self) -> "DeviceGenerator":
        return _restored(self.get_state())

    def __reduce__(self) -> "tuple[Callable[[torch.Tensor], DeviceGenerator], tuple[torch.Tensor]]":  # type: ignore[override]
        return _restored, (self.get_state(),)


def _restored(state: torch.Tensor) -> DeviceGenerator:
    made = DeviceGenerator()
    made.set_state(state)
    return made


def install() -> None:
    """Replace `torch.Generator`, once a process."""
    replace(CGenerator, DeviceGenerator, "cpu")


class _Traced(threading.local):
    """The random numbers of a trace: keys derived from the program's, or those of a seed that was set inside."""

    base: RawKey | None = None
    drawn = 0
    most = 0
    """How far keys were ever derived."""
    seeded: KeyStream | None = None
    mark = 0
    """Stands for the program's seed in a state that is asked for inside."""
    states: Sequence[weakref.ref[torch.Tensor]] = ()


_traced = _Traced()


@contextlib.contextmanager
def traced(base: RawKey) -> Iterator[None]:
    """Derive keys from `base`, a traced raw key, on this thread while inside."""
    before = dict(vars(_traced))
    vars(_traced).update(base=base, drawn=0, most=0, seeded=None, mark=secrets.randbits(64), states=[])
    try:
        yield
    finally:
        vars(_traced).clear()
        vars(_traced).update(before)


def drew() -> bool:
    """Return whether a key was derived inside of `traced` on this thread."""
    return _traced.most > 0


def kept() -> str:
    """Return what the function traced on this thread leaves of random state, as a program would not; else ""."""
    if _traced.seeded is not None:
        return "seeds the random numbers"
    for collect in (lambda: 0, gc.collect):
        collect()
        if all(state() is None for state in _traced.states):
            return ""
    return "keeps the state of the random numbers"


def get_rng_state(device: Device = NAME) -> torch.Tensor:
    """Return where the default random numbers are, in a trace those of the program: 16 elements of uint8 on the CPU."""
    if _traced.base is None:
        return default.get_state()
    inside = _traced.seeded or KeyStream(_traced.mark)
    if _traced.seeded is None:
        inside.drawn = _traced.drawn
    state = inside.get_state()
    _traced.states = [*_traced.states, weakref.ref(state)]
    return state


def set_rng_state(new_state: torch.Tensor, device: Device = NAME) -> None:
    """Go on from where `get_rng_state` was called. A state from outside of a trace is a seed inside of it.

    Raises RuntimeError for what is no such state.
    """
    if _traced.base is None:
        return default.set_state(new_state)
    inside = KeyStream()
    inside.set_state(new_state)
    if inside.seed == _traced.mark:
        _traced.seeded, _traced.drawn = None, inside.drawn
    else:
        _traced.seeded = inside
    return None


def manual_seed(seed: int) -> None:
    """Start the default random numbers of that seed; in a trace, from here on."""
    stream = default
    if _traced.base is not None:
        stream = _traced.seeded = KeyStream()
    stream.manual_seed(int(seed))


def seed() -> int:
    """Start the random numbers of a seed from the operating system; returns it."""
    started = secrets.randbits(63)
    manual_seed(started)
    return started


def initial_seed() -> int:
    """Return the seed that the random numbers started from."""
    return default.seed


def get_rng_state_all() -> list[torch.Tensor]:
    """Return `get_rng_state` of each device: there is one."""
    return [get_rng_state()]


def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
    """Call `set_rng_state` for each device: there is one."""
    for state in new_states:
        set_rng_state(state)


@contextlib.contextmanager
def rebased(change: Callable[[RawKey], RawKey]) -> Iterator[None]:
    """Derive the keys of a trace from what `change` makes of its key while inside."""
    before = _traced.base
    if before is not None:
        _traced.base = change(before)
    try:
        yield
    finally:
        _traced.base = before


def next_key(generator: torch.Generator | None) -> RawKey:
    """Return the raw key for one random op."""
    if generator is not None:
        if _traced.base is not None:
            raise RuntimeError(
                "an op inside of jit was given a generator, whose numbers would be the same at each call"
            )
        drawn = torch.randint(2**32, (2,), generator=generator, dtype=torch.int64, device="cpu")
        return np.asarray(drawn.numpy(), np.uint32)
    if _traced.base is None:
        return default.key()
    if _traced.seeded is not None:
        return _traced.seeded.key()
    _traced.drawn += 1
    _traced.most = max(_traced.most, _traced.drawn)
    return jax.random.fold_in(_traced.base, _traced.drawn)
