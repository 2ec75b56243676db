"""Keeps Dynamo away from the Python of a kernel, which runs as it is between two graphs of a compiled function.

Dynamo skips files by their folders; generated code has no file.
"""

from __future__ import annotations

from typing import Any

from ampcheck.register.torch_private import eval_frame

_SKIP = eval_frame._FrameExecStrategy(eval_frame._FrameAction.SKIP, eval_frame._FrameAction.SKIP)


def dynamo_skip(function: Any) -> Any:
    """The same Python function, which Dynamo neither compiles nor follows from now on. It costs nothing at a call."""
    eval_frame.set_code_exec_strategy(function.__code__, _SKIP)
    return function
