"""Plain torch for what a reproduction needs beside the code of its case.

The text between the quotes is pasted by people into reports: it is short, and its comments say what it stands for.
"""

from __future__ import annotations

from ampcheck.devices.base import Device
from ampcheck.spec.casting import APPENDED

CHECK = """\
def check(what, got, want):
    print("ok  " if got == want else "FAIL", what, "| got", got, "| expected", want)"""

NAME_OF = """\
def name_of(dtype):
    return str(dtype)[6:].replace("bfloat", "bf").replace("float", "fp")"""

# A line that starts with c is there where casts are asked for, one with k where kernels are.
_RECORDER = """\
 |class Recorder(TorchDispatchMode):  # sits below autocast: sees the casts it makes and what each kernel receives
 |    def __init__(self, *inputs):
 |        super().__init__()
k|        self.kernels = []
c|        self.casts, self.made, self.kept = [], {}, [*inputs]
c|        self.source = {id(tensor): place for place, tensor in enumerate(inputs)}
 |        self.outputs, self.error, self.on = [], None, torch.is_autocast_enabled(TYPE)
 |
 |    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
 |        kwargs, has = kwargs or {}, torch._C._dispatch_has_kernel_for_dispatch_key
 |        listed = func.namespace != "prim" and has(func.name(), KEY)
 |        if not listed and func.namespace != "prim" and has(func.name(), "CompositeImplicitAutograd"):
 |            torch.set_autocast_enabled(TYPE, self.on)  # taken apart, for autocast acts on its parts
 |            try:
 |                with self:
 |                    return func._op_dk(torch._C.DispatchKey.CompositeImplicitAutograd, *args, **kwargs)
 |            finally:
 |                torch.set_autocast_enabled(TYPE, False)
k|        name = str(func).removeprefix("aten.").removesuffix(".default")
k|        given = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs
k|        leaves = [SimpleNamespace(got=name_of(x.dtype), source=SOURCE) for x in tensors(given)]
k|        told = name_of(given["dtype"]) if isinstance(given.get("dtype"), torch.dtype) else None
k|        self.kernels.append(SimpleNamespace(overload=name, leaves=leaves, dtype_kwarg=told, listed=listed))
 |        out = func(*args, **kwargs)
c|        if func is torch.ops.aten._to_copy.default and out.dtype != args[0].dtype:
c|            self.casts.append(SimpleNamespace(source=self.source.get(id(args[0]))))
c|            self.made[id(out)] = self.casts[-1].source
c|            self.kept.append(out)
c|        elif func.is_view and isinstance(out, torch.Tensor) and id(args[0]) in self.source:
c|            self.source[id(out)] = self.source[id(args[0])]
c|            self.kept.append(out)
 |        return out"""

_OF = """

    def of(self, overload):
        return next((kernel for kernel in self.kernels if kernel.overload == overload), None)"""

TENSORS = """\
def tensors(nested):
    return [x for x in tree_leaves(nested) if isinstance(x, torch.Tensor)]"""

OBSERVE = """\
def observe(call, *inputs):
    seen = Recorder(*inputs)
    with torch._C._AutoDispatchBelowAutograd(), seen:
        try:
            seen.outputs = tensors(call())
        except Exception as error:
            seen.error = error
    return seen"""

_LINES = """\
def lines(seen):  # the listed ops that ran, with the dtypes their kernels received, and what was raised
    ran = [k for k in seen.kernels if k.listed or k.overload in APPENDED]
    ran = [[k.overload, *(x.got for x in k.leaves), *[f"dtype={k.dtype_kwarg}"] * bool(k.dtype_kwarg)] for k in ran]
    return [" ".join(words) for words in ran] + [f"raises {type(seen.error).__name__}"] * (seen.error is not None)"""

RUN = """\
def run(call, *tensors):
    torch.manual_seed(0)
    try:
        return [x for x in tree_leaves(call(*tensors)) if isinstance(x, torch.Tensor)]
    except Exception as error:
        print("     raised", error)
        return [error]"""

SAME = """\
def same(a, b):  # the same bits; NaN is NaN
    if isinstance(a, Exception) or isinstance(b, Exception):
        return type(a) is type(b)
    if a.is_complex():
        a, b = torch.view_as_real(a.resolve_conj()), torch.view_as_real(b.resolve_conj())
    return a.shape == b.shape and bool(((a == b) | (a != a) & (b != b)).all())"""


def _lines(template: str, wanted: str) -> str:
    """Return the lines of a template that start with no mark, or with one that is wanted."""
    marked = ((line[:1], line[2:]) if line[1:2] == "|" else ("", line) for line in template.splitlines())
    return "\n".join(line for mark, line in marked if not mark.strip() or mark in wanted)


def recorder(device: Device, *, casts: bool, kernels: bool) -> str:
    """Return the class that records, as short as its uses allow, and the function that runs a call under it."""
    text = _lines(_RECORDER, "c" * casts + "k" * kernels)
    source = ", source=self.made.get(id(x), self.source.get(id(x)))" if casts else ""
    text = text.replace(", source=SOURCE", source) + _OF * kernels
    head = f"TYPE, KEY = {device.type!r}, {device.key!r}"
    return "\n\n".join([head, *([NAME_OF] if kernels else []), TENSORS, text, OBSERVE])


def lines_of(expected: list[str]) -> str:
    """Return the function that puts what a recorder saw in the form of the lines expected."""
    appended = sorted({line.split()[0] for line in expected} & {*APPENDED.values()})
    return _LINES.replace(" or k.overload in APPENDED", f" or k.overload in {appended}" if appended else "")
