"""Run one op case on a device and check it: the shared body of every op suite."""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import Any

import torch

from ampcheck.checks import comparisons
from ampcheck.checks.call import CallPlan, plan
from ampcheck.checks.reference import Reference, cast_call, far, narrowest, placed, raised_by_cpu, reference
from ampcheck.compilers import function
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Difference, Unsupported, error_of, one_line
from ampcheck.observe.dispatcher import lacks_kernel
from ampcheck.observe.kernel_override import recording, replaceable
from ampcheck.observe.recorder import Observation, exists, is_composite, overload, tensors, writes
from ampcheck.register.torch_private import DispatchKey, has_kernel
from ampcheck.samples.describe import FORMS, in_form
from ampcheck.samples.tensors import build
from ampcheck.spec.case import Case
from ampcheck.spec.casting import APPENDED
from ampcheck.spec.dtypes import is_floating
from ampcheck.spec.torch_dtypes import name_of

_OF_DTYPES = re.compile(r"dtype|scalar ?type|same type|not implemented for", re.IGNORECASE)
"""How kernels refuse a mixture of dtypes."""


def check_forward(case: Case, device: Device) -> list[str]:
    """Run an op case on a device and return every difference from the specification.

    Raises:
        Unsupported: autocast did its part, and the dispatcher has no kernel for the op, or the device declares that it
            has none for these dtypes.
        Broken: the op raises or is wrong on this device without autocast, too.
    """
    with device.activate():
        if not exists(case.op):
            raise Unsupported(f"torch {torch.__version__} has no aten::{case.op}")
        todo = plan(case, device)
        name = f"aten::{case.op}" if todo.sample.call == "aten" else todo.sample.call
        require_inputs(todo, device, name)
        if case.rule == "fallthrough" and is_composite(case.op):
            return _parts(case, device, todo, name)
        watched = watch(case, device, todo)
        if todo.expected.error:
            return comparisons.refused(watched.error, case.op, todo.expected.error, case.rule)
        if device.has_values and watched.error is not None and watched.of(todo.expected.overload) is None:
            outside = run_reference(device, todo)
            if outside.error is not None and not comparisons.same_error(watched.error, outside.error, name):
                judge_raise(watched.error, device, todo, name)
        whole = device.observes_composite_ops or watched.of(todo.expected.overload) is not None
        differences = _received(case, todo, watched) if whole else []
        if differences:
            return differences
        if not device.has_values:
            outside = run_reference(device, todo)
            return comparisons.same_error(watched.error, outside.error, name) or _same_dtypes(watched, outside, name)
        if case.rule == "fallthrough" and _calls_a_policy(case, device, todo):
            return []
        return _results(case, device, todo, name) or _forms(case, device, todo, name)


def _results(case: Case, device: Device, todo: CallPlan, name: str) -> list[str]:
    """Compare the outputs of a call in a region with those of the reference and with the exact ones.

    Raises Unsupported and Broken as `check_forward` does.
    """
    native, outside = run(case, device, todo), run_reference(device, todo)
    if differences := comparisons.same_error(native.error, outside.error, name):
        return differences
    if native.error is not None:
        judge_raise(native.error, device, todo, name)
        return []
    if differences := _same_dtypes(native, outside, name) or _same_bits(device, todo, native, outside, name):
        if _same_bits(device, todo, run_reference(device, todo), outside, name):
            raise Broken([f"{name} does not repeat: equal calls outside of autocast give different values"])
        return differences
    wrong = _wrong(device, todo, native, name)
    if wrong and _wrong(device, todo, outside, name):
        raise Broken([f"{text}; it is wrong without autocast, too" for text in wrong])
    return wrong


def _forms(case: Case, device: Device, todo: CallPlan, name: str) -> list[str]:
    """Check an op on other values than its sample's, and on tensors that are not contiguous."""
    if case.sample or todo.op.values != "exact" or case.inputs not in ("fp32", case.amp):
        return []
    if case.inputs == "fp32" and not device.database:  # such a device compiles each op for each dtype
        return []
    if writes(case.op):  # where its output lies is the caller's to say
        return []
    first = run(case, device, todo)
    for form in FORMS:
        sample = in_form(todo.sample, form)
        if sample is None:
            continue
        other = replace(todo, sample=replace(sample, name=f"{sample.name}, {form}"))
        if reference(other).error is not None:  # PyTorch refuses these values
            continue
        try:
            require_inputs(other, device, name)
            differences = _results(case, device, other, name)
        except Broken as broken:
            raise Broken([f"on {form} inputs: {text}" for text in broken.differences], broken.error) from None
        if differences:
            return [Difference(f"on {form} inputs: {text}", error_of(text)) for text in differences]
    if changed := _overwritten(device, first, name):
        raise Broken(changed)
    return []


def require_inputs(todo: CallPlan, device: Device, name: str) -> None:
    """Raise Broken where a call's tensors cannot be made on the device, or Unsupported as `judge_raise` does."""
    try:
        build(todo.sample, todo.dtypes, device)
    except Exception as error:  # a copy to the device may raise anything
        if lacks_kernel(error) or device.refuses(error):
            raise Unsupported(one_line(error)) from error
        said = one_line(error)
        raise Broken([f"the inputs of {name} cannot be made on {device.name}: {said}"], error) from error


def judge_raise(error: Exception, device: Device, todo: CallPlan, name: str) -> None:
    """Judge an exception that a call raises in a region, and outside of it on the same dtypes as well.

    Returns where the kernel was given a mixture of dtypes, or integers, and refuses them in words about dtypes, or the
    CPU's kernel refuses them, too: autocast did its part. Raises Unsupported where the dispatcher has no kernel for the
    op, the device declares such texts as refusals, or PyTorch raises the same on the CPU; else Broken.
    """
    if lacks_kernel(error):
        raise Unsupported(one_line(error))
    cpu = raised_by_cpu(todo)
    if not asks_for_one_dtype(todo) and (_OF_DTYPES.search(str(error)) or cpu is not None):
        return
    if device.refuses(error):
        raise Unsupported(one_line(error))
    if device.type != "cpu" and type(cpu) is type(error) and str(cpu) == str(error):
        raise Unsupported(f"PyTorch itself raises {one_line(error)}")
    raise Broken([f"{name} raised {one_line(error)}; it raises that without autocast, too"], error)


def _received(case: Case, todo: CallPlan, watched: Observation) -> list[str]:
    """Compare what the op's kernel received with what it was to receive."""
    differences = comparisons.kernel(watched, todo.expected, [leaf.dtype for leaf in todo.given], case.rule)
    if todo.expected.dtype_kwarg is None and case.rule in ("optdtype", "append"):
        differences += comparisons.untouched_dtype(watched.of(todo.expected.overload), todo.dtype_given, case.rule)
    return differences


def asks_for_one_dtype(todo: CallPlan) -> bool:
    """Return whether the kernel got one floating dtype throughout; it may refuse a mixture, or integers."""
    floating = {dtype for dtype in todo.expected.leaves if is_floating(dtype)}
    return len(floating) == 1 and not {"int64", "bool"} & set(todo.dtypes)


def _parts(case: Case, device: Device, todo: CallPlan, name: str) -> list[str]:
    """Check a composite op without a policy: each op it is made of follows its own, and its outputs depend on them."""
    arrived = watch(case, device, todo)
    if arrived.of(case.op) is not None:  # a spelling may lead past it
        sources = [leaf.dtype for leaf in todo.given]
        if differences := comparisons.kernel(arrived, todo.expected, sources, case.rule):
            return differences
    watched = watch(case, device, todo, whole=False)
    if not watched.kernels and watched.error is None:
        return [f"aten::{case.op} ran no kernel"]
    differences = comparisons.parts(watched, device.policies(), case.amp)
    if differences or not device.has_values or any(k.overload in device.policies() for k in watched.kernels):
        return differences
    try:
        differences = _results(case, device, todo, name)
    except Broken:
        if _hides_a_policy(case, device, todo):
            return []
        raise
    return [] if differences and _hides_a_policy(case, device, todo) else differences


def _calls_a_policy(case: Case, device: Device, todo: CallPlan) -> bool:
    """Return whether an op without a policy runs one kernel of PyTorch on every backend, which calls an op with one.

    Autocast acts on that op, so what comes out is not what comes out without autocast.
    """
    op, explicit = overload(case.op), DispatchKey.CompositeExplicitAutograd
    backend = device.key.removeprefix("Autocast")
    if has_kernel(op.name(), backend) or not has_kernel(op.name(), "CompositeExplicitAutograd"):
        return False
    if todo.sample.call != "aten":  # another spelling: the op's main sample shows it
        todo = plan(replace(case, sample="", inputs=(*todo.dtypes, case.inputs)[0]), device)
    _, args, kwargs = _prepared(device, todo)
    listed = {*device.policies(), *(APPENDED[name] for name in device.policies() if name in APPENDED)}
    with device.autocast(case.amp):
        seen = device.observe(lambda: op._op_dk(explicit, *args, **kwargs), listed)
    return any(kernel.overload in listed for kernel in seen.kernels)


def _hides_a_policy(case: Case, device: Device, todo: CallPlan) -> bool:
    """Return whether a part calls, inside its own kernel where no recorder sees it, an op with a policy.

    Raises `Unsupported` where the key's kernels cannot be replaced by recorders.
    """
    if not replaceable(device.key):
        raise Unsupported(
            f"aten::{case.op} gives something else in a region, and under {device.key} it cannot be seen whether a "
            "part of it calls an op with a policy"
        )
    with recording([device.key]) as entered:
        run(case, device, todo)
    return any(overload in device.policies() for _, overload in entered)


def _same_dtypes(native: Observation, outside: Observation, name: str) -> list[str]:
    return comparisons.output_dtypes(native.outputs, [name_of(tensor.dtype) for tensor in outside.outputs], name)


def _same_bits(device: Device, todo: CallPlan, got: Observation, outside: Observation, name: str) -> list[str]:
    """Compare the outputs of a call bit for bit with those of the reference."""
    if todo.op.values == "none":
        return []
    if todo.sample.call != "aten" and todo.expected.dtype_kwarg:  # the reference rounds elsewhere
        return []
    with device.native_ops():
        return comparisons.bitwise(got.values, outside.values, name)


def _overwritten(device: Device, first: Observation, name: str) -> list[str]:
    """Return the outputs of a call that hold other values after later calls of the same op."""
    now = [device.host(t) for t in first.outputs]
    with device.native_ops():
        places = [
            place for place, (a, b) in enumerate(zip(now, first.values, strict=True)) if not comparisons.identical(a, b)
        ]
    return [f"output {place} of {name} changed when the op was called again; each call has its own" for place in places]


def _wrong(device: Device, todo: CallPlan, seen: Observation, name: str) -> list[str]:
    """Compare what a call writes to, and its outputs, with the same call on the CPU."""
    exact, kernel = reference(todo), narrowest(todo)
    changed = sorted(_changed(device, todo, seen.inputs) - exact.changed)
    out = [f"argument {place} of {name} holds other values after the call; it is only read" for place in changed]
    if out or exact.error is not None:
        return out
    if len(seen.outputs) != len(exact.outputs):
        return [f"{name} returned {len(seen.outputs)} tensors; expected {len(exact.outputs)}"]
    for place, got in enumerate(seen.outputs):
        what = f"output {place} of {name}"
        out += placed(got, exact, place, seen.inputs, device.type, what)
        if not out and todo.op.values == "exact":
            with device.native_ops():
                out += far(seen.values[place], exact.outputs[place], exact.moved[place], kernel, what, todo.op.passes)
    return out or _shared(device, exact, seen, name)


def _shared(device: Device, exact: Reference, seen: Observation, name: str) -> list[str]:
    """Return the arguments of a call that change as its outputs are written to: only a write shows shared memory.

    A tensor may have no storage that PyTorch can compare. The outputs are zero afterwards, where the device can do so.
    """
    if device.type == "cpu" or not seen.inputs:
        return []
    before = [device.host(t) for t in seen.inputs]
    for place, output in enumerate(seen.outputs):
        if any(out == place for out, _ in exact.aliases):
            continue
        try:
            output.detach().zero_()
        except Exception:  # a device without zero_ shares memory unseen
            return []
    now = [device.host(t) for t in seen.inputs]
    with device.native_ops():
        places = [
            place for place, (a, b) in enumerate(zip(now, before, strict=True)) if not comparisons.identical(a, b)
        ]
    told = "an output shares memory with it"
    return [f"argument {place} of {name} changes as the outputs are written to: {told}" for place in places]


def watch(case: Case, device: Device, todo: CallPlan, *, whole: bool = True) -> Observation:
    """Run a case under its region with the recorder on, its op taken `whole` or apart. The device must be entered."""
    call, args, kwargs = _prepared(device, todo)
    inputs = list(tensors((args, kwargs)))
    recorded = {*device.policies(), case.op} if whole else device.policies()
    with device.autocast(case.amp):
        return device.observe(lambda: call(*args, **kwargs), recorded, inputs)


def run(case: Case, device: Device, todo: CallPlan) -> Observation:
    """Run a case as a user does, with nothing between it and PyTorch."""
    call, args, kwargs = _prepared(device, todo)
    return _plain(device, call, args, kwargs, device.autocast(case.amp))


def _changed(device: Device, todo: CallPlan, inputs: list[torch.Tensor]) -> set[int]:
    """Return the places of the tensors that differ from what they were made as, or from a cast of that."""
    fresh = [
        then.to(now.dtype) for now, then in zip(inputs, tensors(build(todo.sample, todo.dtypes, device)), strict=True)
    ]
    pairs = [(device.host(now), device.host(then)) for now, then in zip(inputs, fresh, strict=True)]
    with device.native_ops():
        return {place for place, (now, then) in enumerate(pairs) if not comparisons.identical(now, then)}


def _prepared(device: Device, todo: CallPlan) -> tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]:
    args, kwargs = build(todo.sample, todo.dtypes, device)
    device.seed()
    return function(todo.op, todo.sample), args, kwargs


def _plain(
    device: Device,
    call: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    region: AbstractContextManager[object],
) -> Observation:
    observation = Observation(inputs=list(tensors((args, kwargs))))
    try:
        with region:
            observation.outputs = list(tensors(call(*args, **kwargs)))
        device.synchronize()
        observation.values = [device.snapshot(t) for t in observation.outputs]
    except Exception as error:  # the call under test may raise anything, and that is what is to be seen
        observation.error = error
    return observation


def run_reference(device: Device, todo: CallPlan) -> Observation:
    """Run the same call outside of autocast on explicitly cast inputs."""
    try:
        call, args, kwargs = cast_call(todo, *build(todo.sample, todo.dtypes, device))
    except Exception as error:  # a cast may raise anything
        return Observation(error=error)
    device.seed()
    if not device.has_values:
        # What it is compared with was recorded, which takes composite ops apart elsewhere than fake tensors do.
        recorded = {*device.policies(), todo.op.overload, todo.expected.overload}
        return device.observe(lambda: call(*args, **kwargs), recorded)
    return _plain(device, call, args, kwargs, nullcontext())
