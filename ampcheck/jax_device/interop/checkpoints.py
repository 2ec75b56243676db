"""Files that other code than `torch.save` writes and reads: those of safetensors and of TorchScript."""

import functools
from importlib import import_module
from importlib.util import find_spec

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ampcheck.jax_device.annotations import NAME, Device, Function, Tree
from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.torch_private import torch_utils

_noted = WeakTensorKeyDictionary()


def install() -> None:
    """Replace what writes and reads these files, once a process."""
    _safetensors()
    _torchscript()
    _metadata()


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
        if str(device).partition(":")[0] == NAME:
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
            if any(t.device.type == NAME for t in (*self.parameters(), *self.buffers())):
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
        if map_location is not None and torch.device(map_location).type == NAME:
            raise RuntimeError(
                "TorchScript cannot read tensors to the jax device: torch.jit.load(f, map_location='cpu').to('jax')"
            )
        return load(f, map_location, *args, **kwargs)

    torch.jit.load = loaded


def _metadata() -> None:
    """Let `torch._utils.set_tensor_metadata` note what `torch.save` writes with a tensor of the device.

    PyTorch keeps it in C++ for devices that register functions there, and for others forgets it without a word.
    """
    read, write = torch_utils.get_tensor_metadata, torch_utils.set_tensor_metadata

    @functools.wraps(read)
    def get_tensor_metadata(tensor: torch.Tensor) -> dict[str, bool]:
        found: dict[str, bool] = read(tensor)
        return found | _noted.get(tensor, {}) if tensor.device.type == "jax" else found

    @functools.wraps(write)
    def set_tensor_metadata(tensor: torch.Tensor, metadata: dict[str, bool]) -> None:
        write(tensor, metadata)
        if tensor.device.type == "jax":
            _noted[tensor] = {name: value for name, value in metadata.items() if name not in ("conj", "neg")}

    torch_utils.get_tensor_metadata, torch_utils.set_tensor_metadata = get_tensor_metadata, set_tensor_metadata
