"""`ampcheck lint`: mistakes with mixed precision, and autocast annotations that compilers ignore or change."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from ampcheck.errors import UsageError
from ampcheck.tools.lint import NAMED, RULES, TRAINING, Read, Report, find, lint_files
from ampcheck.tools.lint.fix import fix_files

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("lint", help="find mistakes with mixed precision by reading")
    parser.add_argument("target", nargs="*", metavar="FILE|MODULE", help="a file, folder or module; none is imported")
    parser.add_argument("--format", choices=tuple(_FORMATS), default="text", help="by default text")
    parser.add_argument("--select", metavar="RULES", help="look for these rules alone, e.g. AMP001,bound")
    parser.add_argument("--ignore", metavar="RULES", help="look for all rules but these")
    parser.add_argument("--fix", action="store_true", help="first rewrite deprecated torch.cuda.amp (AMP033)")
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
    paths = [find(target) for target in args.target]
    if args.fix:
        fixed = fix_files(paths)
        print(f"{fixed} file{'' if fixed == 1 else 's'} rewritten", file=sys.stderr)
    read = Read()
    found = lint_files(paths, rules, read)
    print(_FORMATS[args.format](found))
    if args.format == "text":
        counts = {"file": read.files, "region": read.regions, "scaler": read.scalers}
        seen = ", ".join(_number(count, what) for what, count in counts.items())
        print(f"read {seen}; what only a run shows is found by ampcheck doctor")
    return 1 if found else 0


def _chosen(select: str | None, ignore: str | None) -> list[str]:
    named = {option: [name.strip() for name in (text or "").split(",") if name.strip()] for option, text in
             (("--select", select), ("--ignore", ignore))}  # fmt: skip
    for option, names in named.items():
        for name in names:
            if name not in NAMED:
                raise UsageError(f"{option} names no rule: {name!r}; ampcheck lint --rules lists them")
    wanted = named["--select"] if select is not None else [*RULES, *TRAINING]
    ignored = {NAMED[name] for name in named["--ignore"]}
    return [NAMED[name] for name in wanted if NAMED[name] not in ignored]


def _listed() -> str:
    lines = []
    for rule in RULES.values():
        quietly = "silent" if rule.silent else "refused"
        lines.append(f"{rule.id} ({quietly}): {rule.what}. Eagerly PyTorch {rule.eager}; compiled it {rule.compiled}.")
        lines.append(f"  Instead: {rule.instead}. {rule.source}")
    for mistake in TRAINING.values():
        lines.append(f"{mistake.id} {mistake.name}: {mistake.sentence} {mistake.why}")
        lines.append(f"  Instead: {mistake.instead}. {mistake.source}")
    return "\n".join(lines)


def _number(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _text(found: list[Report]) -> str:
    return "\n".join([*map(str, found), _number(len(found), "report")])


def _json(found: list[Report]) -> str:
    return json.dumps([report.fields() for report in found], indent=2)


def _github(found: list[Report]) -> str:
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


_FORMATS: dict[str, Callable[[list[Report]], str]] = {"text": _text, "json": _json, "github": _github}
