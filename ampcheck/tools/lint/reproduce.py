"""A limitation of a compiler in plain torch: a program beside itself compiled, in and outside of regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampcheck.checks.program import expression, written
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.samples.describe import TensorArg
from ampcheck.tools.lint.record import differences, refusal

if TYPE_CHECKING:
    from ampcheck.tools.lint.cases import Limit

CHECK = """\
def check(what, got, want):
    print("ok  " if got == want else "FAIL", what, "| got", got, "| expected", want)"""
_COMPARED = """\
try:
    {compile}
except Exception as error:
    compiled = None
    check("what compiling gives", *refusal(error, {says!r}))

if compiled is not None:
    for what, got, want in differences(program, compiled, (a, b), {type!r}, ({dtype}, {other}), {says!r}):
        check(what, got, want)"""


def of_limit(limit: Limit, amp: DeviceAmp) -> str:
    """Write a limit in plain torch that prints `ok` or `FAIL` for each thing looked at, with what was expected."""
    a, b = (expression(TensorArg((2, 2), None, "unit", seed=n), "fp32", 0, amp.device)[0] for n in (1, 2))
    text, _, last = limit.source(amp.device, amp.dtype, amp.other).rstrip("\n").rpartition("\n")
    marks = {"F.": "import torch.nn.functional as F\n", "Optional[": "from typing import Optional\n"}
    imports = "".join(line for mark, line in marks.items() if mark in text)
    compared = _COMPARED.format(compile=last, says=limit.says, type=amp.type, dtype=amp.dtype, other=amp.other)
    lines = [CHECK, f"a = {a}\nb = {b}", imports + text.rstrip("\n"), compared]
    return written(amp.device, (), [differences, refusal], lines)
