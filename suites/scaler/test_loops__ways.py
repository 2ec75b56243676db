"""Rule loops, by what a loop is built of: `ampcheck.spec.rules` says what the rule promises.

Sources are PyTorch 2.13's.
"""

import io
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("loops")

INF = float("inf")


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def _batch(amp: Amp, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.sin(torch.arange(32.0).reshape(8, 4) * (step + 1))
    return x.to(amp.type), torch.stack([x.sum(1), x[:, 0] * x[:, 1]], 1).to(amp.type)


def _step(amp: Amp, model: Any, optimizer: Any, scaler: torch.amp.GradScaler) -> Callable[..., torch.Tensor]:
    """A whole step as a function of a batch and a factor, with which a caller makes it overflow."""

    def step(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        optimizer.zero_grad()
        with amp.region():
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * factor).backward()
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    return step


def _run(amp: Amp, wrap: Callable[[Any], Any], make: Callable[..., Any] = torch.optim.SGD) -> Any:
    """Six steps, the third of which overflows. Returns the losses, the parameters and the scaler."""
    model = amp.module(_model).requires_grad_(True)
    optimizer = make(model.parameters(), lr=0.125)
    scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, growth_interval=2)
    step = wrap(_step(amp, model, optimizer, scaler))
    losses = [step(*_batch(amp, n), INF if n == 2 else 1.0).float().item() for n in range(6)]
    return losses, list(model.parameters()), scaler


def _alike(amp: Amp, got: Any, want: Any, tolerance: float) -> None:
    for n, (one, two) in enumerate(zip(got[0], want[0], strict=True)):
        amp.expect(f"whether the loss of step {n} is near", abs(one - two) <= tolerance * (1 + abs(two)), True)
    for n, (one, two) in enumerate(zip(got[1], want[1], strict=True)):
        amp.close(f"parameter {n}", one, amp.device.host(two), tolerance)
    amp.expect("the scaler's state", got[2].state_dict(), want[2].state_dict())


@scenario(values=True, dtypes="default", types=("cpu", "cuda", "xpu", "mps"))
def test_compiled(amp: Amp) -> None:
    """torch.compile of a whole step trains as the step does eagerly (torch.compile, backend "eager").

    Dynamo runs GradScaler's own methods; none of its values may be kept from one step to the next. A device whose
    kernels are Python is left out: where the graph breaks, Dynamo follows them too. For jax, `jitted` is the case.
    """
    want = _run(amp, lambda step: step)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo looks at the gradient of tensors that have none, and is told so
        got = _run(amp, lambda step: torch.compile(step, backend="eager"))
    torch.compiler.reset()
    _alike(amp, got, want, 1e-6)


@scenario(values=True, dtypes="default", types=("jax",))
def test_jitted(amp: Amp) -> None:
    """A step that ampcheck.jax_device.jit makes one program trains as it does op by op, skips included."""
    from ampcheck.jax_device import jit

    want = _run(amp, lambda step: step, torch.optim.AdamW)
    got = _run(amp, jit, torch.optim.AdamW)
    _alike(amp, got, want, 16 * torch.finfo(amp.dtype).eps)


@scenario(values=True, dtypes="default")
def test_resumed(amp: Amp) -> None:
    """A run that was saved and loaded between two steps goes on bit by bit (GradScaler.state_dict; composer#1376)."""

    def made() -> tuple[Any, Any, torch.amp.GradScaler]:
        model = amp.module(_model).requires_grad_(True)
        scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, growth_interval=2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.125), scaler

    parts = made()
    step = _step(amp, *parts)
    for n in range(3):
        step(*_batch(amp, n), INF if n == 1 else 1.0)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    others = made()
    for part, saved in zip(others, torch.load(file), strict=True):
        part.load_state_dict(saved)
    again = _step(amp, *others)
    for n in range(3, 7):
        for one in (step, again):
            one(*_batch(amp, n), INF if n == 5 else 1.0)
        amp.expect(f"the scaler's state after step {n}", others[2].state_dict(), parts[2].state_dict())
    for n, (got, want) in enumerate(zip(others[0].parameters(), parts[0].parameters(), strict=True)):
        amp.exact(f"parameter {n}", got, amp.device.host(want))


@scenario(values=True, dtypes="default")
def test_averaged(amp: Amp) -> None:
    """Averages of the parameters are of those that steps gave; a skipped one adds the old (torch.optim.swa_utils)."""
    results = []
    for scaled in (False, True):
        model = amp.module(_model).requires_grad_(True)
        averages = [
            torch.optim.swa_utils.AveragedModel(model),
            torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.5)),
        ]
        optimizer = torch.optim.SGD(model.parameters(), lr=0.125)
        scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, enabled=scaled)
        for n in range(4):
            optimizer.zero_grad()
            x, y = _batch(amp, n)
            scaler.scale(torch.nn.functional.mse_loss(model(x), y) * (INF if scaled and n == 1 else 1.0)).backward()
            if scaled or n != 1:
                scaler.step(optimizer)
                scaler.update()
            for average in averages:
                average.update_parameters(model)
        results.append([one for average in averages for one in average.module.parameters()])
    for n, (got, want) in enumerate(zip(results[1], results[0], strict=True)):
        amp.close(f"averaged parameter {n}", got, amp.device.host(want), 1e-6)


class Bounded(torch.amp.GradScaler):
    """A scaler whose scale keeps within bounds, as people write it."""

    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)
        super().update(min(max(self.get_scale(), 1.0), 512.0))


@scenario(values=True, dtypes="default")
def test_subclass(amp: Amp) -> None:
    """A subclass that bounds the scale after each update trains with it (pytorch#99640 asks for such a bound)."""
    leaf = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.5), Bounded(amp.type, init_scale=128.0, growth_interval=1)
    scales = []
    for slope in (0.5, 0.5, 0.5, *[INF] * 12, 0.5):
        leaf.grad = None
        scaler.scale((leaf * slope).sum()).backward()
        scaler.step(optimizer)
        scaler.update()
        scales.append(scaler.get_scale())
    amp.expect("the scales", scales, [256.0, 512.0, 512.0] + [max(512.0 / 2**n, 1.0) for n in range(1, 13)] + [2.0])
    amp.exact("the parameter", leaf, torch.tensor([1.0, -2.0]) - 4 * 0.25)


@scenario(values=True, dtypes="default", types=("cpu", "cuda"))
def test_sharded(amp: Amp) -> None:
    """FSDP's scaler, in a group of one process, does as the plain one does (test_fsdp_sharded_grad_scaler)."""
    from torch import distributed
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)  # type: ignore[attr-defined]
    try:
        results = []
        for scaler in (
            torch.amp.GradScaler(amp.type, init_scale=64.0, growth_interval=2),
            ShardedGradScaler(amp.type, init_scale=64.0, growth_interval=2),
        ):
            leaf = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=amp.type))
            optimizer = torch.optim.Adam([leaf], lr=0.5)
            for slope in (0.5, INF, 0.25, 0.5):
                leaf.grad = None
                scaler.scale((leaf * slope).sum()).backward()
                scaler.step(optimizer)
                scaler.update()
            results.append((leaf, scaler.get_scale()))
    finally:
        distributed.destroy_process_group()
    amp.exact("the parameter", results[1][0], amp.device.host(results[0][0]))
    amp.expect("the scale", results[1][1], results[0][1])


@scenario(values=True, dtypes="default")
def test_recomputed_segment(amp: Amp) -> None:
    """A checkpointed segment gives the same scaled gradients as one that is kept (torch.utils.checkpoint)."""
    results = []
    for kept in (True, False):
        model: Any = amp.module(_model).requires_grad_(True)
        optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.125), torch.amp.GradScaler(amp.type, 256.0)
        x, y = _batch(amp, 0)
        with amp.region():
            out = model(x) if kept else torch.utils.checkpoint.checkpoint(model, x, use_reentrant=False)
            loss = torch.nn.functional.mse_loss(out, y)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        results.append(list(model.parameters()))
    for n, (got, want) in enumerate(zip(results[1], results[0], strict=True)):
        amp.exact(f"parameter {n}", got, amp.device.host(want))
