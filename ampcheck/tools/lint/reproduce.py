"""A limitation of a compiler in plain torch: a program beside itself compiled, in and outside of regions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ampcheck.checks.program import expression
from ampcheck.checks.scenario import DeviceAmp
from ampcheck.reproduce.common import CHECK, assembled
from ampcheck.samples.describe import TensorArg
from ampcheck.tools.lint.record import MOVES

if TYPE_CHECKING:
    from ampcheck.tools.lint.cases import Limit

_TOLD = """\
SAYS = {says!r}  # what a refusal must say

def refused(what, error):
    right = SAYS != "" and SAYS in " ".join(str(error).split())
    wanted = f"an error that says {{SAYS!r}}" if SAYS else "what eager mode gives"
    print("ok  " if right else "FAIL", f"what {{what}} gives", "| raised", repr(error), "| expected", wanted)

MOVES = {moves!r}

class Kernels(TorchDispatchMode):  # those that compute, and the floating dtypes they received
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = func.__name__.partition(".")[0]
        if not func.is_view and name not in MOVES and func.namespace != "prim":
            given = [x.dtype for x in tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
            self.seen.append((name, [dtype for dtype in given if dtype.is_floating_point]))
        return func(*args, **(kwargs or {{}}))

def run(call, dtype):
    kernels = Kernels()
    kernels.seen = []
    torch.set_autocast_enabled(TYPE, False)
    with nullcontext() if dtype is None else torch.autocast(TYPE, dtype=dtype):
        try:
            with kernels:
                out = tree_leaves(call(a.clone(), b.clone()))
        except Exception as error:
            out = [error]
        state = torch.is_autocast_enabled(TYPE), torch.get_autocast_dtype(TYPE), torch.is_autocast_cache_enabled()
    return out, state, kernels.seen

def facts(out):
    told = lambda x: type(x).__name__ if isinstance(x, Exception) else str(x)
    return [x.dtype if isinstance(x, torch.Tensor) else told(x) for x in out]

def near(x, y, same, dtypes):  # the same bits where the same kernels ran, else up to a rounding of a dtype used
    eps = 0.0 if same else max(torch.finfo(dtype).eps for dtype in [y.dtype, *dtypes])
    return torch.allclose(x.cpu().double(), y.cpu().double(), eps, eps)"""
_AS_PYTHON = """\
def as_python():  # in eager mode, functions that were scripted or traced run as the Python they were made of
    return patch.object(torch.jit.ScriptFunction, "__call__", lambda self, *args: self._torchdynamo_inline(*args))"""
_COMPARED = """\
try:
    {compile}
except Exception as error:
    compiled = None
    refused("compiling", error)

PLACES = [("outside of regions", None), ("in a region", {dtype}), ("in another one", {other})]
for where, dtype in PLACES if compiled is not None else ():
    with {eagerly}:
        want, after, ran = run(program, dtype)
    for turn in ("first", "second"):
        got, state, kernels = run(compiled, dtype)
        what = f"{{turn}} call {{where}}"
        if isinstance(got[0], Exception) and not isinstance(want[0], Exception):
            refused(what, got[0])
            continue
        check(f"what the {{what}} gives", facts(got), facts(want))
        check(f"state after the {{what}}", state, after)
        if facts(got) == facts(want):
            pairs = [(x, y) for x, y in zip(got, want) if isinstance(x, torch.Tensor)]
            used = [dtype for _, dtypes in ran for dtype in dtypes]
            right = all(near(x, y, kernels == ran, used) for x, y in pairs)
            check(f"whether the {{what}} gives the same values", right, True)"""


def of_limit(limit: Limit, amp: DeviceAmp) -> str:
    """Write a limit in plain torch that prints `ok` or `FAIL` for each thing looked at, with what was expected."""
    made = [expression(TensorArg((2, 2), None, "unit", seed=n), "fp32", 0, amp.device)[0] for n in (1, 2)]
    text, _, last = limit.source(amp.device, amp.dtype, amp.other).rstrip("\n").rpartition("\n")
    eagerly = "as_python()" if "torch.jit." in text else "nullcontext()"
    blocks = [
        f"TYPE = {amp.type!r}\na = {made[0]}\nb = {made[1]}",
        text.rstrip("\n"),
        CHECK,
        _TOLD.format(says=limit.says, moves=MOVES),
        *([_AS_PYTHON] if eagerly == "as_python()" else []),
        _COMPARED.format(compile=last, dtype=amp.dtype, other=amp.other, eagerly=eagerly),
    ]
    marks = {"F.": "import torch.nn.functional as F", "Optional[": "from typing import Optional"}
    return assembled(amp.device, (), blocks, [line for mark, line in marks.items() if mark in text])
