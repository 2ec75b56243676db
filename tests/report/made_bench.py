"""Made-up benchmark files to fill a site with: workloads on devices, run group by run group."""

import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from ampcheck.bench.core.model import Group, Rounds, VariantResult
from ampcheck.bench.run.runfile import BenchWriter
from tests.report.made_runs import HEADERS

START = datetime(2026, 11, 20, 3)
PLAIN: dict[str, float] = {"fp32": 1.0, "fp32-aa": 1.0, "bf16": 3.0, "fp16": 0.5}
"""Variants, and how fast each is beside the first."""


def day(number: int) -> str:
    return (START + timedelta(days=number)).isoformat() + "+00:00"


def made_group(
    workload: str = "mm-512",
    device: str = "cpu",
    *,
    seconds: float = 1e-3,
    variants: Mapping[str, float] = PLAIN,
    compiler: str = "eager",
    noise: Callable[[], float] = lambda: 1.0,
    **fields: Any,
) -> Group:
    """A group whose variants run at some speeds; `noise` multiplies each time."""
    base, _, size = workload.rpartition("-")
    about = {"base": base, "size": int(size)} if size.isdigit() else {}
    common = {"family": "matmul", "kind": "op", "policy": "downcast", "flops": 2.7e8, **about, **fields}
    group = Group(workload, device=device, compiler=compiler, **common)
    for name, speed in variants.items():
        time = seconds / speed * noise()
        verdict = "faster" if speed > 1.02 else "slower" if speed < 1 / 1.02 else "same"
        variant = VariantResult(name, verdict if group.variants else "first", seconds=time)
        variant.low, variant.high, variant.rounds, variant.processes = time * 0.98, time * 1.03, 45, 5
        variant.error = {"fp32": 1.2e-7, "fp32-aa": 1.2e-7}.get(name, 2.9e-3)
        variant.memory, variant.precision_check = 3 << 20, f"the kernel received {name}"
        variant.flops_per_second, variant.intensity = group.flops / time, 42.0 if "bf" in name else 21.0
        if group.variants:
            variant.speed, variant.speed_low, variant.speed_high = speed, speed * 0.99, speed * 1.01
        group.variants.append(variant)
    return group


def rounds_of(group: Group) -> list[Rounds]:
    """Return what five processes would have measured for these medians, with 1 % of noise."""
    chance = random.Random(f"0{group.key}")
    out = []
    for process in range(5):
        samples = {v.name: [v.seconds * chance.gauss(1, 0.01) for _ in range(9)] for v in group.variants if v.seconds}
        out.append(Rounds(group.workload, group.device, group.compiler, process, samples))
    return out


def written(
    path: Path, groups: Iterable[Group], rounds: Sequence[Rounds] | None = None, *, footer: bool = True, **header: Any
) -> Path:
    """A benchmark file of some groups; with `rounds` None, the rounds that their medians would have had."""
    groups = list(groups)
    writer = BenchWriter(path, {**HEADERS["bench"], **header})
    for measured in [r for group in groups for r in rounds_of(group)] if rounds is None else rounds:
        writer.rounds(measured)
    writer.close(groups, {"seconds": 12.5})
    if not footer:
        path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    return path


def two_run_groups(folder: Path) -> list[Path]:
    """Two run groups with each kind of change, and everything that a page has to mark."""
    folder.mkdir(parents=True, exist_ok=True)
    sizes = {16: 0.2, 64: 0.4, 256: 3.3, 1024: 4.1}
    ladder, now = (
        [made_group(f"mm-{n}", seconds=n**2 * 1e-8, variants={**PLAIN, "bf16": s}) for n, s in sizes.items()]
        for _ in range(2)
    )
    steps = made_group("mlp-step", seconds=2e-2, kind="step", family="steps", policy="mixed")
    tiny = made_group("enter", variants={"fresh": 1.0, "reused": 1.7}, kind="overhead", family="overhead", flops=0)
    tpu = made_group("mm-1024", "tpu-v5e", variants={"fp32-default": 1, "bf16": 2}, estimate=True, compiler="jit")
    tpu.note = "From the compiler's cost model"
    for variant in tpu.variants:
        variant.low = variant.high = variant.speed_low = variant.speed_high = None
    old = [*ladder, steps, tiny, tpu, made_group("gone-op", family="other")]
    fp16 = old[4].variants[3]
    fp16.verdict, fp16.reason = "invalid", "the kernel received fp32"
    now += [made_group("mlp-step", seconds=2.6e-2, kind="step", family="steps", policy="mixed"), tiny, tpu]
    now += [made_group("new-op", "virtual:<b>x</b>", family="other")]
    bad, absent, flipped = now[0].variants[3], now[1].variants[3], now[2].variants[2]
    bad.verdict, bad.reason = "invalid", "no cast was seen: <img src=x onerror=alert(1)> the kernel received fp32"
    absent.verdict, absent.reason, absent.seconds = "not measured", "RuntimeError: not implemented for 'Half'", None
    flipped.verdict, flipped.speed, flipped.speed_low, flipped.speed_high = "slower", 0.6, 0.59, 0.61
    flipped.seconds = (now[2].variants[0].seconds or 0) / 0.6
    flipped.low, flipped.high = flipped.seconds * 0.98, flipped.seconds * 1.03
    peaks = {"cpu": {"fp32": 6e11, "bf16": 2.4e12, "bandwidth": 2e10}}
    first = written(folder / "1.jsonl", old, started=day(0))
    return [first, written(folder / "2.jsonl", now, started=day(1), ceilings=peaks)]


def many_run_groups(folder: Path, run_groups: int, groups: int) -> list[Path]:
    """Many run groups of groups with four variants each and 2 % of noise; one group in ten makes a step halfway."""
    folder.mkdir(parents=True, exist_ok=True)
    chance = random.Random(0)
    paths = []
    for run_group in range(run_groups):
        found = []
        for number in range(groups):
            slow = 1.3 if number % 10 == 0 and run_group >= run_groups // 2 else 1.0
            device, base = ("cpu", "jax", "cuda")[number % 3], ("mm", "conv2d", "layer_norm", "sdpa")[number // 3 % 4]
            name, seconds = f"{base}-{16 << number // 12}", 1e-6 * (number + 1) * slow
            found.append(made_group(name, device, seconds=seconds, noise=lambda: chance.gauss(1, 0.02), family=base))
        versions = {"torch": "2.12.0" if run_group < run_groups // 3 else "2.13.0", "jax": "0.10.2"}
        # Raw samples of the newest two run groups only: those of the others are not used.
        rounds = None if run_group >= run_groups - 2 else []
        path = folder / f"{run_group:03}.jsonl"
        paths.append(written(path, found, rounds, started=day(run_group - run_groups), versions=versions))
    return paths
