"""`ampcheck devices`: every device, and whether it can be tested here."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ampcheck.cli.common import Subparsers, add_device_module, remembered
from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.devices import Device


def add(commands: Subparsers) -> None:
    """Declare the command."""
    parser = commands.add_parser("devices", help="show every device, and whether it can be tested here")
    add_device_module(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    """Print the table. Raises UsageError for a device that cannot be used, or a malformed deviations file."""
    for line in _lines(args) if args.device_module else remembered(["devices"], lambda: _lines(args), _lasts):
        print(line)
    return 0


def _lasts() -> bool:
    """Return whether another process would find the same devices: a driver may come and go."""
    import torch  # noqa: PLC0415  # takes a second

    return not torch.backends.cuda.is_built()


def _lines(args: argparse.Namespace) -> Iterator[str]:
    from tabulate import tabulate  # noqa: PLC0415  # only this command needs it

    from ampcheck.devices.registry import known, warned  # noqa: PLC0415  # imports torch
    from ampcheck.runner.deviations import JIT, KERNELS, SHARED, load  # noqa: PLC0415  # imports torch

    devices = known(args.device_module)
    rows = [_row(device, list(devices)) for device in devices.values()]
    headers = ["device", "type", "dispatch key", "here", "amp dtypes", "checked", "policies", "deviations", "faults"]
    yield tabulate(rows, headers=headers, disable_numparse=True)
    everywhere = sum(len(load(path)) for path in (SHARED, JIT, KERNELS))
    yield f"\nThe first amp dtype is the default. {everywhere} more deviations are PyTorch's own, on any device."
    yield "A fault is a known one of the device itself, and is not among its deviations."
    yield from warned()


def _row(device: Device, names: list[str]) -> list[str]:
    from ampcheck.devices.registry import promised, unusable  # noqa: PLC0415  # imports torch
    from ampcheck.runner.deviations import load, named  # noqa: PLC0415  # imports torch

    here, policies = "", "?"
    try:
        here = unusable(device) or "yes"
        policies = str(len(promised(device)))
    except UsageError as error:
        here = here or str(error)
    entries = named(device, load(device.deviations, names)) if device.deviations else []
    faults = sum(entry.kind == "fault" for entry in entries)
    dtypes = sorted(device.amp_dtypes, key=lambda dtype: dtype != device.default_amp)
    return [
        device.name,
        device.type,
        device.key,
        here,
        ", ".join(dtypes),
        "values and dtypes" if device.has_values else "dtypes only",
        policies,
        str(len(entries) - faults),
        str(faults),
    ]
