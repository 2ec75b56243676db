"""Gradients of fake tensors whose device type this build of PyTorch, or this machine, is without.

PyTorch's autograd asks for a device's guard when it makes a node, and ends the process where there is none; its engine
asks for the accelerator itself. So such a device type gets the guard of the meta device, which does nothing, and the
nodes are run here, in an order and with the casts that the engine has.
"""

import ctypes
import heapq
from collections.abc import Callable, Sequence
from functools import cache
from itertools import count
from pathlib import Path
from typing import cast

import torch
from torch.autograd.graph import Node

from ampcheck.errors import Unsupported
from ampcheck.observe.torch_private import DeviceType

_REGISTRY = "_ZN3c104impl26device_guard_impl_registryE"
_REGISTER = "_ZN3c104impl19registerDeviceGuardENS_10DeviceTypeEPKNS0_24DeviceGuardImplInterfaceE"


@cache
def allow(device_type: str) -> None:
    """Let autograd make nodes for tensors of a device type. Raises Unsupported where this build shows no way."""
    kinds: dict[str, int] = {name.lower(): kind.value for name, kind in DeviceType.__members__.items()}
    folder = Path(torch.__file__).parent / "lib"
    found = [path for path in (folder / name for name in ("libc10.so", "libc10.dylib")) if path.exists()]
    try:
        library = ctypes.CDLL(str(found[0]))
        guards = (ctypes.c_void_p * len(kinds)).in_dll(library, _REGISTRY)
        register = getattr(library, _REGISTER)
    except (IndexError, OSError, ValueError, AttributeError):
        raise Unsupported(f"this build of PyTorch takes no guard for {device_type}, which autograd needs") from None
    register.argtypes, register.restype = (ctypes.c_int8, ctypes.c_void_p), None
    # A build with CUDA has a guard, which ends the process where it asks a driver that is not there.
    usable = getattr(getattr(torch, device_type, None), "is_available", bool)()
    if guards[kinds[device_type]] is None or not usable:
        register(kinds[device_type], guards[kinds["meta"]])


def backward(outputs: Sequence[torch.Tensor], gradients: Sequence[torch.Tensor]) -> None:
    """Add each leaf's gradient to its `grad`, as `torch.autograd.backward` does, in this thread."""
    ready: list[tuple[int, int, Node]] = []
    arrived: dict[Node, list[torch.Tensor | None]] = {}
    numbers = count()

    def give(node: Node, place: int, gradient: torch.Tensor) -> None:
        if node not in arrived:
            arrived[node] = [None] * len(node._input_metadata)
            heapq.heappush(ready, (-node._sequence_nr(), next(numbers), node))
        wanted = node._input_metadata[place]
        gradient = gradient.sum_to_size(wanted.shape).to(wanted.dtype)
        before = arrived[node][place]
        arrived[node][place] = gradient if before is None else before + gradient

    for output, gradient in zip(outputs, gradients, strict=True):
        if output.grad_fn is not None:
            give(output.grad_fn, output.output_nr, gradient)
    with torch.no_grad():
        while ready:
            _, _, node = heapq.heappop(ready)
            # A node of a function written in Python has `apply`; what is no tensor must come last there.
            run = cast(Callable[..., object], getattr(node, "apply", None) or node)
            made = run(*arrived.pop(node))
            made = made if isinstance(made, tuple) else (made,)
            for (following, place), gradient in zip(node.next_functions, made, strict=False):
                if following is not None and gradient is not None:
                    give(following, place, gradient)
