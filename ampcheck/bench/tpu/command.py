"""Estimate the cost of a workload on a TPU with the TPU's compiler: no TPU is needed, and nothing is measured.

The program is that of `ampcheck.jax_device.jit`; libtpu compiles it for a chip that is described, not there.
docs/benchmarks.md says what the figures mean.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import math
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence

from ampcheck.bench.core.model import PRECISIONS, Group, OverheadWorkload, VariantResult, Workload
from ampcheck.bench.run.group import environment
from ampcheck.bench.run.summary import estimated_beside_default, group_of
from ampcheck.bench.tpu.estimate import TPUS, Chip, Estimate, available, chip, estimate, judge, variant_result
from ampcheck.bench.workloads import catalogue
from ampcheck.errors import UsageError, one_line
from ampcheck.runner.record import first_line
from ampcheck.runner.worker import Channel, Worker

__all__ = ["TPUS", "Chip", "Estimate", "available", "chip", "estimate", "groups"]

NOTE = "an estimate of the TPU compiler, not a measurement"
VARIANTS = ("fp32", "fp32-default", "bf16", "fp16", "bf16-native")
LIMIT = 900.0
"""Seconds that one program may take; float32 in six passes takes the compiler longest, minutes for a step."""

Task = tuple[str, str]
"""A workload's name and a precision's."""


def groups(
    workloads: Sequence[Workload],
    tpu: str,
    progress: Callable[[str], None],
    limit: float = LIMIT,
    until: float = math.inf,
) -> list[Group]:
    """Estimate each workload in each precision; the programs are compiled in a separate process, one by one.

    Overhead has no program and is left out. A variant that cannot be compiled, ends the process or takes too long is
    "not measured" with the reason.

    Args:
        workloads: of the catalogue, as the other process finds them by name.
        tpu: "v5e" or "tpu-v5e"; see `TPUS`.
        progress: gets a line as each program begins.
        limit: seconds that one program may take.
        until: when the whole has to end, by `time.monotonic`; programs that are not compiled then are not measured.

    Raises UsageError for an unknown TPU, where `available` says why not, and for a workload of no catalogue.
    """
    from ampcheck.bench.run.variants import variants  # noqa: PLC0415  # loads torch

    made = chip(tpu)
    why = available()
    if why is not None:
        raise UsageError(why)
    name = tpu.removeprefix("tpu-")
    out: list[Group] = []
    left: list[Task] = []
    for workload in workloads:
        if isinstance(workload, OverheadWorkload):
            continue
        if catalogue().get(workload.name) is not workload:
            raise UsageError(f"workload {workload.name!r} is not in the catalogue, so another process cannot find it")
        chosen, without = variants(workload, "jax", "jit", "tpu")
        there = {variant.name for variant in chosen if not variant.aa}
        group = group_of(workload, f"tpu-{name}", "jit")
        group.estimate, group.note = True, NOTE + (f"; of {made.note}" if made.note else "")
        for precision in VARIANTS:
            if precision in there:
                left.append((workload.name, precision))
            elif precision in without:
                group.variants.append(VariantResult(precision, "not measured", without[precision]))
        out.append(group)
    found = dict(_results(name, left, progress, limit, until))
    for group in out:
        group.variants += [variant for (workload_name, _), variant in found.items() if workload_name == group.workload]
        group.variants.sort(key=lambda variant: VARIANTS.index(variant.name))
        judge(group.variants)
        estimated_beside_default(group)
    return out


def _results(
    tpu: str, tasks: Sequence[Task], progress: Callable[[str], None], limit: float, until: float = math.inf
) -> Iterator[tuple[Task, VariantResult]]:
    """Each task's variant as it is ready; a process that ends early costs the variant that it was at."""
    left, done = list(tasks), 0
    while left:
        if time.monotonic() >= until:
            yield left.pop(0), VariantResult(tasks[done][1], "not measured", "left out, as the run had to end")
            done += 1
            continue
        command = [sys.executable, "-m", "ampcheck.bench.tpu.command"]
        with Worker(command, {**environment(1), "JAX_PLATFORMS": "cpu"}, {"tpu": tpu, "tasks": left}) as worker:
            ended = ""
            progress(_line(tpu, tasks, done))
            while True:
                try:
                    line = worker.hear(min(limit, until - time.monotonic()))
                except TimeoutError:
                    ended = f"took more than {limit:.0f} s to compile"
                    if time.monotonic() >= until:
                        ended = "was not compiled when the run had to end"
                    break
                if line is None:
                    break
                yield left.pop(0), VariantResult(**line)
                done += 1
                progress(_line(tpu, tasks, done))
            if left:
                ended = ended or f"the process ended with {worker.reason()}"
                yield left.pop(0), VariantResult(tasks[done][1], "not measured", ended)
                done += 1


def _line(tpu: str, tasks: Sequence[Task], done: int) -> str:
    if done == len(tasks):
        return f"tpu-{tpu}: {done} programs estimated"
    workload, precision = tasks[done]
    return f"{done + 1} of {len(tasks)}: tpu-{tpu}/jit/{workload} {precision}"


def main() -> None:
    """Estimate what standard input says: {"tpu": a name, "tasks": pairs of workload and precision}."""
    given = json.load(sys.stdin)
    channel = Channel()
    warnings.simplefilter("ignore")
    for workload, precision in given["tasks"]:
        variant = estimated(workload, precision, given["tpu"])
        channel.send(dataclasses.asdict(variant))
        gc.collect()


def estimated(workload: str, precision: str, tpu: str) -> VariantResult:
    """One variant, "not measured" where it cannot be compiled."""
    of, chosen = catalogue()[workload], PRECISIONS[precision]
    try:
        return variant_result(of, chosen, estimate(of, chosen, tpu), chip(tpu))
    except Exception as error:  # the compiler may refuse anything, and the next program is to be tried
        return VariantResult(precision, "not measured", first_line(one_line(error)))


if __name__ == "__main__":
    main()
