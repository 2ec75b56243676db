"""The source of functions with all that they use of their modules, as it is written, for a program without ampcheck."""

import __future__

import ast
import dis
import inspect
import re
import sys
import textwrap
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from graphlib import TopologicalSorter
from types import CodeType

PRINTED = frozenset(
    f"ampcheck.{name}"
    for name in (
        *("checks.amp", "checks.backward", "checks.comparisons", "checks.compiled", "checks.drift"),
        *("checks.gradients", "checks.layouts", "checks.op_database", "checks.program", "checks.ranks"),
        *("checks.relations", "checks.scaling", "checks.sweep", "compilers.kinds", "compilers.source"),
        *("devices.virtual.graphs", "errors", "observe.closeness", "observe.isolation", "observe.recorder"),
        *("observe.replay", "observe.threads", "samples.surface", "samples.tensors", "spec.casting", "spec.dtypes"),
        *("spec.policies", "spec.torch_dtypes"),
    )
)
"""The modules of ampcheck of which a program may have parts: those parts need torch and the standard library alone."""
_LOADS = ("LOAD_NAME", "LOAD_GLOBAL", "LOAD_FROM_DICT_OR_GLOBALS")
_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD", "LOAD_SUPER_ATTR", "STORE_ATTR")


class Unreproducible(Exception):
    """A function that uses what plain torch does not have; the text says what."""


class PrintedSource:
    """The source of functions, classes and constants, with the imports that it needs.

    Args:
        module: the module whose source a program has, beside those of `PRINTED`.
        picked: classes of which a program has only the attributes that it uses.
        kept: dictionaries of which it has only one entry, with its key.
    """

    def __init__(self, module: str, picked: Collection[str] = (), kept: Mapping[str, object] | None = None) -> None:
        self.imports: set[str] = set()
        self.attributes: set[str] = {"__init__"}
        """The attributes of anything that are used."""
        self.strings: set[str] = set()
        """The strings that are constants of the source."""
        self._module = module
        self._picked = picked
        self._kept = kept or {}
        self._blocks: dict[tuple[str, int], str] = {}
        self._uses: dict[str, set[str]] = {}
        self._names: dict[str, str] = {}
        self._tables: dict[str, ast.Dict] = {}
        self._by_name = False
        """Whether attributes are looked up by name: then any string may be one."""

    def add(self, name: str, module: str = "") -> None:
        """Add what a name means in a module, with what that uses.

        Raises Unreproducible where it uses more than torch and the standard library.
        """
        module = module or self._module
        if self._names.setdefault(name, module) != module:
            raise Unreproducible(f"two things named {name}")
        node = _statements(module)[name]
        if (module, node.lineno) in self._blocks:
            return
        value = vars(sys.modules[module]).get(name)
        if hasattr(value, "promised"):  # see ampcheck.checks.scenario.promised
            self._block(module, node.lineno, f"def {name}(amp, *given):\n    return amp.promises[({name!r}, *given)]")
        elif name in self._picked and isinstance(node, ast.ClassDef):
            head = _lines(module, node.lineno, node.body[0].lineno - 1)
            self._block(module, node.lineno, f"{head}\n    pass")
            self._blocks[module, node.lineno] = head
        else:
            self._block(module, node.lineno, self._entry(name, node, module) or _text(module, node, value))

    @property
    def names(self) -> Collection[str]:
        """The names that the source defines."""
        return self._names

    def text(self) -> list[str]:
        """Return the blocks of source, each module's in order and behind those of the modules that it uses."""
        while any([self._pick(name) for name in self._picked if name in self._names]):
            pass
        ordered = TopologicalSorter({module: self._uses.get(module, ()) for module, _ in self._blocks}).static_order()
        places = [place for module in ordered for place in sorted(self._blocks) if place[0] == module]
        return [self._blocks[place] for place in places]

    def single_entries(self, bound: Mapping[str, object]) -> dict[str, object]:
        """Return each dictionary of which only the entry that one parameter names is used, with the key.

        `bound`: the values of parameters, which have the same names wherever they are passed on.
        """
        found = {}
        for name, table in self._tables.items():
            uses = [use for text in self._blocks.values() for use in re.findall(rf"(?<!`)\b{name}\b(\[\w+\])?", text)]
            keys = {bound.get(use[1:-1]) for use in uses if use}
            # One mention is where the dictionary is defined.
            if len(keys) == 1 and uses.count("") == 1 and keys <= {_constant(key) for key in table.keys} - {None}:
                found[name] = keys.pop()
        return found

    def _pick(self, name: str) -> bool:
        """Add the attributes that are used of a class that is picked apart; return whether there were more."""
        module, more = self._names[name], False
        used = self.attributes | (self.strings if self._by_name else set())
        node = _statements(module)[name]
        assert isinstance(node, ast.ClassDef)
        for part in node.body:
            if (module, part.lineno) not in self._blocks and used.intersection(_defined(part)):
                self._block(module, part.lineno, _text(module, part))
                more = True
        return more

    def _block(self, module: str, line: int, text: str) -> None:
        self._blocks[module, line] = text
        names, attributes, strings = _used(text)
        self.attributes |= attributes
        self.strings |= strings
        self._by_name = self._by_name or "getattr" in names
        for name in sorted(names & set(_statements(module))):
            node = _statements(module)[name]
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                self._import(module, name, node)
            else:
                self.add(name, module)

    def _import(self, module: str, name: str, node: ast.Import | ast.ImportFrom) -> None:
        alias = next(alias for alias in node.names if name in (alias.asname, alias.name.partition(".")[0]))
        said = f"{alias.name} as {alias.asname}" if alias.asname else alias.name
        origin = alias.name if isinstance(node, ast.Import) else node.module or ""
        if origin.partition(".")[0] != "ampcheck":
            self.imports.add(f"import {said}" if isinstance(node, ast.Import) else f"from {origin} import {said}")
        elif origin.endswith(".torch_private"):
            self._private(origin, name)
        elif origin in PRINTED and not alias.asname:
            self._uses.setdefault(module, set()).add(origin)
            self.add(alias.name, origin)
        else:
            raise Unreproducible(f"{alias.name} of {origin}")

    def _private(self, module: str, name: str) -> None:
        """Import what a `torch_private` module takes from torch; what it looks up at a call, a function looks up."""
        found = _taken(module, name)
        if found is None:
            node = _statements(module).get(name)
            if not isinstance(node, ast.ImportFrom) or not (node.module or "").endswith(".torch_private"):
                raise Unreproducible(f"{name} of {module}")
            return self._private(node.module or "", name)
        how, path = found
        origin, _, last = path.rpartition(".")
        if how in ("take", "call"):
            self.imports.add(
                f"from {origin} import {last}" if last == name else f"from {origin} import {last} as {name}"
            )
        else:
            self.imports.add("from importlib import import_module")
            self._blocks[module, 0] = f"def {name}():\n    return import_module({path!r})"

    def _entry(self, name: str, node: ast.stmt, module: str) -> str:
        """Return a dictionary with its one entry that is kept; "" for anything else."""
        table = getattr(node, "value", None)
        if not isinstance(table, ast.Dict):
            return ""
        self._tables[name] = table
        for key, value in zip(table.keys, table.values, strict=True):
            if name in self._kept and _constant(key) == self._kept[name]:
                entry = ast.get_source_segment(inspect.getsource(sys.modules[module]), value)
                return f"{name} = {{{self._kept[name]!r}: {entry}}}"
        return ""


def _text(module: str, node: ast.stmt, value: object = None) -> str:
    """Return a statement as it is written, without decorators that pytest knows and without marks for linters."""
    decorators = [] if hasattr(value, "pytestmark") else getattr(node, "decorator_list", [])
    first = min([node.lineno, *(decorator.lineno for decorator in decorators)])
    text = re.sub(r"  # (?:type: ignore|noqa).*", "", _lines(module, first, node.end_lineno or 0))
    return _plain(text) if module.startswith("ampcheck.") else text


@cache
def _plain(text: str) -> str:
    """Return a statement without docstrings and annotations; else as it is written."""
    source = textwrap.dedent(text)
    data = source.encode()
    starts = [0]
    for line in data.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    # Changed from the end, so that the places before stay right.
    for first, last, new in sorted(_edits(ast.parse(source), starts, data), reverse=True):
        data = data[:first] + new + data[last:]
    margin = text[: len(text) - len(text.lstrip(" "))]
    return textwrap.indent(data.decode(), margin)


def _edits(tree: ast.AST, starts: Sequence[int], data: bytes) -> Iterator[tuple[int, int, bytes]]:
    """Yield the bytes to replace: the first one, the one behind the last, and by what."""
    for node in ast.walk(tree):
        if isinstance(node, ast.arg) and node.annotation:
            first = starts[node.lineno - 1] + node.col_offset + len(node.arg.encode())
            yield first, _end(node.annotation, starts), b""
        if isinstance(node, ast.FunctionDef) and node.returns:
            arrow = data.rindex(b"->", 0, starts[node.returns.lineno - 1] + node.returns.col_offset)
            yield len(data[:arrow].rstrip()), _end(node.returns, starts), b""
        if isinstance(node, ast.ClassDef):  # the fields of a dataclass or of a named tuple need one
            for part in node.body:
                if isinstance(part, ast.AnnAssign):
                    note = part.annotation
                    yield starts[note.lineno - 1] + note.col_offset, _end(note, starts), b"object"
        elif hasattr(node, "body") and isinstance(node.body, list):
            for part in node.body:
                if isinstance(part, ast.AnnAssign) and part.value:
                    yield _end(part.target, starts), _end(part.annotation, starts), b""
        body = getattr(node, "body", [])
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and len(body) > 1:
            for part in body:
                if isinstance(part, ast.Expr) and isinstance(part.value, ast.Constant):
                    after = part.end_lineno or 0
                    while after < len(starts) - 1 and not data[starts[after] : starts[after + 1]].strip():
                        after += 1  # the blank line behind a docstring goes with it
                    yield starts[part.lineno - 1], starts[after], b""


def _end(node: ast.expr, starts: Sequence[int]) -> int:
    return starts[(node.end_lineno or 0) - 1] + (node.end_col_offset or 0)


def _lines(module: str, first: int, last: int) -> str:
    return "\n".join(_all_lines(module)[first - 1 : last])


@cache
def _all_lines(module: str) -> list[str]:
    return inspect.getsource(sys.modules[module]).splitlines()


@cache
def _taken(module: str, name: str) -> tuple[str, str] | None:
    """Return how a `torch_private` module takes a name, and its path in torch; None where another one takes it."""
    found = re.search(rf'\b{name}\b.* = NAMES\.(\w+)\(\s*"([\w.]+)"', inspect.getsource(sys.modules[module]))
    return (found[1], found[2]) if found else None


@cache
def _statements(module: str) -> dict[str, ast.stmt]:
    """Return the statements at the top of a module that define its names."""
    return {name: node for node in ast.parse(inspect.getsource(sys.modules[module])).body for name in _defined(node)}


def _defined(node: ast.stmt) -> Iterator[str]:
    """Yield the names that a statement defines."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        yield node.name
    elif isinstance(node, (ast.Import, ast.ImportFrom)):
        yield from (alias.asname or alias.name.partition(".")[0] for alias in node.names)
    elif isinstance(node, (ast.Assign, ast.AnnAssign)):
        for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
            yield from (name.id for name in ast.walk(target) if isinstance(name, ast.Name))


@cache
def _used(text: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Return the global names, the attributes and the constant strings that a piece of source uses."""
    names, attributes, strings = set[str](), set[str](), set[str]()
    code = compile(textwrap.dedent(text), "", "exec", flags=__future__.annotations.compiler_flag, dont_inherit=True)
    for each in _codes(code):
        for step in dis.get_instructions(each):
            names |= {step.argval} if step.opname in _LOADS else set()
            attributes |= {step.argval} if step.opname in _ATTRIBUTES else set()
        strings |= {word for constant in each.co_consts for word in _strings(constant)}
    return frozenset(names), frozenset(attributes), frozenset(strings)


def _codes(code: CodeType) -> Iterator[CodeType]:
    """Yield the code of a piece of source and of all functions and classes in it."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _strings(constant: object) -> Iterator[str]:
    if isinstance(constant, str):
        yield constant
    elif isinstance(constant, tuple):
        for each in constant:
            yield from _strings(each)


def _constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
