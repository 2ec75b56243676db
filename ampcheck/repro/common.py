"""What the reproductions of ops, scenarios and programs share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from ampcheck.devices.base import Device


def pytest_line(
    node: str, device: Device, modules: Sequence[str] = (), *, installed: bool = False, further: Sequence[str] = ()
) -> str:
    """The command that runs one case and nothing else, quoted for a shell.

    `modules`: what `--device-module` named. `installed`: where the repository's conftest.py, which loads the plugin,
    may not be there. `further`: options without which the case would not exist.
    """
    program = ["pytest", "-p", "ampcheck.plugin"] if installed else ["pytest"]
    options = [f"--device-module={module}" for module in modules]
    return shlex.join([*program, node, f"--device={device.name}", *options, *further])


def preamble(device: Device, modules: Sequence[str] = ()) -> list[str]:
    """The lines that make a device usable in plain torch. On a virtual device `fake` is the mode its tensors live in.

    `modules`: what `--device-module` named.
    """
    if device.has_values or not device.name.startswith("virtual:"):
        return ["import torch", *_backend(device, modules)]
    lines = ["import torch", "from torch._subclasses.fake_tensor import FakeTensorMode"]
    if device.type == "cuda":  # torch.autocast("cuda") switches itself off where CUDA is absent
        lines += [
            "torch.cuda.amp.common.amp_definitely_not_available = lambda: False",
            "torch.cuda.is_bf16_supported = lambda *args: True",
        ]
    return [*lines, "fake = FakeTensorMode(allow_non_fake_inputs=True)", "fake.__enter__()"]


def _backend(device: Device, modules: Sequence[str]) -> list[str]:
    """The import of a third party's backend: the module that declares the device, or else that of its class."""
    declared = (name for name in modules if device in getattr(sys.modules.get(name), "DEVICES", ()))
    own = type(device).__module__
    name = next(declared, own)
    if name.partition(".")[0] == "ampcheck":
        return []
    lines = [f"import {name}"]
    if type(device).tensor is not Device.tensor:
        lines.append(f"# {type(device).__name__} makes its tensors by itself; x.to({device.type!r}) must work here.")
    return lines


def named(values: Sequence[tuple[str, str]]) -> str:
    """Keyword arguments as written in a call."""
    return "".join(f", {name}={value}" for name, value in values)
