"""How a case is run: `eager` for what a sample calls eagerly, and the compilers that take it as a program.

`kinds` has the compilers, `source` writes the program.
"""

import operator
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import torch

from ampcheck.observe.recorder import overload


@cache
def eager(op: str, call: str) -> Callable[..., Any]:
    """Return the function a path names; "aten" is the overload itself.

    Raises AttributeError where torch has no such function.
    """
    if call == "aten":
        return overload(op)
    root, *names = call.split(".")
    roots: dict[str, Any] = {"torch": torch, "operator": operator}
    found: Callable[..., Any] = reduce(getattr, names, roots[root])
    return found
