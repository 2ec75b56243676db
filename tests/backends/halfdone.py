"""A PrivateUse1 backend whose author is half done: it lacks a third of its kernels, and several of the others raise."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import torch
from engine import Arrays, Backend, Tested

ESSENTIAL = (
    *("empty", "empty_strided", "_copy_from", "_copy_from_and_resize", "as_strided", "view", "resize_", "fill_"),
    *("zero_", "_local_scalar_dense", "mm", "addmm", "add", "mul", "tanh", "exp"),
)


def _missing() -> set[str]:
    """The ops, a third of the CPU's, that it has no kernels for."""
    names = torch._C._dispatch_get_registrations_for_dispatch_key("CPU")
    packets = {name.removeprefix("aten::").partition(".")[0] for name in names if name.startswith("aten::")}
    return {packet for packet in packets - set(ESSENTIAL) if crc32(packet.strip("_").encode()) % 3 == 0}


def _in_low(op: Any, *args: Any, **kwargs: Any) -> Any:
    if any(isinstance(x, torch.Tensor) and x.dtype.itemsize == 2 for x in args):
        raise RuntimeError(f"halfdone: no lower precision in {op.name()} yet")
    return op(*args, **kwargs)


def _typo(op: Any, *args: Any, **kwargs: Any) -> Any:
    return op(*args, **kwargs).realise()


MISSING = _missing()
BACKEND = Backend("halfdone", Arrays(), missing=MISSING)
BACKEND.mutants |= dict.fromkeys(("mm", "addmm", "tanh"), _in_low) | {"exp": _typo}
BACKEND.register()
DEVICES = (Tested(BACKEND),)
