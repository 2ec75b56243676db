"""Finds the line of each op of a compiled program in the source, and the region around a line."""

from __future__ import annotations

import ast
import linecache
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch

from ampcheck.tools.lint.names import Function, Names
from ampcheck.tools.lint.program import CompiledFunction, LintedProgram
from ampcheck.tools.lint.record import Place, record
from ampcheck.tools.lint.regions import LintedRegion, region
from ampcheck.tools.lint.rules import RULES, Diagnostic
from ampcheck.tools.lint.static import VISITS
from ampcheck.tools.lint.visits import decorators, every_compiler

# What compiles and runs programs is not a part of them.
_LIBRARY = (
    str(Path(torch.__file__).parent),
    *(str(Path(__file__).parents[2] / name) for name in ("tools/lint", "programs", "compilers", "observe")),
)
_TRACED = re.compile(r"^(?P<file>\S.*)\((?P<line>\d+)\): ", re.MULTILINE)
_SCRIPTED = re.compile(r'File "(?P<file>[^"]+)", line (?P<line>\d+)')


class Stand(NamedTuple):
    """The place of an op of a graph: lines, the innermost first. `traced`: whether tracing put it there."""

    lines: tuple[Place, ...]
    traced: bool = False


def places(program: object) -> dict[str, list[Stand]]:
    """For each op of a compiled program's graph, in order, its place.

    Lines of torch's own files are left out. Empty for a program whose graph has no places.
    """
    found: dict[str, list[Stand]] = defaultdict(list)
    if isinstance(program, torch.fx.GraphModule):
        for node in _fx_nodes(program):
            name = getattr(node.target, "__name__", str(node.target)).rpartition("::")[2]
            lines = tuple(reversed(_matches(_SCRIPTED, node.stack_trace or "")))
            found[name.partition(".")[0]].append(Stand(lines))
        return found
    for node in _nodes(getattr(program, "inlined_graph", None)):
        kind = node.kind()
        if kind.startswith("aten::"):
            text = node.sourceRange()
            traced = _matches(_TRACED, text)
            lines = tuple(traced or _matches(_SCRIPTED, text))
            found[kind.removeprefix("aten::")].append(Stand(lines, bool(traced)))
    return found


def lines_now() -> tuple[Place, ...]:
    """Return the lines of the program that led here, the innermost first."""
    found = []
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code is not record.__code__:
        if not frame.f_code.co_filename.startswith((*_LIBRARY, "<")):
            found.append((frame.f_code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(found)


def _matches(pattern: re.Pattern[str], text: str) -> list[Place]:
    found = ((match["file"], int(match["line"])) for match in pattern.finditer(text))
    return [place for place in found if not place[0].startswith(_LIBRARY)]


def _nodes(block: Any) -> Iterator[Any]:
    for node in block.nodes() if block is not None else ():
        yield node
        for inner in node.blocks():
            yield from _nodes(inner)


def _fx_nodes(program: torch.fx.GraphModule) -> Iterator[torch.fx.Node]:
    """Yield the nodes of a graph; the parts of a region are at the place of the region."""
    for node in program.graph.nodes:
        parts = [getattr(program, arg.target, None) for arg in node.all_input_nodes if arg.op == "get_attr"]
        modules = [part for part in parts if isinstance(part, torch.fx.GraphModule)]
        if modules:
            for part in modules:
                yield from _fx_nodes(part)
        elif node.op in ("call_function", "call_method"):
            yield node


def of_error(error: BaseException) -> Place | None:
    """Return the line of the program that an error's message names."""
    found = _matches(_SCRIPTED, str(error)) or _matches(_TRACED, str(error))
    return found[-1] if found else None


@lru_cache(maxsize=64)
def _program(text: str) -> LintedProgram | None:
    try:
        return LintedProgram(Names(ast.parse(text)))
    except (SyntaxError, ValueError):
        return None


def parsed(file: str) -> LintedProgram | None:
    """Return a source file as the static linter sees it; None where there is none to read."""
    text = "".join(linecache.getlines(file))  # knows programs that were made of text, too
    return _program(text) if text else None


def function_at(program: LintedProgram, line: int) -> Function | None:
    """Return the innermost function around a line."""
    around = [
        node
        for node in ast.walk(program.names.tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _first(node) <= line <= _last(node)
    ]
    return max(around, key=lambda node: node.lineno, default=None)


def _first(node: Function) -> int:
    return min(part.lineno for part in (node, *node.decorator_list))


def _last(node: ast.stmt) -> int:
    return node.end_lineno or node.lineno


def _around(function: Function, line: int) -> list[ast.expr]:
    """Return the expressions that with statements around a line enter, the innermost first."""
    found = [
        item.context_expr
        for node in ast.walk(function)
        if isinstance(node, (ast.With, ast.AsyncWith)) and node.body[0].lineno <= line <= _last(node)
        for item in node.items
    ]
    return sorted(found, key=lambda expression: -expression.lineno)


def regions_at(program: LintedProgram, line: int) -> list[LintedRegion]:
    """Return the regions around a line within its function, the decorators among them, the innermost first."""
    function = function_at(program, line)
    if function is None:
        return []
    made = (region(program.names, entered) for entered in _around(function, line))
    return [one for one in made if one is not None] + decorators(program, function)


def lost(program: object) -> list[Diagnostic]:
    """Return the disabled regions that tracing dropped from a compiled program, its traced callees among it.

    They are found by the lines that the graph's ops were traced at, so a program that a file was loaded from has them
    too, as long as the source is there.
    """
    found = set()
    rule = RULES["lost-in-trace"]
    for node in _nodes(getattr(program, "inlined_graph", None)):
        for file, line in _matches(_TRACED, node.sourceRange()):
            source = parsed(file)
            for made in regions_at(source, line) if source is not None else ():
                if made.disabled:
                    where = made.call.lineno, made.call.col_offset + 1
                    what = f"tracing dropped the disabled region around line {line}"
                    found.add(
                        Diagnostic(
                            file, *where, rule.id, "traced", what, rule.eager, rule.compiled, rule.instead, rule.silent
                        )
                    )
    return sorted(found)


_OF_WHOLE = {
    "state-after": ("entered-twice", "state-change"),
    "result": ("query-frozen", "query-in-script"),
    "refused": ("decorator", "object-elsewhere", "state-change", "query-in-script"),
    "raises": ("bound", "enabled-not-constant", "device-not-constant", "device-in-script", "object-elsewhere"),
}
"""The rules that explain a difference wherever they are broken in a function, by the kind of the difference."""


def cause(lines: tuple[Place, ...], compiler: str, kind: str) -> tuple[str, int, int, str] | None:
    """Return the file, line and column where the source around some lines breaks a rule, and the rule, or None.

    `kind`: of the difference that is to be explained.
    """
    for file, line in lines:
        source = parsed(file)
        function = function_at(source, line) if source is not None else None
        if source is None or function is None:
            continue
        found = [(node, rule) for node, rule, _ in VISITS[compiler](source, function)]
        found += [(node, rule) for node, rule, _ in every_compiler(source, CompiledFunction(function, compiler, True))]
        around = {id(node) for node in (*_around(function, line), *function.decorator_list)}
        # The line itself explains it best, then what is around it, then what the function does anywhere.
        near = [one for one in found if getattr(one[0], "lineno", 0) == line]
        near += [one for one in found if id(one[0]) in around]
        near += [one for one in found if one[1] in _OF_WHOLE.get(kind, ())]
        for node, rule in near:
            return file, getattr(node, "lineno", line), getattr(node, "col_offset", 0) + 1, rule
    return None
