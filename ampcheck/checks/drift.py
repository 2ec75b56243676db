"""Rule drift: a registered overload that no table lists, on a torch that no table covers, follows some known policy."""

from collections.abc import Sequence
from dataclasses import replace

import torch

from ampcheck import samples
from ampcheck.checks.cases import assignments, floating_count, plan
from ampcheck.checks.comparisons import kernel, refused, untouched_dtype
from ampcheck.checks.forward import watch
from ampcheck.checks.program import Needed, OpCheck, PlainProgram, preamble, region, written
from ampcheck.devices.base import Device
from ampcheck.errors import Unsupported
from ampcheck.observe.recorder import Observation, observe
from ampcheck.spec.case import Case
from ampcheck.spec.casting import APPENDED, POLICIES

Promise = tuple[str, str, list[str], list[str], str | None, str | None, str | None]
"""What a policy promises of a call: the op, the overload that runs, the dtypes that are given and those that its kernel
receives, the `dtype=` that is filled in and the caller's, and what an error names; see `comparisons.kernel`."""


class DriftCheck(OpCheck):
    """An overload that is registered for autocast and is in no table."""

    def takes(self, case: Case) -> bool:
        return case.rule == "drift"

    def describe(self, case: Case) -> str:
        return f"aten::{case.op}, which is registered and in no table, does in every dtype what one known policy says."

    def run(self, case: Case, device: Device) -> list[str]:
        op = samples.catalogue().get(case.op)
        if op is None:
            raise Unsupported(
                f"aten::{case.op} is registered under {device.key}, is new in torch {torch.__version__} and has no "
                "samples yet; docs/contributing.md says how to add them"
            )
        possible = _known(case)
        with device.activate():
            for single in _singles(case):
                possible = [policy for policy in possible if _explains(single, device, policy)]
        return [] if possible else [_none_explains(case, device)]

    def write(self, case: Case, device: Device, message: str, modules: Sequence[str], *, ran: bool) -> str:
        if case.op not in samples.catalogue():
            lines = [*preamble(device, modules), f"# aten::{case.op} has no samples, so that there is nothing to call."]
            return "\n".join([*lines, f"with {region(device, case.amp)}:", "    pass"])
        plain = [PlainProgram(device, plan(single, device, "fallthrough")) for single in _singles(case)]
        run = f"with {region(device, case.amp)}:\n        "
        if not ran:
            plain[0].add([], f"{run.strip()}\n    print(call(*inputs()))")
            return plain[0].text(modules)
        rows = []
        for single, one in zip(_singles(case), plain, strict=True):
            wanted = {policy: _promised(single, device, policy) for policy in _known(case)}
            rows.append(f"    ([{', '.join(one.made)}], {wanted!r}),")
        needed: list[Needed] = [observe, explains, *(function for one in plain for function in one.needed)]
        cases = "\n".join(["CASES = [  # the tensors of a call, and what each policy promises of it", *rows, "]"])
        loop = f"""\
possible = {_known(case)!r}
for given, wanted in CASES:
    {run}seen = observe(lambda: call(*given), {device.type!r}, [{case.op!r}], given)
    possible = [policy for policy in possible if explains(seen, policy, wanted[policy])]
report("whether it does what one policy says", [{_none_explains(case, device)!r}] * (not possible))"""
        return written(device, modules, needed, [plain[0].blocks[1], cases, loop])


def _singles(case: Case) -> list[Case]:
    """Return the cases of the main sample, each with one assignment of dtypes."""
    count = floating_count(samples.catalogue()[case.op].samples[0])
    every = dict.fromkeys(assignments(count, case.amp, integers=False)) if count else ("given",)
    return [replace(case, inputs=inputs) for inputs in every]


def _known(case: Case) -> list[str]:
    """Return the policies that an op may have."""
    return [policy for policy in POLICIES if policy != "append" or case.op in APPENDED]


def _none_explains(case: Case, device: Device) -> str:
    known = ", ".join(POLICIES)
    return f"aten::{case.op} is registered under {device.key}, is in no table, and follows none of {known}"


def _explains(case: Case, device: Device, policy: str) -> bool:
    seen = watch(case, device, plan(case, device, policy))
    return explains(seen, policy, _promised(case, device, policy))


def _promised(case: Case, device: Device, policy: str) -> Promise:
    todo = plan(case, device, policy)
    want = todo.expected
    return case.op, want.overload, todo.given_dtypes, list(want.leaves), want.dtype_kwarg, todo.dtype_given, want.error


def explains(seen: Observation, policy: str, promise: Promise) -> bool:
    """Return whether what a call did is what a policy promises of it."""
    op, overload, given, wanted, dtype, dtype_given, error = promise
    if error:
        return not refused(seen.error, op, "autocast", policy)
    found = kernel(seen, overload, given, wanted, dtype, policy)
    return not found and (dtype is not None or not untouched_dtype(seen, overload, dtype_given, policy))
