"""`ampcheck coverage`: how many states of the ops with a policy the cases reach."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from ampcheck.cli.common import Subparsers, add_device, print_or_write, tell
from ampcheck.runner.record import output_file


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "coverage",
        help="how many states of the ops with a policy the cases reach",
        description="Count the cells of overload, dispatch key, mix of dtypes, gradient mode, layout and compiler: "
        "those that cannot be, with the reasons, those that the cases of every run and of a nightly run reach, and the "
        "open ones.",
    )
    add = parser.add_argument
    add("runs", nargs="*", type=Path, metavar="RUN", help="run files: count the cells whose case passed")
    add_device(parser, "a device to count on, by default every one that this machine has")
    what = "plant each of five faults into so many random cells and print which are noticed; counts nothing"
    add("--try", dest="tries", type=int, metavar="CELLS", help=what)
    add("--seed", type=int, default=0, help="of the random cells of --try, by default 0")
    add("--open", action="store_true", help="list what is open, by overload and compiler")
    what = "write the counts to a file; ampcheck report shows REPORTS/coverage.json"
    add("--json", type=output_file, metavar="FILE", help=what)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print. Raises UsageError for an unknown device and a file that is no run file."""
    from ampcheck.devices.registry import select  # noqa: PLC0415  # imports torch
    from ampcheck.runner.record import read  # noqa: PLC0415  # imports torch
    from ampcheck.tools.coverage import cells, faults  # noqa: PLC0415  # imports torch

    if args.tries is not None:
        for device in select(args.device, args.device_module):
            print(faults.table(faults.tried(device, args.tries, args.seed, tell), args.seed))
        return 0
    statuses = None
    if args.runs:
        statuses = {result.key: result.status for path in args.runs for result in read(path).results.values()}
    counted = [cells.count(device, statuses) for device in select(args.device, args.device_module)]
    if args.json is not None:
        print_or_write(
            json.dumps(cells.fields(counted, statuses is not None), indent=2) + "\n", args.json, "file of counts"
        )
    print(cells.table(counted, args.open, statuses is not None))
    return 0
