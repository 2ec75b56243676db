"""Look for a program on which a device's GradScaler and the reference differ, and write it as plain torch."""

from __future__ import annotations

import inspect

from ampcheck.checks.program import preamble
from ampcheck.devices.base import Device
from ampcheck.errors import one_line
from ampcheck.programs.scaler import plain
from ampcheck.programs.scaler.draw import ScalerProgram, programs
from ampcheck.programs.scaler.run import ScalerRun
from ampcheck.programs.search import Search

EXAMPLES = 50
COMPILED = 12
"""How many programs on a device that compiles each op for each set of shapes and dtypes."""
NIGHTLY = 2000


class ScalerExplorer:
    """Draws programs for a device, runs each, and compares. `compared`: how many values were compared so far."""

    def __init__(self, device: Device, search: Search = Search()) -> None:  # noqa: B008  # frozen
        self.device = device
        self.search = search
        self.compared = 0

    def difference(self, program: ScalerProgram) -> str | None:
        """Describe how torch differs from the reference on a program in a sentence, or return None."""
        run = ScalerRun(program)
        try:
            return run.difference()
        except Exception as error:  # a call on the scaler is caught where it is made
            return f"running the program raised {one_line(error)}; expected it to run"
        finally:
            self.compared += run.compared

    def explore(self, *, orderly: bool) -> tuple[str, ScalerProgram] | None:
        """Return the difference on a random program, made smaller, and that program; None without a difference.

        `orderly`: as for `draw.programs`.
        """
        drawn = programs(self.device.type, orderly=orderly)
        examples = EXAMPLES if self.device.database else COMPILED
        return self.search.first_difference(
            self.difference, drawn, examples=examples, nightly=NIGHTLY, smaller=ScalerProgram.shorter
        )

    def script(self, program: ScalerProgram) -> str:
        """Return a program in plain torch that shows the scaler, the parameters and their gradients after each line."""
        run = ScalerRun(program)
        difference = run.difference()
        lines = [f"# It finds: {difference}"] if difference else []
        lines += ["from __future__ import annotations\n", _IMPORTS, *preamble(self.device), "", ""]
        lines += ["\n\n".join(inspect.getsource(one) for one in (plain.reload, plain.corrupt_grad, plain.clip)), _SHOW]
        lines.append(program.setup)
        for number, line in enumerate(program.lines, 1):
            if number in run.refused:
                line = f"try:\n    {line}\nexcept Exception as error:\n    print('raised', repr(error))"
            lines += [line, f"show({f'{number} {line}'!r})" if number not in run.refused else f"show('{number}')"]
        return "\n".join(lines)


_IMPORTS = """\
from copy import deepcopy
from math import inf, nan
from pickle import dumps, loads

from torch.amp import GradScaler"""
_SHOW = """

def show(where):
    print(where, scaler.state_dict())
    for number, optimizer in enumerate(optimizers):
        print("   optimizer", number, getattr(scaler, "_per_optimizer_states", {}).get(id(optimizer), ""))
        for group in optimizer.param_groups:
            for param in group["params"]:
                grad = None if param.grad is None else param.grad.to_dense().tolist()
                print("      ", param.tolist(), "gradient", grad)

"""
