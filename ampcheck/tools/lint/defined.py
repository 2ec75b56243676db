"""A program made of text, with its module and source, as compilers want it."""

import linecache
import sys
from itertools import count
from types import ModuleType

_NUMBERS = count()


def module(name: str, values: dict[str, object] | None = None) -> ModuleType:
    """Return an empty module that can be imported under its name, which is new each time.

    Dynamo imports the module that a function says it is from, and keeps it under that name.
    """
    made = ModuleType(f"ampcheck_{name}_{next(_NUMBERS)}")
    vars(made).update(values or {})
    sys.modules[made.__name__] = made
    return made


def keep(file: str, text: str) -> None:
    """Let `inspect`, and so TorchScript, find a text under a file's name."""
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)


def run(text: str, file: str, where: ModuleType) -> None:
    """Run a text in a module. Without this file's own `from __future__`, which would make annotations text."""
    exec(compile(text, file, "exec", dont_inherit=True), vars(where))
