"""Compiled functions whose backward pass differs from that of the documented eager program."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import torch

from tests.faults import compilers as wrong
from tests.faults.compilers import Change, entering, handed_out, results
from tests.faults.fault import Fault, Inject


def _fault(name: str, inject: Inject, says: str, compiler: str = "aot", only: str = "-autograd-") -> Fault:
    """Return a fault that the cells without compiled autograd, which take less long, must catch."""
    return Fault(f"compiled-{name}", "derivatives", inject, (says,), "jit", compiler=compiler, only=only)


def _out(name: str, change: Change, says: str, compiler: str = "aot") -> Fault:
    return _fault(name, lambda: handed_out(change), says, compiler)


def cast_back_and_forth(x: torch.Tensor) -> torch.Tensor:
    """Two casts that change nothing, and two more in the backward pass."""
    return x.double().to(x.dtype)


def setting_unread() -> AbstractContextManager[object]:
    """A setting of where the backward pass is that changes nothing."""
    kind = type(torch._functorch.config)
    own = kind.patch

    def without(self: Any, *args: Any, **values: Any) -> Any:
        return nullcontext() if "backward_pass_autocast" in values else own(self, *args, **values)

    return patch.object(kind, "patch", without)


FAULTS = (
    _out("gradient-twice", results(wrong.doubled_gradient), "gradient of x: differs"),
    _out("gradient-twice-by-dynamo", results(wrong.doubled_gradient), "gradient of x: differs", "dynamo"),
    _out("gradient-lost", results(wrong.detached), "does not require grad"),
    _fault(
        "setting-unread",
        setting_unread,
        "dtypes of the products of the backward pass: got",
        only="-autograd- and not same_as",
    ),
    _fault("region-dropped", lambda: entering(wrong.not_at_all), "dtypes of the results: got", "dynamo"),
    _fault("disabled-region-on", lambda: entering(wrong.always_on), "dtypes of the results: got"),
    _out("more-casts", results(cast_back_and_forth), "casts of the backward pass: got", "dynamo"),
    _out("region-left-on", wrong.leaking, "state afterwards: got (True"),
)
