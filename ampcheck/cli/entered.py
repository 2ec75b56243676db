"""`ampcheck entered`: the registered autocast kernels that the op cases enter, and that PyTorch's own lists enter."""

from __future__ import annotations

import argparse
import json

from ampcheck.cli.common import Subparsers, add_device, tell


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser(
        "entered",
        help="which autocast kernels the op cases really enter",
        description="Put a recorder in place of every registered autocast kernel, run the op cases and PyTorch's own "
        "lists, and print what each entered. Ends with 1 where the op cases miss an overload.",
    )
    add_device(parser, "a device to measure on")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Measure, print, and return 1 where the op cases miss an overload, else 0.

    Raises UsageError for an unknown device, and for one whose key no policies are registered under.
    """
    from ampcheck.devices.registry import known, select, unusable  # noqa: PLC0415  # imports torch
    from ampcheck.spec.policies import KEYS  # noqa: PLC0415  # imports torch
    from ampcheck.tools.coverage import kernels  # noqa: PLC0415  # imports torch

    names = args.device or [d.name for d in known(args.device_module).values() if d.key in KEYS and not unusable(d)]
    devices = select(names, args.device_module)
    suite, lists = kernels.by_suite(devices, tell), kernels.by_upstream_lists(devices, tell)
    rows = {device.name: (mine, theirs) for device, mine, theirs in zip(devices, suite, lists, strict=True)}
    print(json.dumps(kernels.fields(rows), indent=2) if args.json else kernels.table(rows))
    return int(any(mine.missed for mine in suite))
