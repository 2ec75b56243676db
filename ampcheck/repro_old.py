"""How to reproduce a case: once as a pytest line, once as a few lines of plain torch."""

from __future__ import annotations

import inspect
import shlex
import textwrap
from collections.abc import Callable
from typing import Any

import torch

from ampcheck.cases import Case
from ampcheck.devices.base import Device
from ampcheck.ops.describe import TensorArg
from ampcheck.torch_dtypes import DTYPES
from ampcheck.verdict import plan

_VALUES = {
    "normal": "torch.randn{shape}",
    "unit": "(0.05 + 0.9 * torch.rand{shape})",
    "signed_unit": "(1.8 * torch.rand{shape} - 0.9)",
    "positive": "(0.5 + 2 * torch.rand{shape})",
    "integers": "torch.randint({high}, {shape})",
    "zero": "torch.zeros{shape}",
    "one": "torch.ones{shape}",
}


def pytest_line(node: str, device: Device, modules: tuple[str, ...] = (), *, installed: bool = False) -> str:
    """The command that runs one case and nothing else.

    `installed`: where the repository's conftest.py, which loads the plugin, may not be there.
    """
    program = ["pytest", "-p", "ampcheck.plugin"] if installed else ["pytest"]
    options = [f"--device-module={module}" for module in modules]
    return shlex.join([*program, node, f"--device={device.name}", *options])


def preamble(device: Device) -> list[str]:
    """The lines that make a device usable in plain torch."""
    if device.has_values or not device.name.startswith("virtual:"):
        return ["import torch"]
    lines = ["import torch", "from torch._subclasses.fake_tensor import FakeTensorMode"]
    if device.type == "cuda":  # torch.autocast("cuda") switches itself off where CUDA is absent
        lines += [
            "torch.cuda.amp.common.amp_definitely_not_available = lambda: False",
            "torch.cuda.is_bf16_supported = lambda *args: True",
        ]
    return [*lines, "FakeTensorMode(allow_non_fake_inputs=True).__enter__()"]


def of_op(case: Case, device: Device) -> str:
    """An op case in plain torch."""
    todo = plan(case, device)
    remaining = iter(todo.dtypes)
    lines = [*preamble(device), ""]
    names: list[str] = []

    def show(value: Any) -> str:
        if isinstance(value, TensorArg):
            name = "abcdefghijklmnopqrstuvw"[len(names)] if len(names) < 23 else f"t{len(names)}"
            names.append(name)
            lines.append(f"{name} = {_tensor(value, value.dtype or next(remaining), device)}")
            return name
        if isinstance(value, (tuple, list)):
            inner = ", ".join(show(item) for item in value)
            return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
        return repr(value)

    shown = [show(value) for value in todo.sample.args]
    shown += [f"{name}={show(value)}" for name, value in todo.sample.kwargs.items()]
    call = todo.sample.call
    if call == "aten":
        packet, _, variant = case.op.partition(".")
        call = f"torch.ops.aten.{packet}.{variant or 'default'}"
    if call.startswith("operator."):
        lines.insert(0, "import operator")
    lines.append(f"with torch.autocast({device.type!r}, dtype={DTYPES[case.amp]}):")
    lines.append(f"    out = {call}({', '.join(shown)})")
    lines.append("print([t.dtype for t in out] if isinstance(out, (tuple, list)) else out.dtype)")
    return "\n".join(lines)


def _tensor(arg: TensorArg, dtype: str, device: Device) -> str:
    template = _VALUES.get(arg.fill, _VALUES["normal"])
    shape = f"({', '.join(map(str, arg.shape))}{',' if len(arg.shape) == 1 else ''})"
    made = template.format(shape=shape, high=arg.high)
    if arg.dtype and arg.fill == "normal" and not torch.empty(0, dtype=DTYPES[dtype]).is_floating_point():
        made = f"torch.randn{shape}"
    where = "cpu" if arg.device == "cpu" else device.type
    return f"{made}.to({where!r}, {DTYPES[dtype]})"


def of_scenario(body: Callable[..., Any], device: Device, dtype: torch.dtype) -> str:
    """A scenario in plain torch: its own source behind a stand-in for the `amp` it is given."""
    source = textwrap.dedent(inspect.getsource(inspect.unwrap(body)))
    code = source[source.index("def ") :]
    return "\n".join([*preamble(device), "", _STAND_IN.format(device=device.type, dtype=dtype), "", code.rstrip(), "", f"{body.__name__}(amp)"])


_STAND_IN = '''\
class amp:
    type, dtype = {device!r}, {dtype}
    def region(dtype=dtype, **kw):
        return torch.autocast(amp.type, dtype=dtype, **kw)
    def rand(*shape, dtype=torch.float32, **kw):
        return torch.rand(shape, dtype=dtype, device=amp.type, **kw)
    def probe():
        return torch.mm(amp.rand(2, 2), amp.rand(2, 2)).dtype
    def state():
        return torch.is_autocast_enabled(amp.type), torch.get_autocast_dtype(amp.type), torch.is_autocast_cache_enabled()
    def expect(what, got, want):
        print("ok  " if got == want else "FAIL", what, "got", got, "expected", want)'''
