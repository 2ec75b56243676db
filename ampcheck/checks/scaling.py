"""What scenarios of `torch.amp.GradScaler` share: a parameter with its optimizer and a scaler, and an iteration."""

import importlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import distributed

from ampcheck.checks.amp import Amp


def trained(
    amp: Amp,
    values: Sequence[float] = (1.0, 1.0),
    lr: float = 0.5,
    make: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    **options: Any,
) -> tuple[torch.nn.Parameter, torch.optim.Optimizer, torch.amp.GradScaler]:
    """Return a parameter on the device, its optimizer and a scaler, which has the options."""
    leaf = torch.nn.Parameter(torch.tensor(values, device=amp.type))
    return leaf, make([leaf], lr=lr), torch.amp.GradScaler(amp.type, **options)


def step_and_update(scaler: torch.amp.GradScaler, *optimizers: torch.optim.Optimizer) -> None:
    """Step each optimizer, then update the scale, as an iteration ends."""
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()


def iterate(
    leaf: torch.nn.Parameter, optimizer: torch.optim.Optimizer, scaler: torch.amp.GradScaler, slope: float = 1.0
) -> None:
    """Make one iteration, in which every element of the parameter has the same gradient."""
    leaf.grad = None
    scaler.scale((leaf * slope).sum()).backward()
    step_and_update(scaler, optimizer)


@contextmanager
def one_process(kind: str = "fake") -> Iterator[None]:
    """Make a process group of this process alone, which a scaler of shards asks, for any device."""
    if kind == "fake":
        importlib.import_module("torch.testing._internal.distributed.fake_pg")  # gloo reduces no tensors of a backend
    store = distributed.HashStore()  # type: ignore[attr-defined]  # not in __all__
    distributed.init_process_group(kind, store=store, rank=0, world_size=1)
    try:
        yield
    finally:
        distributed.destroy_process_group()
