"""Check a benchmark result: that the variant computed in its precision, and that its work was over when timed.

An autocast that casts nothing is as fast as float32, and a benchmark of it would say "1.00×". So every variant is asked
for its kernels' dtypes; its output is compared with float32's, its error with what its precision gives.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck.bench.core import accuracy
from ampcheck.bench.core.dtype_rules import against_spec, describe, judge
from ampcheck.bench.core.kernels import (
    BenchKernel,
    KernelProgram,
    compiled,
    computing,
    enters,
    observed,
    observed_step,
    program,
)
from ampcheck.bench.core.model import COMPILERS, StepWorkload, Variant, Workload
from ampcheck.bench.core.prepare import Prepared
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError, one_line
from ampcheck.observe.recorder import tensors
from ampcheck.spec.torch_dtypes import name_of

LATE = 0.2
"""The share of a sample by which a first reading may take longer than a second one."""
FLOOR = 2e-4
"""Seconds by which it may in any case: allocating, and waking a thread."""


@dataclass(frozen=True, slots=True)
class PrecisionCheck:
    """`text`: the dtypes that were seen, e.g. "mm in bf16". `invalid`: how they contradict the variant, or ""."""

    text: str
    invalid: str = ""


def check_precision(
    prepared: Prepared,
    variant: Variant,
    workload: Workload,
    device: Device,
    compiler: str,
    reference: torch.Tensor | None = None,
    output: torch.Tensor | None = None,
    exact: torch.Tensor | None = None,
) -> PrecisionCheck:
    """Find out whether a variant computes in its precision.

    Its kernels are recorded (compiler "eager", and "graph", which replays the same), read in the StableHLO ("jit"), or
    read in the graphs ("compile"). The parameters of a step are restored afterwards.

    Args:
        reference: the float32 variant's output; None, or `output` itself, for that variant.
        output: the variant's own; `prepared.output()` where it is None.
        exact: float64's; without it the size of the error is not looked at.

    Raises UsageError for an unknown compiler.
    """
    if compiler not in COMPILERS:
        raise UsageError(f"there is no compiler {compiler!r}; there are {', '.join(COMPILERS)}")
    output = prepared.output() if output is None else output
    try:
        text, invalid = _dtypes(prepared, variant, workload, device, compiler)
    except Exception as error:  # a recorder meets what a call does not, and then nothing is shown
        text, invalid = "", f"its dtypes could not be seen: {one_line(error)}"
    finally:
        prepared.restore()
    kind, wrong = _values(variant, workload, device, output, None if reference is output else reference, exact)
    return PrecisionCheck("; ".join(filter(None, (text, kind))), invalid or wrong)


def _dtypes(prepared: Prepared, variant: Variant, workload: Workload, device: Device, compiler: str) -> tuple[str, str]:
    """Return the text about the kernels, and what is wrong with them."""
    policies, region = device.policies(), variant.precision.region
    step = isinstance(workload, StepWorkload)
    seen: list[BenchKernel] = []
    launched = compiler in ("eager", "graph")
    if launched and step:
        seen = observed_step(prepared.eager, device, policies)
    elif not step and (launched or region is not None):
        seen = observed(prepared.eager, device, region, policies)
    promised = {policies[kernel.name] for kernel in seen if kernel.name in policies}
    read: KernelProgram | None = None
    if compiler == "jit":
        read = program(prepared.jitted.lower(*prepared.arguments).as_text())
        kernels = computing(read.kernels)
    else:
        kernels = computing(seen if launched else compiled(prepared.compiled_with))
    if not kernels:
        if read and workload.policy == "fallthrough":
            return "the program computes nothing", ""
        if compiler == "compile":
            return "", "torch.compile made no graph that computes anything, so the call ran op by op"
        where = "in the program" if compiler == "jit" else "as it ran"
        return "", f"no kernel that computes with floating point numbers was seen {where}"
    text = describe(kernels, read)
    wrong = ""
    if region is not None and not step:
        wrong = against_spec(seen, policies, name_of(region))
        # A device with another kind of region may keep its state elsewhere.
        if device.region == "torch.autocast" and not enters(prepared.eager, device.type, region):
            wrong = f"the call enters no autocast region of {name_of(region)}"
    if region is not None and not step and not promised and workload.policy in ("upcast", "promote"):
        text += f"; {device.name}'s autocast has no policy for it"
    return text, wrong or judge(kernels, variant, workload, promised, read)


def _values(
    variant: Variant,
    workload: Workload,
    device: Device,
    output: torch.Tensor,
    reference: torch.Tensor | None,
    exact: torch.Tensor | None,
) -> tuple[str, str]:
    """Return a name for the arithmetic by the output's values, and what is wrong."""
    wrong = differs(variant, workload, output, reference) if reference is not None else ""
    if exact is None or not device.has_values:
        return "", wrong
    found = accuracy.error(output, exact)
    platform = device.describe().get("platform", device.type)
    kind = ""
    if variant.precision.low is None and variant.precision.matmul != "highest" and not accuracy.given_low(workload):
        kind = accuracy.float32_kind(found, workload, platform)
    return kind and f"error of {kind}", wrong or accuracy.beyond(found, variant.precision, workload, platform)


def differs(variant: Variant, workload: Workload, output: torch.Tensor, reference: torch.Tensor) -> str:
    """Say why an output is too much like the float32 variant's, "" where it is not.

    An output in lower precision must differ where float32's has numbers that the lower precision does not have.
    """
    if output.shape != reference.shape:
        return f"the output has {output.numel()} numbers and the first variant's {reference.numel()}"
    low = variant.precision.low
    casts = workload.policy in ("downcast", "mixed") or variant.precision.convert is not None
    if low is None or not casts or getattr(workload, "overflows", False):
        return ""
    values = reference[reference.isfinite()]
    if torch.equal(values.to(low).double(), values.double()) or not torch.equal(output, reference):
        return ""
    return f"the output is float32's bit for bit, so nothing was computed in {name_of(low)}"


def read_back(
    outputs: Any,
    host: Callable[[torch.Tensor], torch.Tensor],
    sample: float,
    clock: Callable[[], float] = time.perf_counter,
) -> str:
    """Say why a clock had stopped before its work was done, "" where it had not: outputs are read to the host twice.

    To be called as soon as the clock has stopped. The first reading waits for what is still running, the second one
    shows what reading alone takes. A single reason may be chance (the process was put aside); most of several is not.

    Args:
        outputs: tensors of the last call, nested or not.
        host: gives a tensor's values on the CPU, e.g. `Device.host`.
        sample: the seconds that the clock showed, for all calls together.
    """
    found = list(tensors(outputs))
    began = clock()
    for tensor in found:
        host(tensor)
    between = clock()
    for tensor in found:
        host(tensor)
    late = (between - began) - (clock() - between)
    if late <= max(LATE * sample, FLOOR):
        return ""
    return f"work was still running when the clock stopped: {late:.2g} s of it after {sample:.2g} s"
