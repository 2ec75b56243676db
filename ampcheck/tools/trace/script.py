"""`ampcheck trace`: a script, or a function of a module, under trace."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from ampcheck.errors import UsageError
from ampcheck.tools import user_program
from ampcheck.tools.trace.report import SORTS
from ampcheck.tools.trace.session import Trace


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck trace`."""
    out = user_program.Parser(
        prog="ampcheck trace",
        description="Run a script, or a function without arguments, and show what autocast did to each op.",
        usage="ampcheck trace [--sort ORDER] [--limit ROWS] [--json FILE] SCRIPT.py [ARG ...] | MODULE:FUNCTION",
        allow_abbrev=False,
    )
    out.add_argument("--sort", choices=SORTS, default="order", help="order of the table's rows (default: order)")
    out.add_argument("--limit", type=int, metavar="ROWS", help="show at most so many rows")
    out.add_argument("--json", metavar="FILE", type=Path, help="write every record there")
    user_program.add_arguments(out)
    return out


def command(argv: list[str]) -> int:
    """Run `ampcheck trace` with its arguments.

    Returns the exit code: the program's own, or 1 where it raised. Raises UsageError for bad arguments, or a program
    that cannot be found or called; nothing ran then.
    """
    options = parser().parse_args(argv)
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {options.limit}")
    user_program.check_writable(options.json)
    program = user_program.find(options.target, options.args)
    trace = Trace()
    code = user_program.run(program, trace)
    sys.stdout.flush()
    print(trace.summary())
    if trace.ops:
        print()
        print(trace.table(options.sort, options.limit))
    if options.json is not None:
        user_program.write(options.json, trace.to_json())
    return code
