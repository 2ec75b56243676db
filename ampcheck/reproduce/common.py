"""What the reproductions of ops, scenarios and programs share."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterable, Sequence

from ampcheck.devices.base import Device


def pytest_line(
    node: str, device: Device, modules: Sequence[str] = (), *, installed: bool = False, further: Sequence[str] = ()
) -> str:
    """Return the command that runs one case and nothing else, quoted for a shell.

    `modules`: what `--device-module` named. `installed`: where the repository's conftest.py, which loads the plugin,
    may not be there. `further`: options without which the case would not exist.
    """
    program = ["pytest", "-p", "ampcheck.runner.plugin"] if installed else ["pytest"]
    options = [f"--device-module={module}" for module in modules]
    return shlex.join([*program, node, f"--device={device.name}", *options, *further])


def preamble(device: Device, modules: Sequence[str] = (), *, simulate_cuda: bool = True) -> list[str]:
    """Return the lines that make a device usable in plain torch; `fake` is the mode of a virtual device's tensors.

    `modules`: what `--device-module` named. `simulate_cuda`: False leaves out the patch of the check for CUDA.
    """
    if device.has_values or not device.name.startswith("virtual:"):
        return ["import torch", *device.setup, *_backend(device, modules)]
    lines = ["import torch", "from torch._subclasses.fake_tensor import FakeTensorMode"]
    if device.type == "cuda" and simulate_cuda:  # torch.autocast("cuda") switches itself off where CUDA is absent
        lines += [
            "torch.cuda.amp.common.amp_definitely_not_available = lambda: False",
            "torch.cuda.is_bf16_supported = lambda *args: True",
        ]
    return [*lines, "fake = FakeTensorMode(allow_non_fake_inputs=True)", "fake.__enter__()"]


def _backend(device: Device, modules: Sequence[str]) -> list[str]:
    """Return the import of a third party's backend: the module that declares the device, or else that of its class."""
    declared = (name for name in modules if device in getattr(sys.modules.get(name), "DEVICES", ()))
    own = type(device).__module__
    name = next(declared, own)
    if name.partition(".")[0] == "ampcheck":
        return []
    lines = [f"import {name}"]
    if type(device).tensor is not Device.tensor:
        lines.append(f"# {type(device).__name__} makes its tensors by itself; x.to({device.type!r}) must work here.")
    return lines


COMPILED = {
    "script": "torch.jit.script({function})",
    "traced": "torch.jit.trace({function}, {inputs}, check_trace=False)",
    "dynamo": 'torch.compile({function}, backend="eager", {options})',
    "aot": 'torch.compile({function}, backend="aot_eager", {options})',
    "inductor": 'torch.compile({function}, backend="inductor", {options})',
    "export": "torch.export.export(Module(), {inputs}, {sizes}strict=False).module()",
    "strict": "torch.export.export(Module(), {inputs}, {sizes}strict=True).module()",
    "decomposed": "torch.export.export(Module(), {inputs}, {sizes}strict=False).run_decompositions().module()",
    "packaged": "torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package("
    "torch.export.export(Module(), {inputs}, {sizes}strict=False)))",
    "jaxcompile": 'torch.compile({function}, backend="jax", {options})',
    "jaxjit": "ampcheck.jax_device.jit({function}, fullgraph=True)",
}
"""How each compiler compiles a function for a tuple of inputs; an export takes a module `Module` that calls it, and
`dynamic_shapes` where `sizes` says so."""
_IMPORTS = {
    "SimpleNamespace(": "from types import SimpleNamespace",
    "tree_leaves(": "from torch.utils._pytree import tree_leaves",
    "tree_map(": "from torch.utils._pytree import tree_map",
    "(TorchDispatchMode)": "from torch.utils._python_dispatch import TorchDispatchMode",
    "patch(": "from unittest.mock import patch",
    "patch.object(": "from unittest.mock import patch",
    "warnings.": "import warnings",
    "textwrap.": "import textwrap",
    "linecache.": "import linecache",
    'backend="jax"': "import ampcheck.jax_device.compile",
    "weakref.": "import weakref",
    "zlib.": "import zlib",
    "ThreadPoolExecutor(": "from concurrent.futures import ThreadPoolExecutor",
    "random.getstate(": "import random",
    "islice(": "from itertools import islice",
    "in op_db}": "from torch.testing._internal.common_methods_invocations import op_db",
    "@contextmanager": "from contextlib import contextmanager",
    "nullcontext": "from contextlib import nullcontext",
}
"""The imports of what `ampcheck.reproduce` writes, each by a mark in the text that needs it."""


def assembled(
    device: Device,
    modules: Sequence[str],
    blocks: Sequence[str],
    imports: Iterable[str] = (),
    *,
    simulate_cuda: bool = True,
) -> str:
    """Join blocks of a program behind its imports and the lines that make the device usable.

    `imports`: those that the blocks need beside the ones of `ampcheck.reproduce`'s own text. `simulate_cuda`: as for
    `preamble`.
    """
    text = "\n".join(blocks)
    wanted = {*imports, *(line for mark, line in _IMPORTS.items() if mark in text)}
    merged: dict[str, set[str]] = {}
    for line in wanted:
        start, word, names = line.partition(" import ")
        if word:
            merged.setdefault(start, set()).update(names.split(", "))
    lines = [line for line in wanted if line.startswith("import ") and line != "import torch"]
    lines += [f"{start} import {', '.join(sorted(names))}" for start, names in merged.items()]
    ordered = sorted(lines, key=lambda line: (line.startswith("from"), line))
    return "\n\n".join(["\n".join([*ordered, *preamble(device, modules, simulate_cuda=simulate_cuda)]), *blocks])
