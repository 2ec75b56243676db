"""Training steps twice over: PyTorch on the jax device under autocast, and a reference in JAX with the same casts.

Each pair starts from the same parameters and data, so that their losses can be compared. The reference models are in
bench/jax_reference.py.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn

import ampcheck.jax_device as device
from ampcheck.bench.workloads.steps import ResidualBlock, multilayer
from bench import jax_reference as reference
from bench.bench_gpt import Block

RATE = 1e-3
Step = Callable[[], Any]


class Tagger(nn.Module):
    """An LSTM over (T, N, in) and a linear layer on each of its outputs."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(x)[0])
        return out


def step_of(model: nn.Module, *, enabled: bool = True) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
    """Return a jitted step of SGD on the squared error, under bfloat16 autocast or without, of input and target."""
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)

    @device.jit
    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        with torch.autocast("jax", dtype=torch.bfloat16, enabled=enabled):
            loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss.detach()

    taken: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = step
    return taken


def _pair(
    model: Callable[[], nn.Module], forward: Callable[..., tuple[jax.Array, Any]], *shape: int
) -> tuple[Step, Step, Any]:
    """Return a step in PyTorch on random data of a shape, the same in JAX, and the lowered programs of both."""
    torch.manual_seed(0)
    made = model().to("jax")
    x, y = torch.randn(shape, device="jax"), torch.randn(shape, device="jax")

    def copied(tensors: Any) -> dict[str, jax.Array]:
        return {name: jnp.array(device.to_jax(tensor.detach().clone())) for name, tensor in tensors}

    parameters, buffers = copied(made.named_parameters()), copied(made.named_buffers())
    inputs, targets = device.to_jax(x), device.to_jax(y)
    torch_step = step_of(made)

    def loss_of(parameters: Any, buffers: Any, x: jax.Array, y: jax.Array) -> Any:
        out, new = forward(parameters, buffers, x)
        return jnp.square(out.astype(jnp.float32) - y).mean(), new

    def update(parameters: Any, buffers: Any, x: jax.Array, y: jax.Array) -> Any:
        (loss, new), grads = jax.value_and_grad(loss_of, has_aux=True)(parameters, buffers, x, y)
        return loss, jax.tree.map(lambda p, g: p - RATE * g, parameters, grads), new

    jitted = jax.jit(update, donate_argnums=(0, 1))

    def jax_step() -> jax.Array:
        nonlocal parameters, buffers
        loss, parameters, buffers = jitted(parameters, buffers, inputs, targets)
        return loss.block_until_ready()

    def ours() -> jax.Array:
        return device.to_jax(torch_step(x, y)).block_until_ready()

    lowered = torch_step.lower(x, y), jitted.lower(parameters, buffers, inputs, targets)  # type: ignore[attr-defined]
    return ours, jax_step, lowered


STEPS: dict[str, Callable[[], tuple[Step, Step, Any]]] = {
    "mlp": lambda: _pair(lambda: multilayer(512, 4), lambda p, b, x: reference.mlp(p, b, x, 4), 256, 512),
    "block": lambda: _pair(lambda: Block(256, 4), lambda p, b, x: reference.block(p, b, x, 4), 8, 64, 256),
    "resnet": lambda: _pair(lambda: ResidualBlock(64), reference.resnet, 4, 64, 28, 28),
    "lstm": lambda: _pair(lambda: Tagger(256, 256), reference.lstm, 32, 32, 256),
}
