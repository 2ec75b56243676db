"""Options that several commands share."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    Subparsers = argparse._SubParsersAction[argparse.ArgumentParser]


def add_device(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--device` and `--device-module`."""
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help=f"{what}; again for more")
    add_device_module(parser)


def add_device_module(parser: argparse.ArgumentParser) -> None:
    """Add `--device-module`."""
    parser.add_argument(
        "--device-module", action="append", default=[], metavar="MODULE", help="a module that defines DEVICES"
    )


def seconds(text: str) -> float:
    """A positive number of seconds. Raises ValueError for anything else."""
    value = float(text)
    if not value > 0:
        raise ValueError
    return value
