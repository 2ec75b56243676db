"""How a case is run: `function` for what a sample calls eagerly, and the compilers that take it as a program.

`kinds` has the compilers, `source` writes the program, `cases` says which op goes through which, `parity` checks one.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import cache, reduce
from typing import Any

import torch

from ampcheck.observe.recorder import overload
from ampcheck.samples.describe import Op, Sample


@cache
def eager(op: str, call: str) -> Callable[..., Any]:
    """The function a path names; "aten" is the overload itself.

    Raises AttributeError where torch has no such function.
    """
    if call == "aten":
        return overload(op)
    root, *names = call.split(".")
    roots: dict[str, Any] = {"torch": torch, "operator": operator}
    found: Callable[..., Any] = reduce(getattr, names, roots[root])
    return found


def function(op: Op, sample: Sample) -> Callable[..., Any]:
    """What a sample calls, run eagerly."""
    return eager(op.overload, sample.call)
