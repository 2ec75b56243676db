"""Run one op case on a device and check it: the shared body of every op suite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch

from ampcheck import checks, ops
from ampcheck.cases import Case, floating_count
from ampcheck.devices.base import Device
from ampcheck.executors import function
from ampcheck.ids import assign
from ampcheck.inputs import build
from ampcheck.observe import Observation, exists, is_composite, map_tensors, overload, tensors
from ampcheck.ops.describe import Op, Sample, leaves
from ampcheck.replacing import recording, replaceable
from ampcheck.spec.casting import Expectation, Leaf, expect
from ampcheck.spec.dtypes import is_floating
from ampcheck.torch_dtypes import DTYPES, name_of


@dataclass(frozen=True, slots=True)
class Plan:
    """A case with everything the specification says of it.

    `given`: the call's tensors. `dtype_given`: the caller's `dtype=`, or None.
    """

    op: Op
    sample: Sample
    dtypes: tuple[str, ...]
    given: tuple[Leaf, ...]
    dtype_given: str | None
    expected: Expectation


def plan(case: Case, device: Device, policy: str | None = None) -> Plan:
    """What the specification expects of a case; of its rule, or of another policy."""
    op = ops.catalogue()[case.op]
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
    return Plan(op, sample, dtypes, given, chosen, expected)


def _dtype_argument(op: Op, sample: Sample) -> str | None:
    """The dtype the caller asks for: samples hold `torch.dtype`s only as `dtype=` arguments."""
    values = (*sample.args, *sample.kwargs.values())
    return next((name_of(v) for v in values if isinstance(v, torch.dtype)), None)


def check_op(case: Case, device: Device) -> list[str]:
    """Run an op case and return every difference from the specification.

    Raises `checks.Unsupported` where autocast did its part and the device then has no kernel for that dtype.
    """
    with device.running():
        if not exists(case.op):
            raise checks.Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
        todo = plan(case, device)
        name = f"aten::{case.op}" if todo.sample.call == "aten" else todo.sample.call
        if case.rule == "fallthrough" and is_composite(case.op):
            return _parts(case, device, todo, name)
        watched = watch(case, device, todo)
        if todo.expected.error:
            return checks.refused(watched.error, case.op, todo.expected.error, case.rule)
        whole = device.sees_composites or watched.of(todo.expected.overload) is not None
        differences = _received(case, todo, watched) if whole else []
        if differences:
            return differences
        reference = run_reference(device, todo)
        native, inputs = _native(case, device, todo) if device.has_values else (watched, [])
        differences = checks.same_error(native.error, reference.error, name) or _kept(device, todo, inputs, name)
        if differences:
            return differences
        if native.error is not None:
            if device.has_values and (asks_for_one_dtype(todo) or not whole):
                raise checks.Unsupported(checks.one_line(native.error))
            return []
        differences = checks.output_dtypes(native.outputs, [name_of(t.dtype) for t in reference.outputs], name)
        if differences or not device.has_values or todo.op.values == "none":
            return differences
        return _values(device, todo, native, reference, name)


def _received(case: Case, todo: Plan, watched: Observation) -> list[str]:
    """How what the op's kernel received differs from what it was to receive."""
    differences = checks.kernel(watched, todo.expected, [leaf.dtype for leaf in todo.given], case.rule)
    if todo.expected.dtype_kwarg is None and case.rule in ("optdtype", "append"):
        differences += checks.untouched_dtype(watched.of(todo.expected.overload), todo.dtype_given, case.rule)
    return differences


def asks_for_one_dtype(todo: Plan) -> bool:
    """Whether the kernel got one floating dtype throughout; it may refuse a mixture, or integers."""
    floating = {dtype for dtype in todo.expected.leaves if is_floating(dtype)}
    return len(floating) == 1 and not {"int64", "bool"} & set(todo.dtypes)


def _parts(case: Case, device: Device, todo: Plan, name: str) -> list[str]:
    """A composite op without a policy: each op it is made of follows its own. What comes out depends on them."""
    arrived = watch(case, device, todo)
    if arrived.of(case.op) is not None:  # a spelling may lead past it
        sources = [leaf.dtype for leaf in todo.given]
        if differences := checks.kernel(arrived, todo.expected, sources, case.rule):
            return differences
    watched = watch(case, device, todo, whole=False)
    if not watched.kernels and watched.error is None:
        return [f"aten::{case.op} ran no kernel"]
    differences = checks.parts(watched, device.policies(), case.amp)
    if differences or not device.has_values or any(k.overload in device.policies() for k in watched.kernels):
        return differences
    native, _ = _native(case, device, todo)
    reference = run_reference(device, todo)
    differences = checks.same_error(native.error, reference.error, name)
    if not differences and native.error is None:
        wanted = [name_of(tensor.dtype) for tensor in reference.outputs]
        differences = checks.output_dtypes(native.outputs, wanted, name)
        differences = differences or _values(device, todo, native, reference, name)
    return [] if differences and _hides_a_policy(case, device, todo) else differences


def _hides_a_policy(case: Case, device: Device, todo: Plan) -> bool:
    """Whether a part calls, inside its own kernel where no recorder sees it, an op with a policy.

    Raises `checks.Unsupported` where the key's kernels cannot be replaced by recorders.
    """
    if not replaceable(device.key):
        raise checks.Unsupported(
            f"aten::{case.op} gives something else in a region, and under {device.key} it cannot be seen whether a "
            "part of it calls an op with a policy"
        )
    with recording([device.key]) as entered:
        _native(case, device, todo)
    return any(overload in device.policies() for _, overload in entered)


def _values(device: Device, todo: Plan, native: Observation, reference: Observation, name: str) -> list[str]:
    got = [device.host(t) for t in native.outputs]
    differences = []
    if todo.sample.call == "aten" or not todo.expected.dtype_kwarg:  # else the reference rounds elsewhere
        wanted = [device.host(t) for t in reference.outputs]
        with device.aside():
            differences = checks.bitwise(got, wanted, name)
    floating = [d for d in todo.expected.leaves if d in ("fp16", "bf16", "fp32")]
    if differences or todo.op.values != "exact" or not floating:
        return differences
    exact = run_reference(device, todo, dtype="fp64")
    if exact.error is not None:  # no float64 kernel: the bitwise comparison stands alone
        return []
    narrowest = max(floating, key=lambda d: torch.finfo(DTYPES[d]).eps)
    wanted = [device.host(t) for t in exact.outputs]
    with device.aside():
        return checks.accuracy(got, wanted, DTYPES[narrowest], name)


def watch(case: Case, device: Device, todo: Plan, *, whole: bool = True) -> Observation:
    """Run a case under its region with the recorder on, its op taken `whole` or apart. The device must be entered."""
    call, args, kwargs = _prepared(device, todo)
    inputs = list(tensors((args, kwargs)))
    recorded = {*device.policies(), case.op} if whole else device.policies()
    with device.autocast(case.amp):
        return device.observe(lambda: call(*args, **kwargs), recorded, inputs)


def _native(case: Case, device: Device, todo: Plan) -> tuple[Observation, list[torch.Tensor]]:
    """Run a case as a user does, with nothing between it and PyTorch; also gives the call's tensors."""
    call, args, kwargs = _prepared(device, todo)
    return _plain(lambda: call(*args, **kwargs), device.autocast(case.amp)), list(tensors((args, kwargs)))


def _kept(device: Device, todo: Plan, inputs: list[torch.Tensor], name: str) -> list[str]:
    """The call's own tensors hold the values they held before, unless the op changes them without autocast too."""
    if not inputs:
        return []
    changed = _changed(device, todo, inputs)
    if changed:
        call, args, kwargs = _prepared(device, todo)
        _plain(lambda: call(*args, **kwargs), nullcontext())
        changed -= _changed(device, todo, list(tensors((args, kwargs))))
    return [f"argument {place} of {name} holds other values after the call; autocast casts copies" for place in changed]


def _changed(device: Device, todo: Plan, inputs: list[torch.Tensor]) -> set[int]:
    """The places of the tensors that differ from what they were made as."""
    fresh = tensors(build(todo.sample, todo.dtypes, device))
    pairs = [(device.host(now), device.host(then)) for now, then in zip(inputs, fresh, strict=True)]
    with device.aside():
        return {place for place, (now, then) in enumerate(pairs) if not checks.identical(now, then)}


def _prepared(device: Device, todo: Plan) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    args, kwargs = build(todo.sample, todo.dtypes, device)
    device.seed()
    return function(todo.op, todo.sample), args, kwargs


def _plain(call: Callable[[], Any], region: AbstractContextManager[object]) -> Observation:
    observation = Observation()
    try:
        with region:
            observation.outputs = list(tensors(call()))
    except Exception as error:  # the call under test may raise anything, and that is what is to be seen
        observation.error = error
    return observation


def run_reference(device: Device, todo: Plan, dtype: str | None = None) -> Observation:
    """The same call outside autocast on inputs cast by hand; all floating ones to `dtype` where it is given."""
    call, args, kwargs = by_hand(todo, *build(todo.sample, todo.dtypes, device), dtype)
    device.seed()
    if not device.has_values:
        # What it is compared with was recorded, which takes composite ops apart elsewhere than fake tensors do.
        recorded = {*device.policies(), todo.op.overload, todo.expected.overload}
        return device.observe(lambda: call(*args, **kwargs), recorded)
    return _plain(lambda: call(*args, **kwargs), nullcontext())


def by_hand(
    todo: Plan, args: tuple[Any, ...], kwargs: dict[str, Any], dtype: str | None = None
) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    """The call that autocast is to make of a case's own one, with the arguments cast to what its kernel is to receive.

    A spelling may not take the `dtype=` that autocast fills in; its inputs are cast to that dtype instead. All floating
    arguments are cast to `dtype` in the end, where it is given.
    """
    filled = todo.expected.dtype_kwarg
    if filled and todo.sample.call != "aten":
        dtype = dtype or filled
    wanted = iter(todo.expected.leaves)

    def cast(tensor: torch.Tensor) -> torch.Tensor:
        out = tensor.to(DTYPES[next(wanted)])
        return out.to(DTYPES[dtype]) if dtype and out.is_floating_point() else out

    args = map_tensors(args, cast)
    kwargs = {name: map_tensors(value, cast) for name, value in kwargs.items()}
    call = function(todo.op, todo.sample)
    if todo.sample.call == "aten" and filled:
        call = overload(todo.expected.overload)
        kwargs["dtype"] = DTYPES[dtype or filled]
    return call, args, kwargs
