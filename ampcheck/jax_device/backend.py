"""`torch.jax`: what PyTorch asks of a device's module, and the making of the device."""

from __future__ import annotations

import sys
import types
import warnings
from typing import Any

import jax
import torch
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

from ampcheck.jax_device import random

NAME = "jax"


class Module(types.ModuleType):
    """The module `torch.jax`."""

    @staticmethod
    def is_available() -> bool:
        """Whether JAX has a device to compute on."""
        return bool(jax.local_devices())

    @staticmethod
    def is_initialized() -> bool:
        """Always: JAX starts its backend by itself."""
        return True

    @staticmethod
    def init() -> None:
        """Nothing to do: JAX starts its backend by itself."""

    @staticmethod
    def device_count() -> int:
        """One: several JAX devices are one PyTorch device, over which tensors are sharded by a mesh."""
        return 1

    @staticmethod
    def current_device() -> int:
        """The index of the one device."""
        return 0

    @staticmethod
    def set_device(device: Any) -> None:
        """Nothing to do: there is one device."""

    @staticmethod
    def manual_seed(seed: int) -> None:
        """Start the random numbers of that seed."""
        random.default.manual_seed(int(seed))

    manual_seed_all = manual_seed

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Returns when all work given to the device is done."""
        jax.effects_barrier()
        for array in jax.live_arrays():
            array.block_until_ready()


def make() -> None:
    """Make `torch.device("jax")`. Raises RuntimeError where PrivateUse1 has another name already."""
    jax.config.update("jax_enable_x64", True)  # float64 and int64 as PyTorch defines them
    import torchax  # noqa: F401  # names PrivateUse1 "jax" and registers its module, which ours replaces

    module = Module(f"torch.{NAME}")
    if hasattr(torch, NAME):
        delattr(torch, NAME)
    sys.modules.pop(f"torch.{NAME}", None)
    _setup_privateuseone_for_python_backend(rename=NAME, backend_module=module)
    sys.modules[f"torch.{NAME}"] = module
