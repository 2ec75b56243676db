"""The call of an op case with everything the specification says of it."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from ampcheck import samples
from ampcheck.checks.cases import floating_count
from ampcheck.compilers import eager
from ampcheck.devices.base import Device
from ampcheck.observe.recorder import overload, tensors
from ampcheck.samples.describe import Op, Sample, leaves, map_leaves
from ampcheck.samples.tensors import MakesTensors, build
from ampcheck.spec.case import Case
from ampcheck.spec.casting import Expectation, Leaf, expect
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.ids import assign
from ampcheck.spec.rules import RULES
from ampcheck.spec.torch_dtypes import DTYPES, name_of


def because(rule: str) -> str:
    """Return the rule as a sentence of a difference names it."""
    return f"rule {rule}: {RULES[rule].sentence}"


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

    @property
    def name(self) -> str:
        """Return the call's name in sentences."""
        return f"aten::{self.op.overload}" if self.sample.call == "aten" else self.sample.call

    @property
    def function(self) -> Callable[..., Any]:
        """Return what the sample calls, run eagerly."""
        return eager(self.op.overload, self.sample.call)

    @property
    def given_dtypes(self) -> list[str]:
        """Return the dtype of each tensor of the call."""
        return [leaf.dtype for leaf in self.given]

    @property
    def narrowest(self) -> torch.dtype:
        """Return the least precise floating dtype that the kernel receives; float32 for none."""
        floating = [DTYPES[dtype] for dtype in self.expected.leaves if dtype in ("fp16", "bf16", "fp32", "fp64")]
        return max(floating, key=lambda dtype: torch.finfo(dtype).eps, default=torch.float32)

    @property
    def asks_for_one_dtype(self) -> bool:
        """Return whether the kernel got one floating dtype throughout; it may refuse a mixture, or integers."""
        floating = {dtype for dtype in self.expected.leaves if is_floating(dtype)}
        return len(floating) == 1 and not {"int64", "bool"} & set(self.dtypes)

    def inputs(self, device: MakesTensors) -> list[torch.Tensor]:
        """Return fresh tensors of the call on a device."""
        return list(tensors(build(self.sample, self.dtypes, device)))

    def call(self, *given: torch.Tensor) -> Any:
        """Return what the call gives for these tensors in the places of its own."""
        return self.called(self.function, given)

    def cast(self, given: Iterable[torch.Tensor], dtype: str | None = None) -> list[torch.Tensor]:
        """Return the call's tensors cast as autocast is to cast them for the kernel.

        A spelling may not take the `dtype=` that autocast fills in; its tensors are cast to that dtype instead.
        `dtype`: what all floating ones are cast to in the end.
        """
        dtype = dtype or (None if self.sample.call == "aten" else self.expected.dtype_kwarg)
        made = [x.to(DTYPES[wanted]) for x, wanted in zip(given, self.expected.leaves, strict=True)]
        return [x.to(DTYPES[dtype]) if dtype and x.is_floating_point() else x for x in made]

    def reference(self, dtype: str | None = None) -> Callable[..., Any]:
        """Return the call that autocast makes of this one, for tensors that were `cast` to the same dtype."""
        filled = self.expected.dtype_kwarg
        if self.sample.call != "aten" or not filled:
            return self.call
        return partial(self._filled_in, dtype or filled)

    def _filled_in(self, dtype: str, *given: torch.Tensor) -> Any:
        return self.called(overload(self.expected.overload), given, dtype=DTYPES[dtype])

    def called(self, function: Callable[..., Any], given: Iterable[torch.Tensor], **more: Any) -> Any:
        """Return what a function gives for the arguments of the call, with these tensors among them."""
        remaining = iter(given)
        args = map_leaves(self.sample.args, lambda _: next(remaining))
        kwargs = {name: map_leaves(value, lambda _: next(remaining)) for name, value in self.sample.kwargs.items()}
        return function(*args, **(kwargs | more))


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
    chosen = _dtype_argument(sample)
    expected = expect(policy or case.rule, op.overload, given, case.amp, dtype_given=chosen is not None)
    return CallPlan(op, sample, dtypes, given, chosen, expected)


def _dtype_argument(sample: Sample) -> str | None:
    """Return the dtype the caller asks for: samples hold `torch.dtype`s only as `dtype=` arguments."""
    values = (*sample.args, *sample.kwargs.values())
    return next((name_of(v) for v in values if isinstance(v, torch.dtype)), None)
