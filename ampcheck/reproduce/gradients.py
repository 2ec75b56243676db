"""A gradient case in plain torch: both passes with the forward one in a region, beside explicit casts in the graph."""

from __future__ import annotations

import inspect
from collections.abc import Sequence

import torch

from ampcheck.checks.backward import BOOKKEEPING, PASSES, differentiable, planned
from ampcheck.checks.reference import DRAWS, FREEDOM
from ampcheck.devices.base import Device
from ampcheck.devices.virtual import graphs
from ampcheck.reproduce import snippets
from ampcheck.reproduce.common import assembled
from ampcheck.reproduce.ops import cast_call, dtypes_list, made, near
from ampcheck.spec.case import Case
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import DTYPES

_OF_FLOAT64 = "float64"

_PASSES = """\
class Kernels(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func).removeprefix("aten.").removesuffix(".default")
        dtypes = [str(x.dtype) for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
        if name not in BOOKKEEPING and func.namespace != "prim":
            self.seen.append(" ".join([name, *dtypes]))
        return func(*args, **(kwargs or {}))

def weight(place, out):  # what the scalar that is differentiated weighs the output with
    x = 0.05 + 0.9 * torch.rand(out.shape, generator=torch.Generator().manual_seed(place), dtype=torch.float64)
    if out.is_complex():
        return out.detach() * x.to(torch.float32).to(out.device)
    return x.to(out.dtype).to(out.device)

def passes(call, tensors, region):
    tensors = [x.detach().requires_grad_() if place in PLACES else x for place, x in enumerate(tensors)]
    torch.manual_seed(0)
    try:
        with region:
            outputs = [x for x in tree_leaves(call(*tensors)) if isinstance(x, torch.Tensor) and x.requires_grad]
        weights = [weight(place, x) for place, x in enumerate(outputs)]
        with Kernels() as kernels:
            backward(outputs, weights)
    except Exception as error:
        print("     raised", error)
        return [type(error)] * len(tensors), []
    return [x.grad for x in tensors], sorted(kernels.seen)"""

_COMPARED = """\
(got, kernels), (want, reference) = passes(call, inputs(), REGION), passes(in_graph, inputs(), nullcontext())
for place in PLACES:
    a, b = got[place], want[place]
    facts = [(x.dtype, x.shape) if isinstance(x, torch.Tensor) else x for x in (a, b)]
    check(f"dtype and shape of the gradient of argument {place}", *facts)"""

_BITS = """
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        check(f"whether the gradient of argument {place} has the bits of explicit casts", same(a, b), True)"""

_KERNELS = 'check("kernels of the backward pass, with the dtypes they received", kernels, reference)'


def of_gradient(case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True) -> str:
    """Write a gradient case in plain torch, with the arguments and the output of `ampcheck.reproduce.of_op`."""
    todo = planned(case, device)
    blocks, names = made(todo, case, device)
    with device.activate():
        places = differentiable(todo, device) if ran else [n for n, leaf in enumerate(todo.given) if leaf.eligible]
    filled = todo.expected.dtype_kwarg
    aten = todo.sample.call == "aten"
    received = [filled if filled and not aten and is_floating(dtype) else dtype for dtype in todo.expected.leaves]
    parameters = [*names, f"dtype={DTYPES[filled]}"] if filled and aten else names
    blocks += [
        f"def cast_call({', '.join(parameters)}):\n    return {cast_call(todo, case, names)}",
        "def in_graph(*tensors):\n"
        f"    dtypes = {dtypes_list(received)}  # rule {case.rule}\n"
        "    return cast_call(*[x.to(dtype) for x, dtype in zip(tensors, dtypes)])",
        _backward(device),
        f"PLACES, BOOKKEEPING = {places!r}, {BOOKKEEPING!r}",
        snippets.CHECK,
        *([snippets.SAME] if device.has_values else []),
        _PASSES,
    ]
    region = f"{device.region}({device.type!r}, dtype={DTYPES[case.amp]})"
    if not ran:
        return assembled(device, modules, [*blocks, f"print(passes(call, inputs(), {region}))"], _imports(device))
    bits = _BITS if device.has_values and todo.op.values != "none" else ""
    blocks += [f"REGION = {region}", _COMPARED + bits, _KERNELS]
    if _OF_FLOAT64 in message:
        blocks += [near()]
        blocks.append(_exact(received, "dtype=torch.float64" if filled and aten else ""))
    return assembled(device, modules, blocks, _imports(device))


def _exact(received: Sequence[str], dtype: str) -> str:
    floating = [name for name in received if name in FREEDOM]
    kernel = max(floating, key=lambda name: torch.finfo(DTYPES[name]).eps)
    return f"""\
wide = [x.to(dtype) for x, dtype in zip(inputs(), {dtypes_list(received)})]
wide = [x.cpu().double() if x.is_floating_point() else x.cpu() for x in wide]
def in_float64(given):
    return passes(lambda *x: cast_call(*x{", " * bool(dtype)}{dtype}), given, nullcontext())[0]
exact = in_float64(wide)
others = [in_float64([mover({kernel!r}, draw)(x) for x in wide]) for draw in range({DRAWS})]
for place in PLACES:
    a, b = got[place], exact[place]
    if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
        moved = torch.stack([distance(other[place], b) for other in others]).amax(0)
        limit = bound(b, moved, {kernel!r}, a.dtype, {PASSES})
        right = bool((distance(a.cpu(), b) <= limit).all())
        check(f"whether gradient {{place}} is as near to the CPU's float64 one as a right kernel's", right, True)
    else:
        check(f"whether gradient {{place}} is there", isinstance(a, torch.Tensor), isinstance(b, torch.Tensor))"""


def _backward(device: Device) -> str:
    """Return how a backward pass runs on the device: as always, or as `ampcheck.devices.virtual.graphs` runs it."""
    if device.has_values or not device.name.startswith("virtual:"):
        return "backward = torch.autograd.backward"
    source = "\n".join(inspect.getsource(part) for part in (graphs.allow, graphs.backward))
    names = "\n".join(f"{name} = {getattr(graphs, name)!r}" for name in ("_REGISTRY", "_REGISTER"))
    return f"Unsupported = RuntimeError\n{names}\n\n{source}\nallow({device.type!r})"


def _imports(device: Device) -> list[str]:
    common = ["from contextlib import nullcontext"]
    if device.has_values:
        return common
    return [
        *common,
        "import ctypes",
        "import heapq",
        "from collections.abc import Sequence",
        "from functools import cache",
        "from itertools import count",
        "from pathlib import Path",
        "from typing import Any",
        "from torch._C._autograd import DeviceType",
    ]
