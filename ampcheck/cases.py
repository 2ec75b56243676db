"""Cases: which op, with which inputs, under which region, on which device. Frozen, and cheap to make."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

from ampcheck import ops
from ampcheck.dispatcher import UNKNOWN
from ampcheck.ids import case_id, named, one_off
from ampcheck.ops.describe import Op, Sample, leaves
from ampcheck.spec.casting import POLICIES
from ampcheck.spec.dtypes import LOW
from ampcheck.spec.gradients import WITHOUT
from ampcheck.spec.rules import RULES

if TYPE_CHECKING:
    from ampcheck.devices import Device

AROUND = "around"
"""The sample of a compiled case whose region is around the compiled function, not inside."""

GRADIENT = "-grad"
"""What stands behind the dtype assignment of a case whose gradient is looked at."""

_DTYPE = re.compile(r"fp\d+|bf16|int64|bool|given")

# Beyond this many floating arguments (recurrent cells, fused attention) only the first and last ones are varied.
_VARIED = 6


@dataclass(frozen=True)
class Case:
    """One thing to run and check.

    `suite`: eager, jit, autograd or scaler. `rule`: the suite's file. `op`: an overload, or the name of a scenario.
    `sample`: "" for the op's main sample. `inputs`: the dtype assignment, as `ampcheck.ids.assign` reads it. `amp`: the
    region's dtype. `device`: the device's name on the command line, `token` its name in ids. `executor`: what runs it,
    a name of `ampcheck.spec.executors`; "" for a suite that runs everything in one way.
    """

    suite: str
    rule: str
    op: str
    sample: str
    inputs: str
    amp: str
    device: str
    token: str
    executor: str = ""

    @cached_property
    def id(self) -> str:
        return case_id(self.op, self.sample, self.inputs, self.amp, self.token, self.executor)

    @property
    def name(self) -> str:
        """What deviations call it: `rule/id`, but `suite/rule/id` where it has an executor."""
        return named(self.suite, self.rule, self.id, self.executor)


def op_cases(device: Device, rule: str, suite: str = "eager", *, only: str | None = None) -> Iterator[Case]:
    """Every op case of a rule on a device, or those of one overload. Runs no op."""
    policies = device.policies()
    if rule == "drift":
        for overload in sorted(o for o, policy in policies.items() if policy == UNKNOWN):
            yield Case(suite, rule, overload, "", "all", device.default_amp, device.name, device.token)
        return
    for op in ops.catalogue().values():
        if only is not None and op.overload != only:
            continue
        policy = policies.get(op.overload, "fallthrough")
        if policy == rule:
            yield from (_gradients if suite == "autograd" else _of_op)(device, rule, suite, op)


def _of_op(device: Device, rule: str, suite: str, op: Op) -> Iterator[Case]:
    for number, sample in enumerate(op.samples):
        if device.type in sample.not_on:
            continue
        for amp, inputs in _variants(device, rule, sample, main=number == 0):
            yield Case(suite, rule, op.overload, sample.name if number else "", inputs, amp, device.name, device.token)


def _gradients(device: Device, rule: str, suite: str, op: Op) -> Iterator[Case]:
    """The cases of an op's gradient: of its main sample in few dtypes, of every other one in float32 if time allows."""
    if op.overload in WITHOUT:
        return
    low = device.default_amp
    for number, sample in enumerate(op.samples):
        count = floating_count(sample)
        if device.type in sample.not_on or not count or (number and not device.database):
            continue
        pairs = [(low, "fp32")]
        if number == 0:
            pairs += [(amp, "fp32") for amp in device.amp_dtypes if amp != low]
            pairs.append((low, one_off("fp32", low, count - 1, count)))
        name = sample.name if number else ""
        for amp, inputs in pairs:
            yield Case(suite, rule, op.overload, name, f"{inputs}{GRADIENT}", amp, device.name, device.token)


def floating_count(sample: Sample) -> int:
    """How many arguments of a sample take the case's dtypes."""
    return sum(1 for leaf in leaves(sample) if leaf.dtype is None)


def _variants(device: Device, rule: str, sample: Sample, *, main: bool) -> Iterator[tuple[str, str]]:
    """Pairs of region dtype and dtype assignment, each once."""
    count = floating_count(sample)
    default = device.default_amp
    if count == 0:
        yield default, "given"
        return
    if not main or rule == "fallthrough":
        low = default
        yield default, "fp32"
        yield default, one_off(low, "fp32", 0, count) if count > 1 else low
        return
    for amp in device.amp_dtypes:
        seen = set()
        for inputs in assignments(count, amp, integers=amp == default):
            if inputs not in seen:
                seen.add(inputs)
                yield amp, inputs


def assignments(count: int, amp: str, *, integers: bool) -> Iterator[str]:
    """The dtype assignments of an op's main sample with `count` floating arguments, some of them more than once."""
    other = LOW[1] if amp == LOW[0] else LOW[0]
    yield from ("fp32", amp, other, "fp64")
    if integers:
        yield from ("int64", "bool")
    if count == 1:
        return
    positions = range(count) if count <= _VARIED else (0, 1, count - 1)
    for position in positions:
        yield one_off(amp, "fp32", position, count)
    yield one_off(amp, other, count - 1, count)
    yield one_off(amp, "fp64", 0, count)
    yield one_off("fp32", "fp64", count - 1, count)
    if integers:
        yield one_off("fp32", "int64", count - 1, count)


def smoke(cases: Sequence[Case]) -> list[bool]:
    """Choose the cases of a smoke run: on each device, the first one of each kind (`_kinds`).

    Args:
        cases: the cases of a full run, in its order.

    Returns: whether each case is kept.
    """
    rules, catalogue = list(RULES), ops.catalogue()

    def order(number: int) -> tuple[int, int]:
        case = cases[number]
        return rules.index(case.rule), len(case.op) if case.op in catalogue else 0  # common ops have short names

    seen: set[tuple[object, ...]] = set()
    kept = [False] * len(cases)
    for number in sorted(range(len(cases)), key=order):
        kinds = {(cases[number].device, *kind) for kind in _kinds(cases[number])}
        kept[number] = not kinds <= seen
        seen |= kinds
    return kept


def _kinds(case: Case) -> Iterator[tuple[object, ...]]:
    """The kinds that a case is of: its rule, its executor, the dtypes of its inputs, the program that it runs."""
    yield "rule", case.suite, case.rule
    if case.executor:
        yield "executor", case.suite, case.executor, case.sample == AROUND
    elif case.rule in POLICIES or case.rule == "fallthrough":
        database = case.sample == "database"
        if database or not case.sample:
            yield "inputs", case.suite, case.rule, case.amp, frozenset(_DTYPE.findall(case.inputs)), database
    elif case.rule == "programs":
        yield "program", case.suite, case.op, case.inputs
