"""A cell of a sweep in plain torch: the op case that has its dtypes, with inputs in its layout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampcheck import samples
from ampcheck.checks.cells import FORMS, cell_of, mixes_of
from ampcheck.devices.base import Device
from ampcheck.reproduce.compiled import of_compiled
from ampcheck.reproduce.gradients import of_gradient
from ampcheck.reproduce.ops import laid_out, of_op
from ampcheck.spec.case import GRADIENT, Case


def of_cells(case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True) -> str:
    """Write the first cell that a sweep's message names, or the op's first one, as a program.

    Takes and prints what `ampcheck.reproduce.of_op` does. Of the gradient modes, it has the backward pass alone.
    """
    cells = mixes_of(samples.catalogue()[case.op].samples[0], case.amp)
    mix, layout = cell_of(message) or (next(iter(cells)), "contiguous")
    single = replace(case, sample="", inputs=cells[mix])
    if case.compiler:
        program = of_compiled(single, device, message, modules)
    elif case.inputs == "grad":
        program = of_gradient(replace(single, inputs=single.inputs + GRADIENT), device, message, modules, ran=ran)
    else:
        program = of_op(single, device, message, modules, ran=ran)
    return program if layout == "contiguous" else laid_out(program, FORMS[layout])
