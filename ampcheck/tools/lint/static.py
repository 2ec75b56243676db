"""The static linter: source text in, reports out. Nothing of the program is imported or run."""

import ast
import io
import re
import tokenize
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from pathlib import Path
from typing import TypeAlias

from ampcheck.errors import UsageError
from ampcheck.tools import catalogue
from ampcheck.tools.lint.events import GRAD_SCALERS
from ampcheck.tools.lint.names import Function, Names, region
from ampcheck.tools.lint.program import VISITS as GENERAL_VISITS
from ampcheck.tools.lint.program import Found, LintedProgram, every_compiler
from ampcheck.tools.lint.rules import RULES, Diagnostic, TrainingReport, broken, place
from ampcheck.tools.lint.torchscript.visits import VISITS as SCRIPT_VISITS
from ampcheck.tools.lint.torchscript.visits import traced_under
from ampcheck.tools.lint.training import mistakes

_VISITS = {**SCRIPT_VISITS, **GENERAL_VISITS}

TRAINING = {name: rule for name, rule in catalogue.RULES.items() if "static" in rule.found}
"""The rules of the catalogue that reading finds, by name."""

NAMED = {**{name: name for name in (*RULES, *TRAINING)}, **{rule.id: name for name, rule in TRAINING.items()}}
"""Every name and id that options and comments take, and the rule's name."""

Report: TypeAlias = Diagnostic | TrainingReport

_CONCERNED = re.compile(r"autocast|scaler|autograd|custom_fwd|\bamp\b|MixedPrecision", re.IGNORECASE)
"""What a file has to say for a mistake to be in it; other files are parsed and no more."""

_IGNORE = re.compile(r"#\s*ampcheck:\s*ignore(?:\[(?P<rules>[^\]]*)\])?")


@dataclass
class Read:
    """What the linter read, in numbers. `exclude`: globs of files to leave out; `unread`: why files were not read.

    `unfollowed`: functions whose regions, steps and scalers have too many paths to be followed.
    """

    files: int = 0
    regions: int = 0
    scalers: int = 0
    exclude: tuple[str, ...] = ()
    unread: list[str] = field(default_factory=list)
    unfollowed: list[str] = field(default_factory=list)


def lint_source(
    text: str, file: str, rules: Collection[str] = (*RULES, *TRAINING), read: Read | None = None
) -> list[Report]:
    """Return the reports on a file's text, in the order of its lines.

    `rules`: those to look for. `read`: counts what was read. Raises UsageError where the text is no Python, or an
    ignore comment names no rule.
    """
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise UsageError(f"{file}:{line} is no Python that can be read: {getattr(error, 'msg', error)}") from error
    ignored = dict(_ignored(text, file)) if "ampcheck" in text else {}
    if read is not None:
        read.files += 1
    if not _CONCERNED.search(text):
        return []
    names = Names(tree)
    if read is not None:
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        read.regions += sum(region(names, call) is not None for call in calls)
        read.scalers += sum(names.dotted(call.func) in GRAD_SCALERS for call in calls)
    program = LintedProgram(names)
    found: set[Report] = {broken(rule, file, node, compiler, what) for compiler, (node, rule, what) in _all(program)}
    if not set(rules).isdisjoint(TRAINING):
        unfollowed: list[str] = []
        for node, name in mistakes(names, unfollowed):
            rule = TRAINING[name]
            found.add(TrainingReport(file, *place(node), name, rule.id, rule.sentence, rule.why, rule.instead))
        if read is not None:
            read.unfollowed += [f"{file}: {name}" for name in unfollowed]
    selected = (report for report in found if report.rule in rules)
    shown = [report for report in selected if report.rule not in ignored.get(report.line, ())]
    return sorted(shown, key=lambda report: (report.line, report.column, report.rule, str(report)))


def lint_files(
    paths: Collection[Path], rules: Collection[str] = (*RULES, *TRAINING), read: Read | None = None
) -> list[Report]:
    """Return the reports on files, and on all Python files in folders.

    `read` keeps why a file cannot be read. Raises UsageError for such a file where there is no `read`.
    """
    out: list[Report] = []
    kept = read or Read()
    for file, text in texts(paths, kept):
        try:
            out += lint_source(text, str(file), rules, kept)
        except UsageError as error:
            kept.unread.append(str(error))
    if read is None and kept.unread:
        raise UsageError(kept.unread[0])
    return out


def texts(paths: Collection[Path], read: Read) -> Iterator[tuple[Path, str]]:
    """Yield files, and all Python files in folders, with their text, but those that cannot be read."""
    for path in paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else (path,):
            if any(file.match(glob) for glob in read.exclude):
                continue
            try:
                with tokenize.open(file) as opened:  # honours a coding comment
                    yield file, opened.read()
            except (OSError, SyntaxError, UnicodeDecodeError) as error:
                reason = error.strerror if isinstance(error, OSError) else error
                read.unread.append(f"{file} cannot be read: {reason}")


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
    for function, compiler in program.compiled():
        yield from ((compiler, seen) for seen in visited(program, function, compiler))
    yield from (("traced", seen) for seen in traced_under(program))


def visited(program: LintedProgram, function: Function, compiler: str) -> Iterator[Found]:
    """Yield the places in a function that a compiler runs otherwise than eager mode."""
    yield from _VISITS[compiler](program, function)
    yield from every_compiler(program, function, compiler)


def _ignored(text: str, file: str) -> Iterator[tuple[int, frozenset[str]]]:
    """Yield the rules that the comments of each line switch off there."""
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if match is None:
            continue
        named = match["rules"]
        rules = frozenset(NAMED) if named is None else frozenset(name.strip() for name in named.split(","))
        for name in sorted(rules - set(NAMED)):
            raise UsageError(f"{file}:{token.start[0]}: the comment `ampcheck: ignore` names no rule: {name!r}")
        yield token.start[0], frozenset(NAMED[name] for name in rules)
