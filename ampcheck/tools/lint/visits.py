"""The linter's visits to one compiled function: its regions, and the calls it makes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from ampcheck.tools.lint.names import Function, LintedRegion, region
from ampcheck.tools.lint.program import CompiledFunction, LintedProgram

Found = tuple[ast.AST, str, str]
"""A node, the rule it breaks, and a description; "" for the rule's own."""

Visit = Callable[[LintedProgram, Function], Iterator[Found]]
"""Finds the places in a function that a compiler runs otherwise than eager mode."""

_STATE = tuple(
    f"autocast_{name}" for name in ("enabled", "cpu_enabled", "cache_enabled", "dtype", "gpu_dtype", "cpu_dtype")
)
QUERIES = {f"torch.{verb}_{name}" for name in _STATE for verb in ("is", "get")}
_CHANGE = {f"torch.set_{name}" for name in _STATE} | {"torch.clear_autocast_cache"}
_CHANGE |= {"torch.autocast_increment_nesting", "torch.autocast_decrement_nesting"}
_CUSTOM_FWD = ("torch.amp.custom_fwd", "torch.cuda.amp.custom_fwd", "torch.amp.autocast_mode.custom_fwd")


def entered(program: LintedProgram, function: Function) -> Iterator[tuple[ast.withitem, LintedRegion | None]]:
    """Yield the with items of a function that enter a region, and the region; None for one that was made elsewhere."""
    for node in program.own(function):
        if isinstance(node, (ast.With, ast.AsyncWith)):
            for item in node.items:
                made = region(program.names, item.context_expr)
                if made is not None:
                    yield item, made
                elif _makers(program, item.context_expr):
                    yield item, None


def _makers(program: LintedProgram, expression: ast.expr) -> list[ast.expr]:
    """Return the calls that made the region objects an expression may stand for."""
    if isinstance(expression, ast.IfExp):
        return _makers(program, expression.body) + _makers(program, expression.orelse)
    if region(program.names, expression) is not None:
        return [expression]
    value = program.value(expression)
    if isinstance(value, ast.expr) and value is not expression:
        return _makers(program, value)
    return []


def decorators(program: LintedProgram, function: Function) -> list[LintedRegion]:
    """Return the regions that decorate a function."""
    found = (region(program.names, decorator) for decorator in function.decorator_list)
    return [made for made in found if made is not None]


def around(program: LintedProgram, node: ast.AST) -> list[LintedRegion]:
    """Return the enabled regions around a node lexically, within its function."""
    out = []
    for parent in program.names.parents(node):
        if isinstance(parent, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)):
            break
        if isinstance(parent, (ast.With, ast.AsyncWith)):
            regions = (region(program.names, item.context_expr) for item in parent.items)
            out += [made for made in regions if made is not None and not made.disabled]
    return out


def fx(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that symbolic tracing runs otherwise than eager mode."""
    for node, _ in regions_of(program, function):
        yield node, "lost-in-fx", ""
    for item, made in entered(program, function):
        if made is None:
            yield item.context_expr, "lost-in-fx", ""
    yield from _custom(program, function)


def export(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that export runs otherwise than eager mode."""
    for node, made in regions_of(program, function):
        for option in made.varying():
            yield node, "frozen", f"`{option}` of a region is not a constant"
        if made.default_dtype:
            yield node, "default-dtype", ""
    yield from _custom(program, function)


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
        elif called in QUERIES and compiled.compiler != "script":
            yield call, "query-frozen", f"`{called}` is called"


def regions_of(program: LintedProgram, function: Function) -> Iterator[tuple[ast.AST, LintedRegion]]:
    """Yield the regions that decorate a function or that it enters, with the calls that make them."""
    yield from ((made.call, made) for made in decorators(program, function))
    yield from ((made.call, made) for _, made in entered(program, function) if made is not None)


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
    """Return the name of the object that a with item enters."""
    if isinstance(item.optional_vars, ast.Name):
        return item.optional_vars.id
    return item.context_expr.id if isinstance(item.context_expr, ast.Name) else ""


def _custom(program: LintedProgram, function: Function) -> Iterator[Found]:
    for decorator in function.decorator_list:
        made = decorator.func if isinstance(decorator, ast.Call) else decorator
        if program.names.dotted(made) in _CUSTOM_FWD:
            yield decorator, "custom-fwd", ""


VISITS: dict[str, Visit] = {"fx": fx, "export": export}
"""The visit for each compiler that is not TorchScript's."""
