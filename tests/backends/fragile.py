"""A PrivateUse1 backend whose process ends in one kernel, and which hangs in another one."""

from __future__ import annotations

import os
import signal
import threading
from typing import Any

from engine import Arrays, Backend, Tested


def _crash(op: Any, x: Any) -> Any:
    if x.dtype.itemsize == 2:
        os.kill(os.getpid(), signal.SIGSEGV)
    return op(x)


def _hang(op: Any, x: Any) -> Any:
    if x.dtype.itemsize == 2:
        threading.Event().wait()
    return op(x)


BACKEND = Backend("fragile", Arrays())
BACKEND.mutants |= {"tanh": _crash, "neg": _hang}
BACKEND.register()
DEVICES = (Tested(BACKEND),)
