"""Out of memory: JAX's error, at a call or where a value is first read, as PyTorch's `torch.OutOfMemoryError`."""

import functools
import re
from typing import cast

import jax
import torch

from ampcheck.jax_device.annotations import NAME, Tree
from ampcheck.jax_device.lowering import F

_ASKED = re.compile(r"(?:alloc\w*|reserve|used) ([\d.]+) ?([KMGTP]?)(?:i?B|bytes)?\b", re.IGNORECASE)
_SHORT = re.compile(r"RESOURCE_EXHAUSTED.*alloc|out of memory|can't allocate memory|unable to allocate", re.IGNORECASE)
_MIB = {"": 2**-20, "K": 2**-10, "M": 1.0, "G": 2.0**10, "T": 2.0**20, "P": 2.0**30}


def refuse(error: BaseException) -> None:
    """Raise torch.OutOfMemoryError, with how much was asked for, if an error says that memory ran out."""
    text = str(error)
    if isinstance(error, torch.OutOfMemoryError) or not _SHORT.search(text):
        return
    found = _ASKED.search(text)
    where, asked = f"{NAME}:0" if isinstance(error, jax.errors.JaxRuntimeError) else "the host", "a buffer"
    if found is not None:
        amount = float(found[1]) * _MIB[found[2].upper()]
        asked = f"{amount / 1024:.2f} GiB" if amount >= 1024 else f"{amount:.2f} MiB"
    # Libraries that try again with a smaller batch look for " out of memory.".
    raise torch.OutOfMemoryError(f"Tried to allocate {asked}, but {where} is out of memory.") from None


def guarded(function: F) -> F:
    """Return the function with JAX's errors of memory, and NumPy's, as `torch.OutOfMemoryError`."""

    @functools.wraps(function)
    def run(*args: Tree, **kwargs: Tree) -> Tree:
        try:
            return function(*args, **kwargs)
        except (RuntimeError, MemoryError) as error:
            refuse(error)
            raise

    return cast(F, run)
