"""Trains a model for ten steps and compares it with the CPU's training; as a process, answers a row a line."""

import dataclasses
import json
import re
import statistics
import sys
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ampcheck.devices.cpu import lacks
from ampcheck.errors import Unsupported, one_line
from ampcheck.runner.worker import answers
from scripts.jax_models.models import MODELS, Batch, TrainedModel

STEPS = 10
DTYPES: Mapping[str, torch.dtype | None] = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}
"""The dtypes of the autocast region; float32 is trained without one."""
TORCHAX = ("torchax", "torchax-jit")
WAYS = ("eager", "jit", "compile", *TORCHAX)
"""eager: op by op. jit: the step is one program of `ampcheck.jax_device.jit`. compile: the model by `torch.compile`.
torchax: loss and gradients by `torchax.interop.jax_value_and_grad`, the optimizer op by op; with jit the former are one
program of `torchax.interop.jax_jit`."""


@dataclass(frozen=True, slots=True)
class Training:
    """What a training gave: the loss of each step, seconds of the first step and of a later one, and tied parameters.

    `tied`: the names of each parameter that has several, after the last step. `note`: why `jit` compiled nothing.
    """

    losses: list[float]
    first: float
    later: float
    tied: list[list[str]]
    note: str = ""


@dataclass(slots=True)
class Row:
    """A model, a dtype and a way beside the CPU's eager training.

    `verdict`: "agrees", "differs", "raises", or "not measured", where the CPU or the library does not train it;
    `reason` says what was seen, also why a step that agrees was not compiled. `difference`: that of the losses where it
    is nearest to its `bound`, or most beyond.
    """

    model: str
    dtype: str
    way: str
    verdict: str = "not measured"
    reason: str = ""
    losses: list[float] = field(default_factory=list)
    cpu_losses: list[float] = field(default_factory=list)
    difference: float | None = None
    bound: float | None = None
    first: float | None = None
    later: float | None = None
    cpu_later: float | None = None


def train(model: TrainedModel, device: str, way: str, dtype: torch.dtype | None) -> Training:
    """Train a model on one batch, with clipped gradients, and a gradient scaler where the region is float16."""
    torch.manual_seed(0)
    module = model.make()
    batch = {name: value.to(device) for name, value in model.batch().items()}
    module.to(device)
    optimizer = model.optimizer(module.parameters())
    scaler = torch.amp.GradScaler(device, init_scale=256.0, enabled=dtype is torch.float16)
    call: Callable[..., Any] = torch.compile(module, backend="jax") if way == "compile" else module

    def step(batch: Batch) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=dtype, enabled=dtype is not None):
            loss = model.loss(call, batch)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    if way == "jit":
        from ampcheck.jax_device import jit  # noqa: PLC0415  # the device is not made where the CPU alone trains

        step = jit(step)
    losses, seconds = [], []
    with _lstm_that_runs(device, dtype), warnings.catch_warnings(record=True) as caught:
        warnings.filterwarnings("always", message="jit runs ")
        for _ in range(STEPS):
            began = time.perf_counter()
            losses.append(step(batch).item())
            seconds.append(time.perf_counter() - began)
    note = next((_plain(str(one.message)) for one in caught if str(one.message).startswith("jit runs ")), "")
    return Training(losses, seconds[0], statistics.median(seconds[STEPS // 2 :]), tied(module), note)


def train_by_torchax(model: TrainedModel, way: str, dtype: torch.dtype | None) -> Training:
    """Train a model on torchax's device, which a process has instead of this package's."""
    import torchax  # noqa: PLC0415  # a process has either its device or this package's
    from torchax import interop  # noqa: PLC0415

    if dtype is torch.float16:
        raise Unsupported("torchax has no GradScaler")
    torch.manual_seed(0)
    module, batch = model.make(), model.batch()
    torchax.enable_globally()
    try:
        module.to("jax")
        batch = {name: value.to("jax") for name, value in batch.items()}
        optimizer = model.optimizer(module.parameters())
        parameters, buffers = dict(module.named_parameters()), dict(module.named_buffers())

        def loss_of(parameters: Any, buffers: Any, batch: Batch) -> torch.Tensor:
            def call(*args: Any, **kwargs: Any) -> Any:
                return torch.func.functional_call(module, {**parameters, **buffers}, args, kwargs)

            if dtype is None:
                return model.loss(call, batch)
            with torchax.amp.autocast("jax", dtype=dtype):
                return model.loss(call, batch)

        graded = interop.jax_value_and_grad(loss_of)
        if way == "torchax-jit":
            graded = interop.jax_jit(graded)
        losses, seconds = [], []
        for _ in range(STEPS):
            began = time.perf_counter()
            loss, gradients = graded(parameters, buffers, batch)
            for name, parameter in parameters.items():
                parameter.grad = gradients[name]
            nn.utils.clip_grad_norm_(module.parameters(), 1.0)
            optimizer.step()
            losses.append(loss.item())
            seconds.append(time.perf_counter() - began)
    finally:
        torchax.disable_globally()
    return Training(losses, seconds[0], statistics.median(seconds[STEPS // 2 :]), tied(module))


def tied(module: nn.Module) -> list[list[str]]:
    """Return the names of each parameter that has several."""
    names: dict[int, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        names[id(parameter)].append(name)
    return [found for found in names.values() if len(found) > 1]


def compare(model: TrainedModel, dtype: str, found: Training, wanted: Training, exact: Training) -> Row:
    """Return the row of a training on the device beside that on the CPU; its way is set by the caller.

    `exact`: the CPU's training in float32.
    """
    pairs = list(zip(found.losses, wanted.losses, strict=True))
    bounds = [bound(model, dtype, *losses) for losses in zip(wanted.losses, exact.losses, strict=True)]
    over = [abs(loss - want) / most for (loss, want), most in zip(pairs, bounds, strict=True)]
    worst = max(range(STEPS), key=lambda i: (over[i] != over[i], over[i]))  # nan is the worst
    loss, want = pairs[worst]
    row = Row(model.name, dtype, "", "agrees", found.note, found.losses, wanted.losses, abs(loss - want), bounds[worst])
    row.first, row.later, row.cpu_later = found.first, found.later, wanted.later
    reasons = []
    if found.tied != wanted.tied:
        reasons.append(f"tied parameters are {_names(found.tied)}, on the CPU {_names(wanted.tied)}")
    if not over[worst] <= 1:
        reasons.append(f"the loss of step {worst + 1} is {loss:.7g}, on the CPU {want:.7g}, bound {row.bound:.1g}")
    if not wanted.losses[-1] < wanted.losses[0]:
        reasons.append(f"the CPU learned nothing: {wanted.losses[0]:.4g} became {wanted.losses[-1]:.4g}")
    if reasons:
        row.verdict, row.reason = "differs", "; ".join(reasons)
    return row


def bound(model: TrainedModel, dtype: str, loss: float, exact: float) -> float:
    """Return how far a loss may be from the CPU's, which is `exact` in float32.

    A region rounds at other places than the CPU's: `cross_entropy` has log probabilities of the logits' dtype by
    the device's policies, and XLA leaves out roundings inside of a program. So a loss may be a step of the dtype away,
    of itself and of 1, and as far as the CPU's roundings bring its own from float32's.
    """
    low = DTYPES[dtype]
    return model.fp32_bound if low is None else max(torch.finfo(low).eps * (1 + abs(loss)), abs(loss - exact))


def rows(model: TrainedModel, dtype: str, ways: list[str]) -> Iterator[Row]:
    """Train on the CPU, then in each way on the device; yield each row as soon as it is measured."""
    try:
        exact = train(model, "cpu", "eager", None)
        wanted = exact if dtype == "fp32" else train(model, "cpu", "eager", DTYPES[dtype])
    except Exception as error:  # whatever a library raises
        for way in ways:
            yield Row(model.name, dtype, way, reason=f"the CPU does not train it: {_plain(one_line(error))}")
        return
    for way in ways:
        try:
            low = DTYPES[dtype]
            found = train_by_torchax(model, way, low) if way in TORCHAX else train(model, "jax", way, low)
            row = compare(model, dtype, found, wanted, exact)
        except Unsupported as error:
            row = Row(model.name, dtype, way, reason=str(error), cpu_later=wanted.later)
        except Exception as error:
            row = Row(model.name, dtype, way, "raises", _plain(one_line(error)), cpu_later=wanted.later)
        row.way = way
        yield row


@contextmanager
def _lstm_that_runs(device: str, dtype: torch.dtype | None) -> Iterator[None]:
    """Have the CPU's LSTM run on PyTorch's own kernels where oneDNN has none for this processor."""
    name = next(name for name, low in DTYPES.items() if low is dtype)
    if device != "cpu" or dtype is None or not lacks("mkldnn_rnn_layer", name):
        yield
        return
    with warnings.catch_warnings(), torch.backends.mkldnn.flags(enabled=False):
        warnings.simplefilter("ignore")  # as it restores a setting for GPUs
        yield


def _names(groups: list[list[str]]) -> str:
    return " and ".join(" = ".join(names) for names in groups) or "none"


def _plain(text: str) -> str:
    """Return a message with the files of packages and of this repository named without their places."""
    return re.sub(r"/[^\s:]*/(?=site-packages/|ampcheck/)(?:site-packages/)?", "", text)


def main(arguments: list[str]) -> None:
    """Answer a row a line for a model, a dtype and ways."""
    channel = answers()
    name, dtype, *ways = arguments
    if not set(ways) & set(TORCHAX):
        import ampcheck.jax_device  # noqa: F401, PLC0415  # makes the device, before the process's first backward
    for row in rows(MODELS[name], dtype, ways):
        channel.write(json.dumps(dataclasses.asdict(row)) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
