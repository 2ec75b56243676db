"""Run the user's program: a script with its arguments, or a function of a module."""

import argparse
import ast
import importlib
import inspect
import math
import os
import runpy
import shutil
import sys
import textwrap
import traceback
import warnings
import zipfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

from ampcheck.errors import UsageError, one_line
from ampcheck.runner.record import output_file, print_or_write

_RUNS = (str(Path(__file__).parents[1]) + os.sep, "<frozen runpy>", runpy.__file__)
"""Files whose frames are around a program, and between it and PyTorch."""


class Enough(BaseException):
    """Ends the program, which has run long enough. No `except Exception` of a training loop takes it."""


class Parser(argparse.ArgumentParser):
    """The parser of a command that runs a program. Everything after the program's name is the program's.

    `options`: the command's, as its usage shows them. Errors are UsageErrors.
    """

    def __init__(self, command: str, description: str, options: str) -> None:
        usage = f"{command} {options} SCRIPT.py [ARG ...] | MODULE:FUNCTION"
        super().__init__(prog=command, description=description, usage=usage, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)

    def ended(self, **files: str) -> argparse.ArgumentParser:
        """Return the parser, with options that name files by what is written there, and with the program, the last."""
        for name, what in files.items():
            self.add_argument(f"--{name}", metavar="FILE", type=output_file, help=f"write {what} there")
        self.add_argument("target", metavar="SCRIPT.py | MODULE:FUNCTION", help="what to run")
        self.add_argument("args", nargs=argparse.REMAINDER, metavar="ARG", help="given to the script")
        return self


def screen_width() -> int:
    """Return how many columns an answer may take: those of the terminal, 60 at least and 100 at most."""
    return max(60, min(shutil.get_terminal_size((100, 24)).columns, 100))


def wrapped(text: str) -> list[str]:
    """Return a line in as many as fit `screen_width`, the later ones indented further."""
    begin = " " * (len(text) - len(text.lstrip()))
    return textwrap.wrap(
        text.strip(), screen_width(), initial_indent=begin, subsequent_indent=f"{begin}  ", break_on_hyphens=False
    )


def end(text: str, most: int) -> str:
    """Return a text that has so many characters at most, of a longer one its end."""
    return text if len(text) <= most else f"…{text[1 - most :]}"


def plain(value: object) -> Any:
    """Return a value of JSON data with numbers that are not finite as strings."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, dict):
        return {name: plain(one) for name, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def write(path: Path | None, text: Callable[[], str]) -> None:
    """Write a file where one is named. Raises UsageError where it cannot be written."""
    if path is not None:
        print_or_write(f"{text().rstrip()}\n", path, "file")


def drawn(template: Path, **values: object) -> str:
    """Return an SVG with values, which are escaped, in the place of their names."""
    from jinja2 import Environment  # noqa: PLC0415  # few commands draw something

    environment = Environment(autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return environment.from_string(template.read_text(encoding="utf-8")).render(values)


def run(program: Callable[[], object], watching: AbstractContextManager[object]) -> int:
    """Run a program while something watches it. Returns its exit code, or 1 where it raised."""
    try:
        with watching:
            program()
    except Enough:
        return 0
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            return error.code or 0
        print(error.code, file=sys.stderr)
        return 1
    except Exception as error:  # whatever a program raises: what it did until then is shown
        print("".join(_own_frames(error)), end="", file=sys.stderr)
        return 1
    return 0


def _own_frames(error: Exception) -> list[str]:
    """Return the lines of a traceback without the frames that run and watch the program."""
    told = traceback.TracebackException.from_exception(error)
    part: traceback.TracebackException | None = told
    while part is not None:
        kept = [frame for frame in part.stack if not frame.filename.startswith(_RUNS)]
        part.stack = traceback.StackSummary.from_list(kept or part.stack)
        part = part.__cause__ or part.__context__
    return list(told.format())


def find(target: str, args: list[str]) -> Callable[[], object]:
    """Return what runs a script, or a function given as MODULE:FUNCTION, whose module is imported here.

    Raises UsageError where there is none, or where arguments are given to a function.
    """
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

    if path.suffix != ".pyc" and not zipfile.is_zipfile(path):  # which runpy runs, too
        _check_syntax(path)

    def run() -> None:
        sys.argv = [str(path), *args]
        sys.path.insert(0, str(path.absolute().parent))
        runpy.run_path(str(path), run_name="__main__")

    return run


def _check_syntax(path: Path) -> None:
    """Raise UsageError where a file cannot be read as Python."""
    try:
        with warnings.catch_warnings(action="ignore"):  # the program warns when it runs
            ast.parse(path.read_bytes(), str(path))
    except SyntaxError as error:
        raise UsageError(f"{path} cannot be read as Python: line {error.lineno}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read as Python: {error}") from error


def _function(module: str, name: str) -> Callable[[], object]:
    if not module or not name:
        raise UsageError(f"{module}:{name} names no function; it is written MODULE:FUNCTION")
    return function_of(imported(module), f"module {module}", name)


def imported(name: str) -> ModuleType:
    """Import a module, also from the current folder. Raises UsageError where that raises."""
    sys.path.insert(0, os.getcwd())
    try:
        return importlib.import_module(name)
    except (Exception, SystemExit) as error:  # an import can raise anything
        raise UsageError(f"module {name} cannot be imported: {one_line(error)}") from error


def function_of(module: ModuleType, where: str, name: str) -> Callable[[], Any]:
    """Return a function of a module that can be called without arguments.

    Args:
        where: names the module in messages.
        name: with dots for what is inside of a class.

    Raises UsageError where there is none.
    """
    found: Any = module
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"{where} has no function {name}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"{name} of {where} is {a_type(found)}, not a function")
    try:
        inspect.signature(found).bind()
    except TypeError as error:
        raise UsageError(f"{name} of {where} cannot be called without arguments: {error}") from error
    except ValueError:  # a builtin that tells nothing of its arguments
        pass
    return found  # type: ignore[no-any-return]  # it is callable, and nobody knows what it returns


def a_type(value: object) -> str:
    """Return the name of a value's type with its article, e.g. "an int"; "None" for None."""
    name = type(value).__name__
    return "None" if value is None else f"{'an' if name[0] in 'aeiouAEIOU' else 'a'} {name}"
