"""`ampcheck coverage`: how many states of the ops with a policy the cases reach."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ampcheck.cli.common import add_device, print_or_write

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers
    from ampcheck.tools.coverage.cells import Coverage


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "coverage",
        help="how many states of the ops with a policy the cases reach",
        description="Count the cells of overload, dispatch key, mix of dtypes, gradient mode, layout and compiler: "
        "those that cannot be, with the reasons, those that the cases of every run and of a nightly run reach, and the "
        "open ones.",
    )
    parser.add_argument("runs", nargs="*", type=Path, metavar="RUN", help="run files: count what their cases reached")
    add_device(parser, "a device to count on, by default every one that this machine has")
    parser.add_argument("--open", action="store_true", help="list what is open, by overload and compiler")
    parser.add_argument(
        "--json",
        type=Path,
        metavar="FILE",
        help="write the counts to a file; ampcheck report shows REPORTS/coverage.json",
    )
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Count and print. Raises UsageError for an unknown device and a file that is no run file."""
    import torch

    from ampcheck.devices.registry import select
    from ampcheck.runner.results import read
    from ampcheck.tools.coverage.cells import count

    ran = None
    if args.runs:
        ran = {result.key for path in args.runs for result in read(path).results.values() if result.status in _SEEN}
    counted = [count(device, ran) for device in select(args.device, args.device_module)]
    if args.json is not None:
        counts = {"torch": torch.__version__, "devices": [_fields(each) for each in counted]}
        print_or_write(json.dumps(counts, indent=2) + "\n", args.json, "file of counts")
    print(_table(counted, args.open, ran is not None))
    return 0


_SEEN = ("pass", "deviation")


def _fields(each: Coverage) -> dict[str, Any]:
    return {
        "device": each.device,
        "key": each.key,
        "cells": each.cells,
        "reachable": each.reachable,
        "each_run": each.every,
        "nightly": each.nightly,
        "unreachable": each.unreachable,
    }


def _table(counted: list[Coverage], list_open: bool, ran: bool) -> str:
    from tabulate import tabulate

    from ampcheck.checks.cells import TRANSITIONS
    from ampcheck.tools.coverage.cells import figure

    headers = ["device", "dispatch key", "cells", "unreachable", "reachable", "in each run", "nightly", "open"]
    rows = [
        [c.device, c.key, c.cells, c.cells - c.reachable, c.reachable, c.every, c.nightly, c.reachable - c.nightly]
        for c in counted
    ]
    reasons: dict[str, int] = {}
    for each in counted:
        for reason, number in each.unreachable.items():
            reasons[reason] = reasons.get(reason, 0) + number
    why = [[number, reason] for reason, number in sorted(reasons.items(), key=lambda item: -item[1])]
    walked = (
        f"Every run takes all {len(TRANSITIONS.reachable)} transitions of the model of autocast's state that can be, "
        f"of {TRANSITIONS.size}."
    )
    parts = [
        figure(counted, ran),
        walked,
        tabulate(rows, headers=headers),
        tabulate(why, headers=["unreachable", "because"]),
    ]
    if list_open:
        parts += [f"open on {each.device}: {name}" for each in counted for name in each.open]
    return "\n\n".join(parts)
