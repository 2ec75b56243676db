"""`torch.jax`: what PyTorch asks of a device's module, and the making of the device."""

from __future__ import annotations

import functools
import secrets
import sys
import types
from collections.abc import Sequence

import jax
import torch

from ampcheck.jax_device import device as devices
from ampcheck.jax_device import disk_cache, random, streams
from ampcheck.jax_device.annotations import NAME, Device, Tree
from ampcheck.jax_device.device import index_of, properties
from ampcheck.jax_device.interop import checkpoints, distributed, dlpack
from ampcheck.jax_device.jit.watch import install_flex
from ampcheck.jax_device.storage import memory, moving, overrides
from ampcheck.jax_device.torch_private import InductorBackend, setup_backend

_begun = False


class DeviceModule(types.ModuleType):
    """The module `torch.jax`."""

    @staticmethod
    def is_available() -> bool:
        """Return whether JAX has a device to compute on."""
        return bool(jax.local_devices())

    @staticmethod
    def is_initialized() -> bool:
        """Return True: JAX starts its backend by itself."""
        return True

    @staticmethod
    def init() -> None:
        """Do nothing: JAX starts its backend by itself."""

    @staticmethod
    def device_count() -> int:
        """Return one: several JAX devices are one PyTorch device, over which tensors are sharded by a mesh."""
        return 1

    @staticmethod
    def current_device() -> int:
        """Return the index of the one device."""
        return 0

    @staticmethod
    def set_device(device: Device) -> None:
        """Raise RuntimeError for any device but the only one."""
        index_of(device)

    device = devices.device
    device_of = devices.device_of

    @staticmethod
    def get_device_name(device: Device = None) -> str:
        """Return the name of the kind of device, e.g. "cpu", "NVIDIA H200" or "TPU v5e"."""
        return properties(device).name

    get_device_properties = staticmethod(properties)
    get_device_capability = staticmethod(devices.capability)
    memory_stats = staticmethod(memory.memory_stats)
    memory_allocated = staticmethod(memory.memory_allocated)
    max_memory_allocated = staticmethod(memory.max_memory_allocated)
    memory_reserved = staticmethod(memory.memory_reserved)
    max_memory_reserved = staticmethod(memory.max_memory_reserved)
    mem_get_info = staticmethod(memory.mem_get_info)
    empty_cache = staticmethod(memory.empty_cache)
    reset_peak_memory_stats = staticmethod(memory.reset_peak_memory_stats)
    Stream = streams.Stream
    Event = streams.DeviceEvent
    current_stream = staticmethod(streams.current_stream)
    default_stream = staticmethod(streams.current_stream)
    stream = staticmethod(streams.stream)

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Start the random numbers of that seed."""
        random.default.manual_seed(int(seed))

    manual_seed_all = manual_seed

    Generator = random.DeviceGenerator
    _initialized = True  # torch.utils.checkpoint looks at it before it keeps the random state

    @staticmethod
    def seed() -> int:
        """Start the random numbers of a seed from the operating system; returns it."""
        random.default.manual_seed(secrets.randbits(63))
        return random.default.seed

    seed_all = seed

    @staticmethod
    def initial_seed() -> int:
        """Return the seed that the random numbers started from."""
        return random.default.seed

    @staticmethod
    def get_rng_state(device: Device = NAME) -> torch.Tensor:
        """Return where the default random numbers are: a CPU uint8 tensor of 16 elements."""
        return random.default.get_state()

    @staticmethod
    def set_rng_state(new_state: torch.Tensor, device: Device = NAME) -> None:
        """Go on from where `get_rng_state` was called. Raises RuntimeError for what is no such state."""
        random.default.set_state(new_state)

    @staticmethod
    def get_rng_state_all() -> list[torch.Tensor]:
        """Return `get_rng_state` of each device: there is one."""
        return [random.default.get_state()]

    @staticmethod
    def set_rng_state_all(new_states: list[torch.Tensor]) -> None:
        """Call `set_rng_state` for each device: there is one."""
        for state in new_states:
            random.default.set_state(state)

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    synchronize = staticmethod(memory.synchronize)


def _compile_by_default() -> None:
    """Let `torch.compile` without a backend take "jax" for graphs of the device, which Inductor cannot compile."""
    inductor = InductorBackend.__call__

    @functools.wraps(inductor)
    def compiled(self: Tree, graph: torch.fx.GraphModule, inputs: Sequence[Tree]) -> Tree:
        values = [*inputs, *(node.meta.get("example_value") for node in graph.graph.nodes)]
        if not any(isinstance(v, torch.Tensor) and v.device.type == NAME for v in values):
            return inductor(self, graph, inputs)
        from ampcheck.jax_device.compile import backend  # noqa: PLC0415  # Dynamo, which it loads, takes seconds

        return backend(graph, inputs)

    InductorBackend.__call__ = compiled


def _profile_on_the_host() -> None:
    """Let `torch.autograd.profiler.profile(use_device="jax")` note the host's times of ops.

    Without `use_kineto` PyTorch asks functions in C++ for the device's times, and prints a warning for each op.
    """
    profile = torch.autograd.profiler.profile
    made = profile.__init__

    @functools.wraps(made)
    def __init__(self: torch.autograd.profiler.profile, *args: Tree, **kwargs: Tree) -> None:
        if kwargs.get("use_device") == NAME:
            kwargs["use_kineto"] = True
        made(self, *args, **kwargs)

    profile.__init__ = __init__  # type: ignore[method-assign]


def make() -> None:
    """Make `torch.device("jax")`. Raises RuntimeError where PrivateUse1 has another name, or this was called before."""
    global _begun
    if _begun:  # an import that fails is tried again by the next import statement, and PyTorch keeps what it registered
        raise RuntimeError(
            "an import of ampcheck.jax_device failed in this process before, and PyTorch registers a device only once; "
            "mend what that import raised and start a new process"
        )
    jax.config.update("jax_enable_x64", True)  # float64 and int64 as PyTorch defines them
    disk_cache.install()
    import torchax  # noqa: F401, PLC0415  # not before x64 is on: it names PrivateUse1 "jax" and registers its module, which ours replaces

    _begun = True
    module = DeviceModule(f"torch.{NAME}")
    if hasattr(torch, NAME):
        delattr(torch, NAME)
    sys.modules.pop(f"torch.{NAME}", None)
    setup_backend(rename=NAME, backend_module=module)
    sys.modules[f"torch.{NAME}"] = module
    module.fallback_allocator = overrides.install()  # type: ignore[attr-defined]
    dlpack.install()
    checkpoints.install()
    distributed.install()
    random.install()
    streams.install()
    _compile_by_default()
    _profile_on_the_host()
    memory.install()
    moving.install()
    install_flex()
