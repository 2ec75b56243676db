"""Programs that the tests of `ampcheck.tools.trace` trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from ampcheck.tools.trace import Trace

Program = Callable[[], Any]


def casts(t: Trace, *origins: str) -> list[Any]:
    return [cast for op in t.ops for cast in op.casts if cast.origin in origins]


def region(**options: Any) -> torch.autocast:
    return torch.autocast("cpu", **options)


class Mlp(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = torch.nn.Linear(8, 16)
        self.norm = torch.nn.LayerNorm(16)
        self.fc2 = torch.nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(F.gelu(self.norm(self.fc1(x))))


def mlp() -> Program:
    model, x = Mlp(), torch.randn(2, 8)
    return lambda: model(x)


def _conv() -> Program:
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, padding="same"), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
    x = torch.randn(2, 3, 6, 6)
    return lambda: model(x)


def _recurrent(kind: type[torch.nn.Module]) -> Program:
    model, x = kind(4, 4, num_layers=2), torch.randn(3, 2, 4)
    return lambda: model(x)[0]


def _attention() -> Program:
    model = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    x = torch.randn(2, 3, 8)
    return lambda: model(x)


def _losses() -> Program:
    weight = torch.nn.Parameter(torch.randn(4, 4))
    x = torch.randn(4, 4)

    def run() -> torch.Tensor:
        y = torch.einsum("ij,jk->ik", x, weight)
        y = torch.cat([y, x.double().float()], 1)
        return F.cosine_similarity(y, x.repeat(1, 2)).sum() + F.mse_loss(y, y.detach() * 2) + y.softmax(-1).norm()

    return run


PROGRAMS: dict[str, Callable[[], Program]] = {
    "mlp": mlp,
    "conv_bn": _conv,
    "lstm": lambda: _recurrent(torch.nn.LSTM),
    "gru": lambda: _recurrent(torch.nn.GRU),
    "transformer": _attention,
    "losses": _losses,
}


GRAD: dict[str, Callable[[], Any]] = {
    "grad": contextlib.nullcontext,
    "no_grad": torch.no_grad,
    "inference": torch.inference_mode,
}
