"""Verify the measuring: time the same variant twice, and the same ratio by another tool.

ampcheck bench verify
"""

from __future__ import annotations

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.utils.benchmark

from ampcheck.bench.core.model import PRECISIONS, Variant, kind_of
from ampcheck.bench.core.prepare import prepare
from ampcheck.bench.core.statistics import BOUNDS
from ampcheck.bench.core.timing import Timed, calibrate, clock, interleave, warm_up
from ampcheck.bench.run.group import FULL
from ampcheck.bench.run.worker import pin
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.registry import select

WORKLOADS = (
    ("cpu", "eager", "mm-512"),
    ("cpu", "eager", "mlp-step"),
    ("jax", "jit", "mm-512"),
    ("jax", "jit", "mlp-step"),
)
"""Device, compiler and workload of what is measured: an op and a step on each device that every machine has."""

_ROUNDS = FULL.processes * FULL.rounds
"""As many rounds as a full run has of each group."""

AGREE = 0.03
"""The distance that a ratio may have from that of `torch.utils.benchmark`."""


@dataclass(frozen=True, slots=True)
class Verification:
    """The result of one check. `value` and `bound` are shares; `ok` whether the promise holds."""

    what: str
    value: float
    bound: float
    ok: bool


def same_variant(device: str, compiler: str, name: str, runs: int, rounds: int, target: float) -> Verification:
    """Check that the ratio of a variant to itself stays within the bound of its kind in 95 % of some runs."""
    (chosen,) = select([device])
    workload, timer = catalogue()[name], clock(chosen)
    bound = BOUNDS[kind_of(workload)]
    with chosen.activate():
        pair = [prepare(workload, Variant(PRECISIONS["fp32"]), chosen.type, compiler) for _ in range(2)]
        for ready in pair:
            warm_up(timer, ready.call)
        count = calibrate(timer, pair[0].call, target)
        variants = {str(i): Timed(ready.call, ready.restore, count) for i, ready in enumerate(pair)}
        ratios = []
        for seed in range(runs):
            wall, _ = interleave(timer, variants, rounds, seed)
            ratios.append(statistics.median(a / b for a, b in zip(wall["0"], wall["1"], strict=True)))
    share = sum(abs(ratio - 1) <= bound for ratio in ratios) / runs
    return Verification(
        f"{device}/{compiler}/{name} beside itself within ±{bound:.0%}, share of runs", share, 0.95, share >= 0.95
    )


def other_tool(device: str, compiler: str, name: str, rounds: int, target: float) -> Verification:
    """Compare our ratio of float32 to bf16 with that of `torch.utils.benchmark`, measured in turns with it."""
    (chosen,) = select([device])
    workload, timer = catalogue()[name], clock(chosen)
    seconds: dict[tuple[str, int], list[float]] = {(tool, v): [] for tool in ("ours", "other") for v in (0, 1)}
    with chosen.activate():
        ready = [prepare(workload, Variant(PRECISIONS[p]), chosen.type, compiler) for p in ("fp32", "bf16")]
        counts = []
        for one in ready:
            warm_up(timer, one.call)
            counts.append(calibrate(timer, one.call, target))
        order, shuffled = list(seconds), random.Random(0)
        for _ in range(rounds):
            # Else what runs before a variant, and how hot it leaves the core, is part of its time.
            shuffled.shuffle(order)
            for tool, variant in order:
                one, count = ready[variant], counts[variant]
                if tool == "ours":
                    wall, _ = interleave(timer, {"one": Timed(one.call, one.restore, count)}, 1, 0)
                    seconds[tool, variant].append(wall["one"][0])
                    continue
                # It asks the CUDA runtime for the time by itself; with another device it must be given a clock.
                other_timer = torch.utils.benchmark.Timer(
                    "wait(call())", globals={"call": one.call, "wait": timer.wait}, timer=time.perf_counter
                )
                seconds[tool, variant].append(other_timer.timeit(count).median)
    ours, theirs = (
        [a / b for a, b in zip(seconds[tool, 0], seconds[tool, 1], strict=True)] for tool in ("ours", "other")
    )
    mine, other = statistics.median(ours), statistics.median(theirs)
    far = abs(mine / other - 1)
    what = f"{device}/{compiler}/{name}: bf16 is {mine:.3f} times as fast, {other:.3f} by torch.utils.benchmark; apart"
    return Verification(what, far, AGREE, far <= AGREE)


def verify(device: str, compiler: str, name: str, runs: int = 20, rounds: int = _ROUNDS) -> Iterator[Verification]:
    """Both checks of a workload, as they end."""
    yield same_variant(device, compiler, name, runs, rounds, 0.02)
    yield other_tool(device, compiler, name, rounds, 0.02)


def main(chosen: Sequence[str]) -> int:
    """Print both checks of a workload, or of each in a separate process; 0 where every promise holds, else 1.

    A process measures one workload, as in a benchmark: no library's threads wait for work beside another's.
    """
    if not chosen:
        codes = [
            subprocess.run([sys.executable, "-m", __spec__.name, *one], check=False).returncode for one in WORKLOADS
        ]
        return max(codes)
    pin(1, 0)
    held = True
    device, compiler, name = chosen
    for found in verify(device, compiler, name):
        held &= found.ok
        print(
            f"{'ok  ' if found.ok else 'FAIL'} {found.what} {found.value:.3f} (promised {found.bound:.2f})", flush=True
        )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
