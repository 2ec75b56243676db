"""One step of recurrent cells. `nn.LSTM` over a sequence is the training step `lstm-step`."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, Workload
from ampcheck.bench.workloads.counting import product, traffic


def _lstm(cell: nn.Module, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = cell(x, (h, c))[0]
    return out


def _gru(cell: nn.Module, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = cell(x, h)
    return out


def _cell(
    name: str,
    module: Callable[[], nn.Module],
    call: Callable[..., torch.Tensor],
    *,
    batch: int,
    width: int,
    gates: int,
    states: int,
) -> OpWorkload:
    """Make a cell whose input and state have the same width: a product of each with the weights of `gates` gates.

    `states`: how many go in. Of those that come out only the first is asked for and counted as written.
    """
    inputs = (Spec((batch, width)),) * (1 + states)
    return OpWorkload(
        name=name,
        family="recurrent",
        policy="downcast",
        inputs=inputs,
        module=module,
        call=call,
        flops=2 * product(batch, gates * width, width),
        moved=traffic(inputs, (batch, width), weights=2 * gates * width * (width + 1)),
        samples=batch,
    )


WORKLOADS: tuple[Workload, ...] = (
    _cell("lstm-cell", lambda: nn.LSTMCell(256, 256), _lstm, batch=64, width=256, gates=4, states=2),
    _cell("gru-cell", lambda: nn.GRUCell(256, 256), _gru, batch=64, width=256, gates=3, states=1),
)
