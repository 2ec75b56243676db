"""Check that bfloat16 autocast on the jax device is faster than float32 on a CPU, with each call one XLA program.

    pytest bench/bench_jax_pays.py

XLA multiplies bfloat16 by the processor's own instructions only where a float32 result is asked for, so this is what
lowerings/accumulate.py is for. The casts of float32 inputs and the rounding of the result are part of the call. Both
sides run in turns in one process on one core, and the ratio of the lower quartiles of their CPU times is asserted: what
other processes do to the caches hits bfloat16 more, and never makes a call faster. Without the instructions
(avx512_bf16 or amx_bf16) there is nothing to gain.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import measured

pytest.importorskip("jax")

CPU = Path("/proc/cpuinfo")

PRELUDE = """
import json, os, statistics, time
os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
import torch
import ampcheck.jax_device as device
from bench.bench_jax_step import seconds
"""

PRODUCT = """
def variant(enabled):
    @device.jit
    def product(x, y):
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=enabled):
            return x @ y
    return lambda: device.to_jax(product(x, y)).block_until_ready()

torch.manual_seed(0)
x, y = torch.randn(1024, 1024, device="jax"), torch.randn(1024, 1024, device="jax")
low, full = variant(True), variant(False)
assert str(low().dtype) == "bfloat16" and str(full().dtype) == "float32"
"""

STEP = """
from ampcheck.bench.workloads.steps import multilayer
from bench.jax_steps import step_of

def variant(enabled):
    torch.manual_seed(0)
    step = step_of(multilayer(512, 4).to("jax"), enabled=enabled)
    return lambda: device.to_jax(step(x, y)).block_until_ready()

low, full = variant(True), variant(False)
x, y = torch.randn(256, 512, device="jax"), torch.randn(256, 512, device="jax")
losses = float(low()), float(full())
assert losses[0] != losses[1] and abs(losses[0] - losses[1]) < 1e-3 * losses[1], losses
"""


# Autocast's CPU seconds and float32's, the lower quartile each.
TIMED = """
pairs = [[seconds(call, clock=time.process_time) for call in (low, full)] for _ in range(61)]
print(json.dumps([statistics.quantiles(times)[0] for times in zip(*pairs)]))
"""


@pytest.mark.skipif(
    not CPU.exists() or not {"avx512_bf16", "amx_bf16"} & set(CPU.read_text().split()),
    reason="this processor does not multiply bfloat16",
)
@pytest.mark.parametrize(("name", "source", "least"), [("mm 1024", PRODUCT, 1.7), ("mlp step", STEP, 1.05)])
def test_autocast_pays(name: str, source: str, least: float, show: Callable[[str], None]) -> None:
    low, full = measured(PRELUDE + source + TIMED, JAX_PLATFORMS="cpu")
    show(f"{name}: {low * 1e3:.2f} ms under autocast, {full / low:.2f} times the speed of float32")
    assert full / low >= least
