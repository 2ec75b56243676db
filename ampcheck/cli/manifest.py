"""`ampcheck manifest`: the keys of every case."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli import run as run_command
from ampcheck.cli.common import print_or_write

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("manifest", help="write down the key of every case, for ampcheck run --manifest")
    run_command.add_selection(parser)
    parser.add_argument("--out", type=Path, metavar="FILE", help="the file to write; by default the terminal")
    parser.set_defaults(run=run, manifest=None, unwaive=False, nightly=False)


def run(args: argparse.Namespace) -> int:
    """Print or write the keys, sorted. Raises UsageError where an option names something unknown."""
    text = "".join(f"{key}\n" for key in sorted(run_command.collect(args).cases))
    print_or_write(text, args.out, "manifest")
    return 0
