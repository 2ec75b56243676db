"""Look for a program of regions on which devices and the model differ, and write it as plain torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from contextlib import closing
from typing import Any

import torch
from hypothesis import assume

from ampcheck.checks.program import preamble
from ampcheck.devices.base import Device
from ampcheck.devices.cpu import Cpu
from ampcheck.devices.virtual import DEVICES
from ampcheck.errors import one_line
from ampcheck.observe import isolation
from ampcheck.observe.recorder import Recorder
from ampcheck.programs.regions import plain
from ampcheck.programs.regions.draw import Texts
from ampcheck.programs.regions.sides import Model, OnDevices, compare
from ampcheck.programs.search import Search
from ampcheck.spec.torch_dtypes import name_of

EXAMPLES = 30
NIGHTLY = 1500


def second(device: Device) -> Device:
    """Return a device of another type to use beside one in its programs: the CPU, or for the CPU a virtual one."""
    return Cpu() if device.type != "cpu" else next(d for d in DEVICES if d.type == "xpu")


def defined(text: str) -> Callable[[plain.Side], None]:
    """Return the function that a program's text defines."""
    names: dict[str, Any] = {"torch": torch, "closing": closing, "PlannedError": plain.PlannedError}
    exec(compile(text, "<program>", "exec"), names)
    program: Callable[[plain.Side], None] = names["program"]
    return program


class RegionExplorer:
    """Runs programs on a device and a second one, and compares what is seen with the model.

    `compared`: how many states, dtypes and casts were compared so far.
    """

    def __init__(self, device: Device, search: Search = Search()) -> None:  # noqa: B008  # frozen
        self.devices = (device, second(device))
        self.search = search
        self.compared = 0

    def promised(self, text: str) -> Model:
        """Return the model after it ran a program."""
        model = Model(self.devices)
        model.run(defined(text))
        return model

    def seen(self, text: str) -> list[plain.Seen]:
        """Run a program on the devices and return what was seen. It starts from a fresh state, and leaves one."""
        defaults = {device.type: device.default_amp for device in self.devices}
        isolation.reset(defaults)
        try:
            return OnDevices(self.devices).run(defined(text))
        finally:
            isolation.reset(defaults)

    def difference(self, text: str) -> str | None:
        """Describe how torch differs from the model on a program in a sentence, or return None."""
        return self._difference(text, self.promised(text))

    def _difference(self, text: str, model: Model) -> str | None:
        self.compared += len(model.seen)
        try:
            got = self.seen(text)
        except Exception as error:  # only torch's own: the exceptions of programs are seen
            return f"running the program raised {one_line(error)}; expected it to run"
        return compare(got, model.seen)

    def explore(self, draw: Callable[[Sequence[str]], Texts]) -> tuple[str, str] | None:
        """Return the difference on the smallest random program that has one, and that program; None without one.

        Programs that meet a known deviation of PyTorch are left out.
        """

        def difference(text: str) -> str | None:
            model = self.promised(text)
            assume(not model.known_bugs)
            return self._difference(text, model)

        drawn = draw([device.type for device in self.devices])
        return self.search.first_difference(difference, drawn, examples=EXAMPLES, nightly=NIGHTLY)

    def script(self, text: str) -> str:
        """Return a program in plain torch, or a comment where plain torch does not see the kernels of a device.

        It prints a line for each observation: `ok`, or `FAIL` with what was got and expected.
        """
        if not self.devices[0].observes_composite_ops:
            return f"# A dispatch mode does not see the kernels of {self.devices[0].name}: run it with the pytest line."
        virtual = [device for device in self.devices if not device.has_values]
        defaults = ", ".join(f"{name!r}: {dtype}" for name, dtype in Model(self.devices).defaults.items())
        parts = (plain.PlannedError, plain.Kernel, Recorder, plain.LookedAt, plain.Side, plain.Torch)
        return "\n".join(
            (
                _IMPORTS,
                *preamble(virtual[0] if virtual else self.devices[0]),
                "\n",
                inspect.getsource(name_of),
                _TABLES,
                *(f"\n\n{inspect.getsource(part).rstrip()}" for part in parts),
                "\n",
                text,
                "\n",
                "WANTED = [",
                *(f"    {seen!r}," for seen in self.promised(text).seen),
                "]",
                f"side = Torch({{{defaults}}}{', fake.__enter__' if virtual else ''})",
                _COMPARED,
            )
        )


_IMPORTS = """\
from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any
from itertools import zip_longest
from typing import Any, NamedTuple

from torch._C import _AutoDispatchBelowAutograd as AutoDispatchBelowAutograd
from torch.utils._python_dispatch import TorchDispatchMode"""
_TABLES = f"""

DTYPES = {{name_of(dtype): dtype for dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}}
OVERLOADS, STRICT = {plain.OVERLOADS}, {plain.STRICT}"""
_COMPARED = """\
for got, want in zip_longest(side.run(program), WANTED, fillvalue=(0, "the end", None)):
    same = "ok  " if got == want else "FAIL"
    print(same, f"line {got[0]}: {got[1]} | got", got[2], "| expected", want[2] if got[:2] == want[:2] else want)"""
