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

OP_DATABASE = """\
class op_database:
    def database():
        return {info.full_name: info for info in op_db}
    def samples(info, dtype, device_type, count, grad=False):
        state = random.getstate()
        random.seed(0)
        torch.manual_seed(0)
        dtype = getattr(torch, dtype.replace("fp", "float").replace("bf", "bfloat"))
        made = list(islice(info.sample_inputs_func(info, device_type, dtype, grad), count))
        random.setstate(state)
        return made"""

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

_REFERENCE_CASTS = """\
class ReferenceCasts(Recorder):  # outside of any region: casts the arguments of each listed op as EXPECTED says
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = str(func).removeprefix("aten.").removesuffix(".default")
h|        if name == "_transformer_encoder_layer_fwd":  # its kernel runs listed ops
h|            with self:
h|                return func._op_dk(getattr(torch._C.DispatchKey, TYPE.upper()), *args, **kwargs)
a|        if name == "norm.ScalarOpt_dim":  # autocast calls the overload that takes a dtype instead
a|            func, name, kwargs = torch.ops.aten.norm.ScalarOpt_dim_dtype, f"{name}_dtype", {"keepdim": False} | kwargs
        if not self.todo or self.todo[0].split()[0] != name:
            return super().__torch_dispatch__(func, types, args, kwargs)
        words = self.todo.pop(0).split()[1:]
        dtypes = iter([DTYPES.get(word) for word in words])
        args, kwargs = tree_map(lambda x: x.to(next(dtypes)) if isinstance(x, torch.Tensor) else x, (args, kwargs))
d|        if "dtype=fp32" in words:
d|            kwargs = dict(zip((a.name for a in func._schema.arguments), args)) | kwargs | {"dtype": torch.float32}
d|            args = ()
        return func(*args, **kwargs)"""

_COMPARE = """\
def _compare(amp, call, name, runs=False):
s|    torch.manual_seed(0)
s|    with amp.region():
s|        seen = observe(call)
s|    amp.assert_equal(f"listed ops that ran in {name}", lines(seen), EXPECTED[name])
s|    if runs and seen.error and "raises" in str(EXPECTED[name][-1:]):
s|        raise SystemExit(f"{name} raises that without autocast, too: {seen.error}")
s|    if "raises" in str(EXPECTED[name][-1:] + [seen.error and "raises"]):
s|        return [], True
    torch.manual_seed(0)
    reference = ReferenceCasts()
    reference.todo = [*EXPECTED[name]]
    asked, some = patch("torch.is_autocast_enabled", lambda x="cuda": x == TYPE), "torch._C._is_any_autocast_enabled"
    with asked, patch(some, lambda: True), torch._C._AutoDispatchBelowAutograd(), reference:  # as in a region
        want = tensors(call())
v|    torch.manual_seed(0)
v|    with amp.region():
v|        got = tensors(call())
f|    got = seen.outputs
    amp.assert_equal(f"output dtypes of {name}", [x.dtype for x in got], [x.dtype for x in want])
v|    bits = all(map(same, got, want))
v|    amp.assert_equal(f"whether outputs of {name} have the bits of explicit casts", bits, True)
    return got, bool(EXPECTED[name])"""

_COMPARE_LAST = """\
# What its ops should receive is not worked out here, for that would run them: this does no more than run them.
def _compare(amp, call, name, runs=False):
    with amp.region():
        return tree_leaves(call()), True"""


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


def compare(device: Device, expected: dict[str, list[str]], hidden: bool) -> str:
    """Return the function `_compare` of `suites/eager/test_modules.py`, with what each call's ops must receive as text.

    `hidden`: whether listed ops run inside of a kernel, where a recorder does not see them. `expected`: nothing where
    it could not be worked out.
    """
    if not expected:
        return _COMPARE_LAST
    every = [line for found in expected.values() for line in found]
    told = any(line.endswith("dtype=fp32") for line in every)
    appended = any(line.startswith("norm.ScalarOpt_dim_dtype") for line in every)
    rows = [f"    {name!r}: [{_wrapped(found)}]," for name, found in expected.items()]
    named = "DTYPES = {name_of(x): x for x in (torch.float16, torch.bfloat16, torch.float32, torch.float64)}"
    reference = _lines(_REFERENCE_CASTS, "h" * hidden + "d" * told + "a" * appended)
    body = _lines(_COMPARE, ("v" if device.has_values else "f") + "s" * (not hidden))
    wanted = "\n".join(["EXPECTED = {", *rows, "}  # the listed ops, the dtypes they must receive, their dtype="])
    return "\n\n".join([wanted, named, lines_of(every), *([SAME] if device.has_values else []), reference, body])


def _wrapped(lines: list[str]) -> str:
    """Return strings in rows of no more than about a hundred characters."""
    rows = [""]
    for line in lines:
        if len(rows[-1]) + len(line) > 100:
            rows.append("")
        rows[-1] += f"{line!r}, "
    rows = [row.rstrip() for row in rows]
    return rows[0].removesuffix(",") if len(rows) == 1 else "\n        " + "\n        ".join(rows) + "\n    "


CHECKS = """\
class comparisons:
    def output_dtypes(got, want, name):
        amp.assert_equal(f"output dtypes of {name}", [name_of(x.dtype) for x in got], want)
        return []
    def bitwise(got, want, name):
        amp.assert_equal(f"whether {name} gives the bits of explicit casts", all(map(same, got, want)), True)
        return []"""
