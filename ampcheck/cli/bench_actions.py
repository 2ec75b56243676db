"""The other actions of `ampcheck bench`: verify, export, advise."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ampcheck.cli.common import add_compiler, add_device_module

if TYPE_CHECKING:
    from ampcheck.cli.common import Subparsers

FORMATS = ("markdown", "csv", "pytest-benchmark", "smaller-is-better")


def add(actions: Subparsers) -> None:
    """Declare the actions."""
    parser = actions.add_parser("verify", help="measure the measuring: the same variant twice, a ratio by another tool")
    parser.set_defaults(run=verify)
    parser = actions.add_parser("export", help="print a benchmark file in another format")
    parser.add_argument("file", type=Path, metavar="FILE")
    parser.add_argument("--format", choices=FORMATS, default="markdown")
    parser.set_defaults(run=export)
    parser = actions.add_parser("advise", help="time a step of your own in each variant and say what pays")
    what = "MODULE:FUNCTION | FILE.py:FUNCTION | FILE.py"
    option = parser.add_argument
    option(
        "step", metavar=what, help="a function that returns (model, inputs, loss); of a file, the one that is marked"
    )
    option("--device", default="cpu", metavar="NAME", help="default: cpu")
    add_compiler(parser, "compile or jit, beside eager; again for both")
    option("--quick", action="store_true", help="one process and five rounds")
    option("--threads", type=int, default=1, metavar="N", help="threads of each library; default: 1")
    option("--trace", type=Path, metavar="FILE", help="write the trace there as JSON")
    option("--json", type=Path, metavar="FILE", help="write everything that was found there as JSON")
    add_device_module(parser)
    parser.set_defaults(run=advise)


def verify(args: argparse.Namespace) -> int:
    """Run `ampcheck.bench.run.verify` with one thread. Returns 0 where every promise holds, else 1."""
    from ampcheck.bench.run.group import environment  # noqa: PLC0415  # imports torch

    return subprocess.run(
        [sys.executable, "-m", "ampcheck.bench.run.verify"], env=environment(1), check=False
    ).returncode


def export(args: argparse.Namespace) -> int:
    """Print the file. Raises UsageError for one that cannot be read."""
    from ampcheck.bench.run import exports  # noqa: PLC0415  # imports torch
    from ampcheck.bench.run.runfile import read  # noqa: PLC0415  # imports torch

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
    """Print the advice, and write the files. Raises UsageError where the step cannot be loaded or run."""
    from ampcheck.bench.advise import advice  # noqa: PLC0415  # imports torch
    from ampcheck.tools import user_program  # noqa: PLC0415  # imports torch

    for path in (args.trace, args.json):
        user_program.check_writable(path)
    found = advice.advise(
        args.step,
        args.device,
        compilers=args.compiler,
        modules=args.device_module,
        quick=args.quick,
        threads=args.threads,
        tell=lambda text: print(text, file=sys.stderr),
    )
    print(found.text())
    if args.trace is not None:
        user_program.write(args.trace, found.found.trace or "null")
    if args.json is not None:
        user_program.write(args.json, json.dumps(found.data(), indent=1))
    return 0
