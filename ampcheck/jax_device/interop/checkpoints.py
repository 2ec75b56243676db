"""Files that other code than `torch.save` writes and reads: those of safetensors and of TorchScript."""

from __future__ import annotations

import functools
from importlib import import_module
from importlib.util import find_spec

import torch

from ampcheck.jax_device.annotations import Device, Function, Tree
from ampcheck.jax_device.device import index_of

_NAME = "jax"


def install() -> None:
    """Replace what writes and reads these files, once a process."""
    _safetensors()
    _torchscript()


def _safetensors() -> None:
    """Let `load_file(path, device="jax")` read to the device, where the package is installed.

    Its Rust code refuses names of devices that it does not know, and takes any index of the accelerator.
    """
    if find_spec("safetensors") is None:
        return
    modules = [import_module(name) for name in ("safetensors", "safetensors.torch")]
    opened = modules[0].safe_open

    @functools.wraps(opened)
    def safe_open(filename: Tree, framework: str, device: Device = "cpu", **options: Tree) -> Tree:
        if str(device).partition(":")[0] == _NAME:
            device = index_of(str(device))
        return opened(filename, framework, device=device, **options)

    for module in modules:
        module.safe_open = safe_open  # type: ignore[attr-defined]


def _torchscript() -> None:
    """Refuse scripted modules of the device: PyTorch's C++ would write and read empty storages."""
    if not hasattr(getattr(torch, "jit", None), "RecursiveScriptModule"):  # TorchScript is deprecated, and may be gone
        return
    load = torch.jit.load

    def refusing(write: Function) -> Function:
        @functools.wraps(write)
        def written(self: torch.nn.Module, *args: Tree, **kwargs: Tree) -> Tree:
            if any(t.device.type == _NAME for t in (*self.parameters(), *self.buffers())):
                raise RuntimeError(
                    "TorchScript cannot write tensors of the jax device: save module.cpu(), and move it back"
                )
            return write(self, *args, **kwargs)

        return written

    scripted = torch.jit.RecursiveScriptModule  # type: ignore[attr-defined]
    for kind in (scripted, torch.jit.ScriptModule):  # traced modules are of the latter
        for name in ("save", "save_to_buffer"):
            setattr(kind, name, refusing(vars(kind)[name]))

    @functools.wraps(load)
    def loaded(f: Tree, map_location: Device = None, *args: Tree, **kwargs: Tree) -> Tree:
        if map_location is not None and torch.device(map_location).type == _NAME:
            raise RuntimeError(
                "TorchScript cannot read tensors to the jax device: torch.jit.load(f, map_location='cpu').to('jax')"
            )
        return load(f, map_location, *args, **kwargs)

    torch.jit.load = loaded
