"""Faults that are planted into a call of an op, to see whether its sweep notices them."""

import random
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass

import torch
from tabulate import tabulate

from ampcheck import samples
from ampcheck.checks.cases import MODES, compilers, without_gradient
from ampcheck.checks.compiled import ProgramOutcome, simulate_cuda
from ampcheck.checks.sweep import FORMS, UNFILLED, Cell, SweepCall, SweepParity, compare_cells, impossible, mixes_of
from ampcheck.compilers.kinds import quiet
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Unsupported, UsageError
from ampcheck.observe.closeness import alike
from ampcheck.observe.dispatcher import replaceable
from ampcheck.observe.recorder import map_tensors
from ampcheck.spec.case import Case
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.torch_private import registered
from ampcheck.tools.power.kernels import DROPPED, QUARTER, RESULTS, KernelMutant, injected

FAULTS = (QUARTER, "a dimension too many", "wrong strides", "wrong dtype", DROPPED)
"""The changes of kernels and of programs that are planted."""
DRAWS = 2000
"""How many cells are drawn for each compiler at most."""


@dataclass(frozen=True, slots=True)
class Try:
    """A fault in a cell, in the compiled program `alone`, or in eager mode as well."""

    cell: Cell
    fault: str
    alone: bool
    noticed: bool


def tried(device: Device, number: int, seed: int, tell: Callable[[str], None]) -> list[Try]:
    """Plant each fault in random cells that can have it, shared out between eager mode and the compilers.

    At least `number` cells have each fault. Raises UsageError where kernels of the device cannot be replaced.
    """
    if not replaceable(device.key):
        raise UsageError(f"faults cannot be planted into the kernels of {device.name}")
    drawn, policies, found = random.Random(seed), device.policies(), list[Try]()
    ops = [op for op in samples.catalogue().values() if op.overload in registered(device.key)]
    ops = [op for op in ops if policies.get(op.overload) in POLICIES and policies[op.overload] != "banned"]
    names = ["", *compilers(device, nightly=True)]
    for compiler in names:
        left = dict.fromkeys(FAULTS, -(-number // len(names)))
        if not device.has_values:
            del left[QUARTER]
        for _ in range(DRAWS):
            op, mode, layout = drawn.choice(ops), drawn.choice(MODES), drawn.choice(list(FORMS))
            mix, inputs = drawn.choice(list(mixes_of(op.samples[0], device.default_amp).items()))
            if impossible(op, device, mix, mode, layout) or (mode == "grad" and without_gradient(device, compiler)):
                continue
            where = (device.default_amp, device.name, device.token, compiler)
            case = Case("jit" if compiler else "eager", policies[op.overload], op.overload, "", inputs, *where)
            cell = Cell(op.overload, mix, mode, layout, compiler)
            with device.activate(), simulate_cuda(device), quiet():
                call = SweepCall(case, device, mode, layout)
                faults = [fault for fault, count in left.items() if count and _possible(call, fault)]
                if not faults or _found(_check(call)) != []:
                    continue  # red already, or unsupported
                where_to = (False, True) if compiler else (False,)
                found += filter(None, (_try(call, cell, fault, alone) for fault in faults for alone in where_to))
            for fault in faults:
                left[fault] -= 1
            tell(f"{compiler or 'eager'}: {cell}")
            if not any(left.values()):
                break
    return found


def table(tries: Sequence[Try], seed: int) -> str:
    """Write how many faults were noticed, by fault and compiler, and the survivors."""
    counts = Counter((each.cell.compiler or "eager", each.fault, each.noticed) for each in tries)
    rows = []
    for name in dict.fromkeys(compiler for compiler, _, _ in counts):
        pairs = [(counts[name, fault, True], counts[name, fault, False]) for fault in FAULTS]
        rows.append([name, *(f"{seen} of {seen + unseen}" for seen, unseen in pairs)])
    noticed, cells = sum(each.noticed for each in tries), len({each.cell for each in tries})
    head = f"{noticed} of {len(tries)} faults in {cells} random cells, seed {seed}, were noticed:"
    told = {False: "in eager mode, too", True: "in the program alone"}
    missed = [f"not noticed: {t.fault} in {t.cell}, {told[t.alone]}" for t in tries if not t.noticed]
    return "\n\n".join([head, tabulate(rows, headers=["run by", *FAULTS]), *missed])


class _WrongProgram(SweepParity):
    """A call as a program with a fault: compiled alone, or in eager mode as well."""

    def __init__(self, call: SweepCall, fault: str, alone: bool) -> None:
        super().__init__(call.case, call.device, [call])
        self.change = RESULTS.get(fault, lambda tensor: tensor)
        self.unchanged = self.eager if alone else None
        if fault == DROPPED and self.without_region:
            self.function = self.without_region
            self.eager = self.eager if alone else self.without_region

    def run(
        self, call: Callable[..., object], *, grads: bool, region: AbstractContextManager[object] | None = None
    ) -> ProgramOutcome:
        def wrong(*given: torch.Tensor) -> object:
            return map_tensors(call(*given), self.change)

        # What is cast by hand has a context in place of the region.
        right = region is not None or call is self.unchanged
        return super().run(call if right else wrong, grads=grads, region=region)

    def changes(self) -> bool:
        """Whether the compiled program gives another result than the one without the fault."""
        both = self, SweepParity(self.case, self.device, self.calls)
        got, want = (each.run(self.compiler.make(each.function, each.inputs()).call, grads=self.grads) for each in both)
        pairs = zip((*got.outputs, *got.grads), (*want.outputs, *want.grads), strict=True)
        return any(a is not None and b is not None and not alike(a, b) for a, b in pairs)


def _found(differences: Callable[[], list[str]]) -> list[str] | None:
    """Return what a check finds; None where it is unsupported."""
    try:
        return differences()
    except Broken as broken:
        return broken.differences
    except Unsupported:
        return None


def _injected(call: SweepCall, fault: str) -> AbstractContextManager[list[bool]]:
    device = call.device
    return injected(KernelMutant(device.name, device.type, device.key, call.case.op, call.case.rule, fault))


def _possible(call: SweepCall, fault: str) -> bool:
    """Whether a kernel with a fault gives another result. In eager mode a lost cast is seen by what the op receives."""
    todo, name = call.todo, call.case.op
    if call.refused_by_cpu or call.ran().error is not None:
        return False
    casts = todo.given_dtypes != list(todo.expected.leaves) or bool(todo.expected.dtype_kwarg)
    if fault == DROPPED and not (casts and call.case.compiler):
        return casts
    with _injected(call, fault):
        under = call.ran()
    with call.device.native_ops():
        return bool(compare_cells(under, call.right(), name, UNFILLED.get(name, ())))


def _check(call: SweepCall) -> Callable[[], list[str]]:
    return SweepParity(call.case, call.device, [call]).differences if call.case.compiler else call.differences


def _try(call: SweepCall, cell: Cell, fault: str, alone: bool) -> Try | None:
    """Plant one fault: into the autocast kernel, or into the program where it is alone, and in TorchScript's casts.

    Returns None where a compiler makes the same of a program without its casts.
    """
    if alone or cell.compiler == "script":
        program = _WrongProgram(call, fault, alone)
        noticed = bool(_found(program.differences))
        same = alone and not noticed and call.device.has_values and not program.changes()
        return None if same else Try(cell, fault, alone, noticed)
    with _injected(call, fault):
        return Try(cell, fault, alone, bool(_found(_check(call))))
