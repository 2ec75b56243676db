"""Run one case of PyTorch's op database and check that it does the same with and without autocast.

An op without a policy may be made of ops that have one, in Python or inside its kernel. Each of those that the recorder
sees must have received what its policy says. Where no kernel with a policy was entered, outputs have the same dtypes
and the same bits as without autocast.
"""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ampcheck.checks import comparisons
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Difference, Unsupported, UsageError, one_line
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.kernel_override import recording, replaceable
from ampcheck.observe.recorder import Observation, tensors
from ampcheck.observe.torch_private import unset_fake_temporarily
from ampcheck.samples import op_database
from ampcheck.spec.case import Case
from ampcheck.spec.torch_dtypes import name_of

SAMPLES = 3
"""How many of an op's samples a case runs: the first ones, which take the arguments in different ways."""

UNINITIALISED = (
    "empty",
    "empty_like",
    "empty_permuted",
    "empty_strided",
    "new_empty",
    "new_empty_strided",
    "resize_",
    "resize_as_",
)
"""Ops whose outputs hold whatever the memory held, so that only dtypes and shapes are compared."""


@dataclass(slots=True)
class _Outcome:
    """What a call gave: its tensors in order, everything else of it, or its error."""

    outputs: list[torch.Tensor] = field(default_factory=list)
    rest: list[Any] = field(default_factory=list)
    error: Exception | None = None


def check_op_database(case: Case, device: Device) -> list[str]:
    """Run a case of the op database and return every difference from what the rule fallthrough says.

    Raises `Unsupported` where the device refuses every sample, with and without autocast, and UsageError where
    the installed torch has no such op or its database cannot be imported.
    """
    infos = op_database.database()
    if case.op not in infos:
        raise UsageError(f"the op database of torch {torch.__version__} has no {case.op}")
    info = infos[case.op]
    with device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # deprecated and experimental ops are called as well, and warn
        refusals = []
        made = samples_of(info, case, device)
        for number, sample in enumerate(made):
            call = Calls(info, case, device, number, sample)
            try:
                differences = _check(call, case, device)
            except Unsupported as refusal:
                refusals.append(refusal)
                continue
            if differences:
                return [Difference(f"sample {number}: {d}", getattr(d, "error", None)) for d in differences]
    if refusals and len(refusals) == len(made):
        raise refusals[0]
    if made:
        return []
    nothing = f"the op database has no {case.inputs} sample of {case.op} for {device.type}"
    if device.type == "cpu":  # the list of cases was made there
        return [nothing]
    raise Unsupported(nothing)


def samples_of(info: Any, case: Case, device: Device) -> list[Any]:
    """Return the samples on the device; without values they are made on the CPU and only look like it."""
    if device.has_values:
        return op_database.samples(info, case.inputs, device.type, SAMPLES)
    with unset_fake_temporarily():
        made = op_database.samples(info, case.inputs, "cpu", SAMPLES)
    return [sample.transform(lambda value: _fake(value, device)) for sample in made]


def _fake(value: Any, device: Device) -> Any:
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device.type)


class Calls:
    """Calls of an op on equal arguments: the same ones as long as no call changed them, else ones made anew."""

    def __init__(self, info: Any, case: Case, device: Device, number: int, sample: Any) -> None:
        self._info, self._case, self._device, self._number = info, case, device, number
        self._take(sample)

    def _take(self, sample: Any) -> None:
        self._sample = sample
        self.inputs = list(tensors((sample.input, sample.args, sample.kwargs)))
        self._versions = [tensor._version for tensor in self.inputs]

    def prepare(self) -> None:
        """Restore the arguments as they were made and the random state as it was, before each call."""
        changed = [tensor._version for tensor in self.inputs] != self._versions
        if changed or isinstance(self._sample.kwargs.get("generator"), torch.Generator):
            self._take(samples_of(self._info, self._case, self._device)[self._number])
        self._device.seed()

    def __call__(self) -> Any:
        return self._info(self._sample.input, *self._sample.args, **self._sample.kwargs)


def _check(call: Calls, case: Case, device: Device) -> list[str]:
    policies = device.policies()
    call.prepare()
    with device.autocast(case.amp):
        seen = device.observe(call, policies, call.inputs)
    differences = comparisons.parts(seen, policies, case.amp)
    if differences and comparisons.parts(_own_casts(seen), policies, case.amp):
        return differences
    if any(kernel.overload in policies for kernel in seen.kernels):
        return []
    under = _run(call, device.autocast(case.amp))
    without = _run(call, nullcontext())
    if under.error is not None and type(under.error) is type(without.error):
        if not device.has_values or lacks_kernel(under.error) or device.refuses(under.error):
            raise Unsupported(one_line(without.error))
        said = one_line(under.error)
        raise Broken([f"{case.op} raised {said}; it raises that without autocast, too"], under.error)
    differences = _compare(under, without, case.op, device)
    if differences and _entered(call, case, device):
        return []
    return differences


def _own_casts(seen: Observation) -> Observation:
    """Return the same observation with every cast taken for one of the op's own; they look like autocast's."""
    kernels = [replace(k, leaves=tuple(replace(leaf, given=leaf.got) for leaf in k.leaves)) for k in seen.kernels]
    return Observation(kernels, [], seen.outputs, seen.error)


def _run(call: Calls, region: AbstractContextManager[object]) -> _Outcome:
    outcome = _Outcome()
    call.prepare()
    try:
        with region:
            result = call()
    except Exception as error:  # the op may raise anything, and that is what is compared
        outcome.error = error
        return outcome
    _sort(result, outcome)
    return outcome


def _sort(value: Any, outcome: _Outcome) -> None:
    if isinstance(value, torch.Tensor):
        outcome.outputs.append(value)
    elif isinstance(value, (tuple, list)):
        for item in value:
            _sort(item, outcome)
    else:
        outcome.rest.append(value)


def _compare(under: _Outcome, without: _Outcome, name: str, device: Device) -> list[str]:
    because = "without autocast (rule fallthrough: it has no policy and ran no kernel that has one)"
    if under.error is not None or without.error is not None:
        first, second = one_line(under.error), one_line(without.error)
        told = f"{name} under autocast raised {first}; {because} it raised {second}"
        return [Difference(told, under.error)]
    got, wanted = ([name_of(t.dtype) for t in outcome.outputs] for outcome in (under, without))
    if got != wanted:
        return [f"{name} returned {', '.join(got)}; expected {', '.join(wanted)} as {because}"]
    for place, (a, b) in enumerate(zip(under.outputs, without.outputs, strict=True)):
        if a.shape != b.shape:
            return [f"output {place} of {name} has shape {tuple(a.shape)}; expected {tuple(b.shape)} as {because}"]
        if device.has_values and name not in UNINITIALISED and not _identical(a, b, device):
            return [f"output {place} of {name} differs in value; expected the same bits as {because}"]
    if repr(under.rest) != repr(without.rest):
        return [f"{name} returned {under.rest}; expected {without.rest} as {because}"]
    return []


def _identical(a: torch.Tensor, b: torch.Tensor, device: Device) -> bool:
    a, b = device.host(a), device.host(b)
    with device.native_ops():
        return comparisons.identical(a, b)


def _entered(call: Calls, case: Case, device: Device) -> bool:
    """Return whether a kernel with a policy was entered, also inside another kernel, which the recorder cannot see."""
    if not replaceable(device.key):
        raise Unsupported(f"whether {case.op} runs kernels with a policy inside cannot be seen under {device.key}")
    with recording([device.key]) as entered:
        _run(call, device.autocast(case.amp))
    # A kernel that is registered but has no policy is itself a difference.
    return any(overload in device.policies() for _, overload in entered)
