"""The process that measures: takes a plan from standard input, gives JSON lines: of each group as it begins and ends,
and of each variant as it is prepared, called and its precision checked.

    python -m ampcheck.bench.run.worker < plan.json

A group that ends the process costs that group; `run` starts another worker for the rest.
"""

import contextlib
import gc
import json
import os
import sys
import warnings
from dataclasses import asdict

from ampcheck.bench.core.model import BenchPlan, Rounds
from ampcheck.runner.worker import Channel


def main() -> None:
    """Measure what the plan on standard input says."""
    plan = BenchPlan(**json.load(sys.stdin))
    channel = Channel()
    pin(plan.threads, plan.process, plan.device)
    warnings.simplefilter("ignore")  # a compiler's advice does not matter here
    from ampcheck.bench.run.measure import Measurer  # noqa: PLC0415  # loads torch

    measurer = Measurer(plan)
    given_up = plan.given_up

    def say(variant: str, what: str) -> None:
        channel.send({"variant": [variant, what]})

    with measurer.device.activate():
        for workload, compiler in plan.tasks:
            channel.send({"begin": [workload, compiler]})
            found = measurer.measure(workload, compiler, say, given_up)
            channel.send({"rounds": asdict(found)})
            given_up = {}
            gc.collect()


def pin(threads: int, process: int, device: str) -> None:
    """Keep the process on as many cores as it has threads, and torch to as many threads.

    Not for CUDA: there the GPU computes, and compilers' processes and the backward pass's thread would be kept
    on the core that launches.
    """
    if hasattr(os, "sched_getaffinity") and not device.endswith("cuda"):
        cores = sorted(os.sched_getaffinity(0))
        if threads < len(cores):
            os.sched_setaffinity(0, {cores[(process + i) % len(cores)] for i in range(threads)})
    import torch  # noqa: PLC0415  # torch only in the process that measures

    torch.set_num_threads(threads)
    with contextlib.suppress(RuntimeError):  # it can be set once, before any parallel work
        torch.set_num_interop_threads(1)


def failed(task: tuple[str, str], plan: BenchPlan, reason: str) -> Rounds:
    """Return the rounds of a group whose process ended: without its first variant, the others have no figures."""
    return Rounds(task[0], plan.device, task[1], plan.process, failed={"fp32": reason})


if __name__ == "__main__":
    main()
