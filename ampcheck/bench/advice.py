"""`ampcheck bench advise`: a step of the user's own in each arm, what pays, what does not, and why."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from ampcheck.bench import diagnosis, table
from ampcheck.bench.advice_worker import STEP, Found, Plan
from ampcheck.bench.diagnosis import Case, Gradients, Recast, Seen
from ampcheck.bench.model import EXECUTORS, ArmResult, Group, Rounds, StepWorkload
from ampcheck.bench.run import FULL, QUICK, environment
from ampcheck.bench.summary import AGAIN, summarize
from ampcheck.devices.registry import select
from ampcheck.errors import UsageError

SCHEMA = "advice-1"
COMMAND = (sys.executable, "-m", "ampcheck.bench.advice_worker")

_COMPILED = (diagnosis.nothing_lowered, diagnosis.no_native_kernel)
"""What holds of a compiled step as well: the others rest on the times of ops that run one by one."""
_MEANS = {
    "same": "as fast as float32",
    "slower": "slower than float32",
    "ambiguous": "too close to float32 to say",
    "unstable": "measured too unsteadily to say anything",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """What is said of an arm. `text`: the figures of its speed. `why`: what explains it, `cost`: what comes with it."""

    executor: str
    arm: str
    pays: bool
    text: str
    why: Sequence[str] = ()
    cost: Sequence[str] = ()


@dataclass(slots=True)
class Advice:
    """What was measured of a step, and what follows. `found`: from the process that looked at it op by op."""

    step: str
    device: str
    groups: list[Group]
    found: Found
    findings: list[Finding] = field(default_factory=list)

    def text(self) -> str:
        """The table of arms, the sentences, and the trace."""
        lines = [f"{self.step} on {self.device}", "", table.table(self.groups)]
        best = sorted((one for one in self.findings if one.pays), key=lambda one: -self._speed(one))
        rest = [one for one in self.findings if not one.pays]
        lines += ["", "What pays"]
        lines += [line for one in best for line in _told(one, "it could be faster: ")]
        lines += [] if best else ["  nothing: no arm is faster than float32"]
        if rest:
            lines += ["", "What does not, and why", *(line for one in rest for line in _told(one, ""))]
        if self.found.notes:
            lines += ["", "Note", *(f"  {note}" for note in self.found.notes)]
        if self.found.table:
            lines += ["", f"What autocast does to it in {self.found.traced}, most bytes first", self.found.table]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """The whole as JSON data; what is not finite is a string."""
        whole = {
            "schema": SCHEMA,
            "step": self.step,
            "device": self.device,
            "machine": self.found.machine,
            "tiny_op_seconds": self.found.tiny,
            "groups": [asdict(group) for group in self.groups],
            "seen": self.found.seen,
            "findings": [asdict(one) for one in self.findings],
            "notes": self.found.notes,
            "traced": self.found.traced,
            "trace": json.loads(self.found.trace) if self.found.trace else None,
        }
        return _finite(whole)  # type: ignore[no-any-return]  # a dictionary stays one

    def _speed(self, finding: Finding) -> float:
        group = next(group for group in self.groups if group.executor == finding.executor)
        arm = group.arm(finding.arm)
        return arm.speed or 0.0 if arm else 0.0


def advise(
    step: str,
    device: str = "cpu",
    *,
    executors: Sequence[str] = (),
    modules: Sequence[str] = (),
    quick: bool = False,
    threads: int = 1,
    tell: Callable[[str], None] = lambda text: None,
) -> Advice:
    """Measure a step in fresh processes, and say what follows.

    Args:
        step: MODULE:FUNCTION, FILE.py:FUNCTION or FILE.py.
        executors: besides "eager", which is always measured, as it shows why.
        modules: Python modules that define devices. `threads`: of each library. `tell`: is told how far it is.

    Raises UsageError where there is no such device, executor or step, the step does not run in float32, or measuring
    it ends the process.
    """
    (found_device,) = select([device], modules)
    if not found_device.has_values:
        raise UsageError(f"device {device!r} has no arithmetic, so that there is nothing to time")
    if unknown := [name for name in executors if name not in EXECUTORS]:
        raise UsageError(f"there is no executor {unknown[0]!r}; there are {', '.join(EXECUTORS)}")
    if "jit" in executors and found_device.type != "jax":
        raise UsageError(f"executor 'jit' makes a program of a step on jax, not on {device!r}")
    if threads < 1:
        raise UsageError(f"--threads is {threads}; at least one is needed")
    chosen = list(dict.fromkeys(["eager", *executors]))
    mode = QUICK if quick else FULL
    pooled: list[Found] = []
    for process in range(mode.processes):
        plan = Plan(step, device, list(modules), chosen, process, mode.rounds, mode.target, process == 0, threads)
        pooled.append(_measured(plan, mode.limit * len(chosen)))
        if process + 1 < mode.processes:
            tell(f"process {process + 1} of {mode.processes} has measured it")
    rounds = [Rounds(**one) for found in pooled for one in found.rounds]
    kind = StepWorkload(
        name=STEP, family=STEP, policy="mixed", model=nn.Identity, inputs=(), loss=lambda output, target: output
    )  # the user's own is known to the worker alone; its kind decides what counts as the same speed
    groups = summarize(rounds, {STEP: kind})
    return Advice(step, device, groups, pooled[0], findings(groups, pooled[0]))


def findings(groups: Sequence[Group], found: Found) -> list[Finding]:
    """What is to be said of each arm but the first and its twin."""
    seen = {name: _seen(values) for name, values in found.seen.items()}
    out = []
    for group in groups:
        first = group.arms[0]
        for arm in group.arms[1:]:
            if arm.name.endswith(AGAIN):
                continue
            case = Case(
                group.device,
                found.platform,
                found.machine.get("isa", []),
                found.tiny,
                first,
                arm,
                seen.get(first.name, Seen()),
                seen.get(arm.name, Seen()),
            )
            why = diagnosis.spoken(case, diagnosis.SPEED if group.executor == "eager" else _COMPILED)
            cost = diagnosis.spoken(case, diagnosis.VALUES)
            out.append(Finding(group.executor, arm.name, case.pays, _speed(arm, first), why, cost))
    return out


def write(path: Path, text: str) -> None:
    """Write a file. Raises UsageError where that cannot be done."""
    try:
        path.write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}") from error


def _speed(arm: ArmResult, first: ArmResult) -> str:
    if arm.verdict in table.INVALID:
        return f"{arm.verdict}: {arm.reason}"
    times = f"{table.ratio(arm)}, {table.seconds(arm.seconds)} instead of {table.seconds(first.seconds)}"
    if arm.verdict == "faster":
        return times
    reason = f" ({arm.reason})" if arm.reason else ""
    return f"{_MEANS[arm.verdict]}: {times}{reason}"


def _told(finding: Finding, prefix: str) -> list[str]:
    where = "" if finding.executor == "eager" else f" ({finding.executor})"
    lines = [f"  {finding.arm}{where}: {finding.text}"]
    lines += [f"    - {prefix}{text}" for text in finding.why]
    if not finding.pays and not finding.why and finding.executor == "eager":
        lines.append("    - none of the known reasons holds")
    return lines + [f"    - {text}" for text in finding.cost]


def _seen(values: Mapping[str, Any]) -> Seen:
    named = dict(values)
    if named.get("gradients"):
        named["gradients"] = Gradients(**named["gradients"])
    return Seen(**{**named, "recast": [Recast(**one) for one in named.get("recast", ())]})


def _measured(plan: Plan, limit: float) -> Found:
    """What a worker finds."""
    try:
        done = subprocess.run(
            COMMAND,
            input=json.dumps(asdict(plan)),
            env=environment(plan.threads),
            capture_output=True,
            text=True,
            timeout=limit,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"measuring {plan.step} took more than {limit:.0f} s; make it smaller, or --quick") from error
    if done.returncode or not done.stdout.strip():
        code = done.returncode
        how = f"by signal {-code}" if code < 0 else f"with exit code {code}"
        last = done.stderr.strip().splitlines()[-1:]
        raise UsageError(f"the process that measured {plan.step} ended {how}" + (f": {last[0]}" if last else ""))
    said = json.loads(done.stdout.strip().splitlines()[-1])
    if "usage" in said:
        raise UsageError(said["usage"])
    return Found(**said["found"])


def _finite(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(one) for name, one in value.items()}
    return [_finite(one) for one in value] if isinstance(value, (list, tuple)) else value
