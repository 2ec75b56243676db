"""Libraries that know the device by its name alone: safetensors, TorchScript's files, torch.distributed, Accelerate."""

import functools
import importlib.abc
import importlib.machinery
import sys
import types
import warnings
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec

import torch
import torch.distributed as dist
from torch.library import Library
from torch.utils.weak import WeakTensorKeyDictionary

from ampcheck.jax_device.annotations import NAME, Device, Function, Tree
from ampcheck.jax_device.device import index_of
from ampcheck.jax_device.torch_private import pytree, torch_utils, work_of
from ampcheck.register.torch_private import OpOverload

_noted = WeakTensorKeyDictionary()


def install() -> None:
    """Replace what these libraries ask, once a process."""
    _safetensors()
    _torchscript()
    _metadata()
    _collectives()
    _accelerate()


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


_COLLECTIVES = (
    *("allreduce_", "allreduce_coalesced_", "reduce_", "broadcast_", "barrier"),
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    *("gather_", "gather_into_tensor_", "scatter_", "alltoall_", "alltoall_base_"),
    *("send", "recv_", "recv_any_source_"),
)
_libraries: list[Library] = []


def _tensors_in(given: Tree) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]


def _collective(op: OpOverload) -> Function:
    """Return the device's kernel of a collective: copy to the CPU, wait for gloo, write the results back."""
    names = [a.name for a in op._schema.arguments]
    written = [not name.startswith("input") and op.name() not in ("c10d::send", "c10d::barrier") for name in names]
    returns = len(op._schema.returns)

    def kernel(*args: Tree) -> Tree:
        on_host = pytree.tree_map_only(torch.Tensor, torch.Tensor.cpu, list(args))
        out = op(*on_host)
        dist.Work.unbox(out[-1] if returns > 1 else out).wait()
        changed = []
        with torch.no_grad():
            for ours, theirs, write in zip(args, on_host, written, strict=False):
                for tensor, values in zip(_tensors_in(ours), _tensors_in(theirs), strict=True) if write else ():
                    tensor.copy_(values)
                    changed.append(tensor)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[torch.device(NAME, 0)])
        future.set_result(changed)
        work = work_of(future).boxed()
        return (args[0], work) if returns > 1 else work

    return kernel


def _collectives() -> None:
    """Run `torch.distributed`'s collectives through gloo, on copies on the CPU.

    Gloo is made a backend of the device, so that `init_process_group("gloo")` and `"cpu:gloo,jax:gloo"` serve both.
    Processes are PyTorch's; devices of one process are reached by a mesh (`ampcheck.jax_device.mesh`).
    """
    if not (dist.is_available() and dist.is_gloo_available()):
        return
    capable = dist.Backend.backend_capability[dist.Backend.GLOO]
    if NAME not in capable:
        capable.append(NAME)
    dist.Backend.default_device_backend_map.setdefault(NAME, dist.Backend.GLOO)
    library = Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in _COLLECTIVES:
            if hasattr(torch.ops.c10d, name):  # torch 2.15 brought gather_into_tensor_
                library.impl(name, _collective(getattr(torch.ops.c10d, name).default), "PrivateUse1")
    _libraries.append(library)


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


def _accelerate() -> None:
    """Watch for Accelerate, and so the Trainer of transformers, to tell who trains on the CPU beside the device.

    It goes through the devices that it knows by name, and a device that it is given comes from the environment.
    """
    if _STATE in sys.modules:
        _tell(sys.modules[_STATE])
    else:
        sys.meta_path.insert(0, _AtImport())
