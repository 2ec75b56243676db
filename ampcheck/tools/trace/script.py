"""`ampcheck trace`: a script, or a function of a module, under trace."""

from __future__ import annotations

import argparse
import importlib
import inspect
import os
import runpy
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from ampcheck.errors import UsageError
from ampcheck.tools.trace.report import SORTS
from ampcheck.tools.trace.session import Trace


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def parser() -> argparse.ArgumentParser:
    """Return the parser of `ampcheck trace`."""
    out = _Parser(
        prog="ampcheck trace",
        description="Run a script, or a function without arguments, and show what autocast did to each op.",
        usage="ampcheck trace [--sort ORDER] [--limit ROWS] [--json FILE] SCRIPT.py [ARG ...] | MODULE:FUNCTION",
        allow_abbrev=False,
    )
    out.add_argument("--sort", choices=SORTS, default="order", help="order of the table's rows (default: order)")
    out.add_argument("--limit", type=int, metavar="ROWS", help="show at most so many rows")
    out.add_argument("--json", metavar="FILE", type=Path, help="write every record there")
    out.add_argument("target", metavar="SCRIPT.py | MODULE:FUNCTION", help="what to run")
    out.add_argument("args", nargs=argparse.REMAINDER, metavar="ARG", help="given to the script")
    return out


def command(argv: list[str]) -> int:
    """Run `ampcheck trace` with its arguments.

    Returns the exit code: the program's own, or 1 where it raised. Raises UsageError for bad arguments, or a program
    that cannot be found or called; nothing ran then.
    """
    options = parser().parse_args(argv)
    if options.limit is not None and options.limit < 1:
        raise UsageError(f"--limit must be 1 or more, not {options.limit}")
    if options.json is not None and not options.json.absolute().parent.is_dir():
        raise UsageError(f"{options.json} cannot be written: its folder does not exist")
    run = _program(options.target, options.args)
    trace = Trace()
    code = _run(run, trace)
    sys.stdout.flush()
    print(trace.summary())
    if trace.ops:
        print()
        print(trace.table(options.sort, options.limit))
    if options.json is not None:
        try:
            options.json.write_text(trace.to_json() + "\n", encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{options.json} cannot be written: {error.strerror}") from error
    return code


def _run(run: Callable[[], object], trace: Trace) -> int:
    try:
        with trace:
            run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except Exception:  # whatever a program raises: what it did until then is shown
        traceback.print_exc()
        return 1
    return 0


def _program(target: str, args: list[str]) -> Callable[[], object]:
    module, colon, function = target.partition(":")
    if target.endswith(".py") or not colon:
        return _script(Path(target), args)
    if args:
        raise UsageError(f"{target} is called without arguments, but {' '.join(args)!r} was given")
    return _function(module, function)


def _script(path: Path, args: list[str]) -> Callable[[], object]:
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "does not exist"
        raise UsageError(f"{path} {what}; give a script, or a function as MODULE:FUNCTION")

    def run() -> None:
        sys.argv = [str(path), *args]
        sys.path.insert(0, str(path.absolute().parent))
        runpy.run_path(str(path), run_name="__main__")

    return run


def _function(module: str, name: str) -> Callable[[], object]:
    if not module or not name:
        raise UsageError(f"{module}:{name} names no function; it is written MODULE:FUNCTION")
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.import_module(module)
    except Exception as error:  # an import can raise anything
        raise UsageError(f"module {module} cannot be imported: {type(error).__name__}: {error}") from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"module {module} has no function {name}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{module}:{name} is a {type(found).__name__}, not a function")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UsageError(f"{module}:{name} cannot be called without arguments: {error}") from error
    except ValueError:  # a builtin that tells nothing of its arguments
        pass
    return found
