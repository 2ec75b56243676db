"""The process that measures a user's step: takes a plan from standard input, gives one JSON line.

python -m ampcheck.bench.advise.worker < plan.json
"""

import json
import statistics
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ampcheck.bench.advise import evidence
from ampcheck.bench.advise.user_step import StepSpec, UserStep, load, reference
from ampcheck.bench.core.model import AA, PRECISIONS, BenchPlan, Precision, Rounds
from ampcheck.bench.core.timing import Timed
from ampcheck.bench.run.measure import Measurer, Say, peak_memory, pin
from ampcheck.bench.torch_private import dynamo_config
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError, one_line
from ampcheck.observe.closeness import relative_error
from ampcheck.runner.worker import Channel

STEP = "step"
"""The name of the user's step as a workload."""
_TINY = "tiny"
_SLOWER, _PATIENCE = 20, 30.0
"""A variant this many times as slow as float32 is not timed in turns if that would take longer than these seconds."""
_SAME = 1e-3
"""The relative difference from which on two runs of a step differ by more than the order of their additions."""


@dataclass(slots=True)
class AdviceFigures:
    """A worker's result. `rounds`: of each compiler. `tiny`: seconds that it costs to start an op on one number.

    The rest only with `facts`: `seen` has `Seen` by variant as data; `table` and `trace` are the trace of the variant
    `traced` as text and as JSON; `notes` are sentences about the whole.
    """

    rounds: list[dict[str, Any]] = field(default_factory=list)
    tiny: float = 0.0
    platform: str = ""
    seen: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    traced: str = ""
    table: str = ""
    trace: str = ""


def main() -> None:
    """Measure what the plan on standard input says, and give what was found, or the sentence of a UsageError."""
    plan = BenchPlan(**json.load(sys.stdin))
    channel = Channel()
    pin(plan.threads, plan.process, plan.device)
    warnings.simplefilter("ignore")  # the user's program is judged elsewhere
    try:
        said: dict[str, Any] = {"found": asdict(measure(plan))}
    except UsageError as error:
        said = {"usage": str(error)}
    channel.send(said)


def measure(plan: BenchPlan) -> AdviceFigures:
    """Measure the step that the plan's tasks name, in this process.

    Raises UsageError where there is none, or it does not run in float32.
    """
    measurer = _StepMeasurer(plan)
    device = measurer.device
    with device.activate():
        spec = measurer.spec = load(plan.tasks[0][0])
        try:
            first = UserStep(spec, PRECISIONS["fp32"], device.type)
        except Exception as error:  # the user's model may refuse to be copied or moved
            raise UsageError(f"the step cannot be brought to {plan.device}: {one_line(error)}") from error
        first.try_out()
        if plan.facts:
            measurer.values(first)
        for _, compiler in plan.tasks:
            measurer.group(compiler)
        return measurer.advice


class _StepMeasurer(Measurer):
    """Measures the groups of a step; what is found is in `advice`."""

    spec: StepSpec

    def __init__(self, plan: BenchPlan) -> None:
        super().__init__(plan)
        self.advice = AdviceFigures(platform=self.platform)
        self._exact: torch.Tensor | None = None
        self._base: torch.Tensor | None = None
        self._steps: dict[str, UserStep] = {}
        self._outputs: dict[str, torch.Tensor] = {}
        self._base_seconds: dict[str, float] = {}
        self._singles: dict[str, float] = {}
        if any(compiler == "compile" for _, compiler in plan.tasks):
            dynamo_config().recompile_limit = 64  # every variant is a program of the same code

    def values(self, first: UserStep) -> None:
        """Find what errors are measured against: float64, and float32 for gradients."""
        self._base, again = first.output(0), first.output(1)
        if relative_error(again, self._base) > _SAME:
            self._base = None
            self.advice.notes.append("the step draws random numbers, e.g. for dropout, so its errors are not known")
            return
        try:
            self._exact = reference(self.spec)
        except Exception as error:  # a model may have float32 written into it
            self.advice.notes.append(f"errors are not known, as the step cannot be run in float64: {one_line(error)}")

    def group(self, compiler: str) -> None:
        """Measure the variants through a compiler."""
        rounds = self.measure(STEP, compiler)
        if _TINY in rounds.samples:
            self.advice.tiny = statistics.median(rounds.samples.pop(_TINY)) / evidence.ADDS
            del rounds.cpu[_TINY], rounds.facts[_TINY]
        if self.plan.facts and compiler == "eager" and "fp32" in rounds.samples:
            self._look(rounds)
        self.advice.rounds.append(asdict(rounds))

    def _ready(self, found: Rounds, say: Say, given_up: Mapping[str, Mapping[str, Any]]) -> dict[str, Timed]:
        out: dict[str, Timed] = {}
        self._steps = {}
        for variant in _variants(self.device, self.platform):
            try:
                made = UserStep(self.spec, variant, self.device.type, found.compiler)
                if self._warm(variant, made, found):
                    self._steps[variant.name] = made
                    out[variant.name] = Timed(made.call, made.restore)
            except Exception as error:  # a variant may lack anything; the others are measured all the same
                found.failed[variant.name] = one_line(error)
        if out and found.compiler == "eager":  # in turns with the variants, so that what slows them down slows it down
            out[_TINY] = Timed(evidence.tiny(self.device))
        return out

    def _warm(self, variant: Precision, made: UserStep, found: Rounds) -> bool:
        """Call a variant until it can be timed in turns, and judge its output. Returns False where it is too slow."""
        timer, facts, compiler = self.timer, found.facts.setdefault(variant.name, {}), found.compiler
        facts["first"] = timer.sample(made.call, 1)[0]
        seconds = timer.sample(made.call, 1)[0]
        base = self._base_seconds.setdefault(compiler, seconds)
        if seconds > _SLOWER * base and 2 * self.plan.rounds * seconds > _PATIENCE:
            self._singles.setdefault(variant.name, seconds)
            found.failed[variant.name] = (
                f"a single call takes {seconds:.3g} s, {seconds / base:.0f} times as long as float32's, so that it was "
                "not timed in turns"
            )
            return False
        made.settle()
        if self._base is not None and not variant.aa:
            self._judge(variant, compiler, made.output(), facts)
        return True

    def _judge(self, variant: Precision, compiler: str, output: torch.Tensor, facts: dict[str, Any]) -> None:
        """Note a variant's error, and where it is float32's output though it is not where ops run one by one."""
        first = self._outputs.setdefault(compiler, output)
        if self._exact is not None:
            facts["error"] = relative_error(output, self._exact)
        lowers = self.advice.seen.get(variant.name, {}).get("lowered") and compiler != "eager"
        if lowers and torch.equal(output, first):
            facts["invalid"] = "its output is float32's bit for bit, so that nothing was computed in lower precision"

    def _look(self, rounds: Rounds) -> None:
        found = self.advice
        first: list[evidence.ProfiledKernel] = []
        for name, step in self._steps.items():
            if name not in rounds.samples or name.endswith(AA):
                continue
            try:
                kernels, trace = evidence.look(step, self.device, statistics.median(rounds.samples[name]))
                first = first or kernels
                seen = asdict(evidence.seen(kernels, first, trace.ops))
                seen["gradients"] = self._gradients(name, step)
                if (peak := peak_memory(step, self.device, "eager")) is not None:
                    rounds.facts[name]["memory"] = peak
            except Exception as error:  # what is looked at runs under two modes, which an op may refuse
                found.notes.append(f"{name} could not be looked at op by op: {one_line(error)}")
                continue
            found.seen[name] = seen
            if PRECISIONS[name].region and not found.traced:
                found.traced, found.table, found.trace = name, trace.table("bytes", 10), trace.to_json()
        found.seen |= {n: {"single": s} for n, s in self._singles.items()}

    def _gradients(self, name: str, step: UserStep) -> dict[str, Any] | None:
        if self._base is None or self.spec.loss is None or name == "fp32":
            return None
        scale, unscaled = None, None
        if step.scaler.is_enabled():
            scale = step.scaler.get_scale()
            unscaled = UserStep(self.spec, PRECISIONS[name], self.device.type, scaled=False).output()
        return asdict(evidence.gradients(step.output(), self._base, scale, unscaled))


def _variants(device: Device, platform: str) -> list[Precision]:
    """Return float32, its A/A baseline, and the variants that are compared with them."""
    names = ["tf32"] if device.type == "cuda" else ["fp32-default"] if platform == "tpu" else []
    names += [f"{dtype}{kind}" for kind in ("", "-native") for dtype in ("bf16", "fp16") if dtype in device.amp_dtypes]
    fp32 = PRECISIONS["fp32"]
    return [fp32, replace(fp32, name="fp32" + AA), *(PRECISIONS[name] for name in names)]


if __name__ == "__main__":
    main()
