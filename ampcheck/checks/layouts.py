"""Op cases on tensors in forms that autocast must not ask for: laid out, computed or held in another way."""

from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import torch

from ampcheck.checks.backward import leaf
from ampcheck.checks.cases import op_cases, plan
from ampcheck.checks.forward import ForwardProgram, received
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import exists
from ampcheck.spec.case import Case

Layout = Callable[[torch.Tensor], torch.Tensor]


def contiguous(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor as it is."""
    return x


def strided(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values with gaps between its elements."""
    return torch.stack([x, x], -1).select(-1, 0)


def transposed(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values whose last two dimensions lie the other way round in memory."""
    return x.mT.clone(memory_format=torch.contiguous_format).mT if x.dim() > 1 else x


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """Return a tensor of the same values in the channels-last format, where it has four dimensions."""
    return x.clone(memory_format=torch.channels_last) if x.dim() == 4 else x


def viewed(x: torch.Tensor) -> torch.Tensor:
    """Return a view of a tensor."""
    return x.view(x.shape)


def computed(x: torch.Tensor) -> torch.Tensor:
    """Return the result of an op in a graph."""
    return x.detach().requires_grad_() * 1


def parameter(x: torch.Tensor) -> torch.Tensor:
    """Return a parameter of the same values."""
    return torch.nn.Parameter(x)


LAYOUTS: Mapping[str, Layout] = {
    function.__name__: function for function in (strided, transposed, viewed, leaf, computed, parameter)
}
"""By name, what makes another tensor of a floating one."""

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
    todo, change = plan(case, device), LAYOUTS[form]
    given = [change(x) if x.is_floating_point() else x for x in todo.inputs(device)]
    with device.autocast(case.amp):
        watched = device.observe(lambda: todo.call(*given), {*device.policies(), case.op}, given)
    if not device.observes_composite_ops and watched.of(todo.expected.overload) is None:
        return None
    return received(case, todo, watched)


def program(case: Case, device: Device, form: str, found: list[str]) -> str:
    """Write a case whose tensors have a form in plain torch. `found`: its differences."""
    return ForwardProgram(case, device, "\n".join(found), LAYOUTS[form]).written((), ran=True)
