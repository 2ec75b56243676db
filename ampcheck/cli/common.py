"""Options that several commands share."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TypeAlias

from ampcheck.errors import UsageError

Subparsers: TypeAlias = "argparse._SubParsersAction[argparse.ArgumentParser]"


def add_device(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--device` and `--device-module`."""
    parser.add_argument("--device", action="append", default=[], metavar="NAME", help=f"{what}; again for more")
    add_device_module(parser)


def add_device_module(parser: argparse.ArgumentParser) -> None:
    """Add `--device-module`."""
    parser.add_argument(
        "--device-module", action="append", default=[], metavar="MODULE", help="a module that defines DEVICES"
    )


def add_compiler(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--compiler`, and its old name `--executor`, which no help lists."""
    add = parser.add_argument
    add("--compiler", action="append", default=[], metavar="NAME", help=what)
    add("--executor", action="append", dest="compiler", help=argparse.SUPPRESS)


def print_or_write(text: str, out: Path | None, what: str) -> None:
    """Write a text to a file, or print it where there is none. Raises UsageError where the file cannot be written."""
    if out is None:
        print(text, end="")
        return
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UsageError(f"the {what} {out} cannot be written: {error.strerror}") from error


def tell(line: str) -> None:
    """Write a line of progress to the standard error stream."""
    print(line, file=sys.stderr, flush=True)


def seconds(text: str) -> float:
    """Return a positive number of seconds. Raises ValueError for anything else."""
    value = float(text)
    if not value > 0:
        raise ValueError
    return value
