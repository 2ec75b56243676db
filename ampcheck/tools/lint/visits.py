"""The linter's visits to one compiled function: its regions, and the calls it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ampcheck.tools.lint.names import Function
from ampcheck.tools.lint.policies import difference
from ampcheck.tools.lint.program import CompiledFunction, LintedProgram
from ampcheck.tools.lint.regions import LintedRegion, region
from ampcheck.tools.lint.rules import LINTED

Found = tuple[ast.AST, str, str]
"""A node, the rule it breaks, and a description; "" for the rule's own."""

_STATE = tuple(
    f"autocast_{name}" for name in ("enabled", "cpu_enabled", "cache_enabled", "dtype", "gpu_dtype", "cpu_dtype")
)
_QUERY = {f"torch.{verb}_{name}" for name in _STATE for verb in ("is", "get")}
_CHANGE = {f"torch.set_{name}" for name in _STATE} | {"torch.clear_autocast_cache"}
_CHANGE |= {"torch.autocast_increment_nesting", "torch.autocast_decrement_nesting"}
_CUSTOM_FWD = ("torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd", "torch.amp.autocast_mode.custom_fwd")


def entered(program: LintedProgram, function: Function) -> Iterator[tuple[ast.withitem, LintedRegion | None]]:
    """The with items of a function that enter a region, and the region; None where the object was made elsewhere."""
    for node in program.own(function):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                made = region(program.names, item.context_expr)
                if made is not None:
                    yield item, made
                elif _makers(program, item.context_expr):
                    yield item, None


def _makers(program: LintedProgram, expression: ast.expr) -> list[ast.expr]:
    """The calls that made the region objects an expression may stand for."""
    if isinstance(expression, ast.IfExp):
        return _makers(program, expression.body) + _makers(program, expression.orelse)
    if region(program.names, expression) is not None:
        return [expression]
    value = program.value(expression)
    if isinstance(value, ast.expr) and value is not expression:
        return _makers(program, value)
    return []


def decorators(program: LintedProgram, function: Function) -> list[LintedRegion]:
    """The regions that decorate a function."""
    found = (region(program.names, decorator) for decorator in function.decorator_list)
    return [made for made in found if made is not None]


def around(program: LintedProgram, node: ast.AST) -> list[LintedRegion]:
    """The enabled regions around a node lexically, within its function."""
    out = []
    for parent in program.names.parents(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            regions = (region(program.names, item.context_expr) for item in parent.items)
            out += [made for made in regions if made is not None and not made.disabled]
    return out


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
        if called in _QUERY:
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
    for node, made in _regions(program, function):
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


def fx(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that symbolic tracing runs otherwise than eager mode."""
    for node, _ in _regions(program, function):
        yield node, "lost-in-fx", ""
    for item, made in entered(program, function):
        if made is None:
            yield item.context_expr, "lost-in-fx", ""
    yield from _custom(program, function)


def export(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that export runs otherwise than eager mode."""
    for node, made in _regions(program, function):
        for option in made.varying():
            yield node, "frozen", f"`{option}` of a region is not a constant"
        if made.default_dtype:
            yield node, "default-dtype", ""
    yield from _custom(program, function)


VISITS: dict[str, Callable[[LintedProgram, Function], Iterator[Found]]] = {
    "script": script,
    "traced": trace,
    "fx": fx,
    "export": export,
}


def every_compiler(program: LintedProgram, compiled: CompiledFunction) -> Iterator[Found]:
    """Find places in a function that every compiler runs otherwise than eager mode."""
    function = compiled.function
    for node in program.own(function):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            yield from _reentered(program, node)
    for call in program.calls_of(function):
        called = program.names.dotted(call.func)
        if called in _CHANGE:
            yield call, "state-change", f"`{called}` is called"
        elif called in _QUERY and compiled.compiler != "script":
            yield call, "query-frozen", f"`{called}` is called"


def traced_under(program: LintedProgram) -> Iterator[Found]:
    """The calls of torch.jit.trace inside an enabled region that keeps casts."""
    for call in program.calls:
        if program.compiler(call) == "traced":
            for made in around(program, call):
                if made.cache_enabled.value is not False:
                    yield call, "trace-under-autocast", f"{LINTED['traced']} is called in a region that keeps casts"
                    break


def _regions(program: LintedProgram, function: Function) -> Iterator[tuple[ast.AST, LintedRegion]]:
    yield from ((made.call, made) for made in decorators(program, function))
    yield from ((made.call, made) for _, made in entered(program, function) if made is not None)


def _made_here(program: LintedProgram, function: Function, expression: ast.expr) -> bool:
    """Return whether the same function made the object that a with statement enters, under a plain name."""
    if not isinstance(expression, ast.Name):
        return False
    found = program.names.lookup(expression.id, expression)
    return found is not None and found[0] is function and len(found[1]) == 1


def _used(program: LintedProgram, function: Function, name: str) -> bool:
    nodes = (node for node in program.own(function) if isinstance(node, ast.Name))
    return any(node.id == name and isinstance(node.ctx, ast.Load) for node in nodes)


def _reentered(program: LintedProgram, statement: ast.With | ast.AsyncWith) -> Iterator[Found]:
    outer = {_name(item) for parent in _withs(program, statement) for item in parent.items} - {""}
    for item in statement.items:
        entered = item.context_expr
        if isinstance(entered, ast.Name) and entered.id in outer and _makers(program, entered):
            yield entered, "entered-twice", f"`{entered.id}` is entered inside itself"


def _withs(program: LintedProgram, node: ast.AST) -> Iterator[ast.With | ast.AsyncWith]:
    for parent in program.names.parents(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            return
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            yield parent


def _name(item: ast.withitem) -> str:
    """The name of the object that a with item enters."""
    if isinstance(item.optional_vars, ast.Name):
        return item.optional_vars.id
    return item.context_expr.id if isinstance(item.context_expr, ast.Name) else ""


def _disables(program: LintedProgram, roots: list[Function]) -> bool:
    """Return whether a traced program, or a function that it calls, has a disabled region."""
    waiting, seen = list(roots), set[Function]()
    while waiting:
        function = waiting.pop()
        if function in seen:
            continue
        seen.add(function)
        if any(made.disabled for _, made in _regions(program, function)):
            return True
        waiting += [callee for call in program.calls_of(function) for callee in program.callees(call, "traced")]
    return False


def _custom(program: LintedProgram, function: Function) -> Iterator[Found]:
    for decorator in function.decorator_list:
        made = decorator.func if isinstance(decorator, ast.Call) else decorator
        if program.names.dotted(made) in _CUSTOM_FWD:
            yield decorator, "custom-fwd", ""
