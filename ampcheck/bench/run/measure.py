"""Measure groups in this process: make their variants ready, check their precision, and time them in turns.

    python -m ampcheck.bench.run.measure < plan.json

takes a plan from standard input and gives JSON lines: of each group as it begins and ends, and of each variant as it is
prepared, called and its precision checked. A group that ends the process costs that group; `run` starts another
process for the rest.
"""

import contextlib
import gc
import itertools
import json
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch

from ampcheck.bench.core.model import AA, BenchPlan, OverheadWorkload, Rounds, Workload
from ampcheck.bench.core.precision_check import check_precision
from ampcheck.bench.core.prepare import Prepared, prepare, reference
from ampcheck.bench.core.timing import Timed, calibrate, clock, interleave, warm_up
from ampcheck.bench.run.variants import COMPILED_AHEAD, variants
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.base import Device
from ampcheck.devices.registry import select
from ampcheck.errors import one_line
from ampcheck.observe.closeness import relative_error
from ampcheck.observe.torch_private import reset_dynamo
from ampcheck.runner.worker import Channel

_CALLS = 12
"""The calls at most that make a variant ready: its first ones, output, precision, memory and calibration."""
_CHECK = 4
"""The calls at most that check a variant's precision."""

Say = Callable[[str, str], None]
"""Is told of a variant and what is done with it: "prepare", "compile", "call" (a single one, with nothing to compile),
"check_precision"; or of none and "rounds"."""


class Measurer:
    """Measures the groups of a plan on its device."""

    def __init__(self, plan: BenchPlan) -> None:
        self.plan = plan
        (self.device,) = select([plan.device], plan.modules)
        self.timer = clock(self.device)
        self._float64: tuple[str, torch.Tensor] | None = None
        self.timed: dict[str, Timed] = {}
        """The variants of the group that was measured last, ready to be called."""

    def measure(
        self,
        name: str,
        compiler: str,
        say: Say = lambda variant, what: None,
        given_up: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> Rounds:
        """Measure a group. What cannot be measured is in `failed`; nothing is raised for what a device cannot do.

        `given_up`: variants that are not tried, as in `BenchPlan`.
        """
        found = Rounds(name, self.plan.device, compiler, self.plan.process)
        overhead = isinstance(catalogue().get(name), OverheadWorkload)
        timer = clock(self.device, overhead) if overhead else self.timer
        torch.manual_seed(0)
        calls = self._ready(found, say, given_up or {})
        timed = self.timed = {}
        for variant, timing in calls.items():
            try:
                if timing.before is not None:
                    timing.before()
                first = warm_up(timer, timing.call)
                timing.count = calibrate(timer, timing.call, self.plan.target)
            except Exception as error:  # a device may lack anything; the others are measured all the same
                found.failed[variant] = one_line(error)
                continue
            found.facts.setdefault(variant, {}).setdefault("first", first)
            timed[variant] = timing
        if timed:
            say("", "rounds")
            seed = 1000 * self.plan.process + sum(map(ord, name))
            found.samples, found.cpu, late = interleave(timer, timed, self.plan.rounds, seed)
            blocked(late, found)
        for variant, samples in found.samples.items():
            facts = found.facts[variant]
            if compiler in ("compile", "jit"):
                facts["compile"] = max(facts["first"] - statistics.median(samples), 0.0)
        return found

    @property
    def platform(self) -> str:
        """The platform of the device, e.g. "cpu" or "tpu"."""
        return self.device.describe().get("platform", self.device.type)

    def _ready(self, found: Rounds, say: Say, given_up: Mapping[str, Mapping[str, Any]]) -> dict[str, Timed]:
        """Return the variants of a group, ready; those that cannot be are noted in `found`.

        A variant that takes too long for its rounds is given up with what its calls took at least. Without the first
        variant there is nothing to compare with, so the others are not tried either.
        """
        workload, compiler, timer = catalogue()[found.workload], found.compiler, self.timer
        if isinstance(workload, OverheadWorkload):
            made = workload.make(self.device.type)
            first_name = next(iter(made))  # which has an A/A baseline
            return {name: Timed(call) for name, call in {**made, first_name + AA: made[first_name]}.items()}
        compiles = compiler != "eager" or self.device.type not in COMPILED_AHEAD
        chosen, without = variants(workload, self.device.name, self.platform)
        found.failed |= without
        exact = self._reference(workload) if self.plan.facts else None
        base: torch.Tensor | None = None
        out: dict[str, Timed] = {}
        for variant in chosen:
            if variant.name in given_up:
                found.failed[variant.name] = str(given_up[variant.name]["reason"])
                found.facts[variant.name] = {"at_least": given_up[variant.name].get("at_least")}
                continue
            reset_dynamo()
            try:
                say(variant.name, "prepare")
                ready = prepare(workload, variant, self.device.type, compiler)
                say(variant.name, "compile" if compiles else "call")
                first = warm_up(timer, ready.call, 1)
                taken = [] if compiles else [first]
                while len(taken) < 2:
                    say(variant.name, "call")
                    taken.append(timer.sample(ready.call, 1)[0])
                found.facts[variant.name] = {"first": first}
                hurried = self._hurried(variant.name, min(taken), found)
                if hurried and variant is chosen[0]:
                    break
                if hurried and _CHECK * min(taken) > 2 * self.plan.patience:
                    continue
                say(variant.name, "check_precision")
                if exact is not None and not variant.aa:
                    output = ready.output()
                    base = output if base is None else base
                    shown = check_precision(ready, variant, workload, self.device, compiler, base, output, exact)
                    facts = {"error": relative_error(output, exact), "precision_check": shown.text}
                    found.facts[variant.name] |= facts | ({"invalid": shown.invalid} if shown.invalid else {})
                    if not hurried and (peak := peak_memory(ready, self.device, compiler)) is not None:
                        found.facts[variant.name]["memory"] = peak
            except Exception as error:  # a device may lack anything
                found.failed[variant.name] = one_line(error)
                continue
            if not hurried:
                out[variant.name] = Timed(ready.call, ready.restore, calls=ready.calls)
        return out

    def _reference(self, workload: Workload) -> torch.Tensor:
        """Return the result in float64, kept for the next compiler; on the CPU where a GPU lacks room."""
        if self._float64 is None or self._float64[0] != workload.name:
            self._float64 = None
            try:
                exact = reference(workload, "cuda" if self.device.type == "cuda" else "cpu")
            except torch.OutOfMemoryError:
                exact = reference(workload)
            self._float64 = workload.name, exact
        return self._float64[1]

    def _hurried(self, variant: str, seconds: float, found: Rounds) -> bool:
        """Return whether a variant's calls are too slow for its rounds, and note it."""
        rounds, patience = self.plan.rounds, self.plan.patience
        if (_CALLS + 2 * rounds) * seconds <= patience:
            return False
        found.facts[variant]["at_least"] = seconds
        found.failed[variant] = (
            f"neither of two calls took less than {seconds:.3g} s; {patience:.0f} s, which a variant may take, are not "
            f"enough for {rounds} rounds"
        )
        return True


def blocked(late: Mapping[str, Sequence[str]], found: Rounds) -> None:
    """Make variants invalid that were not waited for in most rounds; one slow read may be anything.

    `late`: by variant, what `Clock.late` said of each sample as soon as it was taken.
    """
    for variant, reasons in late.items():
        some = [reason for reason in reasons if reason]
        if 2 * len(some) > len(reasons):
            found.facts[variant]["invalid"] = some[-1]


def peak_memory(ready: Prepared, device: Device, compiler: str) -> int | None:
    """Bytes of tensors that a call holds at most beyond those it began with, or None where nobody counts them.

    On the CPU from the profiler's allocations; on CUDA from the allocator; of a jitted program what XLA plans for its
    temporaries and new outputs. It is found in a separate call, outside of any timing.
    """
    if compiler == "jit":
        plan = ready.jitted.lower(*ready.arguments).compile().memory_analysis()
        if plan is None:
            return None
        fresh = plan.output_size_in_bytes - plan.alias_size_in_bytes
        return int(plan.temp_size_in_bytes + max(fresh, 0))
    if device.type == "cuda":
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        ready.eager() if compiler == "graph" else ready.call()  # a graph has its memory before it is replayed
        torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)
    if device.type != "cpu":
        return None
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profiler:
        ready.call()
    assert profiler.profiler is not None
    events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    held = itertools.accumulate(event.nbytes() for event in sorted(events, key=lambda event: event.start_ns()))
    return int(max(held, default=0))


# ---- the process


def main() -> None:
    """Measure what the plan on standard input says."""
    plan = BenchPlan(**json.load(sys.stdin))
    channel = Channel()
    pin(plan.threads, plan.process, plan.device)
    warnings.simplefilter("ignore")  # a compiler's advice does not matter here
    measurer, given_up = Measurer(plan), plan.given_up

    def say(variant: str, what: str) -> None:
        channel.send({"variant": [variant, what]})

    with measurer.device.activate():
        for workload, compiler in plan.tasks:
            channel.send({"begin": [workload, compiler]})
            found = measurer.measure(workload, compiler, say, given_up)
            channel.send({"rounds": asdict(found)})
            given_up = {}
            gc.collect()


def environment(threads: int) -> dict[str, str]:
    """Return the environment of a worker: as many threads everywhere, and no line of Python's that is not flushed."""
    flags = os.environ.get("XLA_FLAGS", "")
    if threads == 1:
        flags += " --xla_cpu_multi_thread_eigen=false"
    named = {name: str(threads) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")}
    return {**os.environ, **named, "XLA_FLAGS": flags.strip(), "PYTHONUNBUFFERED": "1"}


def pin(threads: int, process: int, device: str) -> None:
    """Keep the process on as many cores as it has threads, and torch to as many threads.

    Not for CUDA: there the GPU computes, and compilers' processes and the backward pass's thread would be kept
    on the core that launches.
    """
    if hasattr(os, "sched_getaffinity") and not device.endswith("cuda"):
        cores = sorted(os.sched_getaffinity(0))
        if threads < len(cores):
            os.sched_setaffinity(0, {cores[(process + i) % len(cores)] for i in range(threads)})
    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # it can be set once, before any parallel work
        torch.set_num_interop_threads(1)


if __name__ == "__main__":
    main()
