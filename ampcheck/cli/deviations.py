"""`ampcheck deviations`: a deviations file to start from, or a baseline, for the failing cases of a run."""

from __future__ import annotations

import argparse
from pathlib import Path

from ampcheck.cli.common import Subparsers, print_or_write
from ampcheck.runner.record import output_file, read
from ampcheck.runner.summarize import merge


def add(commands: Subparsers) -> None:
    """Declare the command."""
    for parser in (
        commands.add_parser("deviations", help="write deviations for a device that fails some cases"),
        commands.add_parser("waivers"),  # its name until 0.2, which no help lists
    ):
        _add_actions(parser)


def _add_actions(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    suggest = actions.add_parser("suggest", help="print entries for the failing cases of a run, one a cause")
    suggest.add_argument("run_file", type=Path, metavar="RUN", help="a run file")
    suggest.add_argument("--device", action="append", default=[], metavar="NAME", help="of this device alone")
    suggest.add_argument("--all", action="store_true", help="print every entry and glob, however many")
    suggest.set_defaults(run=run)
    baseline = actions.add_parser("baseline", help="write down the red cases of a run, for ampcheck run --baseline")
    baseline.add_argument("run_files", nargs="+", type=Path, metavar="RUN", help="a run file; again for more shards")
    baseline.add_argument("--device", action="append", default=[], metavar="NAME", help="of this device alone")
    baseline.add_argument("--out", type=output_file, metavar="FILE", help="the file to write; by default the terminal")
    baseline.set_defaults(run=run_baseline)


def run(args: argparse.Namespace) -> int:
    """Print the entries. Raises UsageError for a run file that cannot be read, or a device that it does not have."""
    found = read(args.run_file)
    from ampcheck.runner.deviations import as_toml, suggest  # noqa: PLC0415  # imports torch

    print(as_toml(suggest(found, args.device), found, whole=args.all), end="")
    return 0


def run_baseline(args: argparse.Namespace) -> int:
    """Print or write the baseline. Raises UsageError as `run` does, and where the file cannot be written."""
    run = merge([read(path) for path in args.run_files])
    from ampcheck.runner.deviations import as_baseline  # noqa: PLC0415  # imports torch

    print_or_write(as_baseline(run, args.device), args.out, "baseline")
    return 0
