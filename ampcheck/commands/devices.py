"""`ampcheck devices`: every device, and whether it can be tested here."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from ampcheck.commands.common import add_device_module
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.commands.common import Subparsers
    from ampcheck.devices import Device


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("devices", help="show every device, and whether it can be tested here")
    add_device_module(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table. Raises UsageError for a device that cannot be used, or a malformed deviations file."""
    from tabulate import tabulate

    from ampcheck.deviations import JIT, KERNELS, SHARED, load
    from ampcheck.devices.registry import known, warned

    rows = [_row(device) for device in known(args.device_module).values()]
    headers = ["device", "type", "dispatch key", "here", "amp dtypes", "checked", "policies", "deviations"]
    print(tabulate(rows, headers=headers, disable_numparse=True))
    everywhere = sum(len(load(path)) for path in (SHARED, JIT, KERNELS))
    print(f"\nThe first amp dtype is the default. {everywhere} more deviations are PyTorch's own, on any device.")
    for line in warned():
        print(line)
    return 0


def _row(device: Device) -> list[str]:
    from ampcheck.deviations import load
    from ampcheck.devices.registry import promised, unusable

    here, policies = "", "?"
    try:
        here = unusable(device) or "yes"
        policies = str(len(promised(device)))
    except UsageError as error:
        here = here or str(error)
    dtypes = sorted(device.amp_dtypes, key=lambda dtype: dtype != device.default_amp)
    return [
        device.name,
        device.type,
        device.key,
        here,
        ", ".join(dtypes),
        "values and dtypes" if device.has_values else "dtypes only",
        policies,
        str(len(load(device.deviations)) if device.deviations else 0),
    ]
