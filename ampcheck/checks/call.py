"""The call of an op case with everything the specification says of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ampcheck import samples
from ampcheck.checks.cases import floating_count
from ampcheck.devices.base import Device
from ampcheck.samples.describe import Op, Sample, leaves
from ampcheck.spec.case import Case
from ampcheck.spec.casting import Expectation, Leaf, expect
from ampcheck.spec.ids import assign
from ampcheck.spec.torch_dtypes import name_of


@dataclass(frozen=True, slots=True)
class CallPlan:
    """A case with everything the specification says of it.

    `given`: the call's tensors. `dtype_given`: the caller's `dtype=`, or None.
    """

    op: Op
    sample: Sample
    dtypes: tuple[str, ...]
    given: tuple[Leaf, ...]
    dtype_given: str | None
    expected: Expectation


def plan(case: Case, device: Device, policy: str | None = None) -> CallPlan:
    """Return what the specification expects of a case; of its rule, or of another policy."""
    op = samples.catalogue()[case.op]
    sample = op.sample(case.sample) if case.sample else op.samples[0]
    count = floating_count(sample)
    dtypes = assign(case.inputs, count) if count else ()
    remaining = iter(dtypes)
    own = device.type
    given = tuple(
        Leaf(leaf.dtype or next(remaining), on_device=leaf.device != "cpu" or own == "cpu") for leaf in leaves(sample)
    )
    chosen = _dtype_argument(op, sample)
    expected = expect(policy or case.rule, op.overload, given, case.amp, dtype_given=chosen is not None)
    return CallPlan(op, sample, dtypes, given, chosen, expected)


def _dtype_argument(op: Op, sample: Sample) -> str | None:
    """Return the dtype the caller asks for: samples hold `torch.dtype`s only as `dtype=` arguments."""
    values = (*sample.args, *sample.kwargs.values())
    return next((name_of(v) for v in values if isinstance(v, torch.dtype)), None)
