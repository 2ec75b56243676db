"""Measures the measuring: the same arm twice, and the same ratio by another tool.

ampcheck bench verify
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch.utils.benchmark

from ampcheck.bench.clocks import clock
from ampcheck.bench.model import PRECISIONS, Arm, kind_of
from ampcheck.bench.prepare import prepare
from ampcheck.bench.statistics import BOUNDS
from ampcheck.bench.timing import Timed, calibrate, interleave, warm_up
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.registry import select

WORKLOADS = (
    ("cpu", "eager", "mm-512"),
    ("cpu", "eager", "mlp-step"),
    ("jax", "jit", "mm-512"),
    ("jax", "jit", "mlp-step"),
)
"""Device, executor and workload of what is measured: an op and a step on each device that every machine has."""

AGREE = 0.03
"""How far a ratio may be from that of `torch.utils.benchmark`."""


@dataclass(frozen=True, slots=True)
class Found:
    """What one check found. `value` and `bound` are shares; `ok` whether the promise holds."""

    what: str
    value: float
    bound: float
    ok: bool


def same_arm(device: str, executor: str, name: str, runs: int, rounds: int, target: float) -> Found:
    """In how many of some runs the ratio of an arm to itself stays within the bound of its kind; 95 % is promised."""
    (chosen,) = select([device])
    workload, timer = catalogue()[name], clock(chosen)
    bound = BOUNDS[kind_of(workload)]
    with chosen.running():
        pair = [prepare(workload, Arm(PRECISIONS["fp32"]), chosen.type, executor) for _ in range(2)]
        for ready in pair:
            warm_up(timer, ready.call)
        count = calibrate(timer, pair[0].call, target)
        arms = {str(i): Timed(ready.call, ready.restore, count) for i, ready in enumerate(pair)}
        ratios = []
        for seed in range(runs):
            wall, _ = interleave(timer, arms, rounds, seed)
            ratios.append(statistics.median(a / b for a, b in zip(wall["0"], wall["1"], strict=True)))
    share = sum(abs(ratio - 1) <= bound for ratio in ratios) / runs
    return Found(
        f"{device}/{executor}/{name} beside itself within ±{bound:.0%}, share of runs", share, 0.95, share >= 0.95
    )


def other_tool(device: str, executor: str, name: str, rounds: int, target: float) -> Found:
    """How far our ratio of float32 to bf16 is from that of `torch.utils.benchmark`, measured in turns with it."""
    (chosen,) = select([device])
    workload, timer = catalogue()[name], clock(chosen)
    ours: list[float] = []
    theirs: list[float] = []
    with chosen.running():
        ready = [prepare(workload, Arm(PRECISIONS[p]), chosen.type, executor) for p in ("fp32", "bf16")]
        counts = []
        for one in ready:
            warm_up(timer, one.call)
            counts.append(calibrate(timer, one.call, target))
        for seed in range(rounds):
            arms = {
                str(i): Timed(one.call, one.restore, count)
                for i, (one, count) in enumerate(zip(ready, counts, strict=True))
            }
            wall, _ = interleave(timer, arms, 1, seed)
            ours.append(wall["0"][0] / wall["1"][0])
            # It asks the CUDA runtime for the time by itself; with a device that is neither it must be given a clock.
            means = [
                torch.utils.benchmark.Timer(
                    "wait(call())", globals={"call": one.call, "wait": timer.wait}, timer=time.perf_counter
                )
                .timeit(count)
                .median
                for one, count in zip(ready, counts, strict=True)
            ]
            theirs.append(means[0] / means[1])
    mine, other = statistics.median(ours), statistics.median(theirs)
    far = abs(mine / other - 1)
    what = f"{device}/{executor}/{name}: bf16 is {mine:.3f} times as fast, {other:.3f} by torch.utils.benchmark; apart"
    return Found(what, far, AGREE, far <= AGREE)


def verify(workloads: Sequence[tuple[str, str, str]] = WORKLOADS, runs: int = 20) -> Iterator[Found]:
    """Every check, as it ends."""
    for device, executor, name in workloads:
        yield same_arm(device, executor, name, runs, 9, 0.02)
        yield other_tool(device, executor, name, 15, 0.02)


def main() -> int:
    """Print each check; 0 where every promise holds, 1 where one does not."""
    held = True
    for found in verify():
        held &= found.ok
        print(
            f"{'ok  ' if found.ok else 'FAIL'} {found.what} {found.value:.3f} (promised {found.bound:.2f})", flush=True
        )
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
