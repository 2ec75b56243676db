"""Backends that lack something before the first case: the step of the preflight that must name it, and what to do.

They are planted in the backend of NumPy arrays of tests/backends.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from ampcheck.devices.preflight import examine
from ampcheck.devices.registry import known
from tests.faults.fault import Fault, Inject, Result

DEVICE, SUITE = "npy", "preflight"


def results(fault: Fault) -> list[Result]:
    """Return the findings of each step of the preflight."""
    found = [finding for _, finding in examine((known(("numpy_backend",))[DEVICE],))]
    ends = {True: "the run ends", False: "the run goes on"}
    return [{"id": f.step, "rule": f.step, "status": f.status, "message": f"{f.text}; {ends[f.ends]}"} for f in found]


def _fault(name: str, step: str, status: str, inject: Inject, *says: str, ends: bool = False) -> Fault:
    """A fault that a step must name with a status; `ends`: whether it must end the run."""
    said = (*says, "the run ends" if ends else "the run goes on")
    return Fault(name, step, inject, said, SUITE, DEVICE, statuses=(status,))


def kernel(after: Callable[[Any, Any], None]) -> Any:
    """`after` is called with every op and its result."""
    backend = import_module("numpy_backend").BACKEND
    right = backend._computed

    def computed(op: Any, args: Any, kwargs: Any) -> Any:
        out = right(op, args, kwargs)
        after(op, out)
        return out

    return patch.object(backend, "_computed", computed)


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
    backend = import_module("numpy_backend").BACKEND
    assert backend.autocast is not None
    backend.autocast.unregister()
    with patch.object(torch.npy, "get_amp_supported_dtype", lambda: [torch.float16, torch.bfloat16], create=True):
        yield
    backend.register()


def only_fp16() -> Any:
    """The device module says that regions of bf16 are not supported."""
    return patch.object(torch.npy, "get_amp_supported_dtype", lambda: [torch.float16])


@contextmanager
def uncast_mm() -> Iterator[None]:
    """mm has no autocast kernel; the others have theirs."""
    backend = import_module("numpy_backend").BACKEND
    backend.register({"mm": "fallthrough"})
    yield
    backend.register()


def other_index() -> Any:
    """The device module says that another device is current."""
    return patch.object(type(torch.npy), "current_device", staticmethod(lambda: 3))


_SCALER = ("_amp_foreach_non_finite_check_and_unscale_", "_amp_update_scale_")

FAULTS = (
    _fault(
        "without-autocast",
        "region",
        "failed",
        without_autocast,
        "in fp16 it raised NotImplementedError: Could not run 'aten::mm'",
        "no autocast kernels are registered for AutocastPrivateUse1: call "
        "ampcheck.register.register_autocast('npy', base='cuda')",
        ends=True,
    ),
    _fault(
        "only-fp16",
        "region",
        "failed",
        only_fp16,
        "in bf16 the region turned itself off: In npy autocast, but the target dtype is not supported",
        "let torch.npy.get_amp_supported_dtype() list bf16, or leave it out of amp_dtypes",
    ),
    _fault(
        "uncast-mm",
        "region",
        "failed",
        uncast_mm,
        "in fp16 it gives fp32; in bf16 it gives fp32",
        "the kernel of aten::mm",
    ),
    _fault(
        "no-scaler-kernels",
        "scaler",
        "missing",
        lambda: refused(*_SCALER),
        "no kernel of _amp_foreach_non_finite_check",
        "register kernels",
    ),
    _fault(
        "no-generator",
        "generator",
        "missing",
        lambda: refused("uniform_"),
        "no kernel of uniform_",
        "make aten::uniform_ work",
    ),
    _fault(
        "wrong-add",
        "add",
        "failed",
        lambda: one_more("add"),
        "the sum came back as [[3.0, -4.0",
        "make aten::add.Tensor work",
        ends=True,
    ),
    _fault("wrong-mul", "backward", "failed", lambda: one_more("mul"), "the gradient came back as"),
    _fault("other-index", "device index", "failed", other_index, "torch.npy.current_device() is 3"),
)
"""Every fault of a backend that the preflight must find."""
