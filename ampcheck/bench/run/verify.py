"""Verify the measuring: time the same variant twice, and the same ratio by another tool.

ampcheck bench verify
"""

import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from functools import partial

import torch.utils.benchmark

from ampcheck.bench.core.model import PRECISIONS, Workload
from ampcheck.bench.core.prepare import prepare
from ampcheck.bench.core.statistics import BOUNDS
from ampcheck.bench.core.timing import Timed, calibrate, clock, interleave, warm_up
from ampcheck.bench.run.group import FULL
from ampcheck.bench.run.measure import pin
from ampcheck.bench.workloads import catalogue
from ampcheck.devices.base import Device
from ampcheck.devices.registry import known, select

WORKLOADS = (
    ("cpu", "eager", "mm-512"),
    ("cpu", "eager", "mlp-step"),
    ("jax", "jit", "mm-512"),
    ("jax", "jit", "mlp-step"),
    ("cuda", "eager", "mm-4096"),
    ("cuda", "eager", "mlp-step"),
)
"""Device, compiler and workload of what is measured: an op and a step on each device that this machine has."""

_ROUNDS = FULL.processes * FULL.rounds
"""As many rounds as a full run has of each group."""
_TARGET = 0.02
"""Seconds of a sample."""

AGREE = 0.03
"""The distance that a ratio may have from that of `torch.utils.benchmark`."""

Verification = tuple[str, float, float, bool]
"""The result of one check: what it is, the share that was found, the share that is promised, whether that holds."""


def _timed(workload: Workload, precision: str, device: Device, compiler: str) -> Timed:
    """Return a variant ready to be timed: it is compiled, and a sample takes about `_TARGET` seconds."""
    ready, timer = prepare(workload, PRECISIONS[precision], device.type, compiler), clock(device)
    warm_up(timer, ready.call)
    return Timed(ready.call, ready.restore, calibrate(timer, ready.call, _TARGET), ready.calls)


def _median_ratio(one: Sequence[float], other: Sequence[float]) -> float:
    return statistics.median(a / b for a, b in zip(one, other, strict=True))


def same_variant(device: str, compiler: str, name: str, runs: int) -> Verification:
    """Check that the ratio of a variant to itself stays within the bound of its kind in 95 % of some runs."""
    (chosen,) = select([device])
    workload = catalogue()[name]
    bound = BOUNDS[workload.kind]
    with chosen.activate():
        variants = {side: _timed(workload, "fp32", chosen, compiler) for side in "ab"}
        variants["b"].count = variants["a"].count
        walls = [interleave(clock(chosen), variants, _ROUNDS, seed)[0] for seed in range(runs)]
    share = sum(abs(_median_ratio(wall["a"], wall["b"]) - 1) <= bound for wall in walls) / runs
    what = f"{device}/{compiler}/{name} beside itself within ±{bound:.0%}, share of runs"
    return what, share, 0.95, share >= 0.95


def other_tool(device: str, compiler: str, name: str) -> Verification:
    """Compare our ratio of float32 to bf16 with that of `torch.utils.benchmark`, measured in turns with it."""
    (chosen,) = select([device])
    workload, timer = catalogue()[name], clock(chosen)
    seconds: dict[tuple[str, str], list[float]] = {(t, p): [] for t in ("ours", "other") for p in ("fp32", "bf16")}
    with chosen.activate():
        timed = {precision: _timed(workload, precision, chosen, compiler) for precision in ("fp32", "bf16")}
        order, shuffled = list(seconds), random.Random(0)
        for _ in range(_ROUNDS):
            # Else what runs before a variant, and how hot it leaves the core, is part of its time.
            shuffled.shuffle(order)
            for tool, precision in order:
                one = timed[precision]
                if tool == "ours":
                    wall, _, _ = interleave(timer, {"one": one}, 1, 0)
                    seconds[tool, precision] += wall["one"]
                    continue
                # It asks the CUDA runtime for the time by itself; with another device it must be given a clock.
                other_timer = torch.utils.benchmark.Timer(
                    "wait(call())", globals={"call": one.call, "wait": timer.wait}, timer=time.perf_counter
                )
                seconds[tool, precision].append(other_timer.timeit(one.count).median)
    mine, other = (_median_ratio(seconds[tool, "fp32"], seconds[tool, "bf16"]) for tool in ("ours", "other"))
    far = abs(mine / other - 1)
    what = f"{device}/{compiler}/{name}: bf16 is {mine:.3f} times as fast, {other:.3f} by torch.utils.benchmark; apart"
    return what, far, AGREE, far <= AGREE


def main(chosen: Sequence[str]) -> int:
    """Print both checks of a workload, or of each in a separate process; 0 where every promise holds, else 1.

    A process measures one workload, as in a benchmark: no library's threads wait for work beside another's.
    """
    if not chosen:
        codes = [
            subprocess.run([sys.executable, "-m", __spec__.name, *one], check=False).returncode
            for one in WORKLOADS
            if known()[one[0]].unavailable() is None
        ]
        return max(codes)
    held = True
    device, compiler, name = chosen
    pin(1, 0, device)
    for check in (partial(same_variant, runs=20), other_tool):
        what, value, bound, ok = check(device, compiler, name)
        held &= ok
        print(f"{'ok  ' if ok else 'FAIL'} {what} {value:.3f} (promised {bound:.2f})", flush=True)
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
