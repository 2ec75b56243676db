"""200 steps of training in bfloat16 autocast: eagerly, by `jit`, by `torch.compile`, and on the CPU.

The ways round to bfloat16 at other places (XLA may keep more precision inside of one program), so curves agree within
what such roundings move them, and a learning rate of a tenth more does not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from ampcheck.jax_device import jit
from tests.processor import lstm_that_runs

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's own, while Dynamo is imported
    import ampcheck.jax_device.compile  # noqa: F401  # registers the backend

STEPS, VOCABULARY, LENGTH, WIDTH, HEADS = 200, 16, 12, 32, 4


class Transformer(nn.Module):
    """One pre-norm block with causal attention over an alphabet."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.position = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.zeros(LENGTH, WIDTH))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(3))
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.embedding(tokens) + self.position
        rows = tokens.shape[0]
        qkv = self.qkv(self.norms[0](x)).view(rows, LENGTH, 3, HEADS, WIDTH // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4).unbind(0)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(rows, LENGTH, WIDTH))
        x = x + self.down(F.gelu(self.up(self.norms[1](x))))
        return self.head(self.norms[2](x)).flatten(0, 1)


class Residual(nn.Module):
    """A ResNet block with batch norm between two layers."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 8, 3, padding=1)
        self.convs = nn.ModuleList(nn.Conv2d(8, 8, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(2))
        self.head = nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        y = F.relu(self.norms[0](self.convs[0](x)))
        y = F.relu(self.norms[1](self.convs[1](y)) + x)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1))


class Recurrent(nn.Module):
    """An LSTM whose last output is classified."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.head = nn.LSTM(4, 16, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.lstm(x)[0][:, -1])


MODELS: dict[str, Callable[[], nn.Module]] = {"transformer": Transformer, "residual": Residual, "recurrent": Recurrent}


def data(name: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs and classes that can be learned."""
    draw = torch.Generator().manual_seed(0)
    if name == "transformer":
        drawn = torch.randint(VOCABULARY, (16, 2), generator=draw)
        line = (drawn[:, :1] + torch.arange(LENGTH + 1) * (1 + drawn[:, 1:] % 3)) % VOCABULARY
        return line[:, :-1].contiguous(), line[:, 1:].flatten()
    if name == "residual":
        kinds = torch.randint(4, (32,), generator=draw)
        images = torch.randn(32, 1, 8, 8, generator=draw)
        images[torch.arange(32), 0, kinds * 2] += 2
        return images, kinds
    series = torch.randn(32, 6, 4, generator=draw)
    return series, series.sum(1).argmax(1)


@cache
def curve(name: str, way: str, rate: float = 3e-3) -> torch.Tensor:
    """The loss at every step."""
    torch._dynamo.reset()
    torch.manual_seed(0)
    device = "cpu" if way == "cpu" else "jax"
    model = MODELS[name]().to(device)
    x, y = (tensor.to(device) for tensor in data(name))
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    call = torch.compile(model, backend="jax") if way == "compile" else model

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=torch.bfloat16):
            loss = F.cross_entropy(call(x), y)
        loss.backward()
        optimizer.step()
        return loss.detach()

    run = jit(step) if way == "jit" else step
    with lstm_that_runs():
        losses = torch.stack([run(x, y).cpu() for _ in range(STEPS)])
    if way == "jit":
        assert run.compiles == 1
    return losses.float()


def compare(name: str, way: str, rate: float = 3e-3) -> None:
    """Raises AssertionError where a curve is not the CPU's."""
    expected, found = curve(name, "cpu"), curve(name, way, rate)
    assert expected[-1] < 0.1 < 1.0 < expected[0], f"the CPU learned nothing: {expected[[0, -1]]}"
    torch.testing.assert_close(found, expected, rtol=0.05, atol=0.02)


@pytest.mark.nightly
def test_transformer() -> None:
    for way in ("eager", "jit", "compile"):
        compare("transformer", way)


def test_residual() -> None:
    for way in ("eager", "jit", "compile"):
        compare("residual", way)


@pytest.mark.nightly
def test_recurrent() -> None:
    for way in ("eager", "jit", "compile"):
        compare("recurrent", way)


def test_another_rate_is_another_curve() -> None:
    for name in MODELS:
        with pytest.raises(AssertionError, match="not close"):
            compare(name, "jit", 3.3e-3)
