"""Faults that are planted into the results of one op, to see whether a sweep notices them."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.cases import MODES, compilers, without_gradient
from ampcheck.checks.compiled import simulate_cuda
from ampcheck.checks.sweep import FORMS, Cell, SweepCall, SweepParity, impossible, mixes_of
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Unsupported, UsageError
from ampcheck.observe.kernel_override import replaceable
from ampcheck.spec.case import Case
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.torch_private import registered
from ampcheck.tools.power.kernels import DROPPED, QUARTER, KernelMutant, injected

FAULTS = (QUARTER, "a dimension too many", "wrong strides", "wrong dtype", DROPPED)
"""The changes of kernels that are planted."""


def tried(device: Device, number: int, seed: int, tell: Callable[[str], None]) -> list[Try]:
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
            tell(f"{made} of {number}: {cell}")
            found += [_try(call, cell, fault) for fault in FAULTS if device.has_values or fault != QUARTER]
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
    device, todo = call.device, call.todo
    with injected(KernelMutant(device.name, device.type, device.key, cell.overload, call.case.rule, fault)) as felt:
        noticed = bool(_differences(call))
    casts = todo.given_dtypes != list(todo.expected.leaves) or bool(todo.expected.dtype_kwarg)
    changed = any(felt) and (fault != DROPPED or casts)
    return Try(cell, fault, (SEEN if noticed else MISSED) if changed else NOTHING)
