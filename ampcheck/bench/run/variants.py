"""Choose the workloads of a run, and for each the compilers and the variants that make sense on a device."""

from collections.abc import Sequence
from dataclasses import replace
from difflib import get_close_matches
from fnmatch import fnmatchcase

import torch

from ampcheck.bench.core.model import AA, PRECISIONS, OpWorkload, OverheadWorkload, Precision, StepWorkload, Workload
from ampcheck.bench.core.precision_check import given_low
from ampcheck.bench.core.prepare import flops
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError

SLOW_FP16 = "torch has no fast float16 kernels on a CPU: at this size it takes 10 to 400 times as long as float32"
NO_PRODUCT = "no product in it that the device could shorten"
NOT_FLOAT32 = "its inputs are not all float32, which is what it is about; converted they would be another workload"
COMPILED_AHEAD = ("cpu",)
"""Devices whose ops need not be compiled when they are first called."""

FP16_GRADIENTS = "GradScaler refuses float16 gradients, and without it they underflow"


def variants(workload: Workload, device: str, platform: str = "") -> tuple[list[Precision], dict[str, str]]:
    """Return the variants of a workload, first the one for comparison and its A/A baseline; and those left out.

    `device`: its name, e.g. "cpu". `platform`: JAX's, e.g. "tpu", where the device is jax. What is left out comes by
    name with the reason. A precision that only other devices have is neither: a CPU has no TF32 to leave out.
    A workload of overhead makes its variants itself: raises TypeError.
    """
    if isinstance(workload, OverheadWorkload):
        raise TypeError(f"{workload.name} measures overhead: its variants are made by `make`")
    names = ["fp32", "bf16", "fp16", "bf16-native", "fp16-native"]
    if device.endswith("cuda"):  # products in float32 are shortened
        names.insert(1, "tf32")
    elif device == "jax" and platform not in ("", "cpu"):
        names.insert(1, "fp32-default")
    found = {name: _left_out(workload, PRECISIONS[name], device) for name in names}
    chosen = [PRECISIONS[name] for name, reason in found.items() if not reason]
    baseline = replace(chosen[0], name=chosen[0].name + AA)
    return [chosen[0], baseline, *chosen[1:]], {n: r for n, r in found.items() if r}


def _left_out(workload: Workload, precision: Precision, device: str) -> str:
    """Say why a workload has no variant of a precision on a device, "" where it has one."""
    if precision.matmul != "highest" and not flops(workload):
        return NO_PRODUCT
    if precision.low is torch.float16 and device == "cpu" and not workload.fp16_on_cpu:
        return SLOW_FP16
    if precision.convert is not None and isinstance(workload, OpWorkload) and given_low(workload):
        return NOT_FLOAT32
    if precision.convert is torch.float16 and isinstance(workload, StepWorkload):
        return FP16_GRADIENTS
    return ""


def compilers(workload: Workload, device: str) -> list[str]:
    """Return the compilers of a workload on a device of that name, op by op first.

    On jax a whole call is one program with "jit"; `torch.compile` makes a program of the forward and one of the
    backward pass there, which is the same for an op and worth a look for a step. A device of somebody else's runs op
    by op, as nothing is known of its compilers. Overhead is Python's cost, so it runs op by op as well.
    On CUDA an op is replayed from a graph too, where launching may take longer than computing (`prepare.LIMIT`).
    """
    if isinstance(workload, OverheadWorkload):
        return ["eager"]
    if device == "cuda" and isinstance(workload, OpWorkload):
        return ["eager", "graph", "compile"]
    if device in ("cpu", "cuda"):
        return ["eager", "compile"]
    if device == "jax":
        return ["eager", "jit", "compile"] if isinstance(workload, StepWorkload) else ["eager", "jit"]
    return ["eager"]


def select(patterns: Sequence[str] = (), quick: bool = False, heavy: bool = False) -> list[Workload]:
    """Return the workloads that patterns name, in the catalogue's order; without patterns all or the quick ones.

    A pattern is a whole name, else a family, else a glob if it has a star, question mark or bracket, else a part of
    names. `quick` says which there are without patterns, and nothing with them: who names a workload wants it.
    `heavy`: whether there is a GPU or TPU for the heavy ones. Raises UsageError for a pattern that matches nothing, or
    heavy workloads only where `heavy` is not set.
    """
    known = catalogue()
    if not patterns:
        return [w for w in known.values() if (heavy or not w.heavy) and (w.quick or not quick)]
    wanted: set[str] = set()
    for pattern in patterns:
        matched = _matching(pattern, known)
        usable = {name for name in matched if heavy or not known[name].heavy}
        if not matched:
            raise _unknown(pattern, known)
        if not usable:
            raise UsageError(f"{pattern!r} names workloads for a GPU or TPU only: {', '.join(sorted(matched))}")
        wanted |= usable
    return [w for name, w in known.items() if name in wanted]


def _matching(pattern: str, known: dict[str, Workload]) -> set[str]:
    if pattern in known:
        return {pattern}
    if family := {name for name, w in known.items() if w.family == pattern}:
        return family
    if any(sign in pattern for sign in "*?["):
        return {name for name in known if fnmatchcase(name, pattern)}
    return {name for name in known if pattern and pattern in name}


def _unknown(pattern: str, known: dict[str, Workload]) -> UsageError:
    families = dict.fromkeys(w.family for w in known.values())
    close = get_close_matches(pattern, [*known, *families], 4)
    hint = f"did you mean {', '.join(close)}?" if close else f"families are {', '.join(families)}"
    return UsageError(f"there is no benchmark workload named {pattern!r}; {hint}")
