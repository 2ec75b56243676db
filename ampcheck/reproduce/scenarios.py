"""A scenario in plain torch: its own source, behind a shim for the `amp` it is given."""

from __future__ import annotations

import ast
import inspect
import math
import pprint
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ampcheck.checks.scenario import Amp
from ampcheck.devices.base import Device
from ampcheck.reproduce import expected, methods, shim, snippets
from ampcheck.reproduce.common import COMPILED, assembled, preamble
from ampcheck.reproduce.source import Unreproducible, plain
from ampcheck.spec.torch_dtypes import DTYPES, name_of

_COMPARE = "_compare"
"""The helper of `suites/eager/test_modules.py` that compares with `ampcheck.observe.replay`; see `snippets.compare`."""
_PROMISED = "_promised"
"""What functions of a suite file begin with that work out from `ampcheck.spec`, given `amp` and parameters of the
scenario, what is to be seen; a reproduction has what they return."""
_OWN = "in_plain_torch"
"""A function of a suite file whose scenarios are data: given a scenario and its arguments, its program, or ""."""
_MODULE = """\
    class Module(torch.nn.Module):
        def forward(self, *inputs):
            return function(*inputs)
"""
_SIZES = """\
    sizes = (tuple(dict.fromkeys(range(x.dim()), torch.export.Dim.AUTO) for x in inputs),)
    sizes = sizes if options.get("dynamic") else None
"""
_GIVEN = {
    "function": "function",
    "inputs": "inputs",
    "options": '**{"fullgraph": True, **options}',
    "sizes": "dynamic_shapes=sizes, ",
}
_STAND_INS = {
    "name_of": (snippets.NAME_OF,),
    "tensors": (snippets.TENSORS,),
    "op_database": (snippets.OP_DATABASE,),
    "comparisons": (snippets.NAME_OF, snippets.SAME, snippets.CHECKS),
}
"""What scenarios may use of ampcheck beside `amp`, in plain Python."""


def of_scenario(
    body: Callable[..., Any],
    device: Device,
    dtype: torch.dtype,
    params: Mapping[str, object] | None = None,
    modules: Sequence[str] = (),
    *,
    ran: bool = True,
) -> str:
    """Write a scenario in plain torch: it prints a line per check, `ok` or `FAIL` with what was got and expected.

    Args:
        body: the scenario.
        params: its parameters beside `amp`, by name.
        modules: what `--device-module` named.
        ran: False for one that ended its process: nothing of it is run here, so modules are not compared with what
            their ops should receive.

    Returns: a program that does not import ampcheck. For a scenario that cannot be put so, a comment that says why.
    """
    params = dict(params or {})
    own = body.__globals__.get(_OWN)
    if own and (script := own(body, Amp(device, name_of(dtype)), **params)):
        return str(script)
    try:
        return _program(body, device, dtype, params, modules, ran)
    except Unreproducible as error:
        reason = f"This scenario needs {error}, for which plain torch has nothing: run it with the pytest line."
        region = f"with {device.region}({device.type!r}, dtype={dtype}):"
        lines = [*preamble(device, modules), "", f"# {reason}", "# Its region is:", region, "    pass"]
        return "\n".join(lines)


def _program(
    body: Callable[..., Any],
    device: Device,
    dtype: torch.dtype,
    params: dict[str, object],
    modules: Sequence[str],
    ran: bool,
) -> str:
    arguments = "".join(f", {name}={_literal(value, body)}" for name, value in params.items())
    promises = {name for name in body.__globals__ if name.startswith(_PROMISED)}
    found = plain(body, params, {_COMPARE, *_STAND_INS, *promises})
    blocks = [text for name in sorted(found.foreign) for text in _STAND_INS[name]]
    blocks += [_promise(body.__globals__[name], device, dtype, params) for name in sorted(found.replaced & promises)]
    if _COMPARE in found.replaced:
        if not device.observes_composite_ops:
            raise Unreproducible(f"a comparison that {device.name} has no reference for")
        wanted, hidden = expected.of_scenario(body, _COMPARE, device, name_of(dtype), params) if ran else ({}, False)
        blocks.append(snippets.compare(device, wanted, hidden))
    text = "\n".join([*blocks, *found.helpers, found.code])
    used, attributes = _used(text)
    first = []
    if "observe(" in text or "Recorder" in text or shim.needs_recorder(used):
        if not device.observes_composite_ops:
            raise Unreproducible(f"the recorder of {device.name}, which is inside of it")
        kernels = not {"received", "of", "kernels"}.isdisjoint(attributes)
        casts = not {"casts", "source"}.isdisjoint(attributes)
        first = [snippets.recorder(device, casts=casts, kernels=kernels)]
    blocks = [block for block in blocks if block not in "".join(first)]
    comment = textwrap.fill(" ".join(found.comment.split()), 116, initial_indent="# ", subsequent_indent="# ")
    code = f"{comment}\n{found.code}" if found.comment else found.code
    compiled = any(name in COMPILED for name in params.values() if isinstance(name, str))  # and was told it is there
    made = shim.amp_class(used, device, _facts(device, dtype, text, params), simulate_cuda=not compiled)
    if "simulate_cuda()" in made:
        first.append(shim.SIMULATE_CUDA)
    call = f"{body.__name__}(amp{arguments})"
    if "unjudged" in attributes:
        call += '\nif amp.unjudged:\n    print("not judged:", amp.unjudged)'
    parts = [*first, made, *blocks, *found.helpers, code, call]
    return assembled(device, modules, parts, found.imports, simulate_cuda=compiled)


def _promise(function: Callable[..., Any], device: Device, dtype: torch.dtype, params: Mapping[str, object]) -> str:
    """Return a function of the same name that gives what this one does for the parameters of the scenario."""
    own = {name: value for name, value in params.items() if name in inspect.signature(function).parameters}
    value = pprint.pformat(function(Amp(device, name_of(dtype)), **own), width=100, sort_dicts=False)
    return f"def {function.__name__}(*given, **more):\n    return (\n{textwrap.indent(value, '        ')}\n    )"


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


def _used(text: str) -> tuple[set[str], set[str]]:
    """Return the attributes of `amp` that a program uses, and every attribute it uses of anything."""
    tree = ast.parse(text)
    attributes = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    inner = {id(node.value) for node in attributes}
    used: set[str] = set()
    for node in attributes:
        if ast.unparse(node.value) in ("amp", "self.amp"):
            if node.attr != "device":
                used.add(node.attr)
            elif id(node) not in inner:
                raise Unreproducible("a device of ampcheck as a whole")
        elif ast.unparse(node.value) in ("amp.device", "self.amp.device"):
            used.add(f"device.{node.attr}")
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call.func) == "getattr" and ast.unparse(call.args[0]) == "amp":
            used |= {"type", "dtype", "other", "default"}
    if unknown := sorted(used - set(methods.ATTRIBUTES)):
        raise Unreproducible(f"amp.{unknown[0]}")
    return used, {node.attr for node in attributes}


def _facts(device: Device, dtype: torch.dtype, text: str, params: Mapping[str, object]) -> dict[str, object]:
    """Return what the texts of `attributes` name in braces."""
    said = {node.value for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Constant)}
    return {
        "type": device.type,
        "name": device.name,
        "key": device.key,
        "dtype": dtype,
        "other": torch.float16 if dtype == torch.bfloat16 else torch.bfloat16,
        "default": DTYPES[device.default_amp],
        "default_amp": device.default_amp,
        "region": device.region,
        "amp_dtypes": device.amp_dtypes,
        "has_values": device.has_values,
        "interop": "ampcheck.jax_device.interop.functions"
        if "ampcheck" in "".join(device.setup)
        else "torchax.interop",
        "compiled": _compiled([name for name in COMPILED if name in said or name in params.values()]),
        "policies": {name: policy for name, policy in device.policies().items() if name in said},
    }


def _compiled(compilers: Sequence[str]) -> str:
    """Return the body of the attribute that compiles, for some compilers."""
    ways = {name: COMPILED[name].format(**_GIVEN) for name in compilers}
    lines = [f"    if compiler == {name!r}:\n        return {how}" for name, how in ways.items()]
    if any("Module()" in how for how in ways.values()):
        lines = [_MODULE, _SIZES, *lines]
    return "\n".join(lines) or "    pass"
