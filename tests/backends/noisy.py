"""A PrivateUse1 backend that gives Python warnings: when it is compiled, when it is imported, and in its kernels."""

from __future__ import annotations

import warnings
from typing import Any

from engine import Arrays, Backend, Tested

PATTERN = "noisy\d+"  # noqa: W605  # the invalid escape sequence is the warning at compilation
warnings.warn("noisy is a preview", UserWarning, stacklevel=1)


def _warning(op: Any, *args: Any, **kwargs: Any) -> Any:
    warnings.warn(f"noisy computes {op.name()} slowly", UserWarning, stacklevel=1)
    return op(*args, **kwargs)


BACKEND = Backend("noisy", Arrays())
BACKEND.mutants |= dict.fromkeys(("mm", "exp", "_softmax", "tanh"), _warning)
BACKEND.register()
DEVICES = (Tested(BACKEND),)
