"""The static linter: source text in, reports out. Nothing of the program is imported or run."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from importlib.machinery import PathFinder
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.tools.lint.names import Names
from ampcheck.tools.lint.program import LintedProgram
from ampcheck.tools.lint.rules import RULES, Diagnostic
from ampcheck.tools.lint.torchscript.visits import VISITS as SCRIPT_VISITS
from ampcheck.tools.lint.torchscript.visits import traced_under
from ampcheck.tools.lint.visits import VISITS as GENERAL_VISITS
from ampcheck.tools.lint.visits import Found, every_compiler

VISITS = {**SCRIPT_VISITS, **GENERAL_VISITS}
"""The visit to a function for each compiler."""

_IGNORE = re.compile(r"#\s*ampcheck:\s*ignore(?:\[(?P<rules>[^\]]*)\])?")


def lint_source(text: str, file: str, rules: Collection[str] = tuple(RULES)) -> list[Diagnostic]:
    """Return the reports on a file's text, in the order of its lines.

    `rules`: those to look for. Raises UsageError where the text is no Python, or an ignore comment names no rule.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UsageError(f"{file}:{line} is no Python that can be read: {getattr(error, 'msg', error)}") from error
    ignored = dict(_ignored(text, file))
    program = LintedProgram(Names(tree))
    found = {_report(file, compiler, seen) for compiler, seen in _all(program)}
    selected = (report for report in found if report.rule in rules)
    return sorted(report for report in selected if report.rule not in ignored.get(report.line, ()))


def lint_files(paths: Collection[Path], rules: Collection[str] = tuple(RULES)) -> list[Diagnostic]:
    """Return the reports on files, and on all Python files in folders. Raises UsageError for what cannot be read."""
    out: list[Diagnostic] = []
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            try:
                with tokenize.open(file) as opened:  # honours a coding comment
                    text = opened.read()
            except (OSError, SyntaxError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                raise UsageError(f"{file} cannot be read: {reason}") from error
            out += lint_source(text, str(file), rules)
    return out


def find(target: str) -> Path:
    """Return the file or folder behind a path or the name of a module, which is not imported.

    Raises UsageError where there is none.
    """
    path = Path(target)
    if path.exists():
        return path
    found: Path | None = None
    where: list[str] | None = None
    for part in target.split(".") if re.fullmatch(r"[\w.]+", target) else ():
        spec = PathFinder.find_spec(part, where)
        if spec is None:
            break
        where = list(spec.submodule_search_locations or ())
        found = Path(spec.origin) if spec.origin else Path(where[0]) if where else None
        if found is not None and found.name == "__init__.py":
            found = found.parent
    else:
        if found is not None and (found.is_dir() or found.suffix == ".py"):
            return found
    raise UsageError(f"there is no file, folder or Python module {target!r}")


def _all(program: LintedProgram) -> Iterator[tuple[str, Found]]:
    for compiled in program.compiled():
        for seen in VISITS[compiled.compiler](program, compiled.function):
            yield compiled.compiler, seen
        for seen in every_compiler(program, compiled):
            yield compiled.compiler, seen
    for seen in traced_under(program):
        yield "traced", seen


def _report(file: str, compiler: str, found: Found) -> Diagnostic:
    node, name, what = found
    rule = RULES[name]
    line, column = getattr(node, "lineno", 0), getattr(node, "col_offset", -1) + 1
    what = what or rule.what
    return Diagnostic(file, line, column, name, compiler, what, rule.eager, rule.compiled, rule.instead, rule.silent)


def _ignored(text: str, file: str) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the rules that the comments of each line switch off there."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        named = match["rules"]
        rules = frozenset(RULES) if named is None else frozenset(name.strip() for name in named.split(","))
        for name in sorted(rules - set(RULES)):
            raise UsageError(f"{file}:{token.start[0]}: the comment `ampcheck: ignore` names no rule: {name!r}")
        yield token.start[0], rules
