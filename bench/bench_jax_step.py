"""A whole training step under `ampcheck.jax_device.jit`, beside the same step written in JAX.

    pytest bench/bench_jax_step.py

The two steps run in turns; what is asserted is the median of the ratios of neighbours. Absolute times are printed.
"""

import statistics
import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("jax")


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
