"""`ampcheck manifest`: every case as data."""

from __future__ import annotations

import argparse

from ampcheck.cli import run as run_command
from ampcheck.cli.common import Subparsers, print_or_write
from ampcheck.runner.record import output_file


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("manifest", help="write down every case, for ampcheck run --manifest")
    run_command.add_selection(parser)
    parser.add_argument("--out", type=output_file, metavar="FILE", help="the file to write; by default the terminal")
    parser.set_defaults(run=run, manifest=None, baseline=None, no_deviations=False, nightly=False)


def run(args: argparse.Namespace) -> int:
    """Print or write the cases. Raises UsageError where an option names something unknown."""
    from ampcheck.runner.collect import manifest  # noqa: PLC0415  # imports torch

    print_or_write(manifest(run_command.collect(args).cases), args.out, "manifest")
    return 0
