"""Mutate Python source: change one node of a module's syntax tree, and run the changed functions in place of its own.

A mutant is compiled in the process that runs it and put into the living functions by `__code__`, so that a module need
not be imported anew. Lines of modules and classes themselves, which run when they are imported, have no mutants.
"""

import ast
import copy
import gc
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from types import CodeType, FunctionType
from typing import TypeVar

from ampcheck.checks.program import codes

UNAPPLIED = "not applied"
"""The status of a case under a mutant that cannot be put into living functions."""
Node = TypeVar("Node", ast.expr, ast.With)


@dataclass(frozen=True, slots=True)
class Target:
    """A module whose source is mutated: its functions, and where `about` is given, statements that mention it.

    `functions`: globs of their names, such as "autocast.__enter__".
    `rules`: globs of `suite/rule` whose cases are tried after those that were seen to run a line. Of what Dynamo runs
    while it compiles not every line is seen. `elsewhere`: further devices whose cases are tried last, a process each,
    with the rules of these. `operators`: change operators and numbers alone.
    """

    module: str
    functions: tuple[str, ...] = ("*",)
    about: str = ""
    rules: tuple[str, ...] = ()
    elsewhere: tuple[tuple[str, tuple[str, ...]], ...] = ()
    operators: bool = False


@dataclass(frozen=True, slots=True)
class SourceMutant:
    """A change of a module's source: the `number`-th of `mutations` of its tree, of the function around its line.

    `statement`: the text of the statement that it changes, without its body.
    """

    module: str
    number: int
    function: str
    line: int
    change: str
    statement: str


@dataclass(frozen=True, slots=True)
class Mutation:
    """A change of a tree that `apply` makes. `statement`: the text of the statement it is in, without its body.

    `operator`: whether an operator or a number is changed.
    """

    function: str
    line: int
    change: str
    statement: str
    apply: Callable[[], None]
    operator: bool = False


def path_of(module: str) -> Path:
    """Return the file of a module."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin)


def generate(target: Target) -> Iterator[SourceMutant]:
    """Yield every mutant of a target that can be compiled."""
    for number, mutation in enumerate(mutations(_tree(target.module))):
        chosen = any(fnmatchcase(mutation.function, glob) for glob in target.functions)
        if chosen and re.search(target.about, mutation.statement) and (mutation.operator or not target.operators):
            found = (mutation.function, mutation.line, mutation.change, mutation.statement)
            yield SourceMutant(target.module, number, *found)


def mutations(tree: ast.Module) -> Iterator[Mutation]:
    """Yield every mutation of the functions of a module, always in the same order."""
    for name, function in _functions(tree):
        for place, default in enumerate(function.args.defaults):
            yield from _replaced(function.args, "defaults", place, default, name, f"def {name}")
        for place, value in enumerate(function.args.kw_defaults):
            if value is not None:
                yield from _replaced(function.args, "kw_defaults", place, value, name, f"def {name}")
        yield from _in_block(function.body, name)


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yield the functions and methods that are in no other function, by name."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.If):
            yield from _functions(node, prefix)


def _in_block(block: list[ast.stmt], function: str) -> Iterator[Mutation]:
    for place, statement in enumerate(block):
        yield from _in_statement(block, place, statement, function)


def _in_statement(block: list[ast.stmt], place: int, statement: ast.stmt, function: str) -> Iterator[Mutation]:
    text = _text(statement).partition(":\n")[0] if hasattr(statement, "body") else _text(statement)

    def put(new: ast.stmt, change: str, about: str = text) -> Mutation:
        def apply() -> None:
            block[place] = ast.copy_location(new, statement)

        return Mutation(function, statement.lineno, change, about, apply)

    match statement:
        case ast.Expr(value=ast.Constant()) | ast.Import() | ast.ImportFrom() | ast.Pass() | ast.Assert():
            return
        case ast.Expr() | ast.Assign() | ast.AugAssign() | ast.Raise() | ast.Delete():
            yield put(ast.Pass(), f"without `{text}`")
        case ast.Return(value=value) if value is not None and not (isinstance(value, ast.Constant) and not value.value):
            yield put(ast.Return(ast.Constant(None)), f"`return None` for `{text}`")
        case ast.Break():
            yield put(ast.Continue(), "`continue` for `break`")
        case ast.Continue():
            yield put(ast.Break(), "`break` for `continue`")
        case ast.With(items=items):
            for item in items:
                rest = [other for other in items if other is not item]
                kept = _copy(statement, items=rest) if rest else ast.If(ast.Constant(True), statement.body, [])
                entered = _text(item.context_expr)
                if item.optional_vars is None and "record_function" not in entered:  # a label in a profile
                    yield put(kept, f"without `with {entered}`", entered)
        case ast.If(test=test) if "is_scripting" in ast.unparse(test):  # TorchScript compiles its text, and runs none
            yield from _in_block(statement.orelse, function)
            return
    if not isinstance(statement, ast.Raise | ast.FunctionDef | ast.ClassDef):
        for name, value in ast.iter_fields(statement):
            if name not in ("annotation", "targets", "target"):
                yield from _in_value(statement, name, value, function, text)
    for name in ("body", "orelse", "finalbody"):
        yield from _in_block(getattr(statement, name, []), function)
    for handler in getattr(statement, "handlers", []):
        yield from _in_block(handler.body, function)


def _in_value(parent: ast.AST, name: str, value: object, function: str, text: str) -> Iterator[Mutation]:
    values = value if isinstance(value, list) else [value]
    for number, each in enumerate(values):
        place = number if isinstance(value, list) else None
        if isinstance(each, ast.expr):
            called = ast.unparse(each.func) if isinstance(each, ast.Call) else ""
            if isinstance(each, ast.JoinedStr) or re.search("warn|log|Error|record_function", called):
                continue
            yield from _replaced(parent, name, place, each, function, text)
            for field, inner in ast.iter_fields(each):
                yield from _in_value(each, field, inner, function, text)
        elif isinstance(each, ast.withitem | ast.keyword | ast.comprehension):
            for field, inner in ast.iter_fields(each):
                yield from _in_value(each, field, inner, function, text)


def _replaced(
    parent: ast.AST, name: str, place: int | None, old: ast.expr, function: str, text: str
) -> Iterator[Mutation]:
    """Yield the mutations that put another expression in the place of one."""
    news = list(_others(old))
    if name == "test" or (isinstance(parent, ast.BoolOp) and name == "values"):
        news.insert(0, ast.UnaryOp(ast.Not(), old))
    for new in news:

        def apply(new: ast.expr = new) -> None:
            made = ast.copy_location(new, old)
            if place is None:
                setattr(parent, name, made)
            else:
                getattr(parent, name)[place] = made

        number = isinstance(old, ast.Constant) and not isinstance(old.value, str)
        operator = number or isinstance(old, ast.Compare | ast.BoolOp | ast.BinOp | ast.UnaryOp)
        told = f"`{_text(new)}` for `{_text(old)}`"
        yield Mutation(function, old.lineno, told, text, apply, operator or isinstance(new, ast.UnaryOp))


_PAIRS = (
    *((ast.Eq, ast.NotEq), (ast.Is, ast.IsNot), (ast.In, ast.NotIn), (ast.Lt, ast.LtE), (ast.Gt, ast.GtE)),
    *((ast.And, ast.Or), (ast.Add, ast.Sub), (ast.Mult, ast.Div), (ast.BitOr, ast.BitAnd)),
)
_SWAPPED: dict[type[ast.AST], type[ast.AST]] = dict(_PAIRS) | {second: first for first, second in _PAIRS}
_SWAPPED[ast.FloorDiv] = ast.Mult


def _others(old: ast.expr) -> Iterator[ast.expr]:
    """Yield other expressions for one, each with one change."""
    match old:
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
        case ast.Constant(value=str(value)) if value:
            yield ast.Constant(value + "_")
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in _SWAPPED:
            yield _copy(old, op=_SWAPPED[type(op)]())
        case ast.Compare(ops=[op]) if type(op) in _SWAPPED:
            yield _copy(old, ops=[_SWAPPED[type(op)]()])
        case ast.Call(args=args, keywords=keywords):
            if len(args) > 1 and _text(args[0]) != _text(args[1]) and not _is(old, "isinstance", "getattr", "hasattr"):
                yield _copy(old, args=[args[1], args[0], *args[2:]])
            if args and not _is(old, "isinstance", "len", "getattr", "hasattr", "cast", "super"):
                yield _copy(old, args=args[:-1])
            for place in range(len(keywords)):
                yield _copy(old, keywords=keywords[:place] + keywords[place + 1 :])
        case ast.IfExp(body=body, orelse=orelse):
            yield body
            yield orelse


def _is(call: ast.Call, *names: str) -> bool:
    return ast.unparse(call.func).rpartition(".")[2] in names


def _copy(node: Node, **fields: object) -> Node:
    """Return a node with other fields."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:300]


# ---- running it


@cache
def _parsed(module: str) -> ast.Module:
    return ast.parse(path_of(module).read_text(encoding="utf-8"))


def _tree(module: str) -> ast.Module:
    return copy.deepcopy(_parsed(module))


def compiled(module: str, tree: ast.Module) -> CodeType:
    """Compile a tree of a module."""
    return compile(ast.fix_missing_locations(tree), str(path_of(module)), "exec", dont_inherit=True)


Key = tuple[str, int]
"""The qualified name and first line of a function."""


def _by_key(code: CodeType) -> dict[Key, CodeType]:
    return {(each.co_qualname, each.co_firstlineno): each for each in codes(code)}


@cache
def _unchanged(module: str) -> dict[Key, CodeType]:
    return _by_key(compiled(module, _tree(module)))


def living(paths: Sequence[str]) -> list[FunctionType]:
    """Return the functions of this process whose code is of some files."""
    wanted = set(paths)
    frozen = gc.get_freeze_count() > 0  # a run freezes what it has collected, and frozen objects are not listed
    gc.unfreeze()
    found = [f for f in gc.get_objects() if type(f) is FunctionType and f.__code__.co_filename in wanted]
    if frozen:
        gc.freeze()
    return found


@contextmanager
def applied(mutant: SourceMutant, functions: Sequence[FunctionType] | None = None) -> Iterator[None]:
    """Run the functions of a module as a mutant has them.

    `functions`: those to look at; by default all that live. Raises ValueError where the mutant cannot be put into them.
    """
    tree = _tree(mutant.module)
    chosen = next(m for number, m in enumerate(mutations(tree)) if number == mutant.number)
    chosen.apply()
    new, old = _by_key(compiled(mutant.module, tree)), _unchanged(mutant.module)
    importlib.import_module(mutant.module)
    file = str(path_of(mutant.module))
    put: list[tuple[FunctionType, CodeType, object, object]] = []
    outer = {mutant.function: _defaults(tree, mutant.function)}
    try:
        for function in living([file]) if functions is None else functions:
            key = function.__code__.co_qualname, function.__code__.co_firstlineno
            if function.__code__.co_filename != file or key not in new:
                continue
            kept = (function, function.__code__, function.__defaults__, function.__kwdefaults__)
            if new[key] != old[key]:
                function.__code__ = new[key]
                put.append(kept)
            elif key[0] in outer and _set_defaults(function, outer[key[0]]):
                put.append(kept)
        if not put:
            raise ValueError(f"no function lives that {mutant.function} of {mutant.module} changes")
        yield
    finally:
        for function, code, defaults, keyword in put:
            function.__code__, function.__defaults__, function.__kwdefaults__ = code, defaults, keyword  # type: ignore[assignment]


Defaults = dict[str, object]


def _defaults(tree: ast.Module, name: str) -> Defaults:
    """Return the constant defaults of a function."""
    node = next(function for each, function in _functions(tree) if each == name)
    args = node.args
    placed = [*args.posonlyargs, *args.args]
    pairs = [*zip(placed[len(placed) - len(args.defaults) :], args.defaults, strict=True)]
    pairs += [(arg, value) for arg, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value is not None]
    return {arg.arg: value.value for arg, value in pairs if isinstance(value, ast.Constant)}


def _set_defaults(function: FunctionType, wanted: Defaults) -> bool:
    """Give a function some constant defaults. Returns whether that changes any."""
    code, before = function.__code__, (function.__defaults__, function.__kwdefaults__)
    names = code.co_varnames[: code.co_argcount]
    defaults = function.__defaults__ or ()
    placed = names[len(names) - len(defaults) :]
    function.__defaults__ = tuple(wanted.get(n, d) for n, d in zip(placed, defaults, strict=True)) or None
    if function.__kwdefaults__:
        function.__kwdefaults__ = {name: wanted.get(name, value) for name, value in function.__kwdefaults__.items()}
    return (function.__defaults__, function.__kwdefaults__) != before
