"""Training steps: forward, loss, backward and update."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Unpack

import torch
from torch import nn
from torch.nn import functional as F

from ampcheck.bench.core.model import Spec, StepWorkload, Workload, WorkloadOptions


def multilayer(width: int, depth: int) -> nn.Module:
    """Return `depth` layers of a width, ReLU between them."""
    layers: list[nn.Module] = []
    for _ in range(depth):
        layers += [nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class TransformerBlock(nn.Module):
    """Attention and two layers, norm first, without dropout. Input and output: (batch, length, width)."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        split = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = split.permute(2, 0, 3, 1, 4)
        mixed: torch.Tensor = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm2(x))))
        return out


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions with batch norm, and the input added. Input and output: (batch, channels, h, w)."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.bn1, self.bn2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + x)


class SequenceClassifier(nn.Module):
    """An LSTM and a linear head on its last output. Input: (batch, length, width), output: (batch, classes)."""

    def __init__(self, width: int, hidden: int, classes: int) -> None:
        super().__init__()
        self.lstm = nn.LSTM(width, hidden, batch_first=True)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.lstm(x)[0][:, -1])
        return out


def _step(
    name: str,
    model: Callable[[], nn.Module],
    *inputs: Spec,
    loss: Callable[[torch.Tensor, torch.Tensor], torch.Tensor] = F.mse_loss,
    **more: Unpack[WorkloadOptions],
) -> StepWorkload:
    more.setdefault("fp16_on_cpu", False)
    samples = inputs[0].shape[0]
    return StepWorkload(
        name=name, family="steps", policy="mixed", model=model, inputs=inputs, loss=loss, samples=samples, **more
    )


def _mlp_step(name: str, batch: int, width: int, depth: int, **more: Unpack[WorkloadOptions]) -> StepWorkload:
    data = Spec((batch, width))
    return _step(name, lambda: multilayer(width, depth), data, data, **more)


def _transformer_step(
    name: str, batch: int, length: int, width: int, heads: int, **more: Unpack[WorkloadOptions]
) -> StepWorkload:
    data = Spec((batch, length, width))
    return _step(name, lambda: TransformerBlock(width, heads), data, data, **more)


def _resnet_step(
    name: str, batch: int, channels: int, side: int, *, channels_last: bool = False, **more: Unpack[WorkloadOptions]
) -> StepWorkload:
    data = Spec((batch, channels, side, side), channels_last=channels_last)
    form = torch.channels_last if channels_last else torch.contiguous_format
    made = lambda: ResidualBlock(channels).to(memory_format=form)  # type: ignore[call-overload]  # noqa: E731  # the stub has no such call
    return _step(name, made, data, data, **more)


_LSTM = partial(SequenceClassifier, width=64, hidden=128, classes=10)
_LSTM_DATA, _LSTM_LABELS = Spec((16, 16, 64)), Spec((16,), torch.int64, high=10)
_PLAIN: Sequence[StepWorkload] = (
    _mlp_step("mlp-step", 128, 512, 4, quick=True),
    _mlp_step("tiny-mlp-step", 16, 32, 3, quick=True, fp16_on_cpu=True),
    _transformer_step("transformer-step", 4, 64, 128, 4, quick=True),
    _resnet_step("resnet-step", 8, 32, 28),
    _resnet_step("resnet-step-nhwc", 8, 32, 28, channels_last=True),
    _step("lstm-step", _LSTM, _LSTM_DATA, _LSTM_LABELS, loss=F.cross_entropy, fp16_on_cpu=True),
)
_SCALED = ("mlp-step", "tiny-mlp-step", "transformer-step", "resnet-step", "lstm-step")
_OVERFLOWING = ("mlp-step", "tiny-mlp-step")

WORKLOADS: tuple[Workload, ...] = (
    *_PLAIN,
    _mlp_step("mlp-step-4096", 8192, 4096, 4, heavy=True, quick=True),
    _transformer_step("transformer-step-1024", 16, 512, 1024, 16, heavy=True),
    _resnet_step("resnet-step-256-nhwc", 64, 256, 56, channels_last=True, heavy=True),
    *(replace(w, name=f"{w.name}-scaler", scaler=True, quick=False) for w in _PLAIN if w.name in _SCALED),
    *(
        replace(w, name=f"{w.name}-overflow", scaler=True, overflows=True, quick=False)
        for w in _PLAIN
        if w.name in _OVERFLOWING
    ),
)
