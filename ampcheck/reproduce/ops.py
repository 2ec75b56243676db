"""An op case in plain torch: its call in a region, beside the same call on explicitly cast inputs."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ampcheck.checks.call import CallPlan, plan
from ampcheck.checks.layouts import LAYOUTS
from ampcheck.checks.reference import DRAWS, FREEDOM, bound, distance, mover, narrowest
from ampcheck.compilers import function
from ampcheck.compilers.source import written
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import is_composite
from ampcheck.reproduce import expected, snippets, values
from ampcheck.reproduce.common import assembled
from ampcheck.samples.describe import FORMS, TensorArg, in_form, leaves
from ampcheck.samples.tensors import build
from ampcheck.spec.case import Case
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import DTYPES

_OF_KERNELS = (
    "reached the kernel",
    "ran with dtype=",
    "never ran",
    "its kernel ran",
    "casts of the arg",
    "ran no kernel",
)
"""How the differences read that only a recorder shows."""
_OF_ACCURACY = "float64 result"
_SIGNS = {"matmul": "@", "pow": "**", "truediv": "/", "add": "+", "sub": "-", "mul": "*", "eq": "=="}


def of_op(case: Case, device: Device, message: str = "", modules: Sequence[str] = (), *, ran: bool = True) -> str:
    """Write an op case in plain torch: it prints a line per check, `ok` or `FAIL` with what was got and expected.

    Args:
        message: the differences that were found; what shows none of them is left out. "": everything is looked at.
        modules: what `--device-module` named.
        ran: False for a case that ended its process: nothing of it is run here, nor compared with a reference.

    Returns: a program that does not import ampcheck.
    """
    todo = plan(case, device)
    form = next((form for form in FORMS if f"on {form} inputs" in message), "")
    todo = replace(todo, sample=in_form(todo.sample, form) or todo.sample) if form else todo
    blocks, names = made(todo, case, device)
    region = f"with {device.region}({device.type!r}, dtype={DTYPES[case.amp]}):"
    if not ran:
        return assembled(device, modules, [*blocks, f"{region}\n    print(call(*inputs()))"])
    blocks += [snippets.CHECK]
    if todo.expected.error:
        return assembled(device, modules, [*blocks, _refused(todo, region)])
    if case.rule == "fallthrough" and is_composite(case.op) and device.observes_composite_ops:
        recorder = snippets.recorder(device, casts=False, kernels=True)
        wanted = _parts(case, device, todo)
        part = f"""\
torch.manual_seed(0)
{region}
    seen = observe(lambda: call(*inputs()))
check("listed ops in aten::{case.op}, with the dtypes they received", lines(seen), {wanted!r})"""
        return assembled(device, modules, [*blocks, recorder, snippets.lines_of(wanted), part])
    # A dispatch mode does not see what the kernels of every device receive; what comes out shows it, too.
    kernels = device.observes_composite_ops and (not message or any(mark in message for mark in _OF_KERNELS))
    outputs = not message or not kernels
    exact = outputs and (_OF_ACCURACY in message) and device.has_values
    if kernels or not device.has_values:
        blocks.append(snippets.recorder(device, casts=True, kernels=True))
    checks = [_kernel(case, todo, region)] if kernels else []
    if outputs:
        blocks += [snippets.RUN, snippets.SAME] if device.has_values else []
        checks.append(_outputs(case, device, todo, names, region))
    if exact:
        checks += [near(), _accuracy(todo)]
    return assembled(device, modules, [*blocks, *checks])


def made(todo: CallPlan, case: Case, device: Device) -> tuple[list[str], list[str]]:
    """Return the functions `inputs`, which makes the tensors of a case, and `call`, which calls its op on them.

    Returns: the blocks of a program that define them, and the names of the parameters of `call`.
    """
    names = list(_names(todo))
    tensors = [
        values.expression(leaf, given.dtype, place, device)
        for place, (leaf, given) in enumerate(zip(leaves(todo.sample), todo.given, strict=True))
    ]
    blocks = [values.SEEDED] if any("seeded(" in text for text in tensors) else []
    rows = "".join(f"        {text},\n" for text in tensors)
    inputs = (
        f"def inputs():\n    return [\n{rows}    ]"
        if len(tensors) > 1
        else f"def inputs():\n    return [{''.join(tensors)}]"
    )
    call = f"def call({', '.join(names)}):\n    return {_call(todo, case, names)}"
    return [*blocks, inputs, call], names


def cast_call(todo: CallPlan, case: Case, names: Sequence[str]) -> str:
    """Return the call that autocast makes of a case's, with a `dtype` of that name where it fills one in."""
    return _call(todo, case, names, dtype=todo.expected.dtype_kwarg is not None and todo.sample.call == "aten")


def _names(todo: CallPlan) -> Iterator[str]:
    for place, _ in enumerate(leaves(todo.sample)):
        yield "abcdefghijklmnopqrstuvw"[place] if place < 23 else f"t{place}"


def _call(todo: CallPlan, case: Case, names: Sequence[str], *, dtype: bool = False) -> str:
    """Return the call as people write it; with `dtype`, of the overload that takes the one autocast fills in."""
    remaining = iter(names)
    args = [written(value, remaining) for value in todo.sample.args]
    kwargs = [f"{name}={written(value, remaining)}" for name, value in todo.sample.kwargs.items()]
    path = todo.sample.call
    own = bool(args) and isinstance(todo.sample.args[0], TensorArg)
    if path == "aten":
        packet, _, variant = (todo.expected.overload if dtype else case.op).partition(".")
        path = f"torch.ops.aten.{packet}.{variant or 'default'}"
        kwargs += ["dtype=dtype"] * dtype
    elif path.startswith("operator.") and len(args) == 2:
        return f"{args[0]} {_SIGNS[path.removeprefix('operator.')]} {args[1]}"
    elif path.startswith("torch.Tensor.") and own:
        path = f"{args.pop(0)}.{path.removeprefix('torch.Tensor.')}"
    return f"{path}({', '.join([*args, *kwargs])})"


def dtypes_list(names: Sequence[str]) -> str:
    """Return dtypes as a list in a program."""
    return f"[{', '.join(str(DTYPES[name]) for name in names)}]"


def _refused(todo: CallPlan, region: str) -> str:
    return f"""\
try:
    {region}
        call(*inputs())
    got = None
except RuntimeError as error:
    got = str(error)
right = {todo.expected.error!r} in str(got)
check("whether it raises an error that names {todo.expected.error}", right or got, True)"""


def _parts(case: Case, device: Device, todo: CallPlan) -> list[str]:
    """Write a composite op without a policy: each listed op in it receives what the device's policy says."""
    with device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when the case ran
        args, kwargs = build(todo.sample, todo.dtypes, device)
        call = function(todo.op, todo.sample)
        device.seed()
        return expected.of_call(lambda: call(*args, **kwargs), device, case.amp)[0]


def _kernel(case: Case, todo: CallPlan, region: str) -> str:
    want = todo.expected
    told = want.dtype_kwarg or todo.dtype_given
    lines = [
        "torch.manual_seed(0)",
        "tensors_given = inputs()",
        region,
        "    seen = observe(lambda: call(*tensors_given), *tensors_given)",
        f"kernel, wanted = seen.of({want.overload!r}), {list(want.leaves)!r}",
        "followed = [x for x in kernel.leaves if x.source is not None] if kernel else []",
        f'check("whether the kernel of aten::{want.overload} ran", kernel is not None or seen.error, True)',
        'check("dtypes it received", [x.got for x in followed], [wanted[x.source] for x in followed])',
    ]
    if want.dtype_kwarg or case.rule in ("optdtype", "append"):
        lines.append(f'check("dtype= it ran with", kernel and kernel.dtype_kwarg, {told!r})')
    lines += [
        "if kernel and len(followed) == len(kernel.leaves):",
        f'    check("casts", sum(x.source is not None for x in seen.casts), {want.casts(todo.given)})',
    ]
    return "\n".join(lines)


def _outputs(case: Case, device: Device, todo: CallPlan, names: Sequence[str], region: str) -> str:
    want = todo.expected
    filled = want.dtype_kwarg
    lines = []
    call = "call"
    if filled and todo.sample.call == "aten":
        lines += [
            f"def filled_in({', '.join(names)}, dtype={DTYPES[filled]}):",
            f"    return {_call(todo, case, names, dtype=True)}",
            "",
        ]
        call = "filled_in"
    leaves = [filled if filled and call == "call" and is_floating(dtype) else dtype for dtype in want.leaves]
    lines.append(
        f"cast_inputs = [x.to(dtype) for x, dtype in zip(inputs(), {dtypes_list(leaves)})]  # rule {case.rule}"
    )
    if device.has_values:
        lines += [region, "    got = run(call, *inputs())", f"want = run({call}, *cast_inputs)"]
    else:
        lines += [
            region,
            "    got = observe(lambda: call(*inputs()))",
            f"want = observe(lambda: {call}(*cast_inputs))",
            "got, want = ([x.error] if x.error else x.outputs for x in (got, want))",
        ]
    lines.append(
        "dtypes = [[getattr(x, 'dtype', type(x)) for x in out] for out in (got, want)]\n"
        'check("dtypes of the outputs, or what was raised", *dtypes)'
    )
    if device.has_values and todo.op.values != "none" and not (filled and call == "call"):
        lines.append(
            'check("whether they have the bits of a call on explicitly cast inputs", all(map(same, got, want)), True)'
        )
    return "\n".join(lines)


def near() -> str:
    """Return the source of the functions of `ampcheck.checks.reference` that bound the distance from float64."""
    names = {name: str(DTYPES[name]) for name in FREEDOM}
    dtypes = ", ".join(f"{name!r}: {dtype}" for name, dtype in names.items())
    sources = (inspect.getsource(part).rstrip() for part in (mover, distance, bound))
    head = f"from collections.abc import Callable\n\nFREEDOM = {FREEDOM!r}\nDTYPES = {{{dtypes}}}"
    return "\n\n\n".join([head, *sources])


def _accuracy(todo: CallPlan) -> str:
    call = "filled_in" if todo.expected.dtype_kwarg and todo.sample.call == "aten" else "call"
    dtype = ", dtype=torch.float64" if call == "filled_in" else ""
    return f"""\
wide = [x.cpu().double() if x.is_floating_point() else x.cpu() for x in cast_inputs]
exact = run(lambda *x: {call}(*x{dtype}), *wide)
moved = [torch.zeros(x.shape, dtype=torch.float64) for x in exact]
for draw in range({DRAWS}):
    others = run(lambda *x: {call}(*x{dtype}), *map(mover({narrowest(todo)!r}, draw), wide))
    moved = [torch.maximum(far, distance(x, y)) for far, x, y in zip(moved, others, exact)]
for x, y, far in zip(got, exact, moved):
    if x.is_floating_point() or x.is_complex():
        limit = bound(y, far, {narrowest(todo)!r}, x.dtype, {todo.op.passes})
        error = distance(x.cpu(), y)
        check("whether it is as near to the CPU's float64 result as a right kernel", bool((error <= limit).all()), True)
    else:
        check("whether it is the CPU's result", torch.equal(x.cpu(), y.to(x.dtype)), True)"""


def of_layout(case: Case, device: Device, form: str) -> str:
    """Return a case with tensors of a form, in plain torch."""
    return laid_out(of_op(case, device), LAYOUTS[form])


def laid_out(program: str, made: str) -> str:
    """Return a program whose inputs are laid out. `made`: what a floating tensor `x` is made, as an expression."""
    formed = f"""\
plain = inputs

def inputs():
    return [({made}) if x.is_floating_point() else x for x in plain()]"""
    return program.replace("\n\ndef check(", f"\n\n{formed}\n\ndef check(", 1)
