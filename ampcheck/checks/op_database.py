"""Run one case of PyTorch's op database and check that it does the same with and without autocast.

An op without a policy may be made of ops that have one, in Python or inside its kernel. Each of those that the recorder
sees must have received what its policy says. Where no kernel with a policy was entered, outputs have the same dtypes
and the same bits as without autocast.
"""

import re
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import torch

from ampcheck.checks.comparisons import raises_anyway, received
from ampcheck.checks.forward import kernels_with_policy, received_by_parts
from ampcheck.checks.program import Needed, OpCheck, carrying, region, report, written
from ampcheck.devices.base import Device
from ampcheck.errors import Broken, Difference, Unsupported, UsageError, error_of, one_line
from ampcheck.observe.closeness import identical
from ampcheck.observe.dispatcher import lacks_kernel, recording, replaceable
from ampcheck.observe.recorder import Observation, observe, tensors
from ampcheck.observe.torch_private import pytree, unset_fake_temporarily
from ampcheck.samples import op_database
from ampcheck.spec.case import Case
from ampcheck.spec.torch_dtypes import DTYPES, name_of

SAMPLES = 3
"""How many of an op's samples a case runs: the first ones, which take the arguments in different ways."""

UNINITIALISED = (
    *("empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"),
    *("resize_", "resize_as_"),
)
"""Ops whose outputs hold whatever the memory held, so that only dtypes and shapes are compared."""


@dataclass(slots=True)
class DatabaseOutcome:
    """What a call gave: its tensors in order, everything else of it, or its error."""

    outputs: list[torch.Tensor]
    rest: list[object]
    error: Exception | None = None


class OpDatabaseCheck(OpCheck):
    """An op of PyTorch's own op database that has no policy."""

    def takes(self, case: Case) -> bool:
        return case.sample == op_database.SAMPLE

    def describe(self, case: Case) -> str:
        return (
            f"{case.op} gives in a region what it gives without, on samples of PyTorch's op database, unless it runs "
            "an op with a policy; each of those receives what its policy says."
        )

    def run(self, case: Case, device: Device) -> list[str]:
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
            try:
                made = samples_of(info, case, device)
            except Exception as error:  # a backend may raise anything where a tensor is made on it
                if lacks_kernel(error) or device.refuses(error):
                    raise Unsupported(one_line(error)) from error
                raise
            for number, sample in enumerate(made):
                call = Calls(info, case, device, number, sample)
                try:
                    differences = _check(call, case, device)
                except Unsupported as refusal:
                    refusals.append(refusal)
                    continue
                if differences:
                    return [Difference(f"sample {number}: {text}", error_of(text)) for text in differences]
        if refusals and len(refusals) == len(made):
            raise refusals[0]
        if made:
            return []
        nothing = f"the op database has no {case.inputs} sample of {case.op} for {device.type}"
        if device.type == "cpu":  # the list of cases was made there
            return [nothing]
        raise Unsupported(nothing)

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        inside = region(device, case.amp)
        given = "op(sample.input, *sample.args, **sample.kwargs)"
        needed: list[Needed] = [islice, report]
        if not device.has_values:
            needed += [unset_fake_temporarily, look_alike]
        imports = "from torch.testing._internal.common_methods_invocations import op_db"
        op = f"{imports}\n\nop = next(info for info in op_db if info.full_name == {case.op!r})"
        blocks = [op, _samples_block(case, device)]
        number = int(found[1]) if (found := re.match(r"sample (\d+): ", message)) else None
        chosen = f"[{number}]" if number is not None else f"range({SAMPLES})"
        loop = f"for number, sample in enumerate(samples()):\n    if number not in {chosen}:\n        continue"
        if not ran:
            blocks.append(f"for sample in samples():\n    with {inside}:\n        print({given})")
        elif "reached the kernel" in message:
            wanted = _wanted(case, device)
            listed = sorted({row[1].removeprefix("aten::") for rows in wanted for row in rows})
            needed += [observe, received]
            rows = "\n".join(["WANTED = [  # what each op with a policy receives in each sample", *_rows(wanted), "]"])
            compared = f"""\
{loop}
    torch.manual_seed(0)
    with {inside}:
        seen = observe(lambda: {given}, {device.type!r}, {listed!r})
    ran = [kernel for kernel in seen.kernels if kernel.overload in {listed!r}]
    for kernel, wanted in zip(ran, WANTED[number]):
        leaves = [leaf.given for leaf in kernel.leaves], [leaf.got for leaf in kernel.leaves]
        found = received(*leaves, *wanted)
        report(f"what {{kernel.overload}} received", [f"sample {{number}}: {{text}}" for text in found])"""
            blocks += [rows, compared]
        else:
            needed += [nullcontext, database_outcome, compare_outcomes, raises_anyway]
            bits = device.has_values and case.op not in UNINITIALISED
            anyway = f"[raises_anyway(under.error, {case.op!r})]"
            blocks.append(f"""\
def run(number, region):
    sample = list(samples())[number]
    torch.manual_seed(0)
    out = database_outcome(lambda: {given}, region)
    out.outputs = [x.detach(){".cpu()" * device.has_values} for x in out.outputs]
    return out

for number in range(len(list(samples()))):
    if number not in {chosen}:
        continue
    under, without = run(number, {inside}), run(number, nullcontext())
    found = [f"sample {{number}}: {{text}}" for text in compare_outcomes(under, without, {case.op!r}, {bits})]
    if under.error and type(under.error) is type(without.error):
        found = {anyway}
    report(f"sample {{number}}", found)""")
        return written(device, modules, needed, blocks)


def _samples_block(case: Case, device: Device) -> str:
    dtype = DTYPES[case.inputs]
    if device.has_values:
        made = f"islice(op.sample_inputs({device.type!r}, {dtype}), {SAMPLES})"
        return f"def samples():\n    torch.manual_seed(0)\n    return {made}"
    return f"""\
def samples():
    torch.manual_seed(0)
    with unset_fake_temporarily():
        made = list(islice(op.sample_inputs("cpu", {dtype}), {SAMPLES}))
    return [sample.transform(lambda value: look_alike(value, {device.type!r})) for sample in made]"""


def _rows(wanted: Sequence[Sequence[object]]) -> list[str]:
    return ["\n".join(["    [", *(f"        {row!r}," for row in rows), "    ],"]) for rows in wanted]


def _wanted(case: Case, device: Device) -> list[list[tuple[list[str], str, str]]]:
    """Return for each sample what the ops with a policy in it must receive."""
    info, found = op_database.database()[case.op], []
    with device.activate(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warned when the case ran
        for number, sample in enumerate(samples_of(info, case, device)):
            seen = _seen(Calls(info, case, device, number, sample), case, device)
            found.append([(list(row[2]), row[3], row[4]) for row in kernels_with_policy(seen, device, case.amp)])
    return found


def samples_of(info: Any, case: Case, device: Device) -> list[Any]:
    """Return the samples on the device; without values they are made on the CPU and only look like it."""
    if device.has_values:
        return op_database.samples(info, case.inputs, device.type, SAMPLES)
    with unset_fake_temporarily():
        made = op_database.samples(info, case.inputs, "cpu", SAMPLES)
    return [sample.transform(lambda value: look_alike(value, device.type)) for sample in made]


def look_alike(value: Any, device_type: str) -> Any:
    """Return a tensor of a device type, without values, that looks like a tensor of the CPU."""
    if not isinstance(value, torch.Tensor) or value.layout != torch.strided or value.is_nested:
        return value
    return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=device_type)


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


def _seen(call: Calls, case: Case, device: Device) -> Observation:
    call.prepare()
    with device.autocast(case.amp):
        return device.observe(call, device.policies(), call.inputs)


def _check(call: Calls, case: Case, device: Device) -> list[str]:
    seen = _seen(call, case, device)
    differences = received_by_parts(seen, device, case.amp)
    if differences and received_by_parts(_own_casts(seen), device, case.amp):
        return differences
    if any(kernel.overload in device.policies() for kernel in seen.kernels):
        return []
    under = _run(call, device.autocast(case.amp))
    without = _run(call, nullcontext())
    if under.error is not None and type(under.error) is type(without.error):
        if not device.has_values or lacks_kernel(under.error) or device.refuses(under.error):
            raise Unsupported(one_line(without.error))
        raise Broken([raises_anyway(under.error, case.op)], under.error)
    bits = device.has_values and case.op not in UNINITIALISED
    if bits:
        for one in (under, without):
            one.outputs = [device.host(x) for x in one.outputs]
    with device.native_ops():
        differences = carrying(under.error, compare_outcomes(under, without, case.op, bits))
    if differences and _entered(call, case, device):
        return []
    return differences


def _own_casts(seen: Observation) -> Observation:
    """Return the same observation with every cast taken for one of the op's own; they look like autocast's."""
    kernels = [replace(k, leaves=tuple(replace(leaf, given=leaf.got) for leaf in k.leaves)) for k in seen.kernels]
    return Observation(kernels, [], seen.outputs, seen.error)


def _run(call: Calls, region: AbstractContextManager[object]) -> DatabaseOutcome:
    call.prepare()
    return database_outcome(call, region)


def database_outcome(call: Callable[[], object], region: AbstractContextManager[object]) -> DatabaseOutcome:
    """Return what a call gives in a region."""
    try:
        with region:
            leaves = pytree.tree_leaves(call())
    except Exception as error:  # the op may raise anything, and that is what is compared
        return DatabaseOutcome([], [], error)
    made = [x for x in leaves if isinstance(x, torch.Tensor)]
    return DatabaseOutcome(made, [x for x in leaves if not isinstance(x, torch.Tensor)])


def compare_outcomes(under: DatabaseOutcome, without: DatabaseOutcome, name: str, bits: bool) -> list[str]:
    """Compare what a call gave under autocast with what it gave without; with `bits`, on the CPU, in value, too."""
    because = "without autocast (rule fallthrough: it has no policy and ran no kernel that has one)"
    if under.error is not None or without.error is not None:
        first, second = one_line(under.error), one_line(without.error)
        return [f"{name} under autocast raised {first}; {because} it raised {second}"]
    got, wanted = ([name_of(x.dtype) for x in outcome.outputs] for outcome in (under, without))
    if got != wanted:
        return [f"{name} returned {', '.join(got)}; expected {', '.join(wanted)} as {because}"]
    for place, (a, b) in enumerate(zip(under.outputs, without.outputs, strict=True)):
        if a.shape != b.shape:
            return [f"output {place} of {name} has shape {tuple(a.shape)}; expected {tuple(b.shape)} as {because}"]
        if bits and not identical(a, b):
            return [f"output {place} of {name} differs in value; expected the same bits as {because}"]
    if repr(under.rest) != repr(without.rest):
        return [f"{name} returned {under.rest}; expected {without.rest} as {because}"]
    return []


def _entered(call: Calls, case: Case, device: Device) -> bool:
    """Return whether a kernel with a policy was entered, also inside another kernel, which the recorder cannot see."""
    if not replaceable(device.key):
        raise Unsupported(f"whether {case.op} runs kernels with a policy inside cannot be seen under {device.key}")
    with recording([device.key]) as entered:
        _run(call, device.autocast(case.amp))
    # A kernel that is registered but has no policy is itself a difference.
    return any(overload in device.policies() for _, overload in entered)
