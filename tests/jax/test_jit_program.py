"""The program that comes out of a jitted autocast step: the products and casts of the step written by hand."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any

import jax
import jax.numpy as jnp
import torch
import torch.nn.functional as F

from ampcheck.jax_device import jit
from ampcheck.jax_device.interop.dlpack import to_jax


def _count(text: str) -> Counter[str]:
    """How often a StableHLO program has each dot_general and convert, by types."""
    found = re.findall(r"stablehlo\.(dot_general|convert) .*: \(?([^)]*)\)? -> (\S+)", text)
    return Counter(f"{name} {_types(given)} -> {_types(result)}" for name, given, result in found)


def _types(text: str) -> str:
    return ", ".join(re.findall(r"x?([a-z]+\d+)>", text))


def test_an_autocast_step_has_the_program_written_by_hand() -> None:
    torch.manual_seed(0)
    net = torch.nn.Sequential(
        torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 32), torch.nn.ReLU(), torch.nn.Linear(32, 8)
    ).to("jax")
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=torch.bfloat16):
            loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    low = jnp.bfloat16

    def product(a: Any, b: Any, over: tuple[int, int]) -> Any:
        """A CPU multiplies fast where it accumulates in float32 and rounds afterwards."""
        dims = ((over[:1], over[1:]), ((), ()))
        return jax.lax.dot_general(a, b, dims, preferred_element_type=jnp.float32)

    @jax.custom_vjp
    def linear(h: Any, w: Any, b: Any) -> Any:
        return (product(h, w, (1, 1)) + b).astype(low)

    def linear_backward(kept: Any, g: Any) -> Any:
        h, w = kept
        # PyTorch sums a bias's gradient in float32 and rounds once, as jnp.sum does.
        return product(g, w, (1, 0)).astype(low), product(g, h, (0, 0)).astype(low), jnp.sum(g, 0)

    linear.defvjp(lambda h, w, b: (linear(h, w, b), (h, w)), linear_backward)

    def loss(weights: Any, x: Any, y: Any) -> Any:
        h = x.astype(low)
        for i, (w, b) in enumerate(weights):
            h = linear(h, w.astype(low), b.astype(low))
            h = jax.nn.relu(h) if i < 2 else h
        return jnp.mean((h.astype(jnp.float32) - y) ** 2)

    def by_hand(weights: Any, x: Any, y: Any, rate: float) -> Any:
        value, grads = jax.value_and_grad(loss)(weights, x, y)
        return value, jax.tree.map(lambda w, g: w - rate * g, weights, grads)

    x, y = torch.randn(64, 16).to("jax"), torch.randn(64, 8).to("jax")
    weights = [(to_jax(m.weight.detach()), to_jax(m.bias.detach())) for m in net if isinstance(m, torch.nn.Linear)]
    ours = _count(jit(step).lower(x, y).as_text())
    hand = _count(jax.jit(by_hand).lower(weights, to_jax(x), to_jax(y), 0.1).as_text())
    dots = {name: n for name, n in ours.items() if name.startswith("dot_general")}
    assert dots == {"dot_general bf16, bf16 -> f32": 8}
    assert dots == {n: c for n, c in hand.items() if n.startswith("dot_general")}
    assert not ours - hand, f"converts that the program written by hand lacks: {ours - hand}"
    needless = _count(jit(lambda a: step(a.double().float(), y)).lower(x).as_text())
    assert needless - hand == {"convert f32 -> f64": 1, "convert f64 -> f32": 1}  # what the count would find
    full = _count(
        jit(lambda: net(x).sum().backward()).lower().as_text()
    )  # without autocast, the count sees the difference
    assert "dot_general f32, f32 -> f32" in full
    expected = jax.jit(by_hand)(weights, to_jax(x), to_jax(y), 0.1)
    torch.testing.assert_close(jit(step)(x, y).item(), float(expected[0]), rtol=1e-6, atol=0)
