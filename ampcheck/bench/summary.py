"""What several processes measured of a group becomes one result: medians, ratios beside the first arm, verdicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ampcheck.bench import statistics
from ampcheck.bench.model import PRECISIONS, ArmResult, Group, Rounds, Workload, kind_of
from ampcheck.compare import first_line
from ampcheck.errors import UsageError

Peaks = Callable[[str, str], float | None]
"""From a device and a precision's name to the device's peak in flop/s, None where nobody knows it."""

TOO_FAST = 1.02
"""More than this share of the peak is no speed: clocks boost by less, so the call had not ended."""

AGAIN = "-again"


@dataclass(frozen=True, slots=True)
class _Measured:
    """One arm over all processes: `samples` holds a list a process, an empty one where it has none."""

    samples: list[list[float]]
    cpu: list[float]
    facts: list[Mapping[str, Any]]
    failed: list[str]


def summarize(
    rounds: Iterable[Rounds], catalogue: Mapping[str, Workload] | None = None, peaks: Peaks | None = None
) -> list[Group]:
    """One group per device, executor and workload, in the order of their first rounds; each `Rounds` is a process.

    Args:
        catalogue: workloads by name, those of this version unless given. A workload that is not among them is
            summarized without its family, flops and bytes, and with the bounds of an op.
        peaks: with it, each arm gets its share of the device's peak, and one above 102 % of it is invalid.

    Raises UsageError where the rounds hold something that is no measurement.
    """
    if catalogue is None:
        from ampcheck.bench.workloads import catalogue as known

        catalogue = known()
    pooled: dict[str, list[Rounds]] = {}
    for measured in rounds:
        pooled.setdefault(measured.key, []).append(measured)
    return [_group(processes, catalogue.get(processes[0].workload), peaks) for processes in pooled.values()]


def _group(processes: list[Rounds], workload: Workload | None, peaks: Peaks | None) -> Group:
    some = processes[0]
    group = Group(some.workload, "", "op", some.device, some.executor)
    if workload is not None:
        group.family, group.kind, group.policy = workload.family, kind_of(workload), workload.policy
        group.base, group.size = workload.base, workload.size
        group.flops, group.samples = workload.flops, workload.samples
    else:
        group.note = "this version does not know the workload"
    try:
        arms = {name: _collect(processes, name) for name in _names(processes)}
        group.arms = [_figures(name, arm, group, workload, peaks) for name, arm in arms.items()]
        _compare(group, arms)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise UsageError(f"the rounds of {some.key} hold something that is no measurement: {error}") from error
    return group


def _names(processes: list[Rounds]) -> list[str]:
    """The arms, first the one that the others are compared with.

    An arm that failed has no samples, so the first that has some need not be it. The A/A arm bears its name; without
    one it is the first in the order of precisions, and where the arms are not precisions the first that was noted.
    """
    names = list(
        dict.fromkeys(name for one in processes for part in (one.samples, one.facts, one.failed) for name in part)
    )
    first = next((name.removesuffix(AGAIN) for name in names if name.endswith(AGAIN)), None)
    if first is None and all(name in PRECISIONS for name in names):
        first = next((name for name in PRECISIONS if name in names), None)
    return names if first is None else [first, *(name for name in names if name != first)]


def _collect(processes: list[Rounds], name: str) -> _Measured:
    return _Measured(
        [one.samples.get(name, []) for one in processes],
        [float(value) for one in processes for value in one.cpu.get(name, [])],
        [one.facts[name] for one in processes if name in one.facts],
        [one.failed[name] for one in processes if name in one.failed],
    )


def _figures(name: str, measured: _Measured, group: Group, workload: Workload | None, peaks: Peaks | None) -> ArmResult:
    """What can be said of an arm by itself; its verdict is "invalid", "not measured", or "" until it is compared."""
    samples = np.array([value for process in measured.samples for value in process], dtype=float)
    arm = ArmResult(name, "", rounds=samples.size, processes=sum(1 for process in measured.samples if process))
    _facts(arm, measured.facts)
    invalid = next((str(facts["invalid"]) for facts in measured.facts if facts.get("invalid")), "")
    if samples.size:
        arm.cpu_seconds = float(np.median(measured.cpu)) if measured.cpu else None
        bad = samples[~(np.isfinite(samples) & (samples > 0))]
        if bad.size:
            invalid = invalid or f"a sample of {bad[0]:g} s is no time that a call can take"
        else:
            arm.seconds = float(np.median(samples))
            arm.low, arm.high = (float(value) for value in np.percentile(samples, [5, 95]))
            invalid = _rates(arm, arm.seconds, group, workload, peaks) or invalid
    if invalid:
        arm.verdict, arm.reason = "invalid", invalid
    elif not samples.size:
        reason = first_line(measured.failed[0]) if measured.failed else "no process has a sample of it"
        arm.verdict, arm.reason = "not measured", reason
    elif measured.failed:
        how = first_line(measured.failed[0])
        arm.reason = f"failed in {len(measured.failed)} of {len(measured.samples)} processes: {how}"
    return arm


def _rates(arm: ArmResult, seconds: float, group: Group, workload: Workload | None, peaks: Peaks | None) -> str:
    """Fill in what follows from flops and bytes; the reason why it cannot be, "" where it can."""
    precision = arm.name.removesuffix(AGAIN)
    known = PRECISIONS.get(precision)
    if known is not None and workload is not None and workload.moved is not None:
        moved = workload.moved(4 if known.low is None else 2)
        arm.bytes_per_second = moved / seconds
        arm.intensity = group.flops / moved if group.flops and moved else None
    if not group.flops:
        return ""
    arm.flops_per_second = group.flops / seconds
    peak = peaks(group.device, precision) if peaks is not None else None
    if not peak:
        return ""
    arm.share = arm.flops_per_second / peak
    if arm.share <= TOO_FAST:
        return ""
    return f"{arm.share:.0%} of the device's peak: the clock stopped before the work was done"


def _compare(group: Group, arms: Mapping[str, _Measured]) -> None:
    """Give each arm its speed beside the first one, and its verdict."""
    first, others = group.arms[0], group.arms[1:]
    why = ""
    if first.verdict:
        why = f"{first.name}, which it is compared with, is {first.verdict}: {first.reason}"
    else:
        first.verdict = "first"
    again = next((arm for arm in others if arm.name == first.name + AGAIN), None)
    check = None
    if again is not None:
        check = arms[again.name].samples if not again.verdict else [[] for _ in arms[again.name].samples]
    bound = statistics.BOUNDS[group.kind]
    for arm in others:
        if arm.verdict:
            continue
        if why:
            arm.verdict, arm.reason = "not measured", why
            continue
        base = arms[first.name].samples
        found = statistics.compare_arms(base, arms[arm.name].samples, bound, check)
        arm.speed, arm.speed_low, arm.speed_high = found.ratio, found.low, found.high
        arm.verdict = found.verdict
        arm.reason = "; ".join(part for part in (found.reason, arm.reason) if part)


def _facts(arm: ArmResult, processes: list[Mapping[str, Any]]) -> None:
    """Pool what each process found out once: the worst error, the most memory, the median time to compile."""
    pools: Mapping[str, Callable[[list[float]], float]] = {
        "error": max,
        "memory": lambda values: int(max(values)),
        "compile": lambda values: float(np.median(values)),
        "first": lambda values: float(np.median(values)),
    }
    for name in dict.fromkeys(name for facts in processes for name in facts):
        values = [facts[name] for facts in processes if facts.get(name) is not None]
        if name == "proof":
            arm.proof = "; ".join(dict.fromkeys(str(value) for value in values if value))
        elif name in pools:
            numbers = [math.inf if math.isnan(value) else value for value in map(float, values)]
            setattr(arm, name, pools[name](numbers) if numbers else None)
        elif name != "invalid":
            raise ValueError(f"{name!r} is no fact of an arm")
