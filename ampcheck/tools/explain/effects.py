"""Explains autocast's effect on an op from the specification; no op of a device is run.

Only where the dtype that comes out cannot be told from the specification, the op is run on fake CPU tensors.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch

from ampcheck import samples
from ampcheck.checks.cases import floating_count, op_cases
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError
from ampcheck.observe.dispatcher import live_registrations
from ampcheck.observe.recorder import overload as callable_of
from ampcheck.observe.recorder import tensors
from ampcheck.runner.deviations import Deviation, KnownDeviations
from ampcheck.samples.describe import Sample, TensorArg, leaves, map_leaves
from ampcheck.spec.casting import Expectation, Leaf, expect
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.policies import KEYS, closest, rows
from ampcheck.spec.torch_dtypes import DTYPES, name_of


def keys(overload: str, devices: Iterable[Device]) -> list[tuple[str, str, str]]:
    """Dispatch key, policy and source for an overload, for each key of PyTorch's tables and of the devices."""
    out = []
    version = closest(torch.__version__)
    table = {row.key: row for row in rows(version) if row.overload == overload}
    live = live_registrations()
    for key in KEYS:
        if row := table.get(key):
            builds = f", in builds with {row.builds}" if row.builds else ""
            out.append((key, row.policy, f"torch {version}, {row.source} ({row.verified}){builds}"))
        elif overload in live[key]:
            out.append((key, "unknown", "registered in this torch, but in no table"))
        else:
            out.append((key, "fallthrough", "not registered"))
    for device in devices:
        if device.key not in KEYS:
            out.append((device.key, device.policies().get(overload, "fallthrough"), f"declared by {device.name}"))
    return list(dict.fromkeys(out))


@dataclass(frozen=True, slots=True)
class Effect:
    """Autocast's effect on one call: the dtypes `given`, those the kernel gets, other effects, the result's dtypes."""

    given: tuple[str, ...]
    kernel: tuple[str, ...]
    also: str
    out: str


def effects(overload: str, policy: str, device: Device, amp: str, inputs: Sequence[str] = ()) -> list[Effect]:
    """Return the effects of autocast on calls of an overload with the `inputs`' dtypes, or with the typical ones.

    One dtype in `inputs` is for all. Raises UsageError where the overload takes another number of floating tensors.
    """
    sample = _sample(overload, inputs)
    args = list(leaves(sample)) if sample else _schema_leaves(overload)
    count = sum(1 for arg in args if arg.dtype is None)
    if len(inputs) > 1 and len(inputs) != count:
        raise UsageError(f"aten::{overload} takes {count} floating tensors; --inputs names {len(inputs)} dtypes")
    chosen = [tuple(inputs) if len(inputs) == count else tuple(inputs) * count] if inputs else _typical(count, amp)
    return [_effect(overload, policy, device, amp, sample, args, dtypes) for dtypes in chosen]


def _sample(overload: str, inputs: Sequence[str]) -> Sample | None:
    """Return the sample whose call is shown: the first that takes as many floating tensors as asked for."""
    op = samples.catalogue().get(overload)
    if op is None:
        return None
    fitting = [sample for sample in op.samples if sample.call == "aten" and floating_count(sample) == len(inputs)]
    return fitting[0] if len(inputs) > 1 and fitting else op.samples[0]


def _schema_leaves(overload: str) -> list[TensorArg]:
    try:
        schema = callable_of(overload)._schema
    except AttributeError:  # an op of the TorchScript runtime, which torch.ops does not offer
        return []
    wanted = [a for a in schema.arguments if "Tensor" in str(a.type) and "Optional" not in str(a.type)]
    return [TensorArg((2, 2)) for _ in wanted]


def _typical(count: int, amp: str) -> list[tuple[str, ...]]:
    if count == 0:
        return [()]
    out = [("fp32",) * count, (amp,) * count]
    return [*out, ("fp32", *(amp,) * (count - 1))] if count > 1 else out


def _effect(
    overload: str,
    policy: str,
    device: Device,
    amp: str,
    sample: Sample | None,
    args: Sequence[TensorArg],
    dtypes: tuple[str, ...],
) -> Effect:
    remaining = iter(dtypes)
    own_cpu = device.type == "cpu"
    given = tuple(Leaf(a.dtype or next(remaining), on_device=own_cpu or a.device != "cpu") for a in args)
    caller = sample is not None and any(isinstance(v, torch.dtype) for v in (*sample.args, *sample.kwargs.values()))
    expected = expect(policy, overload, given, amp, dtype_given=caller)
    shown = tuple(leaf.dtype for leaf in given)
    if expected.error:
        return Effect(shown, (), f"refused with an error that names {expected.error}", "nothing")
    also = []
    if expected.overload != overload:
        also.append(f"runs aten::{expected.overload}")
    if expected.dtype_kwarg:
        also.append(f"dtype={str(DTYPES[expected.dtype_kwarg]).removeprefix('torch.')} filled in")
    return Effect(shown, expected.leaves, ", ".join(also), _comes_out(overload, sample, expected))


def _comes_out(overload: str, sample: Sample | None, expected: Expectation) -> str:
    """Return the dtypes of the outputs, from a run on meta tensors; in words where there is none to be had."""
    reached = {dtype for dtype in expected.leaves if is_floating(dtype)}
    if sample is None or sample.call != "aten" or len(reached) > 1:  # kernels differ in what they make of mixed dtypes
        return "as the kernel gives"
    wanted = iter(expected.leaves)

    def make(arg: TensorArg) -> torch.Tensor:
        return torch.empty(arg.shape, dtype=DTYPES[next(wanted)], device="meta")

    try:
        args = map_leaves(sample.args, make)
        kwargs = {name: map_leaves(value, make) for name, value in sample.kwargs.items()}
        if expected.dtype_kwarg:
            kwargs["dtype"] = DTYPES[expected.dtype_kwarg]
        out = callable_of(expected.overload)(*args, **kwargs)
    except Exception as error:  # whatever an op refuses its arguments with
        text = str(error).strip().splitlines()
        if isinstance(error, (RuntimeError, TypeError, ValueError)) and "meta" not in str(error).lower():
            return f"the kernel refuses it: {text[0] if text else type(error).__name__}"
        return "as the kernel gives"
    return ", ".join(name_of(tensor.dtype) for tensor in tensors(out)) or "no tensor"


def deviations(overload: str, policy: str, devices: Iterable[Device]) -> dict[Deviation, int]:
    """Return the known deviations that speak of cases of an overload on some devices, with how many cases."""
    out: dict[Deviation, int] = {}
    for device in devices:
        deviations = KnownDeviations([device])
        for case in op_cases(device, policy, only=overload):
            for found in deviations.of(device.name, case.name):
                out[found] = out.get(found, 0) + 1
    return out
