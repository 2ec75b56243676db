"""Op cases on tensors in forms that autocast must not ask for: laid out, computed or held in another way."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from ampcheck.checks import comparisons
from ampcheck.checks.call import plan
from ampcheck.checks.cases import op_cases
from ampcheck.compilers import function
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import exists, map_tensors, tensors
from ampcheck.samples.tensors import build
from ampcheck.spec.case import Case

LAYOUTS = {
    "strided": "torch.stack([x, x], -1).select(-1, 0)",
    "transposed": "x.mT.clone(memory_format=torch.contiguous_format).mT if x.dim() > 1 else x",
    "viewed": "x.view(x.shape)",
    "leaf": "x.detach().requires_grad_()",
    "computed": "x.detach().requires_grad_() * 1",
    "parameter": "torch.nn.Parameter(x)",
}
"""By name, what a floating tensor `x` is made."""


SPARSE = 6
"""Of so many ops one is taken on a device that compiles each op for each set of strides."""


def cases(device: Device, amp: str) -> Iterator[Case]:
    """Yield, for each op with a policy that casts arguments, the first case of its main sample in which one is cast."""
    found = _first_cases(device, amp)
    return islice(found, 0, None, SPARSE if device.has_values and not device.database else 1)


def _first_cases(device: Device, amp: str) -> Iterator[Case]:
    for rule in ("downcast", "upcast", "promote"):
        done = set()
        for case in op_cases(device, rule):
            if case.op in done or case.sample or case.amp != amp or not exists(case.op):
                continue
            todo = plan(case, device)
            if any(leaf.dtype != wanted for leaf, wanted in zip(todo.given, todo.expected.leaves, strict=True)):
                done.add(case.op)
                yield case


def differences(case: Case, device: Device, form: str) -> list[str] | None:
    """Return how what an op's kernel receives differs from what the specification says, for tensors of a form.

    Returns None where the device does not show what the kernel received. The device must be entered.
    """
    todo = plan(case, device)
    make = eval(f"lambda x: ({LAYOUTS[form]}) if x.is_floating_point() else x", {"torch": torch})
    args, kwargs = build(todo.sample, todo.dtypes, device)
    args, kwargs = map_tensors(args, make), {name: map_tensors(value, make) for name, value in kwargs.items()}
    call, recorded = function(todo.op, todo.sample), {*device.policies(), case.op}
    with device.autocast(case.amp):
        watched = device.observe(lambda: call(*args, **kwargs), recorded, list(tensors((args, kwargs))))
    if not device.observes_composite_ops and watched.of(todo.expected.overload) is None:
        return None
    return comparisons.kernel(watched, todo.expected, [leaf.dtype for leaf in todo.given], case.rule)
