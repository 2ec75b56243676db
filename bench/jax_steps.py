"""Training steps twice over: PyTorch on the jax device under autocast, and JAX by hand with the same casts.

Each pair starts from the same parameters and data, so that their losses can be compared.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

import ampcheck.jax_device as device

LOW = jnp.bfloat16
RATE = 1e-3
Step = Callable[[], Any]


class Block(nn.Module):
    """A transformer block, norm first, without dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(b, t, 3, self.heads, w // self.heads).permute(2, 0, 3, 1, 4)
        scores = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(w // self.heads), -1)
        x = x + self.out((scores @ v).transpose(1, 2).reshape(b, t, w))
        return x + self.down(torch.relu(self.up(self.norm2(x))))


def _linear(p: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    return x.astype(LOW) @ p[f"{name}.weight"].astype(LOW).T + p[f"{name}.bias"].astype(LOW)


def _norm(p: dict[str, jax.Array], name: str, x: jax.Array) -> jax.Array:
    x = x.astype(jnp.float32)
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
    return scaled * p[f"{name}.weight"] + p[f"{name}.bias"]


def _block(p: dict[str, jax.Array], x: jax.Array, heads: int) -> jax.Array:
    b, t, w = x.shape
    q, k, v = _linear(p, "qkv", _norm(p, "norm1", x)).reshape(b, t, 3, heads, w // heads).transpose(2, 0, 3, 1, 4)
    scores = q @ k.transpose(0, 1, 3, 2) / math.sqrt(w // heads)
    scores = jax.nn.softmax(scores.astype(jnp.float32), -1).astype(LOW)
    x = x + _linear(p, "out", (scores @ v).transpose(0, 2, 1, 3).reshape(b, t, w)).astype(jnp.float32)
    return x + _linear(p, "down", jax.nn.relu(_linear(p, "up", _norm(p, "norm2", x)))).astype(jnp.float32)


def _mlp(p: dict[str, jax.Array], x: jax.Array, depth: int) -> jax.Array:
    for i in range(depth):
        x = _linear(p, f"{2 * i}", x)
        x = jax.nn.relu(x) if i < depth - 1 else x
    return x


def _pair(
    model: nn.Module, forward: Callable[..., jax.Array], x: torch.Tensor, y: torch.Tensor
) -> tuple[Step, Step, Any]:
    """A step in PyTorch, the same in JAX, and the JAX step's lowered program."""
    p = {name: device.to_jax(tensor.detach().clone()) for name, tensor in model.named_parameters()}
    parameters = {name: jnp.array(array) for name, array in p.items()}
    inputs, targets = device.to_jax(x), device.to_jax(y)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    @device.jit
    def torch_step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    def loss_of(parameters: Any, x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.square(forward(parameters, x).astype(jnp.float32) - y).mean()

    def update(parameters: Any, x: jax.Array, y: jax.Array) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(parameters, x, y)
        return loss, jax.tree.map(lambda p, g: p - RATE * g, parameters, grads)

    jitted = jax.jit(update, donate_argnums=0)

    def jax_step() -> jax.Array:
        nonlocal parameters
        loss, parameters = jitted(parameters, inputs, targets)
        return loss.block_until_ready()

    def ours() -> jax.Array:
        return device.to_jax(torch_step(x, y)).block_until_ready()

    return ours, jax_step, (torch_step.lower(x, y), jitted.lower(parameters, inputs, targets))


def mlp(width: int = 512, depth: int = 4, batch: int = 256) -> tuple[Step, Step, Any]:
    """A multilayer perceptron of `depth` layers of `width`, ReLU between them."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for i in range(depth):
        layers += [nn.Linear(width, width)] + ([nn.ReLU()] if i < depth - 1 else [])
    model = nn.Sequential(*layers).to("jax")
    x, y = torch.randn(batch, width, device="jax"), torch.randn(batch, width, device="jax")
    return _pair(model, lambda p, x: _mlp(p, x, depth), x, y)


def block(width: int = 256, heads: int = 4, batch: int = 8, length: int = 64) -> tuple[Step, Step, Any]:
    """A transformer block."""
    torch.manual_seed(0)
    model = Block(width, heads).to("jax")
    x, y = torch.randn(batch, length, width, device="jax"), torch.randn(batch, length, width, device="jax")
    return _pair(model, lambda p, x: _block(p, x, heads), x, y)


STEPS = {"mlp": mlp, "block": block}
