"""Visits to one function that is scripted or traced: its regions, and the calls it makes."""

import ast
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from ampcheck.spec.policies import table, versions
from ampcheck.tools.lint.names import Function, own
from ampcheck.tools.lint.program import QUERIES, Found, LintedProgram, Visit, around, decorators, entered, regions_of
from ampcheck.tools.lint.rules import LINTED


def script(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that TorchScript runs otherwise than eager mode."""
    for made in decorators(program, function):
        yield made.call, "decorator", f"`{function.name}` is scripted and decorated with autocast"
    for item, inside in entered(program, function):
        if inside is None:
            if not _made_here(program, function, item.context_expr):
                yield item.context_expr, "object-elsewhere", ""
            continue
        for option in inside.varying():
            yield inside.call, f"{option.removesuffix('_type')}-not-constant", ""
        if inside.disabled:
            yield inside.call, "disabled-in-script", ""
        if inside.default_dtype:
            yield inside.call, "default-dtype", ""
        if inside.unsupported:
            yield inside.call, "unsupported-dtype", f"the region's dtype is {inside.dtype.value}"
        elif inside.own_dtype and not inside.disabled:
            yield inside.call, "dtype-in-script", ""
        device = inside.device.value
        if isinstance(device, str) and device not in ("cpu", "cuda"):
            yield inside.call, "device-in-script", f"a scripted region is on {device!r}"
        name = item.optional_vars
        if isinstance(name, ast.Name) and _used(program, function, name.id):
            yield inside.call, "bound", f"the region's object is bound to `{name.id}`, which is used"
    for call in program.calls_of(function):
        called = program.names.dotted(call.func)
        if called in QUERIES:
            yield call, "query-in-script", f"`{called}` is called"
        for made in around(program, call)[:1]:
            if differs := difference(called, str(made.device.value)):
                yield call, "policies-in-script", differs
        if not around(program, call):
            continue
        behind = program.compiled_callee(call)
        if behind is not None and behind[0] == "traced" and _disables(program, behind[1]):
            yield call, "traced-callee", ""
        if called == "torch.jit.fork" or any(map(program.is_left_out, program.functions(call.func, ""))):
            yield call, "left-to-python", ""


def trace(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that tracing runs otherwise than eager mode."""
    for node, made in regions_of(program, function):
        if made.disabled or made.own_dtype:
            yield node, "lost-in-trace", ""
        if made.default_dtype:
            yield node, "default-dtype", ""
        for option in made.varying():
            yield node, "frozen", f"`{option}` of a region is not a constant"
    for call in program.calls_of(function):
        behind = program.compiled_callee(call)
        if behind is None or not around(program, call):
            continue
        if behind[0] == "script":
            yield call, "scripted-callee", ""
        elif behind[0] == "traced" and _disables(program, behind[1]):
            yield call, "traced-callee", ""


def traced_under(program: LintedProgram) -> Iterator[Found]:
    """Yield the calls of torch.jit.trace inside an enabled region that keeps casts."""
    for call in program.calls:
        keeps = any(made.cache_enabled.value is not False for made in around(program, call))
        if keeps and program.compiler(call) == "traced":
            yield call, "trace-under-autocast", f"{LINTED['traced']} is called in a region that keeps casts"


def _made_here(program: LintedProgram, function: Function, expression: ast.expr) -> bool:
    """Return whether the same function made the object that a with statement enters, under a plain name."""
    if not isinstance(expression, ast.Name):
        return False
    found = program.names.lookup(expression.id, expression)
    return found is not None and found[0] is function and len(found[1]) == 1


def _used(program: LintedProgram, function: Function, name: str) -> bool:
    nodes = (node for node in own(function) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in nodes)


def _disables(program: LintedProgram, roots: list[Function]) -> bool:
    """Return whether a traced program, or a function that it calls, has a disabled region."""
    waiting, seen = list(roots), set[Function]()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        if any(made.disabled for _, made in regions_of(program, function)):
            return True
        waiting += [callee for call in program.calls_of(function) for callee in program.callees(call, "traced")]
    return False


VISITS: dict[str, Visit] = {"script": script, "traced": trace}

_SCRIPTED = tomllib.loads(Path(__file__).with_name("policies.toml").read_text(encoding="utf-8"))
_BY_OP = {op: policy for policy, ops in _SCRIPTED.items() for op in ops.split()}
_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}
# A sum in float32 is asked for in another way, with the same result.
_SAME = {"optdtype": "upcast", "append": "upcast"}
_WORDS = {"downcast": "the region's dtype", "upcast": "float32", "promote": "the widest dtype", "banned": "an error"}
_WORDS[""] = "the dtype of its arguments"


@cache
def _own(device: str) -> dict[str, str]:
    policies = table(_KEYS[device], versions()[-1])
    found = {overload.partition(".")[0]: policy for overload, policy in policies.items()}
    return {op: _SAME.get(policy, policy) for op, policy in found.items()}


def difference(called: str, device: str) -> str:
    """Return in words how TorchScript's policy for a function differs from a device type's; "" where it does not.

    `called`: its full name, e.g. "torch.nn.functional.layer_norm". Methods are not looked at.
    """
    home, _, name = called.rpartition(".")
    if device not in _KEYS or home not in ("torch", "torch.nn.functional", "torch.linalg", "torch.fft"):
        return ""
    op = f"{home.rpartition('.')[2]}_{name}" if home in ("torch.linalg", "torch.fft") else name
    # TorchScript alone promotes what every kernel promotes by itself.
    own, scripted = _own(device).get(op, ""), _BY_OP.get(op, "")
    promotes = scripted == "promote" and not own and op not in ("add", "sub", "mul", "div")
    if op == "softmax" or own == scripted or promotes:
        return ""
    return f"`{called}` runs in {_WORDS[own]} by the {device} list, in {_WORDS[scripted]} by TorchScript's"
