"""Measure what compiling costs on the jax device: first calls, cheap options, memory.

    pytest bench/bench_jax_compiling.py

Sides of a ratio run in turns, by processor time, which other work on the machine disturbs less than wall time. Only
ratios are asserted; docs/jax_device.md, "What compiling costs", has the figures of one machine.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from bench.bench_jax_step import seconds
from bench.conftest import measured

# The first calls of 64 kinds of ops in a new process. PyTorch loads Dynamo at the first op of any, which is apart.
KINDS = """
import json, time
import torch, torch._dynamo
import torch.nn.functional as F
import ampcheck.jax_device
x, y, v = (torch.rand(*s).to("jax") for s in ((16, 16), (16, 16), (16,)))
i, image = torch.zeros(4, 16, dtype=torch.long).to("jax"), x.view(1, 1, 16, 16)
names = '''exp log sqrt rsqrt sin cos tan tanh sigmoid relu erf abs neg floor ceil round sign sum mean var std amax amin
argmax prod isnan isfinite logical_not square reciprocal expm1 log1p sinh cosh atan tril triu t'''.split()
calls = [getattr(x, name) for name in names]
pairs = "add sub mul div maximum minimum atan2 pow eq lt gt mm hypot fmod".split()
calls += [lambda f=getattr(torch, name): f(x, y) for name in pairs]
calls += [
    lambda: F.gelu(x), lambda: F.silu(x), lambda: x.softmax(1), lambda: F.layer_norm(x, (16,)), lambda: x.cumsum(0),
    lambda: x.sort(1), lambda: torch.cat([x, y]), lambda: torch.where(x > y, x, y), lambda: x.bfloat16(),
    lambda: F.mse_loss(x, y), lambda: F.max_pool2d(image, 2), lambda: F.conv2d(image, image[..., :3, :3]),
]
assert len(calls) == 64
started = time.process_time()
kept = [call() for call in calls]
torch.jax.synchronize()
print(json.dumps((time.process_time() - started) / len(calls)))
"""

MEMORY = """
import gc, json
import torch, torch._dynamo
import ampcheck.jax_device
from ampcheck.jax_device.dispatch import program
if {held}:
    program._forget_lowered = lambda: None
def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096
def some(sizes):
    for n in sizes:
        x = torch.ones(n, 8, device="jax")
        for y in (x + x, x.exp(), x.softmax(1), x @ x.t(), x.sum(0)):
            pass
some(range(1, 5))
before, count = resident(), len(program.program_cache)
some(range(5, 29))
print(json.dumps((resident() - before) / (len(program.program_cache) - count)))
"""


def test_first_calls(tmp_path: Path, show: Callable[[str], None]) -> None:
    """Programs that another process left behind make first calls cheaper; leaving them costs little."""
    turns: dict[str, list[float]] = {"none": [], "written": [], "found": []}
    for turn in range(3):
        cache = {"JAX_COMPILATION_CACHE_DIR": str(tmp_path / str(turn))}
        turns["none"].append(measured(KINDS, JAX_ENABLE_COMPILATION_CACHE="false"))
        turns["written"].append(measured(KINDS, **cache))
        turns["found"].append(measured(KINDS, **cache))
    none, written, found = (statistics.median(turns[name]) for name in turns)
    show(f"a first call takes {none * 1e3:.1f} ms of processor time without a folder, {written * 1e3:.1f} ms where its")
    show(f"program is written too ({written / none:.2f}), {found * 1e3:.1f} ms where it is found ({found / none:.2f})")
    assert found / none <= 0.8
    assert written / none <= 1.25


def test_memory_of_a_program(show: Callable[[str], None]) -> None:
    """Most of what a program would hold is the module that it was compiled from."""
    now, held = (measured(MEMORY.format(held=held)) for held in (False, True))
    show(f"a program of an op holds {now / 2**20:.2f} MiB, and {held / 2**20:.2f} MiB with what it was compiled from")
    assert now / held <= 0.4


def _programs(elements: int) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    import jax  # noqa: PLC0415  # no other bench makes the device
    import jax.numpy as jnp  # noqa: PLC0415  # no other bench makes the device

    x = jnp.linspace(-2, 2, elements, dtype=jnp.float32).reshape(-1, 32)

    def normalized(a: Any) -> Any:
        centred = a - a.mean(-1, keepdims=True)
        return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5)

    return {
        "add": (lambda a, b: a + b, (x, x)),
        "gelu": (jax.nn.gelu, (x,)),
        "softmax": (jax.nn.softmax, (x,)),
        "layer_norm": (normalized, (x,)),
        "sum": (lambda a: a.sum(0), (x,)),
        "cumsum": (lambda a: jnp.cumsum(a, 0), (x,)),
        "transpose": (lambda a: a.T + 0, (x,)),
        "to bfloat16": (lambda a: a.astype(jnp.bfloat16), (x,)),
    }


@pytest.mark.parametrize("elements", [1 << 8, 1 << 10, 1 << 12, 1 << 14, 1 << 16])
def test_what_cheap_options_cost_later(elements: int, show: Callable[[str], None]) -> None:
    """A call of a program by the options of its size, beside one that is compiled without them."""
    import jax  # noqa: PLC0415  # no other bench makes the device

    from ampcheck.jax_device.lowering import compiled  # noqa: PLC0415  # no other bench makes the device

    ratios = {}
    for name, (function, arrays) in _programs(elements).items():
        sides = [
            lambda call=call, arrays=arrays: jax.block_until_ready(call(*arrays))
            for call in (compiled(function, elements), jax.jit(function))
        ]
        count = max(20, (1 << 20) // elements)
        spent = [seconds(side, 1, time.process_time) for side in sides]
        pairs = [[seconds(side, count, time.process_time) for side in sides] for _ in range(15)]
        ratios[name] = statistics.median(a / b for a, b in pairs)
        more = statistics.median(a - b for a, b in pairs)
        show(
            f"{elements} elements, {name}: compiled in {spent[0] * 1e3:.0f} ms, not {spent[1] * 1e3:.0f}; a call takes "
            f"{ratios[name]:.2f} of the time, {more * 1e6:+.1f} us"
        )
    assert statistics.median(ratios.values()) <= 1.6
