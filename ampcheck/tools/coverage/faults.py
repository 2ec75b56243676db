"""Faults that are planted into the results of one op, to see whether a sweep notices them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.cases import MODES, compilers, without_gradient
from ampcheck.checks.compiled import simulate_cuda
from ampcheck.checks.sweep import FORMS, Cell, SweepCall, SweepParity, impossible, mixes_of
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Unsupported, UsageError
from ampcheck.observe.kernel_override import Kernel, altered, replaceable
from ampcheck.observe.recorder import overload
from ampcheck.spec.case import Case
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.torch_private import registered

Change = Callable[[torch.Tensor], torch.Tensor]


def quarter(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor whose values are a quarter too large; one of whole numbers or of nothing stays."""
    return tensor * 1.25 if tensor.is_floating_point() or tensor.is_complex() else tensor


def one_more_dimension(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor with one dimension more."""
    return tensor.unsqueeze(0)


def other_strides(tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values with doubled strides; one of a single element stays."""
    if tensor.layout != torch.strided or tensor.numel() < 2:
        return tensor
    return torch.stack([tensor, tensor], -1).select(-1, 0)


RESULTS: dict[str, Change] = {
    "a value wrong by a quarter": quarter,
    "one dimension too many": one_more_dimension,
    "a wrong stride": other_strides,
}
"""By what the fault is, what it makes of each tensor of a result."""
LOST = "a lost cast"


def in_results(kernel: Kernel, change: Change) -> Kernel:
    """Return a kernel whose results are changed, if they are a tensor, or a tuple or a list of tensors."""

    def changed(value: Any) -> Any:
        if isinstance(value, (tuple, list)):
            return type(value)(map(changed, value)) if type(value) in (tuple, list) else value
        return change(value) if isinstance(value, torch.Tensor) else value

    return lambda *args, **kwargs: changed(kernel(*args, **kwargs))


def without_casts(name: str, device_type: str) -> Kernel:
    """Return a kernel of an overload that runs it on its arguments as they are."""

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast(device_type, enabled=False):
            return overload(name)(*args, **kwargs)

    return call


def tried(device: Device, number: int, seed: int) -> list[Try]:
    """Plant each fault into the autocast kernel of random cells, of eager mode and of each compiler in turn.

    A program of a compiler that reads that kernel has the fault, too. Raises UsageError where kernels of the device
    cannot be replaced.
    """
    if not replaceable(device.key):
        raise UsageError(f"faults cannot be planted into the kernels of {device.name}")
    drawn = random.Random(seed)
    found: list[Try] = []
    names = ["", *compilers(device, nightly=True)]
    policies = device.policies()
    ops = [op for op in samples.catalogue().values() if op.overload in registered(device.key)]
    ops = [op for op in ops if policies.get(op.overload) in POLICIES and policies[op.overload] != "banned"]
    made = 0
    while made < number:
        op, mode, layout = drawn.choice(ops), drawn.choice(MODES), drawn.choice(list(FORMS))
        compiler = names[made % len(names)]
        mix, inputs = drawn.choice(list(mixes_of(op.samples[0], device.default_amp).items()))
        if impossible(op, device, mix, mode, layout) or (mode == "grad" and without_gradient(device, compiler)):
            continue
        where = (device.default_amp, device.name, device.token, compiler)
        case = Case("jit" if compiler else "eager", policies[op.overload], op.overload, "", inputs, *where)
        cell = Cell(op.overload, mix, mode, layout, compiler)
        with device.activate(), simulate_cuda(device), quiet():
            call = SweepCall(case, device, mode, layout)
            if call.ran().error is not None or call.refused_by_cpu or _differences(call):
                continue  # refused, or red already
            made += 1
            found += [_try(call, cell, fault) for fault in (*RESULTS, LOST)]
    return found


@dataclass(frozen=True, slots=True)
class Try:
    """A fault in a cell. `outcome`: "noticed", "not noticed", or "impossible" where it changed nothing."""

    cell: Cell
    fault: str
    outcome: str


def table(tries: Sequence[Try], seed: int) -> str:
    """Write how many faults were noticed, by fault and compiler, and the survivors."""
    counts = Counter((each.fault, each.cell.compiler or "eager", each.outcome) for each in tries)
    pairs = sorted({(each.cell.compiler or "eager", each.fault) for each in tries})
    rows = [[*pair, *(counts[pair[1], pair[0], outcome] for outcome in OUTCOMES)] for pair in pairs]
    cells = len({each.cell for each in tries})
    lines = [f"Faults in {cells} random cells, seed {seed}:", tabulate(rows, headers=["run by", "fault", *OUTCOMES])]
    return "\n\n".join(
        [*lines, *(f"not noticed: {each.fault} in {each.cell}" for each in tries if each.outcome == MISSED)]
    )


OUTCOMES = (SEEN, MISSED, NOTHING) = ("noticed", "not noticed", "impossible")


def _differences(call: SweepCall) -> list[str]:
    try:
        return SweepParity(call.case, call.device, [call]).differences() if call.case.compiler else call.differences()
    except Broken as broken:
        return broken.differences
    except Unsupported as unsupported:
        return [str(unsupported)]


def _try(call: SweepCall, cell: Cell, fault: str) -> Try:
    """Plant one fault; it is impossible where no kernel of the cell gives another result with it."""
    reached: list[bool] = []

    def change(kernel: Kernel) -> Kernel:
        if fault == LOST:
            reached.append(call.todo.given_dtypes != list(call.todo.expected.leaves))
            return without_casts(cell.overload, call.device.type)

        def changed(tensor: torch.Tensor) -> torch.Tensor:
            made = RESULTS[fault](tensor)
            reached.append(made is not tensor)
            return made

        return in_results(kernel, changed)

    with altered(call.device.key, cell.overload, change):
        noticed = bool(_differences(call))
    return Try(cell, fault, (SEEN if noticed else MISSED) if any(reached) else NOTHING)
