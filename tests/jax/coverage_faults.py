"""A coverage worker on whose device kernels are wrong, end the process, never return, or change at the second call."""

from __future__ import annotations

import itertools
import os
import sys
import time
from typing import Any

import torch

import ampcheck.jax_device  # noqa: F401
from scripts.jax_coverage import worker

calls = itertools.count()


def wrong(self: torch.Tensor) -> torch.Tensor:
    """Not the sine."""
    return torch.cos(self)


def ending(*_: Any) -> Any:
    """What a segmentation fault does to a process."""
    os._exit(7)


def hanging(*_: Any) -> Any:
    """An op that does not come back."""
    time.sleep(3600)


def drifting(self: torch.Tensor) -> torch.Tensor:
    """`trunc` the first time only."""
    return torch.sign(self) * torch.floor(torch.abs(self)) + (next(calls) > 0)


library = torch.library.Library("aten", "IMPL")
for name, kernel in {"sin": wrong, "sinh": ending, "tan": hanging, "trunc": drifting}.items():
    library.impl(name, kernel, "PrivateUse1", allow_override=True)

worker.main(sys.argv[1:])
