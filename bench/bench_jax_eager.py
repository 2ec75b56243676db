"""Time an eager op on the jax device beside JAX, torchax, and the same op without autocast; and compiles.

    pytest bench/bench_jax_eager.py

Both sides of a ratio run in one process in turns, torchax in another beside JAX's own dispatch, which is
both. Only ratios are asserted; absolute figures depend on the machine and are printed.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from bench.conftest import measured

pytest.importorskip("jax")

OPS = ("add", "mm", "relu")

# One process: the op's cost in units of a JAX op on the same arrays, median of interleaved pairs.
PRELUDE = """
import json, statistics, time
import jax, jax.numpy as jnp, torch
from bench.bench_jax_step import interleaved
SIZE = 16

def ratio(one, other, rounds=41):
    speed, absolute = interleaved(one, other, rounds, 200)
    return 1 / speed, absolute

def jax_ops():
    a = jnp.ones((SIZE, SIZE), jnp.float32)
    return {"add": lambda: jnp.add(a, a), "mm": lambda: jnp.matmul(a, a), "relu": lambda: jax.nn.relu(a)}

def torch_ops(x):
    return {"add": lambda: torch.add(x, x), "mm": lambda: torch.mm(x, x), "relu": lambda: torch.relu(x)}
"""

OURS = """
import ampcheck.jax_device
x = torch.ones(SIZE, SIZE, device="jax")
ours, theirs = torch_ops(x), jax_ops()
out = {name: ratio(ours[name], theirs[name]) for name in ours}
print(json.dumps(out))
"""

TORCHAX = """
import torchax
jax.config.update("jax_enable_x64", True)
with torchax.default_env():
    x = torch.ones(SIZE, SIZE, device="jax")
    ours, theirs = torch_ops(x), jax_ops()
    out = {name: ratio(ours[name], theirs[name], 21) for name in ours}
print(json.dumps(out))
"""

POLICY = """
import ampcheck.jax_device
out = {}
for size in (16, 256, 512):
    x = torch.ones(size, size, device="jax").bfloat16()
    def outside():
        return torch.mm(x, x)
    count = 400 if size == 16 else 10
    def timed(enabled):
        # The region is entered once: what is measured is the kernel of the policy, not the region.
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=enabled):
            outside().shape
            started = time.perf_counter()
            for _ in range(count):
                y = outside()
            torch.jax.synchronize() if size > 16 else None
            return (time.perf_counter() - started) / count
    timed(True), timed(False)
    pairs = [(timed(True), timed(False)) for _ in range(41)]
    out[size] = statistics.median(a / b for a, b in pairs), statistics.median(a for a, _ in pairs)
print(json.dumps(out))
"""

TRAINING = """
import json, os, sys, time
import torch
import jax
import ampcheck.jax_device
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten

compiled = [0]
jax.monitoring.register_event_duration_secs_listener(
    lambda name, *_, **__: compiled.__setitem__(0, compiled[0] + name.endswith("/backend_compile_duration")))

class Kinds(TorchDispatchMode):
    def __init__(self):
        super().__init__()
        self.seen = set()
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        leaves, tree = tree_flatten((args, kwargs or {}))
        if any(isinstance(a, torch.Tensor) and a.device.type == "jax" for a in leaves) or "device" in (kwargs or {}):
            self.seen.add((func, str(tree), tuple(
                (tuple(a.shape), a.dtype) if isinstance(a, torch.Tensor)
                else a.__class__ if isinstance(a, float) else str(a)
                for a in leaves)))
        return func(*args, **(kwargs or {}))

torch.manual_seed(0)
layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
model = torch.nn.Sequential(torch.nn.Linear(8, 32), layer, torch.nn.Linear(32, 1)).to("jax")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
x, y = torch.randn(4, 6, 8, device="jax"), torch.randn(4, 6, 1, device="jax")

def step():
    optimizer.zero_grad()
    with torch.autocast("jax", dtype=torch.bfloat16):
        loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()

kinds, times = Kinds(), []
with torch.autograd.set_multithreading_enabled(False):# the mode sees the ops of its thread only
    for _ in range(4):
        started = time.perf_counter()
        if os.environ.get("KINDS"):
            with kinds:
                step()
        else:
            step()
        times.append(time.perf_counter() - started)
print(json.dumps({"compiled": compiled[0], "kinds": len(kinds.seen), "times": times}))
"""


def test_small_ops_cost_at_most_five_of_jax_and_less_than_half_of_torchax(show: Callable[[str], None]) -> None:
    ours, theirs = measured(PRELUDE + OURS), measured(PRELUDE + TORCHAX)
    for name in OPS:
        (mine, us), (other, them) = ours[name], theirs[name]
        show(f"{name}: {us * 1e6:.1f} us, {mine:.2f} of JAX's own; torchax {them * 1e6:.1f} us, {other:.2f}")
        show(f"ours is {mine / other:.2f} of torchax's")
    assert max(ours[name][0] for name in OPS) <= 5
    assert max(ours[name][0] / theirs[name][0] for name in OPS) <= 0.4


def test_a_policy_that_casts_nothing_costs_little(show: Callable[[str], None]) -> None:
    found = measured(PRELUDE + POLICY)
    for size, (share, absolute) in found.items():
        show(f"mm of {size}: {absolute * 1e6:.1f} us in a region, {share:.3f} of outside")
    assert found["256"][0] <= 1.04
    assert found["512"][0] <= 1.04


def test_compiles_are_few_and_kept(tmp_path: Path, show: Callable[[str], None]) -> None:
    kinds = measured(TRAINING, KINDS="1")
    share = kinds["compiled"] / kinds["kinds"]
    runs = [measured(TRAINING, JAX_COMPILATION_CACHE_DIR=str(tmp_path)) for _ in range(2)]
    first, second = ((t := run["times"])[0] + t[1] - 2 * min(t) for run in runs)
    show(f"{kinds['compiled']} compiles for {kinds['kinds']} kinds of calls: {share:.2f} each")
    show(f"first calls: {first:.2f} s, with the kept programs {second:.2f} s: {second / first:.2f}")
    assert share <= 1.2
    assert second / first <= 0.5
