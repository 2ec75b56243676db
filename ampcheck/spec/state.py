"""The autocast state machine: what regions, the state functions and the weight cache do, as a model in plain Python.

A `Process` has threads; a `Thread` has, per device type, enabled and dtype, and over all of them one cache_enabled and
one nesting depth. The weight cache belongs to the process. Sources, all of PyTorch 2.13:

- regions: `torch/amp/autocast_mode.py`, class `autocast`, and https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast;
- what is thread-local, and the cache: `aten/src/ATen/autocast_mode.cpp`;
- which cast is cached: `cached_cast` in the same file, with pytorch/pytorch#165068 for inference mode.

Where an implementation breaks a promise by the way it keeps its books (a region object that holds one saved state and
is entered twice, a cache that forgets the dtype), the model keeps the promise and the difference is a deviation.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ampcheck.spec.casting import LOW, Expectation, Leaf, Policy, expect

DEFAULTS = {
    **dict.fromkeys(("cpu", "maia", "xla", "hpu"), "bf16"),
    **dict.fromkeys(("cuda", "xpu", "mps", "mtia", "ipu", "privateuseone"), "fp16"),
}
"""The dtype each device type starts a thread with: `autocast_dtype` in `aten/src/ATen/autocast_mode.cpp`."""


@dataclass(frozen=True, slots=True)
class State:
    """The state torch reports in a thread for one device type: `is_autocast_enabled`, `get_autocast_dtype`,
    `is_autocast_cache_enabled`, and the nesting depth, which counts regions of every device type."""

    enabled: bool
    dtype: str
    cache_enabled: bool
    depth: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor argument. `name` is its identity, needed only where its cast may be reused."""

    dtype: str
    on_device: bool = True
    name: str = ""
    requires_grad: bool = False
    is_leaf: bool = True
    is_view: bool = False

    @property
    def is_weight(self) -> bool:
        """Return whether its cast to the region's dtype is cached: a float32 leaf, not a view, that requires grad."""
        leaf = self.is_leaf and self.requires_grad and not self.is_view
        return bool(self.name) and self.on_device and self.dtype == "fp32" and leaf


@dataclass(frozen=True, slots=True)
class Outcome:
    """The expectation for the kernel of one call, and how many casts of its arguments are made for it.

    `casts` is smaller than the number of arguments that change dtype where the cache already has some of them.
    """

    expectation: Expectation
    casts: int


@dataclass(slots=True, eq=False)
class Region:
    """A constructed `torch.autocast`: its options are fixed now, and it may be entered any number of times.

    `warns` says that construction warns: the dtype is not supported, so the region is disabled. `saved` has one entry
    per time it is inside: whose state, and the state to put back.
    """

    device_type: str
    dtype: str
    enabled: bool
    cache_enabled: bool
    warns: bool = False
    saved: list[tuple["Thread", State]] = field(default_factory=list, repr=False)


@dataclass(slots=True)
class Process:
    """All threads of a process, and the weight cache they share.

    `defaults`: the dtype each device type starts with. `supported`: the dtypes a region of a device type may have; a
    type that is missing takes fp16 and bf16, and None means any (CUDA asks its driver and not a list).
    """

    defaults: Mapping[str, str] = field(default_factory=lambda: dict(DEFAULTS))
    supported: Mapping[str, Sequence[str] | None] = field(default_factory=lambda: {"cuda": None})
    cache: set[tuple[str, str]] = field(default_factory=set)
    """The casts that are kept: the weight's name and the dtype it was cast to."""

    def thread(self) -> "Thread":
        """Make a new thread: autocast off for every device type, default dtypes, cache on, depth 0."""
        return Thread(self)


class Thread:
    """One thread's autocast state and the operations on it."""

    def __init__(self, process: Process) -> None:
        self.process = process
        self._enabled: dict[str, bool] = {}
        self._dtype: dict[str, str] = {}
        self._cache_enabled = True
        self._depth = 0

    def state(self, device_type: str) -> State:
        """Return torch's state for a device type. Raises KeyError for a type the process does not know."""
        dtype = self._dtype.get(device_type) or self.process.defaults[device_type]
        return State(self._enabled.get(device_type, False), dtype, self._cache_enabled, self._depth)

    # ---- regions
    def construct(
        self, device_type: str, dtype: str | None = None, *, enabled: bool = True, cache_enabled: bool | None = None
    ) -> Region:
        """`torch.autocast(device_type, dtype, enabled, cache_enabled)`.

        Without a dtype the region takes the current `get_autocast_dtype(device_type)`, without `cache_enabled` the
        current flag; both stay what they are now, wherever the region is entered. An unsupported dtype warns and
        disables it.
        """
        now = self.state(device_type)
        taken = dtype or now.dtype
        supported = self.process.supported.get(device_type, LOW)
        warns = enabled and supported is not None and taken not in supported
        cache = now.cache_enabled if cache_enabled is None else cache_enabled
        return Region(device_type, taken, enabled and not warns, cache, warns)

    def enter(self, region: Region) -> None:
        """Set the region's state for its device type; other device types keep theirs."""
        region.saved.append((self, self.state(region.device_type)))
        self._enabled[region.device_type] = region.enabled
        self._dtype[region.device_type] = region.dtype
        self._cache_enabled = region.cache_enabled
        self._depth += 1

    def exit(self, region: Region) -> None:
        """Put back what `enter` in this thread found; leaving the outermost region of the thread drops the cache.

        An exception that leaves the region changes nothing of this. Raises ValueError where this thread is not inside.
        """
        place = next((i for i in reversed(range(len(region.saved))) if region.saved[i][0] is self), None)
        if place is None:
            raise ValueError(f"the thread is not inside this region of {region.device_type}")
        _, before = region.saved.pop(place)
        self._depth -= 1
        if self._depth == 0:
            self.clear_cache()
        self._enabled[region.device_type] = before.enabled
        self._dtype[region.device_type] = before.dtype
        self._cache_enabled = before.cache_enabled

    # ---- the state functions
    def set_enabled(self, device_type: str, enabled: bool) -> None:
        """`torch.set_autocast_enabled(device_type, enabled)`."""
        self._enabled[device_type] = enabled

    def set_dtype(self, device_type: str, dtype: str) -> None:
        """`torch.set_autocast_dtype(device_type, dtype)`."""
        self._dtype[device_type] = dtype

    def set_cache_enabled(self, enabled: bool) -> None:
        """`torch.set_autocast_cache_enabled(enabled)`; what is cached stays, and is used again once the cache is on."""
        self._cache_enabled = enabled

    def clear_cache(self) -> None:
        """`torch.clear_autocast_cache()`, which drops the casts of every thread."""
        self.process.cache.clear()

    # ---- ops
    def op(
        self,
        device_type: str,
        policy: Policy,
        overload: str,
        given: Sequence[Tensor],
        *,
        dtype_given: bool = False,
        inference: bool = False,
    ) -> Outcome:
        """Describe a call on tensors of a device type under the present state; see `ampcheck.spec.casting.expect`.

        `inference`: whether inference mode is on, where nothing is looked up in the cache or kept.
        """
        now = self.state(device_type)
        leaves = [Leaf(tensor.dtype, tensor.on_device) for tensor in given]
        expectation = expect(policy, overload, leaves, now.dtype, dtype_given=dtype_given, enabled=now.enabled)
        casts = 0
        for tensor, dtype in zip(given, expectation.leaves, strict=True):
            if dtype == tensor.dtype:
                continue
            key = (tensor.name, dtype)
            reuse = tensor.is_weight and now.cache_enabled and not inference and dtype == now.dtype
            if not (reuse and key in self.process.cache):
                casts += 1
            if reuse:
                self.process.cache.add(key)
        return Outcome(expectation, casts)
