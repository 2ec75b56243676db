"""`torch.distributed` for tensors of the device: its collectives run through gloo, on copies on the CPU.

Gloo is made a backend of the device, so that `init_process_group("gloo")` and `"cpu:gloo,jax:gloo"` serve both.
Processes are PyTorch's; devices of one process are reached by a mesh (`ampcheck.jax_device.mesh`).
"""

import warnings

import torch
import torch.distributed as dist
from torch.library import Library

from ampcheck.jax_device.annotations import NAME, Function, Tree
from ampcheck.jax_device.torch_private import pytree, work_of
from ampcheck.register.torch_private import OpOverload

_OPS = (
    *("allreduce_", "allreduce_coalesced_", "reduce_", "broadcast_", "barrier"),
    *("allgather_", "_allgather_base_", "allgather_coalesced_", "allgather_into_tensor_coalesced_"),
    *("reduce_scatter_", "_reduce_scatter_base_", "reduce_scatter_tensor_coalesced_"),
    *("gather_", "gather_into_tensor_", "scatter_", "alltoall_", "alltoall_base_"),
    *("send", "recv_", "recv_any_source_"),
)
_libraries: list[Library] = []


def _tensors(given: Tree) -> list[torch.Tensor]:
    return [t for t in pytree.tree_leaves(given) if isinstance(t, torch.Tensor)]


def _kernel(op: OpOverload) -> Function:
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
                for tensor, values in zip(_tensors(ours), _tensors(theirs), strict=True) if write else ():
                    tensor.copy_(values)
                    changed.append(tensor)
        future: torch.futures.Future[list[torch.Tensor]] = torch.futures.Future(devices=[torch.device(NAME, 0)])
        future.set_result(changed)
        work = work_of(future).boxed()
        return (args[0], work) if returns > 1 else work

    return kernel


def install() -> None:
    """Make gloo a backend of the device and replace the device's kernels of its collectives, once a process."""
    if not (dist.is_available() and dist.is_gloo_available()):
        return
    capable = dist.Backend.backend_capability[dist.Backend.GLOO]
    if NAME not in capable:
        capable.append(NAME)
    dist.Backend.default_device_backend_map.setdefault(NAME, dist.Backend.GLOO)
    library = Library("c10d", "IMPL")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Warning only once for all operators")
        for name in _OPS:
            if hasattr(torch.ops.c10d, name):  # torch 2.15 brought gather_into_tensor_
                library.impl(name, _kernel(getattr(torch.ops.c10d, name).default), "PrivateUse1")
    _libraries.append(library)
