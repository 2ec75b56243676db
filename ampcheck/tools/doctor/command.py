"""`ampcheck doctor`: a script, or a function of a module, under the doctor."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from ampcheck.tools import user_program
from ampcheck.tools.doctor.session import OBSERVED_FIRST, Enough, doctor


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck doctor`."""
    out = user_program.Parser(
        prog="ampcheck doctor",
        description="Run some steps of a training program and say what is wrong with its mixed precision.",
        usage="ampcheck doctor [--steps N] [--every N] [--all] [--json FILE] SCRIPT.py [ARG ...] | MODULE:FUNCTION",
        allow_abbrev=False,
    )
    out.add_argument(
        "--steps", type=int, default=20, metavar="N", help="end the program after N steps (20); 0: let it end by itself"
    )
    out.add_argument(
        "--every", type=int, default=50, metavar="N",
        help=f"observe one of N steps kernel by kernel after the first {OBSERVED_FIRST} (50)",
    )  # fmt: skip
    out.add_argument("--all", action="store_true", help="show every finding in full, not one screen")
    out.add_argument("--json", metavar="FILE", type=Path, help="write every finding there")
    user_program.add_arguments(out)
    return out


def command(argv: list[str]) -> int:
    """Run `ampcheck doctor` with its arguments.

    Returns the exit code: the program's own where it failed, else 1 where something is wrong and 0 where nothing is.
    Raises UsageError for bad arguments, or a program that cannot be found or called; nothing ran then.
    """
    options = parser().parse_args(argv)
    user_program.check_writable(options.json)
    watching = doctor(every=options.every, steps=options.steps)
    code = user_program.run(_ending(user_program.find(options.target, options.args)), watching)
    sys.stdout.flush()
    print(watching.screen(everything=options.all))
    if options.json is not None:
        found = {"schema": 1, "steps": watching.steps, "findings": [one.fields() for one in watching.findings]}
        user_program.write(options.json, json.dumps(found, indent=1))
    return code or int(bool(watching.findings))


def _ending(program: Callable[[], object]) -> Callable[[], object]:
    def run() -> None:
        with suppress(Enough):
            program()

    return run
