"""`ampcheck bench advise`: a step of the user's own in each variant, what pays, what does not, and why."""

import json
import math
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import msgspec
from tabulate import tabulate
from torch import nn

from ampcheck.bench.advise import diagnosis
from ampcheck.bench.advise.diagnosis import Seen, StepCase
from ampcheck.bench.advise.worker import STEP, AdviceFigures
from ampcheck.bench.core import machine, table
from ampcheck.bench.core.model import AA, COMPILERS, BenchPlan, Group, Rounds, StepWorkload, VariantResult
from ampcheck.bench.run.group import FULL, QUICK
from ampcheck.bench.run.measure import environment
from ampcheck.bench.run.summary import summarize
from ampcheck.devices.registry import select
from ampcheck.errors import UsageError, unknown
from ampcheck.runner.worker import Worker
from ampcheck.tools.user_program import plain, wrapped

SCHEMA = "advice-3"
COMMAND = (sys.executable, "-m", "ampcheck.bench.advise.worker")

_COMPILED = (diagnosis.nothing_lowered, diagnosis.no_native_kernel)
"""The reasons that hold for a compiled step, too: the others need the times of ops that run one by one."""
_MEANS = {"faster": "", "same": "as fast as float32: ", "slower": "slower than float32: "}
_UNSURE = ("ambiguous", "unstable", *table.INVALID)

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class AdviceFinding:
    """The advice on one variant.

    `verdict`: one of `VERDICTS`. `text`: the figures of its speed. `why`: what explains it, `cost`: what comes with it.
    `unexplained`: it does not pay, and none of the known reasons holds. `shares`: where its time goes, op by op.
    """

    compiler: str
    variant: str
    verdict: str
    text: str
    why: Sequence[str] = ()
    cost: Sequence[str] = ()
    unexplained: bool = False
    shares: str = ""
    wrong: bool = False
    """Whether it has infinities or nans, or numbers where float64 has zeros, and float32 has none: it never pays."""


@dataclass(slots=True)
class Advice:
    """The measurements of a step, and the advice. `found`: from the process that looked at it op by op."""

    step: str
    device: str
    groups: list[Group]
    found: AdviceFigures
    machine: Mapping[str, Any]

    @property
    def findings(self) -> list[AdviceFinding]:
        """The advice on each variant but the first and the A/A baseline."""
        found, isa = self.found, self.machine.get("isa", ())
        seen = {name: msgspec.convert(values, Seen) for name, values in found.seen.items()}
        out = []
        for group in self.groups:
            first, eager = group.variants[0], group.compiler == "eager"
            for v in group.variants[1:]:
                if v.name.endswith(AA):
                    continue
                looks = [seen.get(one.name, Seen()) for one in (first, v)]
                case = StepCase(group.device, found.platform, isa, found.tiny, first, v, looks[0], looks[1])
                why = diagnosis.spoken(case, diagnosis.SPEED if eager else _COMPILED)
                cost = diagnosis.spoken(case, diagnosis.VALUES)
                unexplained = not why and eager and v.verdict in ("same", "slower")
                goes, wrong = diagnosis.shares(case) if eager else "", v.error == math.inf != first.error
                told = (v.verdict, _speed(v, first), why, cost, unexplained, goes, wrong)
                out.append(AdviceFinding(group.compiler, v.name, *told))
        return out

    def text(self) -> str:
        """Return the table of variants, the sentences, and the trace."""
        right = [one for one in self.findings if one.verdict == "faster" and not one.wrong]
        best = sorted(right, key=lambda one: -self._speed(one))
        unsure = [one for one in self.findings if one.verdict in _UNSURE]
        rest = [one for one in self.findings if one.verdict in ("same", "slower") or (one.wrong and one not in unsure)]
        pays = f"{_name(best[0])} pays: {best[0].text}" if best else "no variant is certainly faster than float32"
        said: dict[str, str] = {}
        told = []
        whole = (("What pays", best), ("What does not, and why", rest), ("What this run cannot tell", unsure))
        for title, some in whole:
            told += ["", title, *_told(some, said)] if some else []
        if self.notes:
            told += ["", "Note", *(f"  {note}" for note in self.notes)]
        rows = [
            ("" if n else group.compiler, *table.cells(v))
            for group in self.groups
            for n, v in enumerate(group.variants)
        ]  # the reason of a verdict is told below
        shown = tabulate(rows, table.HEADINGS[2:], disable_numparse=True)
        lines = [*wrapped(f"{self.step} on {self.device}: {pays}"), "", shown]
        lines += [line for text in told for line in wrapped(text) or [""]]
        if self.found.table:
            lines += ["", f"What autocast does to it in {self.found.traced}, most bytes first", self.found.table]
        return "\n".join(lines)

    def data(self) -> dict[str, Any]:
        """Return the whole as JSON data; what is not finite is a string."""
        whole = {
            "schema": SCHEMA,
            "step": self.step,
            "device": self.device,
            "machine": self.machine,
            "tiny_op_seconds": self.found.tiny,
            "groups": [asdict(group) for group in self.groups],
            "seen": self.found.seen,
            "findings": [asdict(one) for one in self.findings],
            "notes": self.notes,
            "traced": self.found.traced,
            "trace": json.loads(self.found.trace) if self.found.trace else None,
        }
        return plain(whole)  # type: ignore[no-any-return]  # a dictionary stays one

    @property
    def notes(self) -> list[str]:
        """Remarks about the whole measurement."""
        return [*filter(None, [machine.busy(self.machine)]), *self.found.notes]

    def _speed(self, finding: AdviceFinding) -> float:
        group = next(group for group in self.groups if group.compiler == finding.compiler)
        variant = group.variant(finding.variant)
        return variant.speed or 0.0 if variant else 0.0


def advise(
    step: str, device: str, *, compilers: Sequence[str], modules: Sequence[str], quick: bool, threads: int, tell: Tell
) -> Advice:
    """Measure a step in fresh processes, and say what follows.

    Args:
        step: MODULE:FUNCTION, FILE.py:FUNCTION or FILE.py.
        compilers: besides "eager", which is always measured, as it shows why.
        modules: Python modules that define devices. `threads`: of each library. `tell`: is told how far it is.

    Raises UsageError where there is no such device, compiler or step, the step does not run in float32, or measuring
    it ends the process.
    """
    (found_device,) = select([device], modules)
    if not found_device.has_values:
        raise UsageError(f"device {device!r} has no arithmetic, so that there is nothing to time")
    if wrong := [name for name in compilers if name not in COMPILERS]:
        raise unknown("compiler", wrong[0], COMPILERS)
    if "graph" in compilers:
        raise UsageError("compiler 'graph' replays a single op; a step of your own runs eager, compile or jit")
    if "jit" in compilers and found_device.type != "jax":
        raise UsageError(f"compiler 'jit' makes a program of a step on jax, not on {device!r}")
    if threads < 1:
        raise UsageError(f"--threads is {threads}; at least one is needed")
    chosen = list(dict.fromkeys(["eager", *compilers]))
    mode = QUICK if quick else FULL
    described = {**machine.describe(), "threads": threads}
    pooled: list[AdviceFigures] = []
    for process in range(mode.processes):
        tasks = [(step, compiler) for compiler in chosen]
        plan = BenchPlan(device, list(modules), process, mode.rounds, mode.target, threads, tasks)
        pooled.append(_measured(plan, FULL.limit * len(chosen)))
        if process + 1 < mode.processes:
            tell(f"process {process + 1} of {mode.processes} has measured it")
    rounds = [Rounds(**one) for found in pooled for one in found.rounds]
    kind = StepWorkload(
        name=STEP, family=STEP, policy="mixed", model=nn.Identity, inputs=(), loss=lambda output, target: output
    )  # the user's own is known to the worker alone; its kind decides what counts as the same speed
    groups = summarize(rounds, {STEP: kind})
    pooled[0].tiny = statistics.median(found.tiny for found in pooled)
    return Advice(step, device, groups, pooled[0], described)


def _speed(variant: VariantResult, first: VariantResult) -> str:
    if variant.verdict in table.INVALID:
        return f"{variant.verdict}: {variant.reason}"
    times = f"{table.ratio(variant)}, {table.seconds(variant.seconds)} instead of {table.seconds(first.seconds)}"
    reason = f" ({variant.reason})" if variant.reason else ""
    return f"{_MEANS.get(variant.verdict, f'{variant.verdict}: ')}{times}{reason}"


def _name(finding: AdviceFinding) -> str:
    return finding.variant if finding.compiler == "eager" else f"{finding.variant} ({finding.compiler})"


def _told(findings: Sequence[AdviceFinding], said: dict[str, str]) -> list[str]:
    """Return the lines of some variants. `said`: what was told of variants before, and is not repeated in full."""
    lines = []
    for one in findings:
        name = _name(one)
        lines.append(f"  {name}: {one.text}")
        lines += [f"    ({one.shares})"] if one.shares else []
        prefix = "it could be faster: " if one.verdict == "faster" else ""
        for text in one.why:
            if said.setdefault(text, name) != name:
                lines.append(f"    - {prefix}as with {said[text]}: {text.partition(' (')[0].partition(':')[0]}")
            else:
                lines.append(f"    - {prefix}{text}")
        if one.unexplained:
            lines.append("    - none of the known reasons holds")
        lines += [f"    - {text}" for text in one.cost]
    return lines


def _measured(plan: BenchPlan, limit: float) -> AdviceFigures:
    with Worker(COMMAND, environment(plan.threads), asdict(plan)) as worker:
        try:
            said = worker.answer(limit)
        except TimeoutError as error:
            text = f"measuring {plan.tasks[0][0]} took more than {limit:.0f} s; make it smaller, or --quick"
            raise UsageError(text) from error
        if said is None:
            raise UsageError(f"the process that measured {plan.tasks[0][0]} ended with {worker.reason()}")
    if "usage" in said:
        raise UsageError(said["usage"])
    return AdviceFigures(**said["found"])
