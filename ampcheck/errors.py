"""The error for bad input, and a function that names the place where an exception was raised."""

from __future__ import annotations

import sys
import traceback
from pathlib import Path

_PACKAGE = str(Path(__file__).parent)
# These parts of the package are under test themselves: a backend and its autocast kernels.
_TESTED = tuple(str(Path(_PACKAGE, part)) for part in ("jax_device", "register"))


class UsageError(Exception):
    """What the user gave cannot be used. Its text is one sentence that says why; the command line exits with 2."""


def raised_in(error: BaseException) -> str:
    """Name the innermost frame outside of ampcheck and torch: "file.py:12 in function"; "" where there is none."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{_short(error.filename)}:{error.lineno}"
    torch = getattr(sys.modules.get("torch"), "__file__", None)
    foreign = (str(Path(torch).parent),) if torch else ()
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        ours = frame.filename.startswith(_PACKAGE) and not frame.filename.startswith(_TESTED)
        if not ours and not frame.filename.startswith((*foreign, "<")):
            return f"{_short(frame.filename)}:{frame.lineno} in {frame.name}"
    return ""


def _short(path: str) -> str:
    """A path as seen from the current folder, where it lies there."""
    here = Path.cwd()
    return str(Path(path).relative_to(here)) if Path(path).is_relative_to(here) else path
