"""Mutants of the source of Python functions: `edits.toml` says which text of a function becomes which.

The name of a table is that of a table of `mutants`, and a function, `module:function`.
A mutant of one text puts it before the first statement of the function. A mutant of several replaces the first, which
must occur once, by the second, the third by the fourth and so on. One that is in several tables changes several
functions.
"""

import ast
import inspect
import textwrap
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from operator import attrgetter
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

from ampcheck.checks.program import codes
from tests.faults.mutant import Inject, both, mutants

FILE = Path(__file__).with_name("edits.toml")


def edit(where: str, *texts: str) -> Inject:
    """Run a function with other text in its source."""

    @contextmanager
    def inject(device: str) -> Iterator[None]:
        function = _function(where)
        own = function.__code__
        function.__code__ = _code(where, texts)
        try:
            yield
        finally:
            function.__code__ = own

    return inject


def _function(where: str) -> FunctionType:
    module, _, name = where.partition(":")
    found: Any = inspect.unwrap(attrgetter(name)(import_module(module)))
    function: FunctionType = getattr(found, "__func__", found)
    # Dynamo wraps methods of modules when it first compiles.
    wrapped = [cell.cell_contents for cell in function.__closure__ or ()]
    own = (one for one in wrapped if isinstance(one, FunctionType) and one.__name__ == name.rpartition(".")[2])
    return function if function.__name__ == name.rpartition(".")[2] else next(own, function)


@cache
def _code(where: str, texts: tuple[str, ...]) -> CodeType:
    function = _function(where)
    file = Path(function.__code__.co_filename)
    whole = file.read_text(encoding="utf-8").splitlines(keepends=True)
    lines, start = inspect.getsourcelines(function)
    end = start - 1 + len(lines)
    text = _first(lines, texts[0]) if len(texts) == 1 else _replaced(where, "".join(lines), texts)
    made = compile("".join((*whole[: start - 1], text, *whole[end:])), str(file), "exec", dont_inherit=True)
    name, line = function.__code__.co_qualname, function.__code__.co_firstlineno
    return next(code for code in codes(made) if (code.co_qualname, code.co_firstlineno) == (name, line))


def _first(lines: list[str], added: str) -> str:
    """Return the lines of a function with a text before its first statement."""
    node = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(node, ast.FunctionDef)
    body = node.body[1:] if ast.get_docstring(node) is not None else node.body
    place = body[0].lineno - 1
    indent = lines[place][: len(lines[place]) - len(lines[place].lstrip())]
    return "".join((*lines[:place], textwrap.indent(added.strip("\n") + "\n", indent), *lines[place:]))


def _replaced(where: str, text: str, texts: tuple[str, ...]) -> str:
    for old, new in zip(texts[::2], texts[1::2], strict=True):
        if text.count(old) != 1:
            raise ValueError(
                f"{old!r} occurs {text.count(old)} times, not once, in {where}; adapt {FILE.name} to that source"
            )
        text = text.replace(old, new)
    return text


def _injects(functions: dict[str, dict[str, Any]]) -> dict[str, Inject]:
    found = defaultdict(list)
    for where, table in functions.items():
        for name, texts in table.items():
            found[name].append(edit(where, *([texts] if isinstance(texts, str) else texts)))
    return {name: both(*injects) for name, injects in found.items()}


MUTANTS = mutants({key: _injects(made) for key, made in tomllib.loads(FILE.read_text(encoding="utf-8")).items()})
