"""Accelerate, and with it the Trainer of transformers: who trains on the CPU beside the device is told.

Accelerate goes through the devices that it knows by name, and a device that it is given comes from the environment.
"""

import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence

import torch

from ampcheck.jax_device.annotations import NAME, Tree

_STATE = "accelerate.state"


def _tell(module: types.ModuleType) -> None:
    """Have Accelerate warn where it takes the CPU unasked."""
    state = module.PartialState
    chosen = state.default_device.fget

    def default_device(self: Tree) -> torch.device:
        device: torch.device = chosen(self)
        if device.type == "cpu":
            warnings.warn(
                f"accelerate does not know the {NAME} device, which stays unused, and takes the CPU. Before the first "
                f'Accelerator or TrainingArguments, set os.environ["ACCELERATE_TORCH_DEVICE"] = "{NAME}", or "cpu" to '
                "keep it",
                UserWarning,
                stacklevel=3,
            )
        return device

    state.default_device = property(default_device)


class _AtImport(importlib.abc.MetaPathFinder):
    """Waits for the import of the module, which takes seconds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != _STATE:
            return None
        sys.meta_path.remove(self)
        spec = importlib.machinery.PathFinder.find_spec(fullname, path)
        if spec is not None and spec.loader is not None:
            run = spec.loader.exec_module

            def exec_module(module: types.ModuleType) -> None:
                run(module)
                _tell(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def install() -> None:
    """Watch for Accelerate, once a process."""
    if _STATE in sys.modules:
        _tell(sys.modules[_STATE])
    else:
        sys.meta_path.insert(0, _AtImport())
