"""A compiled op case in plain torch, for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampcheck.checks.call import plan
from ampcheck.compilers import source
from ampcheck.compilers.kinds import COMPILERS
from ampcheck.devices.base import Device
from ampcheck.reproduce import snippets, values
from ampcheck.reproduce.common import COMPILED, assembled
from ampcheck.samples.describe import leaves
from ampcheck.spec.case import AROUND, Case
from ampcheck.spec.torch_dtypes import DTYPES

_MAKE = {
    name: how.format(function="program", inputs="tuple(inputs())", options="fullgraph=True", sizes="")
    for name, how in COMPILED.items()
}
_MODULE = """\
class Module(torch.nn.Module):
    def forward(self, *inputs):
        return program(*inputs)"""
_RUN = """\
def run(call):
    xs = [x.detach().clone().requires_grad_(GRADS and x.is_floating_point()) for x in inputs()]
    torch.manual_seed(0)
    out = grads = []
    try:
        REGION
            out = tree_leaves(call(*xs))
        roots = [x for x in out if x.requires_grad]
        leaves = [x for x in xs if x.requires_grad]
        ones = [torch.ones_like(x) for x in roots]
        grads = torch.autograd.grad(roots, leaves, ones, allow_unused=True) if roots and leaves else []
        error = None
    except Exception as raised:
        error = raised
    torch.autocast_increment_nesting()
    depth = torch.autocast_decrement_nesting()
    state = torch.is_autocast_enabled(TYPE), torch.get_autocast_dtype(TYPE), torch.is_autocast_cache_enabled(), depth
    return SimpleNamespace(out=out, grads=grads, error=error, state=state)

def refused(what, error, wanted):
    said = str(wanted).strip().partition("\\n")[0]
    right = None not in (error, wanted) and (said in str(error) or said in str(error).replace("\\\\'", "'"))
    print("ok  " if right else "FAIL", what, "| raised", repr(error), "| expected", repr(wanted))

def dtypes(tensors):
    return [x if x is None else x.dtype for x in tensors]"""
_FAR = """\
def near(what, got, want):  # at most {rounds} roundings of the lowest dtype away: other kernels may run
    wide = torch.complex128 if want.is_complex() else torch.float64
    a, b = (x.detach().to_dense() if x.layout != torch.strided else x.detach() for x in (got, want))
    a, b = a.cpu().to(wide), b.cpu().to(wide)
    low = [x for x in (want.dtype, {lowest}) if x.is_floating_point]
    scale = max([1.0, *b[b.isfinite()].abs().flatten().tolist()])
    bound = {rounds} * max(torch.finfo(x).eps for x in low) * scale if want.is_floating_point() else 0.0
    right = torch.allclose(a, b, 0.0, bound, equal_nan=True)
    print("ok  " if right else "FAIL", what, "| got", got, "| expected", want, "or within", bound)"""
_COMPARED = """\
GRADS = {grads}
want = run({eager})
if want.error is not None:
    GRADS = False
    want = run({eager})
try:
    {make}
except Exception as error:
    compiled = None
    refused("compiling", error, want.error)
for turn in ("first", "second") if compiled is not None else ():
    got = run(compiled)
    if got.error is not None or want.error is not None:
        refused(f"the {{turn}} call", got.error, want.error)
        continue
    check(f"state after the {{turn}} call", got.state, want.state)
    check(f"output dtypes of the {{turn}} call", dtypes(got.out), dtypes(want.out))
    check(f"gradient dtypes of the {{turn}} call", dtypes(got.grads), dtypes(want.grads))"""
_VALUES = """
    for place, (a, b) in enumerate(zip({pairs})):
        if None not in dtypes([a, b]) and a.dtype == b.dtype:
            near(f"{what} {{place}} of the {{turn}} call", a, b)"""
_KERNEL = """\
class Kernel(TorchDispatchMode):  # sits below autocast: the dtypes that a kernel receives, and its dtype=
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if str(func).removeprefix("aten.").removesuffix(".default") == {overload!r} and not self.seen:
            given = dict(zip((a.name for a in func._schema.arguments), args)) | (kwargs or {{}})
            self.seen += [x.dtype for x in tree_leaves(given) if isinstance(x, torch.Tensor)]
            self.seen += [x for x in [given.get("dtype")] if x is not None]
        return func(*args, **(kwargs or {{}}))

def received(call):
    kernel = Kernel()
    kernel.seen = []
    {region}
        with torch._C._AutoDispatchBelowAutograd(), kernel:
            call(*inputs())
    return kernel.seen

if compiled is not None and want.error is got.error is None and received({eager}) and received(compiled):
    check("what the kernel of aten::{overload} received", received(compiled), received({eager}))"""
_WATCHED = ("script", "traced", "export", "strict")
"""Those whose program runs PyTorch's kernels where a dispatch mode sees them."""
_OF_KERNELS = ("the kernel of", "ran with dtype=")
"""How the differences read that only a dispatch mode shows."""


def of_compiled(case: Case, device: Device, message: str = "", modules: Sequence[str] = ()) -> str:
    """Return a compiled op case as a program: holds what it gives compiled against what it gives in eager mode.

    It prints and takes what `ampcheck.reproduce.of_op` prints and takes.
    """
    todo = plan(replace(case, sample=""), device)
    made = [
        values.expression(leaf, given.dtype, place, device)
        for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True))
    ]
    blocks = [values.SEEDED] if any("seeded(" in text for text in made) else []
    rows = "".join(f"        {text},\n" for text in made)
    blocks += [f"def inputs():\n    return [\n{rows}    ]", source.text(case, device, todo.sample).rstrip()]
    compiler = COMPILERS[case.compiler]
    around = case.sample == AROUND
    region = source.region(case, device) if around else "if True:"
    eager = "program"
    if case.compiler == "script":  # in Python, a name without the overload may find another one
        eager = "eager"
        blocks.append(
            source.text(replace(case, compiler=""), device, todo.sample).replace("def program", "def eager").rstrip()
        )
    run = _RUN.replace("REGION", region).replace("TYPE", repr(device.type))
    blocks += [snippets.CHECK, run]
    make = f"compiled = {_MAKE[case.compiler]}"
    compared = _COMPARED.format(
        eager=eager,
        grads=compiler.grads and device.has_values,
        make=f"{region}\n        {make}" if around else make,
    )
    if device.has_values and todo.op.values != "none":
        low = [str(DTYPES[leaf]) for leaf in dict.fromkeys(todo.expected.leaves) if leaf in DTYPES]
        blocks.append(_FAR.format(rounds=compiler.rounds, lowest=", ".join(low)))
        compared += _VALUES.format(pairs="got.out, want.out", what="output")
        if todo.op.values == "exact":
            compared += _VALUES.format(pairs="got.grads, want.grads", what="gradient")
    if "Module()" in make:
        blocks.append(_MODULE)
    blocks.append(compared)
    if case.compiler in _WATCHED and (not message or any(mark in message for mark in _OF_KERNELS)):
        blocks.append(_KERNEL.format(eager=eager, overload=todo.expected.overload, region=region))
    return assembled(device, modules, blocks)
