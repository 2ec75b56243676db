"""One step of recurrent cells. `nn.LSTM` over a sequence is the training step `lstm-step`."""

from collections.abc import Callable

import torch
from torch import nn

from ampcheck.bench.core.model import OpWorkload, Spec, Workload


def _lstm(cell: nn.Module, x: torch.Tensor, h: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = cell(x, (h, c))[0]
    return out


def _gru(cell: nn.Module, x: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    out: torch.Tensor = cell(x, h)
    return out


def _cell(name: str, module: Callable[[], nn.Module], call: Callable[..., torch.Tensor], states: int) -> OpWorkload:
    """Make a cell of input and states of one width. Of the states that come out only the first is asked for."""
    return OpWorkload(
        name=name,
        family="recurrent",
        policy="downcast",
        inputs=(Spec((64, 256)),) * (1 + states),
        module=module,
        call=call,
        samples=64,
    )


WORKLOADS: tuple[Workload, ...] = (
    _cell("lstm-cell", lambda: nn.LSTMCell(256, 256), _lstm, states=2),
    _cell("gru-cell", lambda: nn.GRUCell(256, 256), _gru, states=1),
)
