"""The compiled functions of a file, the functions they call, and the visits to each: its regions, and its calls."""

import ast
from collections.abc import Callable, Iterator

from ampcheck.tools.lint.names import CUSTOM_FWD, Function, LintedRegion, Names, With, own, region
from ampcheck.tools.lint.values import Values

_EXPORTS = ("torch.export.export", "torch.export.draft_export", "torch.export.export_for_training", "torch.onnx.export")
_COMPILERS = dict.fromkeys(("torch.jit.script", "torch.jit.script_if_tracing"), "script")
_COMPILERS |= dict.fromkeys(("torch.jit.trace", "torch.jit.trace_module"), "traced")
_COMPILERS |= {"torch.fx.symbolic_trace": "fx"} | dict.fromkeys(_EXPORTS, "export")
_LEFT_OUT = ("torch.jit.ignore", "torch.jit.unused")

CompiledFunction = tuple[Function, str]
"""A function that a compiler reaches, and the compiler."""


class LintedProgram:
    """The functions, classes and compilations of one file."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.values = Values(names)
        self.calls = [node for node in ast.walk(names.tree) if isinstance(node, ast.Call)]

    def compiler(self, call: ast.AST) -> str:
        """Return the compiler that a call compiles by; "" where it compiles nothing."""
        if not isinstance(call, ast.Call):
            return ""
        compiler = _COMPILERS.get(self.names.dotted(call.func), "")
        if not compiler and isinstance(call.func, ast.Attribute) and call.func.attr == "trace":
            return "fx" if "torch.fx.Tracer" in self.values.kinds(call.func.value) else ""
        return compiler

    def compiled(self) -> list[CompiledFunction]:
        """Every function that some compiler reaches, once per compiler."""
        waiting = list(self._roots())
        seen: dict[CompiledFunction, None] = {}
        while waiting:
            function, compiler = waiting.pop(0)
            if (compiler == "script" and self.is_left_out(function)) or (function, compiler) in seen:
                continue
            seen[function, compiler] = None
            for call in self.calls_of(function):
                waiting += [(callee, compiler) for callee in self.callees(call, compiler)]
        return list(seen)

    def _roots(self) -> Iterator[CompiledFunction]:
        for node in ast.walk(self.names.tree):
            if isinstance(node, Function | ast.ClassDef):
                for decorator in node.decorator_list:
                    compiler = _COMPILERS.get(self.names.dotted(decorator), "") or self.compiler(decorator)
                    if compiler:
                        yield from ((function, compiler) for function in self.entries(node, compiler))
        for call in self.calls:
            compiler = self.compiler(call)
            if compiler and call.args:
                yield from ((function, compiler) for function in self.functions(call.args[0], compiler))

    def is_left_out(self, function: Function) -> bool:
        """Return whether TorchScript leaves a function to Python."""
        decorators = [d.func if isinstance(d, ast.Call) else d for d in function.decorator_list]
        return any(self.names.dotted(decorator) in _LEFT_OUT for decorator in decorators)

    def calls_of(self, function: Function) -> list[ast.Call]:
        """Return the calls that a function makes itself."""
        return [node for node in own(function) if isinstance(node, ast.Call)]

    def callees(self, call: ast.Call, compiler: str) -> list[Function]:
        """Return the functions of the file that a compiler goes into at a call; none for one compiled by itself."""
        if self.compiler(call) or self.compiled_callee(call):
            return []
        # An autograd function is one op to TorchScript; the others see what its forward does.
        if compiler in ("fx", "export") and isinstance(call.func, ast.Attribute) and call.func.attr == "apply":
            kinds = [kind for kind in self.values.origins(call.func.value) if isinstance(kind, ast.ClassDef)]
            if kinds:
                return self.entries(kinds[-1], compiler)
        return self.functions(call.func, "")

    def compiled_callee(self, call: ast.Call) -> tuple[str, list[Function]] | None:
        """Return the compiler and functions behind a call of a program compiled before; None for other calls."""
        for value in self.values.origins(call.func):
            compiler = self.compiler(value)
            if compiler and isinstance(value, ast.Call) and value.args:
                return compiler, self.functions(value.args[0], compiler)
            for decorator in getattr(value, "decorator_list", ()):
                compiler = _COMPILERS.get(self.names.dotted(decorator), "")
                if compiler and isinstance(value, Function):
                    return compiler, [value]
        return None

    def functions(self, expression: ast.AST, compiler: str, seen: frozenset[ast.AST] = frozenset()) -> list[Function]:
        """Return the functions that run when an expression's value is called, or compiled by a compiler.

        `seen`: values that are looked at already; `model = torch.jit.script(model)` is made of itself.
        """
        out: list[Function] = []
        for value in (one for one in self.values.origins(expression) if one not in seen):
            made: list[ast.AST] = [kind for kind, _ in self.values.instances(value)]
            if (owner := self.names.itself(value)) is not None:
                made = [owner]
            parts: list[ast.expr] = value.elts if isinstance(value, (ast.List, ast.Tuple)) else []
            if isinstance(value, ast.Call) and not made:
                # A program compiled twice, scripted and then traced; or Sequential, ModuleList.
                of_torch = self.names.dotted(value.func).startswith("torch.nn.")
                parts = value.args[:1] if self.compiler(value) else value.args if of_torch else []
            out += [function for one in (made or [value]) for function in self.entries(one, compiler)]
            out += [function for part in parts for function in self.functions(part, compiler, seen | {value})]
        return out

    def entries(self, node: ast.AST, compiler: str) -> list[Function]:
        """Return the functions that a compiler enters for a function, or for an instance of a class."""
        if isinstance(node, Function):
            return [node]
        if not isinstance(node, ast.ClassDef):
            return []
        found = self.names.attribute(node, "forward") or self.names.attribute(node, "__call__")
        if compiler == "script":
            methods = [method for method in node.body if isinstance(method, ast.FunctionDef)]
            found = found + [
                method for method in methods if "torch.jit.export" in map(self.names.dotted, method.decorator_list)
            ]
        return [method for method in found if isinstance(method, Function)]


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


def entered(program: LintedProgram, function: Function) -> Iterator[tuple[ast.withitem, LintedRegion | None]]:
    """Yield the with items of a function that enter a region, and the region; None for one that was made elsewhere."""
    for node in own(function):
        if isinstance(node, With):
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
    values = (value for value in program.values.origins(expression) if isinstance(value, ast.expr))
    return [maker for value in values if value is not expression for maker in _makers(program, value)]


def decorators(program: LintedProgram, function: Function) -> list[LintedRegion]:
    """Return the regions that decorate a function."""
    found = (region(program.names, decorator) for decorator in function.decorator_list)
    return [made for made in found if made is not None]


def around(program: LintedProgram, node: ast.AST) -> list[LintedRegion]:
    """Return the enabled regions around a node lexically, within its function."""
    found = (region(program.names, item.context_expr) for one in program.names.around(node) for item in one.items)
    return [made for made in found if made is not None and not made.disabled]


def fx(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that symbolic tracing runs otherwise than eager mode."""
    yield from ((made.call, "lost-in-fx", "") for made in decorators(program, function))
    for item, made in entered(program, function):
        yield item.context_expr if made is None else made.call, "lost-in-fx", ""
    yield from _custom(program, function)


def export(program: LintedProgram, function: Function) -> Iterator[Found]:
    """Find places in a function that export runs otherwise than eager mode."""
    for node, made in regions_of(program, function):
        for option in made.varying():
            yield node, "frozen", f"`{option}` of a region is not a constant"
        if made.default_dtype:
            yield node, "default-dtype", ""
    yield from _custom(program, function)


def every_compiler(program: LintedProgram, function: Function, compiler: str) -> Iterator[Found]:
    """Find places in a function that every compiler runs otherwise than eager mode."""
    for node in own(function):
        if isinstance(node, With):
            yield from _reentered(program, node)
    for call in program.calls_of(function):
        called = program.names.dotted(call.func)
        if called in _CHANGE:
            yield call, "state-change", f"`{called}` is called"
        elif called in QUERIES and compiler != "script":
            yield call, "query-frozen", f"`{called}` is called"


def regions_of(program: LintedProgram, function: Function) -> Iterator[tuple[ast.AST, LintedRegion]]:
    """Yield the regions that decorate a function or that it enters, with the calls that make them."""
    yield from ((made.call, made) for made in decorators(program, function))
    yield from ((made.call, made) for _, made in entered(program, function) if made is not None)


def _reentered(program: LintedProgram, statement: With) -> Iterator[Found]:
    outer = {_name(item) for parent in program.names.around(statement) for item in parent.items} - {""}
    for item in statement.items:
        entered = item.context_expr
        if isinstance(entered, ast.Name) and entered.id in outer and _makers(program, entered):
            yield entered, "entered-twice", f"`{entered.id}` is entered inside itself"


def _name(item: ast.withitem) -> str:
    """Return the name of the object that a with item enters."""
    if isinstance(item.optional_vars, ast.Name):
        return item.optional_vars.id
    return item.context_expr.id if isinstance(item.context_expr, ast.Name) else ""


def _custom(program: LintedProgram, function: Function) -> Iterator[Found]:
    for decorator in function.decorator_list:
        made = decorator.func if isinstance(decorator, ast.Call) else decorator
        if program.names.dotted(made) in CUSTOM_FWD:
            yield decorator, "custom-fwd", ""


VISITS: dict[str, Visit] = {"fx": fx, "export": export}
"""The visit for each compiler that is not TorchScript's."""
