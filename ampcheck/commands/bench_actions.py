"""What `ampcheck bench` does besides measuring: verify, export, advise."""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.errors import UsageError

if TYPE_CHECKING:
    from ampcheck.commands.common import Subparsers

FORMATS = ("markdown", "csv", "pytest-benchmark", "smaller-is-better")


def add(actions: Subparsers) -> None:
    """Declare the actions."""
    parser = actions.add_parser("verify", help="measure the measuring: the same arm twice, a ratio by another tool")
    parser.set_defaults(run=verify)
    parser = actions.add_parser("export", help="print a benchmark file in another format")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--format", choices=FORMATS, default="markdown")
    parser.set_defaults(run=export)
    parser = actions.add_parser("advise", help="time a step of your own in each arm and say what pays")
    parser.add_argument("step", metavar="MODULE:FUNCTION", help="a function that makes a model, inputs and a loss")
    parser.add_argument("--device", default="cpu", metavar="NAME", help="default: cpu")
    parser.set_defaults(run=advise)


def verify(args: argparse.Namespace) -> int:
    """Run `ampcheck.bench.verify` with one thread. Returns 0 where every promise holds, else 1."""
    from ampcheck.bench.run import environment

    return subprocess.run([sys.executable, "-m", "ampcheck.bench.verify"], env=environment(1), check=False).returncode


def export(args: argparse.Namespace) -> int:
    """Print the file. Raises UsageError for one that cannot be read."""
    from ampcheck.bench import exports
    from ampcheck.bench.runfile import read

    writers = dict(
        zip(
            FORMATS,
            (exports.as_markdown, exports.as_csv, exports.pytest_benchmark_json, exports.smaller_is_better),
            strict=True,
        )
    )
    print(writers[args.format](read(args.file)))
    return 0


def advise(args: argparse.Namespace) -> int:
    """Print the advice. Raises UsageError where the step cannot be loaded or run."""
    from ampcheck.bench import advice

    if ":" not in args.step:
        raise UsageError(f"{args.step!r} names no function; it is written MODULE:FUNCTION")
    print(advice.advise(args.step, args.device))
    return 0
