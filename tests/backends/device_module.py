"""The module `torch.<name>` of the PrivateUse1 backends in this folder."""

import types
from typing import Any

import torch


class DeviceModule(types.ModuleType):
    """One device, which draws from the CPU's generator. It says nothing of autocast."""

    @staticmethod
    def is_available() -> bool:
        return True

    @staticmethod
    def is_initialized() -> bool:
        return True

    @staticmethod
    def device_count() -> int:
        return 1

    @staticmethod
    def current_device() -> int:
        return 0

    @staticmethod
    def synchronize(device: Any = None) -> None:
        """Kernels have ended when they return."""

    @staticmethod
    def get_rng_state(device: Any = None) -> torch.Tensor:
        return torch.get_rng_state()

    @staticmethod
    def set_rng_state(state: torch.Tensor, device: Any = None) -> None:
        torch.set_rng_state(state)

    @staticmethod
    def manual_seed_all(seed: int) -> None:
        """The CPU's generator draws for the device."""

    @staticmethod
    def _is_in_bad_fork() -> bool:
        return False
