"""Run the preflight of the NumPy backend once as it is and once with each of some faults; print the findings as JSON.

A process has one PrivateUse1 backend, so the faults share a process and are taken back one after the other.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from typing import Any
from unittest.mock import patch

import torch
from numpy_backend import BACKEND, NAME

from ampcheck.devices.preflight import examine
from ampcheck.devices.registry import known

module = getattr(torch, NAME)


def nothing() -> Any:
    """No fault."""
    return nullcontext()


def kernel(after: Callable[[Any, Any], None]) -> Any:
    """`after` is called with every op and its result."""
    right = BACKEND._computed

    def computed(op: Any, args: Any, kwargs: Any) -> Any:
        out = right(op, args, kwargs)
        after(op, out)
        return out

    return patch.object(BACKEND, "_computed", computed)


def one_more(name: str) -> Any:
    """The op of that name gives one more than it should."""
    return kernel(lambda op, out: out.add_(1) if op._opname == name else None)


def refused(*names: str) -> Any:
    """The ops of those names have no kernel."""

    def refuse(op: Any, out: Any) -> None:
        if op._opname in names:
            raise NotImplementedError(f"no kernel of {op._opname} yet")

    return kernel(refuse)


@contextmanager
def without_autocast() -> Iterator[None]:
    """Nobody called register_autocast, but regions are allowed."""
    assert BACKEND.autocast is not None
    BACKEND.autocast.unregister()
    with patch.object(module, "get_amp_supported_dtype", lambda: [torch.float16, torch.bfloat16], create=True):
        yield
    BACKEND.register()


def only_fp16() -> Any:
    """The device module says that regions of bf16 are not supported."""
    return patch.object(module, "get_amp_supported_dtype", lambda: [torch.float16])


@contextmanager
def uncast_mm() -> Iterator[None]:
    """mm has no autocast kernel; the others have theirs."""
    BACKEND.register({"mm": "fallthrough"})
    yield
    BACKEND.register()


FAULTS = {
    "none": nothing,
    "without_autocast": without_autocast,
    "only_fp16": only_fp16,
    "uncast_mm": uncast_mm,
    "no_scaler_kernels": lambda: refused("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_"),
    "no_generator": lambda: refused("uniform_"),
    "wrong_add": lambda: one_more("add"),
    "wrong_mul": lambda: one_more("mul"),
    "other_index": lambda: patch.object(type(module), "current_device", staticmethod(lambda: 3)),
}


def main() -> None:
    device = known(("numpy_backend",))[NAME]
    out = {}
    for name, fault in FAULTS.items():
        with fault():
            out[name] = [asdict(finding) for _, finding in examine((device,))]
    json.dump(out, sys.stdout)


if __name__ == "__main__":
    main()
