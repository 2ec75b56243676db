"""`ampcheck lint`: autocast annotations that TorchScript, tracing, fx or export ignore or change."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from typing import TYPE_CHECKING

from ampcheck.errors import UsageError
from ampcheck.tools.lint import RULES, Diagnostic, find, lint_files

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("lint", help="find autocast annotations that compilers ignore or change")
    parser.add_argument("target", nargs="*", metavar="FILE|MODULE", help="a file, folder or module; none is imported")
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="by default text")
    parser.add_argument("--select", metavar="RULES", help="look for these rules alone, e.g. bound,decorator")
    parser.add_argument("--ignore", metavar="RULES", help="look for all rules but these")
    parser.add_argument("--rules", action="store_true", help="print the rules and end")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the reports: 1 where there are any, else 0. Raises UsageError for unknown rules and unreadable files."""
    if args.rules:
        print(_listed())
        return 0
    if not args.target:
        raise UsageError("name a file, a folder or a module to look at, or ask for --rules")
    rules = _chosen(args.select, args.ignore)
    found = lint_files([find(target) for target in args.target], rules)
    print(_FORMATS[args.format](found))
    return 1 if found else 0


def _chosen(select: str | None, ignore: str | None) -> list[str]:
    named = {option: [name.strip() for name in (text or "").split(",") if name.strip()] for option, text in
             (("--select", select), ("--ignore", ignore))}  # fmt: skip
    for option, names in named.items():
        for name in names:
            if name not in RULES:
                raise UsageError(f"{option} names no rule: {name!r}; ampcheck lint --rules lists them")
    wanted = named["--select"] if select is not None else list(RULES)
    return [name for name in wanted if name not in named["--ignore"]]


def _listed() -> str:
    lines = []
    for rule in RULES.values():
        quietly = "silent" if rule.silent else "refused"
        lines.append(f"{rule.id} ({quietly}): {rule.what}. Eagerly PyTorch {rule.eager}; compiled it {rule.compiled}.")
        lines.append(f"  Instead: {rule.instead}. {rule.source}")
    return "\n".join(lines)


def _text(found: list[Diagnostic]) -> str:
    count = f"{len(found)} report{'' if len(found) == 1 else 's'}"
    return "\n".join([*map(str, found), count])


def _json(found: list[Diagnostic]) -> str:
    return json.dumps([report.fields() for report in found], indent=2)


def _github(found: list[Diagnostic]) -> str:
    lines = []
    for report in found:
        level = "error" if report.silent else "warning"
        place = f"file={_escaped(report.file, ':,')},line={report.line},col={report.column}"
        said = str(report).split(": ", 2)[2]
        lines.append(f"::{level} {place},title=ampcheck {report.rule}::{_escaped(said)}")
    return "\n".join(lines)


def _escaped(text: str, also: str = "") -> str:
    """Text as a workflow command takes it."""
    return "".join(f"%{ord(char):02X}" if char in "%\r\n" + also else char for char in text)


_FORMATS: dict[str, Callable[[list[Diagnostic]], str]] = {"text": _text, "json": _json, "github": _github}
