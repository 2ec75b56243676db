"""Time the jax device: ops, compiling, whole steps beside JAX, and autocast beside float32.

    pytest bench/bench_jax.py

Both sides of a ratio run in turns in one process, or by processor time, which other work on the machine disturbs less
than wall time. Only ratios are asserted; absolute figures depend on the machine and are printed. docs/jax_device.md has
those of one machine.
"""

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("jax")

from bench.conftest import PROGRAMS, measured

# ---- whole steps, each one program, beside the same written in JAX

Clock = Callable[[], float]


def seconds(call: Callable[[], Any], count: int = 1, clock: Clock = time.perf_counter) -> float:
    started = clock()
    for _ in range(count):
        call()
    return (clock() - started) / count


def interleaved(
    ours: Callable[[], Any], theirs: Callable[[], Any], rounds: int, count: int = 1, clock: Clock = time.perf_counter
) -> tuple[float, float]:
    """Return the median of theirs / ours over neighbouring measurements, and the median of ours in seconds."""
    pairs = []
    for i in range(rounds):  # who goes first changes, so that neither always finds the other's caches
        first, second = (ours, theirs) if i % 2 else (theirs, ours)
        a, b = seconds(first, count, clock), seconds(second, count, clock)
        pairs.append((a, b) if i % 2 else (b, a))
    return statistics.median(b / a for a, b in pairs), statistics.median(a for a, _ in pairs)


@pytest.mark.parametrize("name", ["mlp", "block", "resnet", "lstm"])
def test_a_step_is_as_fast_as_its_reference(name: str, show: Callable[[str], None]) -> None:
    from bench.jax_steps import STEPS  # noqa: PLC0415  # no other bench makes the device

    ours, theirs, _ = STEPS[name]()
    losses = [(float(ours()), float(theirs())) for _ in range(5)]
    speed, absolute = interleaved(ours, theirs, 101)
    show(f"{name}: {absolute * 1e3:.2f} ms a step, {speed:.3f} of the reference's speed; losses {losses[0]}")
    assert all(abs(a - b) <= 2e-2 * abs(b) for a, b in losses), losses
    assert speed >= 0.98


def test_a_tiny_call_costs_half_again_as_much_as_jax(show: Callable[[str], None]) -> None:
    import jax  # noqa: PLC0415  # no other bench makes the device
    import jax.numpy as jnp  # noqa: PLC0415  # no other bench makes the device
    import torch  # noqa: PLC0415  # no other bench makes the device

    import ampcheck.jax_device as device  # noqa: PLC0415  # no other bench makes the device

    x, a = torch.ones(4, 4, device="jax"), jnp.ones((4, 4), jnp.float32)
    ours, theirs = device.jit(lambda x, y: x + y), jax.jit(lambda x, y: x + y)
    ours(x, x), theirs(a, a)
    speed, absolute = interleaved(lambda: ours(x, x), lambda: theirs(a, a), 101, 200)
    show(f"a jitted sum: {absolute * 1e6:.1f} us, {1 / speed:.2f} of JAX's")
    assert 1 / speed <= 1.6


# ---- ops one by one, beside JAX, torchax, and without autocast; torchax in a process of its own beside JAX

OPS = ("add", "mm", "relu")

# One process: the op's cost in units of a JAX op on the same arrays, median of interleaved pairs.
PRELUDE = PROGRAMS["jax-prelude"]

TRAINING = PROGRAMS["jax-training"]


def test_small_ops_cost_at_most_five_of_jax_and_less_than_half_of_torchax(show: Callable[[str], None]) -> None:
    ours, theirs = measured(PRELUDE + PROGRAMS["jax-ours"]), measured(PRELUDE + PROGRAMS["jax-torchax"])
    for name in OPS:
        (mine, us), (other, them) = ours[name], theirs[name]
        show(f"{name}: {us * 1e6:.1f} us, {mine:.2f} of JAX's own; torchax {them * 1e6:.1f} us, {other:.2f}")
        show(f"ours is {mine / other:.2f} of torchax's")
    assert max(ours[name][0] for name in OPS) <= 5
    assert max(ours[name][0] / theirs[name][0] for name in OPS) <= 0.4


def test_a_policy_that_casts_nothing_costs_little(show: Callable[[str], None]) -> None:
    found = measured(PRELUDE + PROGRAMS["jax-policy"])
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


# ---- what compiling costs: first calls, cheap options, memory

# The first calls of 64 kinds of ops in a new process. PyTorch loads Dynamo at the first op of any, which is apart.
KINDS = PROGRAMS["jax-kinds"]


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
    now, held = (measured(PROGRAMS["jax-memory"].format(held=held)) for held in (False, True))
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


# ---- bfloat16 autocast beside float32
#
# XLA multiplies bfloat16 by the processor's own instructions only where a float32 result is asked for, so this is what
# lowerings/accumulate.py is for. The casts of float32 inputs and the rounding of the result are part of the call. Both
# run in turns on one core, and the ratio of the lower quartiles of their processor times is asserted: what other
# processes do to the caches hits bfloat16 more, and never makes a call faster. Without the instructions (avx512_bf16 or
# amx_bf16) there is nothing to gain.

CPU = Path("/proc/cpuinfo")

PRODUCT = PROGRAMS["jax-product"]

STEP = PROGRAMS["jax-step"]


@pytest.mark.skipif(
    not CPU.exists() or not {"avx512_bf16", "amx_bf16"} & set(CPU.read_text().split()),
    reason="this processor does not multiply bfloat16",
)
@pytest.mark.parametrize(("name", "source", "least"), [("mm 1024", PRODUCT, 1.7), ("mlp step", STEP, 1.05)])
def test_autocast_pays(name: str, source: str, least: float, show: Callable[[str], None]) -> None:
    low, full = measured(PROGRAMS["jax-pinned"] + source + PROGRAMS["jax-timed"], JAX_PLATFORMS="cpu")
    show(f"{name}: {low * 1e3:.2f} ms under autocast, {full / low:.2f} times the speed of float32")
    assert full / low >= least
