"""What the reproductions of scenarios and programs share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ampcheck.checks.program import merged, preamble
from ampcheck.devices.base import Device

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
CHECK = """\
def check(what, got, want):
    print("ok  " if got == want else "FAIL", what, "| got", got, "| expected", want)"""
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
    return "\n\n".join(["\n".join([*merged(wanted), *preamble(device, modules, simulate_cuda=simulate_cuda)]), *blocks])
