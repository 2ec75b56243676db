"""A CPU with three faults, two of them in one function, and one of these only where ampcheck enters the device."""

import warnings
from typing import Any

import torch
from torch.library import Library, fallthrough_kernel
from torch.overrides import TorchFunctionMode

from ampcheck.devices.cpu import Cpu


def kernel(name: str, tensor: torch.Tensor) -> Any:
    """Raise for each op, as the backend lacks it."""
    if name == "exp":
        raise ValueError(f"{name}: shape {tuple(tensor.shape)} of {tensor.dtype} is not done")
    raise RuntimeError(f"no kernel for {name} at {hex(id(tensor))}, see the list of kernels in its manual " + "m" * 300)


class Kernels(TorchFunctionMode):
    """The mode that the device enters."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__name__", "").startswith("exp") and torch.is_autocast_enabled("cpu"):
            kernel("exp", args[0])
        return func(*args, **(kwargs or {}))


with warnings.catch_warnings(action="ignore"):  # PyTorch warns where a kernel replaces another
    _aten = Library("aten", "IMPL")
    _aten.impl("mm", lambda a, b: kernel("mm", a), "AutocastCPU")
    _aten.impl("addmm", fallthrough_kernel, "AutocastCPU")


class Faulty(Cpu):
    """The device as ampcheck sees it."""

    name = "faulty"
    token = "faulty"
    compilers = ()
    deviations = None

    def activate(self) -> Any:
        return Kernels()


DEVICES = (Faulty(),)
