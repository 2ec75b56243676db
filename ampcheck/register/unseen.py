"""Keeps Dynamo away from the Python of a kernel, which runs as it is between two graphs of a compiled function.

Dynamo skips files by their folders; generated code has no file.
"""

from __future__ import annotations

from typing import Any

from torch._C._dynamo import eval_frame

_frames: Any = eval_frame
_SKIP = _frames._FrameExecStrategy(_frames._FrameAction.SKIP, _frames._FrameAction.SKIP)


def unseen(function: Any) -> Any:
    """The same Python function, which Dynamo neither compiles nor follows from now on. It costs nothing at a call."""
    _frames.set_code_exec_strategy(function.__code__, _SKIP)
    return function
