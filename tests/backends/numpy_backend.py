"""A PrivateUse1 backend whose tensors are NumPy arrays, with autocast from one call of `register_autocast`.

It uses that call and the device class, as another backend would. NumPy computes the ops of `FUNCTIONS`; the others run
in PyTorch's CPU kernels on the arrays' own memory.

The environment variable NPY_BASE is the base of the registration, "cuda" unless it says "cpu".
"""

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engine import Arrays, Backend, Tested

from ampcheck.spec.policies import closest, table

NAME = "npy"
BASE = os.environ.get("NPY_BASE", "cuda")

FUNCTIONS = {name: getattr(np, name) for name in ("exp", "log", "sin", "maximum")}
FUNCTIONS |= {"neg": np.negative, "mul": np.multiply, "mm": np.matmul, "bmm": np.matmul}
"""Ops NumPy computes, where all tensors are float32: it rounds the lower precisions its own way."""

BACKEND = Backend(NAME, Arrays(), fallback=True, functions=FUNCTIONS)
AUTOCAST = BACKEND.register(base=BASE)


class Npy(Tested):
    """The backend as ampcheck sees it."""

    deviations = Path(__file__).with_suffix(".toml")

    def policies(self) -> Any:
        return table({"cuda": "AutocastCUDA", "cpu": "AutocastCPU"}[BASE], closest(torch.__version__))


DEVICES = (Npy(BACKEND),)
