"""Transforms that lose the region, gain casts or change what comes out, alone or inside another one."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest.mock import patch

import torch

from tests.faults.fault import Fault, Inject
from tests.faults.functorch import after, inside, leave_on, mapped_outside, mapping, off, other


def _in_region(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return what changes a result in a region alone."""
    return lambda found: change(found) if torch.is_autocast_enabled("cpu") else found


def halved_tangents() -> AbstractContextManager[object]:
    """A jvp that gives half the tangent in a region."""
    jvp, half = torch.func.jvp, _in_region(lambda tangent: tangent / 2)

    def changed(*args: Any, **options: Any) -> Any:
        out, tangent = jvp(*args, **options)
        return out, half(tangent)

    return patch.object(torch.func, "jvp", changed)


_LOW = _in_region(torch.Tensor.bfloat16)
_THERE_AND_BACK = _in_region(lambda found: found.double().to(found.dtype))


def fault(name: str, inject: Inject, says: str, only: str) -> Fault:
    """A fault that the cases whose ids hold `only` catch."""
    return Fault(name, "transforms", inject, (says,), "autograd", only=only)


FAULTS = (
    fault("grad-loses-region", lambda: inside("grad", off), "dtypes of the op's results", "-grad- and around"),
    fault("vmap-loses-region", lambda: mapping(mapped_outside), "dtypes of the op's results", "-vmap- and product"),
    fault("jvp-in-another-dtype", lambda: inside("jvp", other), "dtypes of the op's results", "-jvp- and around"),
    fault("jacobian-low", lambda: after("jacrev", _LOW), "dtype of the result", "-jacrev- and around"),
    fault("casts-gained", lambda: after("jacfwd", _THERE_AND_BACK), "how many casts are made", "-jacfwd- and around"),
    fault("tangent-halved", halved_tangents, "the result: differs by", "composed-jvp- and around"),
    fault("hessian-leaves-on", lambda: after("hessian", leave_on), "state and depth afterwards", "composed-hessian-"),
)
