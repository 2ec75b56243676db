"""A compiled op case in plain torch, for a report."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ampcheck.cases import AROUND, Case
from ampcheck.devices.base import Device
from ampcheck.executors import source
from ampcheck.ops.describe import leaves
from ampcheck.repro import values
from ampcheck.repro.common import assembled
from ampcheck.verdict import plan

_MAKE = {
    "script": "torch.jit.script(program)",
    "traced": "torch.jit.trace(program, tuple(inputs()), check_trace=False)",
    "dynamo": 'torch.compile(program, backend="eager", fullgraph=True)',
    "aot": 'torch.compile(program, backend="aot_eager", fullgraph=True)',
    "inductor": 'torch.compile(program, backend="inductor", fullgraph=True)',
    "export": "torch.export.export(Module(), tuple(inputs()), strict=False).module()",
    "strict": "torch.export.export(Module(), tuple(inputs()), strict=True).module()",
    "decomposed": "torch.export.export(Module(), tuple(inputs()), strict=False).run_decompositions().module()",
    "jaxcompile": 'torch.compile(program, backend="jax", fullgraph=True)',
    "jaxjit": "ampcheck.jax_device.jit(program)",
}
_MODULE = """\
class Module(torch.nn.Module):
    def forward(self, *inputs):
        return program(*inputs)"""
_RUN = """\
def run(call):
    xs = [x.detach().clone().requires_grad_(GRADS and x.is_floating_point()) for x in inputs()]
    torch.manual_seed(0)
    REGION
        out = tree_leaves(call(*xs))
    roots = [x for x in out if x.requires_grad]
    leaves = [x for x in xs if x.requires_grad]
    ones = [torch.ones_like(x) for x in roots]
    grads = torch.autograd.grad(roots, leaves, ones, allow_unused=True) if roots and leaves else []
    state = torch.is_autocast_enabled(TYPE), torch.get_autocast_dtype(TYPE), torch.is_autocast_cache_enabled()
    return out, grads, state

def shown(call):
    try:
        out, grads, state = run(call)
    except Exception as error:
        return type(error).__name__, str(error)
    return [x.dtype for x in out], [x if x is None else x.dtype for x in grads], state, out, grads"""
_SHOW = """\
for what, call in (("eager", program), ("compiled", compiled), ("compiled, second call", compiled)):
    print(what, *shown(call), sep="\\n    ")"""


def reproduce(case: Case, device: Device, modules: Sequence[str] = ()) -> str:
    """A compiled op case as a program: prints what eager mode and the compiled program give."""
    todo = plan(replace(case, sample=""), device)
    made = [
        values.expression(leaf, given.dtype, place, device)
        for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True))
    ]
    blocks = [values.SEEDED] if any("seeded(" in text for text in made) else []
    blocks += [f"def inputs():\n    return [{', '.join(made)}]", source.text(case, device, todo.sample).rstrip()]
    around = case.sample == AROUND
    region = source.region(case, device) if around else "if True:"
    run = _RUN.replace("REGION", region).replace("TYPE", repr(device.type))
    run = run.replace("GRADS", str(case.executor != "jaxjit"))
    make = f"compiled = {_MAKE[case.executor]}"
    if around:
        make = f"{region}\n    {make}"
    if "Module()" in make:
        blocks.append(_MODULE)
    return assembled(
        device,
        modules,
        [*blocks, run, f"{make}\n{_SHOW}"],
        ["import ampcheck.jax_device.compile"] if case.executor == "jaxcompile" else [],
    )
