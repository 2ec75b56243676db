"""An op case as a program: the source of a function with the region inside it, or without it, and that function.

The source is text because TorchScript reads it, and because people paste it into reports.
"""

import linecache
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch  # noqa: F401  # the programs name it, and Dynamo looks for it where they say they are from

from ampcheck.devices.base import Device
from ampcheck.samples.describe import Sample, TensorArg, leaves
from ampcheck.spec.case import AROUND, Case
from ampcheck.spec.torch_dtypes import DTYPES


def names(sample: Sample) -> list[str]:
    """Return a name for each tensor of a sample."""
    return ["abcdefghijklmnopqrstuvw"[n] if n < 23 else f"t{n}" for n, _ in enumerate(leaves(sample))]


def written(value: Any, remaining: Iterator[str]) -> str:
    """Return an argument as people write it, its tensors by the names that remain."""
    if isinstance(value, TensorArg):
        return next(remaining)
    if isinstance(value, (tuple, list)):
        inner = ", ".join(written(item, remaining) for item in value)
        return f"[{inner}]" if isinstance(value, list) else f"({inner}{',' if len(value) == 1 else ''})"
    if isinstance(value, float) and not math.isfinite(value):
        return f'float("{value}")'
    return repr(value)


def text(case: Case, device: Device, sample: Sample) -> str:
    """Return the source of `program`; TorchScript knows an op by its name alone and finds the overload by itself."""
    return _program(case, device, [f"return {_call(case, sample, iter(names(sample)))}"], names(sample))


def several(case: Case, device: Device, samples: Sequence[Sample]) -> str:
    """Return the source of `program`, which calls the op once for each sample, on tensors of its own."""
    given = [[f"{name}{number}" for name in names(sample)] for number, sample in enumerate(samples)]
    lines = [f"r{number} = {_call(case, sample, iter(given[number]))}" for number, sample in enumerate(samples)]
    results = ", ".join(f"r{number}" for number, _ in enumerate(samples))
    return _program(case, device, [*lines, f"return ({results},)"], [name for each in given for name in each])


def _call(case: Case, sample: Sample, remaining: Iterator[str]) -> str:
    arguments = [written(value, remaining) for value in sample.args]
    arguments += [f"{name}={written(value, remaining)}" for name, value in sample.kwargs.items()]
    packet, _, variant = case.op.partition(".")
    overload = "" if case.compiler == "script" else f".{variant or 'default'}"
    return f"torch.ops.aten.{packet}{overload}({', '.join(arguments)})"


def _program(case: Case, device: Device, lines: Sequence[str], parameters: Sequence[str]) -> str:
    if case.sample != AROUND:
        lines = [region(case, device), *(f"    {line}" for line in lines)]
    head = f"def program({', '.join(f'{name}: torch.Tensor' for name in parameters)}):"
    return "\n".join([head, *(f"    {line}" for line in lines), ""])


def region(case: Case, device: Device) -> str:
    """Return the with statement of a case's region."""
    return f"with {device.region}({device.type!r}, dtype={DTYPES[case.amp]}):"


def define(source: str, setup: Sequence[str] = ()) -> Callable[..., Any]:
    """Return the function `program` of a source, which `inspect` finds again."""
    # Dynamo imports the module that a function says it is from.
    namespace: dict[str, Any] = {"__name__": __name__}
    exec("\n".join(["import torch", *setup]), namespace)
    place = f"<program {len(linecache.cache)}>"
    linecache.cache[place] = (len(source), None, source.splitlines(keepends=True), place)
    exec(compile(source, place, "exec"), namespace)
    found: Callable[..., Any] = namespace["program"]
    return found
