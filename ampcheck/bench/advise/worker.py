"""The process that measures a user's step: takes a plan from standard input, gives one JSON line.

    python -m ampcheck.bench.advise.worker < plan.json

Each variant is timed in turns with the others, and looked at op by op: each kernel's time and dtypes beside its trace,
and what follows from them.
"""

import json
import statistics
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from ampcheck.bench.advise.diagnosis import CACHE_OFF, TILE, Gradients, Recast, Seen
from ampcheck.bench.advise.user_step import StepSpec, UserStep, load
from ampcheck.bench.core.model import AA, PRECISIONS, BenchPlan, Precision, Rounds
from ampcheck.bench.core.prepare import FP64, Prepared
from ampcheck.bench.core.timing import Timed
from ampcheck.bench.run.measure import Measurer, Say, peak_memory, pin
from ampcheck.bench.torch_private import dynamo_config
from ampcheck.devices.base import Device
from ampcheck.errors import UsageError, one_line
from ampcheck.observe.closeness import relative_error
from ampcheck.observe.recorder import Recorder, tensors
from ampcheck.observe.torch_private import DeviceType
from ampcheck.register.torch_private import OpOverload
from ampcheck.runner.worker import Channel
from ampcheck.spec.casting import LOW, is_floating
from ampcheck.spec.torch_dtypes import name_of
from ampcheck.tools.lint.record import in_both
from ampcheck.tools.trace import CastRecord, OpRecord, Trace
from ampcheck.tools.trace.recorder import signature_of
from ampcheck.tools.trace.report import recast, totals

_FLOAT32 = ("upcast", "optdtype", "append")
_PRODUCTS = frozenset(("mm", "addmm", "bmm", "baddbmm", "addbmm", "mv", "addmv"))
_CONVOLUTIONS = frozenset(("convolution", "_convolution", "convolution_overrideable"))
_RUNS = 3
_OWN = Path(__file__).parents[2]
"""ampcheck's folder: a call from there, e.g. of a `Sequential` inside torch, has no place in the user's files."""
_LONG = 0.5
"""Seconds from which on a step is looked at once."""


@dataclass(frozen=True, slots=True)
class ProfiledKernel:
    """A kernel that ran. `given`: the floating dtypes it received. `view`: it moves no data, and has no time.

    `op`, `policy`: of the public call that it ran for, or for a step of the backward of the one in the forward; "" and
    "" outside of a region. `odd`: its sizes, for a product of which some are not multiples of `TILE`, else "".
    """

    name: str
    given: tuple[str, ...] = ()
    seconds: float = 0.0
    cast: bool = False
    view: bool = False
    op: str = ""
    policy: str = ""
    odd: str = ""


class _Timer(Recorder):
    """Times every kernel by itself, inside of a trace, which knows whose it is.

    `labelled`: for a profiler that runs, each kernel has its place as a label; without, the device is waited for.
    """

    def __init__(self, device: Device, trace: Trace, labelled: bool) -> None:
        super().__init__(self._time)
        self._device, self._trace, self._labelled = device, trace, labelled
        self.kernels: list[ProfiledKernel] = []

    def _time(self, func: OpOverload, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        signature = signature_of(func)
        label = torch.profiler.record_function(_label(len(self.kernels))) if self._labelled else nullcontext()
        if not self._labelled:
            self._device.synchronize()
        began = time.perf_counter()
        with label:
            out = func(*args, **kwargs)
        if not self._labelled:
            self._device.synchronize()
        seconds = time.perf_counter() - began
        dtypes = dict.fromkeys(name_of(tensor.dtype) for tensor in tensors((args, kwargs)))
        cast = signature.is_cast and isinstance(out, torch.Tensor) and out.dtype != args[0].dtype
        op, policy = ("", "") if signature.is_view or signature.is_cast else self._whose()
        given, took = tuple(filter(is_floating, dtypes)), 0.0 if signature.is_view else seconds
        name, odd = signature.overload, _odd(signature.overload, args)
        self.kernels.append(ProfiledKernel(name, given, took, cast, signature.is_view, op, policy, odd))
        return out

    def _whose(self) -> tuple[str, str]:
        """Return the public call that the trace counts the kernel to, and its policy in the region it was called in."""
        call = self._trace.recorder.current()
        record = call.forward if call.forward is not None else call.record
        return (record.name, record.policy) if record is not None and record.region.enabled else ("", "")


def _label(place: int) -> str:
    return f"ampcheck kernel {place}"


def once(ready: Prepared, device: Device) -> tuple[list[ProfiledKernel], Trace]:
    """Run a step once, op by op: its kernels with the seconds of each, and its trace.

    On CUDA the profiler times them: kernels run there when the call has long returned, and waiting for each would time
    the waiting.
    """
    trace, kinds = Trace(), torch.profiler.ProfilerActivity
    profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA]) if device.type == "cuda" else None
    timer = _Timer(device, trace, profiler is not None)
    with profiler or nullcontext():
        with timer, trace:
            ready.eager()
        device.synchronize()
    ready.restore()
    for op in trace.ops:
        if Path(op.location.rpartition(":")[0]).absolute().is_relative_to(_OWN):
            op.location = ""
    kernels = timer.kernels
    if profiler is not None:
        events = [event for event in profiler.events() or () if event.device_type == DeviceType.CPU]
        found = {event.name: event.device_time_total for event in events}
        kernels = [
            k if k.view else replace(k, seconds=found.get(_label(place), 0.0) / 1e6) for place, k in enumerate(kernels)
        ]
    return kernels, trace


def look(ready: Prepared, device: Device, seconds: float) -> tuple[list[ProfiledKernel], Trace]:
    """As `once`, with each kernel's median over some runs. `seconds`: what a step takes."""
    if seconds > _LONG:
        return once(ready, device)
    once(ready, device)
    runs = [once(ready, device) for _ in range(_RUNS)]
    kernels, trace = runs[-1]
    same = [run for run, _ in runs if [k.name for k in run] == [k.name for k in kernels]]
    medians = [statistics.median(run[place].seconds for run in same) for place in range(len(kernels))]
    return [replace(kernel, seconds=median) for kernel, median in zip(kernels, medians, strict=True)], trace


ADDS = 100


def tiny(device: Device) -> Callable[[], torch.Tensor]:
    """Return a call of `ADDS` ops with next to nothing to compute, to time how long starting an op takes."""
    number = torch.ones(1, device=device.type)

    def adds() -> torch.Tensor:
        for _ in range(ADDS):
            out = number.add(number)
        return out

    return adds


def seen(kernels: Sequence[ProfiledKernel], first: Sequence[ProfiledKernel], ops: Sequence[OpRecord]) -> Seen:
    """Summarize a variant's kernels and trace. `first`: the kernels of the variant it is compared with."""
    total = sum(kernel.seconds for kernel in kernels)
    lowered = _lowered(kernels, first)
    whole = sum(kernel.seconds for kernel in first)
    kept: Counter[str] = Counter()
    for kernel in kernels:
        if kernel.policy in _FLOAT32 and not kernel.cast:
            kept[kernel.op] += _share(kernel.seconds, total)  # type: ignore[assignment]  # a Counter adds any numbers
    odd = [kernel for kernel in kernels if kernel.odd]
    casts = [cast for op in ops for cast in op.casts if cast.origin == "autocast"]
    again = []
    for some, why in recast(casts):
        kind = "views of weight" if some[0].kind == "view" else some[0].kind
        again.append(Recast(kind, some[0].source, *_count(some), why))
    numbers = totals(list(ops))
    return Seen(
        ops=len(kernels),
        kernel_seconds=total,
        cast_share=_share(sum(kernel.seconds for kernel in kernels if kernel.cast), total),
        casts=numbers["casts"],
        cast_bytes=numbers["bytes"],
        lowered=len(lowered),
        lowered_share=_share(sum(kernel.seconds for kernel in lowered), whole),
        kept=dict(kept),
        cache_off=_count(c for c in casts if c.cacheable == CACHE_OFF and c.kind != "activation" and c.kind != "input"),
        recast=sorted(again, key=lambda one: -one.bytes),
        frozen=_count(cast for cast in casts if cast.kind == "frozen"),
        weights=_count(cast for cast in casts if cast.kind == "weight"),
        overflow=next((f"{op.name} at {op.location}, in {op.out}" for op in ops if op.nonfinite), ""),
        odd=list(dict.fromkeys(kernel.odd for kernel in odd)),
        odd_share=_share(sum(kernel.seconds for kernel in odd), total),
    )


def gradients(
    output: torch.Tensor, first: torch.Tensor, scale: float | None, unscaled: torch.Tensor | None
) -> Gradients:
    """Count a training step's gradients that a variant loses.

    `output`, `first`, `unscaled`: vectors as `UserStep.output` gives them, loss first: the variant's, float32's, and
    the variant's without its GradScaler. `scale`: the GradScaler's, None without one.
    """
    variant, base = output[1:], first[1:]
    nonfinite = int((base.isfinite() & ~variant.isfinite()).sum())
    lost, bare = (None if one is None else int(((one[1:] == 0) & (base != 0)).sum()) for one in (output, unscaled))
    return Gradients(base.numel(), lost or 0, nonfinite, scale, bare)


def _lowered(kernels: Sequence[ProfiledKernel], first: Sequence[ProfiledKernel]) -> list[ProfiledKernel]:
    """Return those of `first` that run in lower precision among `kernels`, matched in their order by name."""
    low = lambda kernel: any(name in LOW for name in kernel.given)  # noqa: E731
    ours = [kernel for kernel in kernels if not kernel.cast and not kernel.view]
    theirs = [kernel for kernel in first if not kernel.cast and not kernel.view]
    return [b for a, b in in_both(ours, theirs, lambda kernel: kernel.name) if low(a) and not low(b)]


def _count(casts: Iterable[CastRecord]) -> tuple[int, int]:
    moved = [cast.bytes for cast in casts]
    return len(moved), sum(moved)


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _odd(overload: str, args: tuple[Any, ...]) -> str:
    """Return the sizes of a product, where one of them is not a multiple of `TILE`."""
    base = overload.partition(".")[0]
    if base in _CONVOLUTIONS:
        sizes = tuple(args[1].shape[:2])  # its channels; nobody pads the pixels
        return f"{base} of {sizes[1]} to {sizes[0]} channels" if any(size % TILE for size in sizes) else ""
    if base not in _PRODUCTS:
        return ""
    one, two = [arg for arg in args if isinstance(arg, torch.Tensor)][-2:]
    shapes = tuple(one.shape), tuple(two.shape)
    if not any(size % TILE for shape in shapes for size in shape[-2:]):
        return ""
    return f"{base} {' @ '.join('×'.join(map(str, shape)) for shape in shapes)}"


# ---- all variants in turns

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

    def values(self, first: UserStep) -> None:
        """Find what errors are measured against: float64, and float32 for gradients."""
        self._base, again = first.output(0), first.output(1)
        if relative_error(again, self._base) > _SAME:
            self._base = None
            self.advice.notes.append("the step draws random numbers, e.g. for dropout, so its errors are not known")
            return
        try:
            self._exact = UserStep(self.spec, FP64, "cpu").output()
        except Exception as error:  # a model may have float32 written into it
            self.advice.notes.append(f"errors are not known, as the step cannot be run in float64: {one_line(error)}")

    def group(self, compiler: str) -> None:
        """Measure the variants through a compiler."""
        if compiler == "compile":
            dynamo_config().recompile_limit = 64  # every variant is a program of the same code
        rounds = self.measure(STEP, compiler)
        if _TINY in rounds.samples:
            self.advice.tiny = statistics.median(rounds.samples.pop(_TINY)) / ADDS
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
            out[_TINY] = Timed(tiny(self.device))
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
        first: list[ProfiledKernel] = []
        for name, step in self._steps.items():
            if name not in rounds.samples or name.endswith(AA):
                continue
            try:
                kernels, trace = look(step, self.device, statistics.median(rounds.samples[name]))
                first = first or kernels
                looked_at = asdict(seen(kernels, first, trace.ops))
                looked_at["gradients"] = self._gradients(name, step)
                if (peak := peak_memory(step, self.device, "eager")) is not None:
                    rounds.facts[name]["memory"] = peak
            except Exception as error:  # what is looked at runs under two modes, which an op may refuse
                found.notes.append(f"{name} could not be looked at op by op: {one_line(error)}")
                continue
            found.seen[name] = looked_at
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
        return asdict(gradients(step.output(), self._base, scale, unscaled))


def _variants(device: Device, platform: str) -> list[Precision]:
    """Return float32, its A/A baseline, and the variants that are compared with them."""
    names = ["tf32"] if device.type == "cuda" else ["fp32-default"] if platform == "tpu" else []
    names += [f"{dtype}{kind}" for kind in ("", "-native") for dtype in ("bf16", "fp16") if dtype in device.amp_dtypes]
    fp32 = PRECISIONS["fp32"]
    return [fp32, replace(fp32, name="fp32" + AA), *(PRECISIONS[name] for name in names)]


if __name__ == "__main__":
    main()
