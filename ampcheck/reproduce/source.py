"""The source of a function and of what it needs of its module, without decorators, annotations and docstrings.

Text is edited in place and not made anew from a syntax tree, so that comments and line breaks stay as written.
"""

from __future__ import annotations

import ast
import inspect
import io
import symtable
import tokenize
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

_MARKS = ("# type: ignore", "# noqa")
_FILE = "(lambda: 0).__code__.co_filename"  # pasted code has no __file__


class Unreproducible(Exception):
    """A function that uses what plain torch does not have; the text says what."""


@dataclass(slots=True)
class Plain:
    """A function in plain Python.

    `imports`: lines. `foreign`: names it imports from packages for which there are shims, `replaced`: functions of
    its module for which there are. `helpers`: what else of its module it needs, in order. `comment`: the first
    paragraph of its docstring. `code`: the function itself.
    """

    code: str
    comment: str
    imports: list[str] = field(default_factory=list)
    helpers: list[str] = field(default_factory=list)
    foreign: set[str] = field(default_factory=set)
    replaced: set[str] = field(default_factory=set)


class Module:
    """A module's source, and the statements that define its names."""

    def __init__(self, path: Path) -> None:
        self._data = path.read_bytes()
        self._starts = [0]
        for line in self._data.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self.tree = ast.parse(self._data)
        self.defined: dict[str, ast.stmt] = {}
        for node in self.tree.body:
            for name in _names(node):
                self.defined[name] = node
        self._edits = sorted(self._all_edits(), key=lambda edit: (edit[0], -edit[1]))

    def text(self, node: ast.AST, kept: str | None = None) -> str:
        """Return the plain text of a statement; of a dictionary with string keys only the entry `kept`, if given."""
        start, end = self._span(node)
        value = getattr(node, "value", None)
        if kept is not None and isinstance(value, ast.Dict):
            place = next(n for n, key in enumerate(value.keys) if isinstance(key, ast.Constant) and key.value == kept)
            entry = f"{{{kept!r}: {self._render(*self._span(value.values[place]))}}}"
            return self._render(start, self._span(value)[0]) + entry
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            start = self._span(node.decorator_list[0])[0] - 1  # the @
        return self._render(start, end)

    def _span(self, node: Any) -> tuple[int, int]:
        return self._at(node.lineno, node.col_offset), self._at(node.end_lineno, node.end_col_offset)

    def _at(self, line: int, column: int) -> int:
        return self._starts[line - 1] + column

    def _render(self, start: int, end: int) -> str:
        out, place = b"", start
        for first, last, new in self._edits:
            if first >= place and last <= end:
                out += self._data[place:first] + new
                place = last
        return (out + self._data[place:end]).decode()

    def _all_edits(self) -> Iterator[tuple[int, int, bytes]]:
        nodes = list(ast.walk(self.tree))
        of_class = {id(inner) for node in nodes if isinstance(node, ast.ClassDef) for inner in node.body}
        for node in nodes:
            if isinstance(node, ast.arg) and node.annotation:
                yield (
                    self._at(node.lineno, node.col_offset) + len(node.arg.encode()),
                    self._span(node.annotation)[1],
                    b"",
                )
            elif isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and node.returns:
                start, end = self._span(node.returns)
                arrow = self._data.rindex(b"->", 0, start)
                yield len(self._data[:arrow].rstrip()), end, b""
            elif isinstance(node, ast.AnnAssign):
                # One without a value, or of a class, which may be a dataclass, has to stay one.
                plain = node.value is not None and id(node) not in of_class
                start, end = self._span(node.annotation)
                yield (self._span(node.target)[1], end, b"") if plain else (start, end, b"object")
            elif isinstance(node, ast.Name) and node.id == "__file__":
                yield *self._span(node), _FILE.encode()
        for node in self.tree.body:
            inner = getattr(node, "body", [])
            if len(inner) > 1 and isinstance(node, (ast.FunctionDef, ast.ClassDef)) and _docstring(inner[0]):
                after = inner[0].end_lineno or 0
                while not self._data[self._at(after + 1, 0) : self._at(after + 2, 0)].strip():
                    after += 1  # the blank lines behind it
                yield self._at(inner[0].lineno, 0), self._at(after + 1, 0), b""
        if not any(mark.encode() in self._data for mark in _MARKS):
            return
        for token in tokenize.tokenize(io.BytesIO(self._data).readline):
            if token.type == tokenize.COMMENT and token.string.startswith(_MARKS):
                line = self._starts[token.start[0] - 1]
                start = line + len(token.line[: token.start[1]].rstrip().encode())
                yield start, line + len(token.line.rstrip("\r\n").encode()), b""


@lru_cache(maxsize=64)  # more than there are suite files: parsing one takes longer than all else
def _module(path: Path, changed: int) -> Module:
    return Module(path)


def plain(
    function: Callable[..., Any], bound: Mapping[str, object], stand_ins: Collection[str], ours: str = "ampcheck"
) -> Plain:
    """Return a function with everything of its module that it needs.

    Args:
        function: at the top level of a file.
        bound: its parameters that are given a value; a dictionary of which one entry is used is cut down to that, and
            a class or function of its module is taken along.
        stand_ins: names of its module, and names imported from `ours`, that the caller stands in for.
        ours: the package that must not be imported.

    Raises Unreproducible where it needs another name of `ours`.
    """
    function = inspect.unwrap(function)
    path = Path(inspect.getsourcefile(function) or "")
    keys = tuple(sorted((name, value) for name, value in bound.items() if isinstance(value, str)))
    named = frozenset(str(name) for value in bound.values() if (name := getattr(value, "__name__", "")))
    return _plain(path, path.stat().st_mtime_ns, function.__name__, keys, named, frozenset(stand_ins), ours)


@lru_cache(maxsize=256)  # the same for each device and dtype
def _plain(
    path: Path,
    changed: int,
    name: str,
    keys: tuple[tuple[str, str], ...],
    named: frozenset[str],
    stand_ins: frozenset[str],
    ours: str,
) -> Plain:
    module = _module(path, changed)
    main = module.defined[name]
    assert isinstance(main, (ast.FunctionDef, ast.AsyncFunctionDef))
    comment = (ast.get_docstring(main) or "").partition("\n\n")[0]
    kept: dict[str, str] = {}
    out = _gathered(module, main, named, kept, stand_ins, ours)
    kept.update(_entries(module, main, dict(keys), [out.code, *out.helpers]))
    out = _gathered(module, main, named, kept, stand_ins, ours)
    out.comment = comment
    return out


def _gathered(
    module: Module,
    main: ast.stmt,
    named: Collection[str],
    kept: Mapping[str, str],
    stand_ins: Collection[str],
    ours: str,
) -> Plain:
    out = Plain(module.text(main), "")
    found: dict[int, str] = {}
    imports: dict[int, set[str]] = {}
    done: set[str] = set()
    waiting = sorted(_globals(out.code) | set(named))
    while waiting:
        name = waiting.pop()
        node = module.defined.get(name)
        if name in done or node is None or node is main:
            continue
        done.add(name)
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            origin = node.module or "" if isinstance(node, ast.ImportFrom) else node.names[0].name
            if origin.partition(".")[0] != ours:
                imports.setdefault(module.tree.body.index(node), set()).add(name)
            elif name in stand_ins:
                out.foreign.add(name)
            else:
                raise Unreproducible(f"{name} of {origin}")
        elif name in stand_ins:
            out.replaced.add(name)
        else:
            place = module.tree.body.index(node)
            if place not in found:
                found[place] = module.text(node, kept.get(name))
                waiting += sorted(_globals(found[place]))
    out.helpers = [text for _, text in sorted(found.items())]
    out.imports = [_import(module.tree.body[place], names) for place, names in sorted(imports.items())]
    return out


def _entries(module: Module, main: ast.AST, bound: Mapping[str, object], texts: list[str]) -> Iterator[tuple[str, str]]:
    """Yield each dictionary of which a function uses the entry named by one of its given parameters, and the entry."""
    uses: dict[str, list[ast.expr | None]] = {}
    for text in texts:
        tree = ast.parse(text)
        inside = {id(node.value): node.slice for node in ast.walk(tree) if isinstance(node, ast.Subscript)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                uses.setdefault(node.id, []).append(inside.get(id(node)))
    for name, places in uses.items():
        value = getattr(module.defined.get(name), "value", None)
        keys = [key.value for key in value.keys if isinstance(key, ast.Constant)] if isinstance(value, ast.Dict) else []
        chosen = {bound.get(place.id) if isinstance(place, ast.Name) else None for place in places}
        key = chosen.pop() if len(chosen) == 1 else None
        if isinstance(key, str) and key in keys:
            yield name, key


def _globals(text: str) -> set[str]:
    """Return the names that a piece of source takes from its module."""
    found: set[str] = set()
    tables = [symtable.symtable(text, "piece", "exec")]
    while tables:
        table = tables.pop()
        tables += table.get_children()
        top = table.get_type() == "module"
        found |= {s.get_name() for s in table.get_symbols() if s.is_referenced() and (top or s.is_global())}
    return found


def _names(node: ast.stmt) -> Iterator[str]:
    """Yield the names a statement at the top level of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        for alias in node.names:
            yield alias.asname or alias.name.partition(".")[0]
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


def _import(node: ast.stmt, names: set[str]) -> str:
    assert isinstance(node, (ast.Import, ast.ImportFrom))
    wanted = [alias for alias in node.names if (alias.asname or alias.name.partition(".")[0]) in names]
    if isinstance(node, ast.Import):
        return ast.unparse(ast.Import(wanted))
    return ast.unparse(ast.ImportFrom(node.module, wanted, node.level))


def _docstring(node: ast.stmt) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
