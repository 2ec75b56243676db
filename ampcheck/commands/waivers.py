"""`ampcheck waivers suggest`: a deviations file to start from, for the failing cases of a run."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampcheck.commands.common import Subparsers


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("waivers", help="write deviations for a device that fails some cases")
    actions = parser.add_subparsers(metavar="ACTION", required=True)
    suggest = actions.add_parser("suggest", help="print entries for the failing cases of a run, one a cause")
    suggest.add_argument("run_file", type=Path, metavar="RUN", help="a run file")
    suggest.add_argument("--device", action="append", default=[], metavar="NAME", help="of this device alone")
    suggest.add_argument("--all", action="store_true", help="print every entry and glob, however many")
    suggest.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the entries. Raises UsageError for a run file that cannot be read, or a device that it does not have."""
    from ampcheck.results import read
    from ampcheck.suggest import as_toml, suggest

    found = read(args.run_file)
    print(as_toml(suggest(found, args.device), found, whole=args.all), end="")
    return 0
