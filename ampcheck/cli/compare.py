"""`ampcheck compare`: what changed between two runs."""

from __future__ import annotations

import argparse
from pathlib import Path

from ampcheck.cli.common import Subparsers
from ampcheck.errors import UsageError
from ampcheck.runner.record import read
from ampcheck.runner.summarize import compare


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("compare", help="show what changed between two runs; exit code 1 where one regressed")
    parser.add_argument("a", type=Path, metavar="A", help="the earlier run file")
    parser.add_argument("b", type=Path, metavar="B", help="the later run file")
    parser.add_argument("--format", choices=("text", "markdown", "json"), default="text")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the comparison; return 1 where a case regressed.

    Raises UsageError for a run file that cannot be read, and for runs with nothing in common. Where nothing regressed
    and the later run lacks most cases of the earlier one, the UsageError comes after the comparison.
    """
    found = compare(read(args.a), read(args.b))
    print({"text": found.as_text, "markdown": found.as_markdown, "json": found.as_json}[args.format]())
    if found.partial and not found.regressed:
        raise UsageError(f"{args.b} lacks {len(found.removed)} cases of {args.a}; only {found.common} were compared")
    return 1 if found.regressed else 0
