"""`torch.jax`: what PyTorch asks of a device's module, and the making of the device."""

import functools
import sys
import types
from collections.abc import Sequence

import jax
import torch

from ampcheck.jax_device import device as devices
from ampcheck.jax_device import disk_cache, random
from ampcheck.jax_device.annotations import NAME, Tree
from ampcheck.jax_device.dispatch import checks
from ampcheck.jax_device.interop import functions, libraries
from ampcheck.jax_device.jit.watch import install_flex
from ampcheck.jax_device.storage import moving, overrides
from ampcheck.jax_device.torch_private import InductorBackend, setup_backend

_begun = False


_OF_DEVICES = (
    "is_available", "is_initialized", "init", "device_count", "current_device", "set_device", "device", "device_of",
    "get_device_name", "get_device_properties", "get_device_capability", "memory_stats", "memory_allocated",
    "max_memory_allocated", "memory_reserved", "max_memory_reserved", "mem_get_info", "empty_cache",
    "reset_peak_memory_stats", "Stream", "current_stream", "stream", "synchronize",
)  # fmt: skip
_OF_RANDOM = (
    "manual_seed", "seed", "initial_seed", "get_rng_state", "set_rng_state", "get_rng_state_all", "set_rng_state_all",
)  # fmt: skip


def _module() -> types.ModuleType:
    """Make the module `torch.jax`."""
    module = types.ModuleType(f"torch.{NAME}", "What PyTorch asks of a device's module.")
    vars(module).update(
        {name: getattr(devices, name) for name in _OF_DEVICES},
        **{name: getattr(random, name) for name in _OF_RANDOM},
        Event=devices.DeviceEvent,
        Generator=random.DeviceGenerator,
        default_stream=devices.current_stream,
        manual_seed_all=random.manual_seed,
        seed_all=random.seed,
        set_checks=checks.set_checks,
        get_checks=checks.get_checks,
        fallback_allocator=overrides.install(),
        _initialized=True,  # torch.utils.checkpoint looks at it before it keeps the random state
        _is_in_bad_fork=lambda: False,
    )
    return module


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
    module = _module()
    if hasattr(torch, NAME):
        delattr(torch, NAME)
    sys.modules.pop(f"torch.{NAME}", None)
    setup_backend(rename=NAME, backend_module=module)
    sys.modules[f"torch.{NAME}"] = module
    functions.install()
    libraries.install()
    random.install()
    devices.install()
    _compile_by_default()
    _profile_on_the_host()
    moving.install()
    install_flex()
