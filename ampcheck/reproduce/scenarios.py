"""A scenario in plain torch: its own source and that of the `amp` it is given, which prints what it compares."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ampcheck.checks.amp import Amp
from ampcheck.checks.program import preamble
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.checks.source import PrintedSource, Unreproducible
from ampcheck.devices.base import Device
from ampcheck.reproduce.common import COMPILED, assembled
from ampcheck.spec.torch_dtypes import DTYPES, name_of

_OWN = "in_plain_torch"
_EXPORTED = """\
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)

    sizes = None
    if options.get("dynamic"):
        sizes = (tuple(dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in inputs),)
"""
_GIVEN = {
    "function": "function",
    "inputs": "inputs",
    "options": '**{"fullgraph": True, **options}',
    "sizes": "dynamic_shapes=sizes, ",
}
_AUTOCAST = """\
def autocast(dtype=None, **options):  # torch.autocast("cuda") switches itself off where CUDA is absent
    absent, supported = "torch.cuda.amp.common.amp_definitely_not_available", "torch.cuda.is_bf16_supported"
    with patch(absent, lambda: False), patch(supported, lambda *args: True):
        return torch.autocast("cuda", dtype=dtype, **options)
"""


def of_scenario(
    body: Callable[..., Any],
    device: Device,
    dtype: torch.dtype,
    params: Mapping[str, object],
    modules: Sequence[str] = (),
    *,
    amp: DeviceAmp | None = None,
) -> str:
    """Write a scenario in plain torch: it prints a line per check, `ok` or `FAIL` with what was got and expected.

    Args:
        body: the scenario.
        params: its parameters beside `amp`, by name.
        modules: what `--device-module` named.
        amp: what it was given when it ran; None for one that ended its process.

    Returns: a program that does not import ampcheck. For a scenario that cannot be put so, a comment that says why.
    """
    if amp and amp.script:
        return amp.script
    if amp and amp.instead:
        body, amp, params = amp.instead
    if write := getattr(body, "program", None):
        return str(write(DeviceAmp(device, name_of(dtype)), **params))
    own = body.__globals__.get(_OWN)
    if own and (script := own(body, DeviceAmp(device, name_of(dtype)), **params)):
        return str(script)
    try:
        return _program(body, device, dtype, params, modules, amp)
    except Unreproducible as error:
        reason = f"This scenario needs {error}, for which plain torch has nothing: run it with the pytest line."
        region = f"with {device.region}({device.type!r}, dtype={dtype}):"
        lines = [*preamble(device, modules), "", f"# {reason}", "# Its region is:", region, "    pass"]
        return "\n".join(lines)


def _program(
    body: Callable[..., Any],
    device: Device,
    dtype: torch.dtype,
    params: Mapping[str, object],
    modules: Sequence[str],
    amp: DeviceAmp | None,
) -> str:
    arguments = "".join(f", {name}={_literal(value, body)}" for name, value in params.items())
    sources = _sources(body, params)
    if kept := sources.single_entries(params):
        sources = _sources(body, params, kept)
    if "observe" in sources.names and not device.observes_composite_ops:
        raise Unreproducible(f"the recorder of {device.name}, which is inside of it")
    compiled = any(name in COMPILED for name in params.values() if isinstance(name, str))  # and was told it is there
    lines = [
        f"amp = Amp({device.type!r}, {dtype}, {DTYPES[device.default_amp]})",
        *_facts(sources, device, params, compiled=compiled),
        *_data(sources, body, amp or DeviceAmp(device, name_of(dtype)), params if amp is None else None),
        f"{body.__name__}(amp{arguments})",
    ]
    if "unjudged" in sources.attributes:
        lines.append('if amp.unjudged:\n    print("not judged:", amp.unjudged)')
    text = [*sources.text(), "\n".join(lines)]
    program = assembled(device, modules, text, sources.imports, simulate_cuda=compiled)
    return f"from __future__ import annotations\n\n{program}"


def _sources(
    body: Callable[..., Any], params: Mapping[str, object], kept: Mapping[str, object] | None = None
) -> PrintedSource:
    """Return the source of a scenario, of what it is given, and of `Amp` as far as they use it."""
    sources = PrintedSource(body.__module__, {"Amp"}, kept)
    sources.add(body.__name__)
    for value in params.values():
        if (name := getattr(value, "__name__", "")) and body.__globals__.get(name) is value:
            sources.add(name)
    sources.add("Amp", Amp.__module__)
    sources.text()
    return sources


def _facts(sources: PrintedSource, device: Device, params: Mapping[str, object], *, compiled: bool) -> list[str]:
    """Return the lines that say of `amp` how the device differs from one of PyTorch's own that is there."""
    used = sources.attributes
    lines = [f"amp.{name} = {getattr(device, name)!r}" for name in ("name", "key") if name in used]
    if not device.has_values:
        lines += ["amp.has_values = False", *(["amp.activate = lambda: fake"] if "activate" in used else [])]
    if "autocast" in used and device.region != "torch.autocast":
        lines.append(f"amp.autocast = lambda dtype=None, **more: {device.region}(amp.type, dtype=dtype, **more)")
    elif "autocast" in used and device.type == "cuda" and not device.has_values and not compiled:
        lines += [_AUTOCAST, "amp.autocast = autocast"]
    if "compiled" in used:
        ways = {name: way for name, way in COMPILED.items() if name in sources.strings or name in params.values()}
        chosen = [f"    if compiler == {name!r}:\n        return {way.format(**_GIVEN)}" for name, way in ways.items()]
        first = ["def compiled(compiler, function, *inputs, **options):"]
        if any("Module()" in way for way in ways.values()):
            first.append(_EXPORTED)
        lines += ["\n".join([*first, *chosen]), "\namp.compiled = compiled"]
    if "j2t" in used:
        origin = "ampcheck.jax_device.interop.functions" if "ampcheck" in "".join(device.setup) else "torchax.interop"
        lines.append(f"from {origin} import j2t_autograd\n\namp.j2t = j2t_autograd")
    return lines


def _data(
    sources: PrintedSource, body: Callable[..., Any], amp: DeviceAmp, params: Mapping[str, object] | None
) -> list[str]:
    """Return the lines with the policies and the promises that the scenario asked for.

    `params`: of a scenario that did not run here. It has the policies that its source names, and what its parameters
    alone decide.
    """
    policies, promises = amp.policies.asked, amp.promises
    if params is not None:
        policies = {name: policy for name, policy in amp.policies.items() if name in sources.strings}
        for name in sources.names:
            if function := getattr(body.__globals__.get(name), "promised", None):
                given = [params[each] for each in list(inspect.signature(function).parameters)[1:]]
                promises[(name, *given)] = function(amp, *given)
    lines = []
    if "policies" in sources.attributes:
        lines.append(f"amp.policies = {_rows(policies)}  # what PyTorch documents for these ops")
    if "promises" in sources.attributes:
        lines.append(f"amp.promises = {_rows(promises)}  # what the specification says")
    return lines


def _rows(table: Mapping[Any, object]) -> str:
    """Return a dictionary as it is written, a row for each entry."""
    return "\n    ".join(["{", *(f"{key!r}: {value!r}," for key, value in table.items())]) + "\n}"


def _literal(value: object, body: Callable[..., Any]) -> str:
    """Return a value as it is written in a program, whose `body` may be given a class or a function of the same file.

    Raises Unreproducible where it has no such form.
    """
    if isinstance(value, torch.dtype):
        return str(value)
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    name = getattr(value, "__name__", "")
    if name and body.__globals__.get(name) is value:
        return str(name)
    try:
        if ast.literal_eval(repr(value)) == value:
            return repr(value)
    except (ValueError, SyntaxError):
        pass
    raise Unreproducible(f"the {type(value).__name__} that pytest gives it")
