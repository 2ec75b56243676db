"""Rule drift: a registered overload that no table lists, on a torch that no table covers, follows some known policy."""

from __future__ import annotations

from dataclasses import replace

import torch

from ampcheck import samples
from ampcheck.checks import comparisons
from ampcheck.checks.call import plan
from ampcheck.checks.cases import assignments, floating_count
from ampcheck.checks.forward import watch
from ampcheck.devices.base import Device
from ampcheck.errors import Unsupported
from ampcheck.spec.case import Case
from ampcheck.spec.casting import APPENDED, POLICIES


def check_drift(case: Case, device: Device) -> list[str]:
    """Run the main sample in every dtype assignment and look for one policy that explains all of it.

    Returns a difference where none does. Raises `Unsupported` for an overload without samples.
    """
    op = samples.catalogue().get(case.op)
    if op is None:
        raise Unsupported(
            f"aten::{case.op} is registered under {device.key}, is new in torch {torch.__version__} and has no samples "
            "yet; docs/contributing.md says how to add them"
        )
    possible = [policy for policy in POLICIES if policy != "append" or case.op in APPENDED]
    count = floating_count(op.samples[0])
    with device.activate():
        for inputs in dict.fromkeys(assignments(count, case.amp, integers=False)) if count else ("given",):
            possible = [policy for policy in possible if _explains(replace(case, inputs=inputs), device, policy)]
    if possible:
        return []
    known = ", ".join(POLICIES)
    return [f"aten::{case.op} is registered under {device.key}, is in no table, and follows none of {known}"]


def _explains(case: Case, device: Device, policy: str) -> bool:
    """Return whether what a case does is what an overload of that policy does."""
    todo = plan(case, device, policy)
    seen = watch(case, device, todo)
    if todo.expected.error:
        return not comparisons.refused(seen.error, case.op, "autocast", policy)
    differences = comparisons.kernel(seen, todo.expected, [leaf.dtype for leaf in todo.given], policy)
    if todo.expected.dtype_kwarg is None:
        differences += comparisons.untouched_dtype(seen.of(todo.expected.overload), todo.dtype_given, policy)
    return not differences
