"""Rule loops, the documented recipes: `ampcheck.spec.rules` says what the rule promises.

Each recipe of PyTorch's notes/amp_examples.html runs three times from the same start: in float32 without a scaler, in
float32 with one, which must give the same parameters, and in a region, which must come close.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("loops")

STEPS, SPOILED = 4, 1
"""How many steps there are, and the one whose gradients overflow; a run without a scaler leaves that step out."""


class Run:
    """Two small models, their optimizers and a scaler, from the same start each time."""

    def __init__(self, amp: Amp, *, scaled: bool, region: bool) -> None:
        self.amp, self.scaled = amp, scaled
        self.region: Callable[[], Any] = amp.region if region else nullcontext
        self.scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0, growth_interval=2, enabled=scaled)
        self.models = [amp.module(_model).requires_grad_(True) for _ in range(2)]
        self.optimizers: list[Any] = [torch.optim.SGD(m.parameters(), lr=0.125, momentum=0.5) for m in self.models]
        self.skipped: list[Any] = []

    def loss(self, x: torch.Tensor, y: torch.Tensor, model: int = 0) -> torch.Tensor:
        """The loss of a model, computed in the run's region."""
        with self.region():
            return torch.nn.functional.mse_loss(self.models[model](x), y)

    def spoil(self, step: int, model: int = 0) -> None:
        """Make the gradients of one step infinite; without a scaler that step of the optimizer is left out."""
        self.skipped = [self.optimizers[model]] if step == SPOILED else []
        if self.skipped and self.scaled:
            for one in self.models[model].parameters():
                one.grad = torch.full_like(one, float("inf"))

    def step(self, *optimizers: Any) -> None:
        """Step each optimizer, then update the scale."""
        for optimizer in optimizers:
            if self.scaled or optimizer not in self.skipped:
                self.scaler.step(optimizer)
        self.scaler.update()


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def _batch(amp: Amp, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.sin(torch.arange(32.0).reshape(8, 4) * (step + 1))
    return x.to(amp.type), torch.stack([x.sum(1), x[:, 0] * x[:, 1]], 1).to(amp.type)


def _typical(run: Run, step: int) -> None:
    run.optimizers[0].zero_grad()
    run.scaler.scale(run.loss(*_batch(run.amp, step))).backward()
    run.spoil(step)
    run.step(run.optimizers[0])


def _clipped(clip: Callable[[Any], object], apart: bool) -> Callable[[Run, int], None]:
    def recipe(run: Run, step: int) -> None:
        run.optimizers[0].zero_grad()
        run.scaler.scale(run.loss(*_batch(run.amp, step))).backward()
        run.spoil(step)
        if apart:
            run.scaler.unscale_(run.optimizers[0])
        clip(run)
        run.step(run.optimizers[0])

    return recipe


def _parameters(run: Run) -> list[torch.nn.Parameter]:
    return list(run.models[0].parameters())


def _accumulated(run: Run, step: int) -> None:
    run.optimizers[0].zero_grad()
    for part in range(3):
        run.scaler.scale(run.loss(*_batch(run.amp, 3 * step + part)) / 3).backward()
    run.spoil(step)
    run.step(run.optimizers[0])


def _penalized(run: Run, step: int) -> None:
    loss = run.loss(*_batch(run.amp, step))
    scaled = torch.autograd.grad(run.scaler.scale(loss), _parameters(run), create_graph=True)
    inverse = 1.0 / run.scaler.get_scale()
    with run.region():
        norm = torch.stack([(grad * inverse).square().sum() for grad in scaled]).sum().sqrt()
        loss = loss + 0.25 * norm
    run.optimizers[0].zero_grad()
    run.scaler.scale(loss).backward()
    run.spoil(step)
    run.step(run.optimizers[0])


def _several(run: Run, step: int) -> None:
    """Two losses of two models; the gradients of the second alone overflow, so the first is stepped all the same."""
    x, y = _batch(run.amp, step)
    for optimizer in run.optimizers:
        optimizer.zero_grad()
    one, two = run.loss(x, y), run.loss(x, y + 1, 1)
    run.scaler.scale(one + 0.5 * two).backward(retain_graph=True)
    run.scaler.scale(0.25 * two - 0.125 * one).backward()
    run.spoil(step, 1)
    run.scaler.unscale_(run.optimizers[0])
    run.step(*run.optimizers)


def _list_of_losses(run: Run, step: int) -> None:
    x, y = _batch(run.amp, step)
    run.optimizers[0].zero_grad()
    scaled = run.scaler.scale([run.loss(x[:4], y[:4]), run.loss(x[4:], y[4:])])
    torch.autograd.backward(list(scaled))
    run.spoil(step)
    run.step(run.optimizers[0])


RECIPES: dict[str, Callable[[Run, int], None]] = {
    "typical": _typical,
    "clip_norm": _clipped(lambda run: torch.nn.utils.clip_grad_norm_(_parameters(run), 0.5), True),
    "clip_value": _clipped(lambda run: torch.nn.utils.clip_grad_value_(_parameters(run), 0.125), True),
    "clip_scaled": _clipped(
        lambda run: torch.nn.utils.clip_grad_norm_(_parameters(run), 0.5 * run.scaler.get_scale()), False
    ),
    "accumulation": _accumulated,
    "penalty": _penalized,
    "several": _several,
    "list_of_losses": _list_of_losses,
}


def _trained(amp: Amp, recipe: str, *, scaled: bool, region: bool) -> tuple[list[torch.Tensor], float]:
    run = Run(amp, scaled=scaled, region=region)
    for step in range(STEPS):
        RECIPES[recipe](run, step)
    return [one.detach() for model in run.models for one in model.parameters()], run.scaler.get_scale()


@pytest.mark.parametrize("recipe", RECIPES)
@scenario(values=True, dtypes="default")
def test_recipe(amp: Amp, recipe: str) -> None:
    """Scaled gradients train as plain ones do, and a step that overflows is as if it had not been (amp_examples.html).

    test_torch has them as test_grad_scaling_clipping, _clipping_separate_unscale, _penalty, _accumulation, _multiple.
    """
    want, _ = _trained(amp, recipe, scaled=False, region=False)
    for region, tolerance in ((False, 1e-6), (True, 16 * torch.finfo(amp.dtype).eps)):
        got, scale = _trained(amp, recipe, scaled=True, region=region)
        for n, (one, two) in enumerate(zip(got, want, strict=True)):
            amp.close(f"parameter {n}, in a region: {region}", one, amp.device.host(two), tolerance)
            amp.expect(f"whether parameter {n} is float32", one.dtype, torch.float32)
        amp.expect(f"the scale, in a region: {region}", scale, 1024.0)


@pytest.mark.parametrize("recipe", RECIPES)
@scenario(values=True, dtypes="default")
def test_disabled(amp: Amp, recipe: str) -> None:
    """With enabled=False a scaler changes not one bit, in a region or out of one (amp.html#torch.amp.GradScaler)."""

    class Absent:
        """Plain training: what a loop without a scaler does in each place."""

        def scale(self, loss: Any) -> Any:
            return loss

        def unscale_(self, optimizer: object) -> None:
            """Nothing was scaled."""

        def step(self, optimizer: Any) -> None:
            optimizer.step()

        def update(self) -> None:
            """There is no scale."""

        def get_scale(self) -> float:
            return 1.0

    for region in (False, True):
        plain = Run(amp, scaled=False, region=region)
        plain.scaler = Absent()  # type: ignore[assignment]
        for step in range(STEPS):
            RECIPES[recipe](plain, step)
        got, scale = _trained(amp, recipe, scaled=False, region=region)
        want = [one.detach() for model in plain.models for one in model.parameters()]
        for n, (one, two) in enumerate(zip(got, want, strict=True)):
            amp.exact(f"parameter {n}, in a region: {region}", one, amp.device.host(two))
        amp.expect("the scale", scale, 1.0)


@scenario(values=True, dtypes="default", types=("cuda", "xpu", "mps", "jax"))
def test_two_devices(amp: Amp) -> None:
    """One scaler serves parameters on two devices; nan on either skips the step (test_grad_scaling_multigpu)."""
    held = [torch.nn.Parameter(torch.full((3,), 2.0, device=where)) for where in (amp.type, "cpu")]
    optimizer, scaler = torch.optim.SGD(held, lr=0.25), torch.amp.GradScaler(amp.type, init_scale=64.0)
    for bad in (None, 0, 1):
        optimizer.zero_grad()
        for scaled in scaler.scale([one.square().sum() / 2 for one in held]):
            scaled.backward()
        if bad is not None:
            held[bad].grad = torch.full_like(held[bad], float("nan"))
        scaler.step(optimizer)
        scaler.update()
        for one in held:
            amp.exact(f"the parameter on {one.device.type} with nan in {bad}", one, torch.full((3,), 1.5))
    amp.expect("the scale", scaler.get_scale(), 16.0)
