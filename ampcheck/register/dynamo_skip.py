"""Keeps Dynamo away from the Python of a kernel, which runs as it is between two graphs of a compiled function.

Dynamo skips files by their folders; generated code has no file.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from ampcheck.register.torch_private import eval_frame

P = ParamSpec("P")
R = TypeVar("R")
_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def dynamo_skip(function: Callable[P, R]) -> Callable[P, R]:
    """Keep Dynamo from compiling or following a Python function from now on; a call costs nothing more."""
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function
