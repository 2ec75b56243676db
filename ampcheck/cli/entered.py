"""`ampcheck entered`: the registered autocast kernels that the op cases enter, and that PyTorch's own lists enter."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING, Any

from ampcheck.cli.common import add_device

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers
    from ampcheck.tools.coverage.kernels import Entered


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
    from ampcheck.devices.registry import known, select, unusable
    from ampcheck.spec.policies import KEYS
    from ampcheck.tools.coverage.kernels import by_suite
    from ampcheck.tools.coverage.upstream_lists import by_upstream_lists

    names = args.device or [d.name for d in known(args.device_module).values() if d.key in KEYS and not unusable(d)]
    devices = select(names, args.device_module)
    suite, lists = by_suite(devices, _progress), by_upstream_lists(devices, _progress)
    rows = {device.name: (mine, theirs) for device, mine, theirs in zip(devices, suite, lists, strict=True)}
    print(json.dumps(_fields(rows), indent=2) if args.json else _table(rows))
    return int(any(mine.missed for mine in suite))


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(text, file=sys.stderr)


def _fields(rows: dict[str, tuple[Entered, Entered]]) -> list[dict[str, Any]]:
    return [
        {
            "device": device,
            "key": mine.key,
            "registered": len(mine.registered),
            "entered": sorted(mine.entered),
            "missed": mine.missed,
            "entered_by_pytorch": sorted(theirs.entered),
            "missed_by_pytorch": theirs.missed,
        }
        for device, (mine, theirs) in rows.items()
    ]


def _table(rows: dict[str, tuple[Entered, Entered]]) -> str:
    import torch
    from tabulate import tabulate

    headers = [
        "device",
        "dispatch key",
        "registered",
        "entered by this suite",
        "by PyTorch's lists",
        "missed by this suite",
    ]
    body = [
        [
            device,
            mine.key,
            len(mine.registered),
            len(mine.entered),
            len(theirs.entered),
            ", ".join(mine.missed) or "none",
        ]
        for device, (mine, theirs) in rows.items()
    ]
    parts = [f"Autocast kernels entered, torch {torch.__version__}", tabulate(body, headers=headers), ""]
    for device, (_, theirs) in rows.items():
        if theirs.missed:
            what = ", ".join(theirs.missed) if theirs.entered else f"all {len(theirs.missed)}: no list is run on it"
            parts.append(f"PyTorch's lists miss on {device}: {what}")
    return "\n".join(parts)
