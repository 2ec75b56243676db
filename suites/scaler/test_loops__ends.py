"""Rule loops, far from the start: long runs, and both ends of the scale's range. Sources are PyTorch 2.13's."""

from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("loops")

INF, NAN = float("inf"), float("nan")


def _made(amp: Amp, scale: float, **options: Any) -> tuple[torch.nn.Parameter, Any, torch.amp.GradScaler]:
    leaf = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0], device=amp.type))
    return leaf, torch.optim.SGD([leaf], lr=0.5), torch.amp.GradScaler(amp.type, init_scale=scale, **options)


def _step(leaf: torch.nn.Parameter, optimizer: Any, scaler: torch.amp.GradScaler, slope: float) -> None:
    leaf.grad = None
    scaler.scale((leaf * slope).sum()).backward()
    scaler.step(optimizer)
    scaler.update()


@scenario(values=True, dtypes="default")
def test_long_overflow(amp: Amp) -> None:
    """However many steps overflow, the scale halves each time and the parameters stay (GradScaler.update; apex#318)."""
    leaf, optimizer, scaler = _made(amp, 65536.0)
    wrong = []
    for step in range(142):
        _step(leaf, optimizer, scaler, (INF, NAN, -INF)[step % 3])
        if scaler.get_scale() != 2.0 ** (15 - step):
            wrong.append(step)
    amp.expect("steps after which the scale was not halved", wrong, [])
    amp.exact("the parameter", leaf, torch.tensor([1.0, -2.0, 3.0]))
    _step(leaf, optimizer, scaler, 2.0)
    amp.exact("the parameter after a finite step at the smallest normal scale", leaf, torch.tensor([0.0, -3.0, 2.0]))
    amp.expect("the scale", scaler.get_scale(), 2.0**-126)


@scenario(values=True, dtypes="default")
def test_scale_too_small(amp: Amp) -> None:
    """Where the unscaled gradients are not finite the step is skipped, also if the scaled ones were (pytorch#99640).

    GradScaler.step: optimizer.step() is skipped "to avoid corrupting the params". Nothing keeps the scale from 0.
    """
    for scale in (2.0**-140, 2.0**-149, 0.0):
        leaf, optimizer, scaler = _made(amp, scale)
        _step(leaf, optimizer, scaler, 2.0)
        amp.expect(f"whether the parameter is finite at scale {scale}", bool(leaf.isfinite().all().item()), True)
    leaf, optimizer, scaler = _made(amp, 0.5)
    leaf.grad = torch.full_like(leaf, 3e38)
    scaler.scale(torch.ones((), device=amp.type))
    scaler.step(optimizer)
    amp.expect("whether it is where unscaling overflows", bool(leaf.isfinite().all().item()), True)


@scenario(values=True, dtypes="default")
def test_long_growth(amp: Amp) -> None:
    """A scale that grows with each step passes through float32's range and steps stay right (grad_scaler.py).

    test_grad_scale_will_not_overflow: at the top it stays, since an infinite scale could never come back.
    """
    leaf, optimizer, scaler = _made(amp, 1.0, growth_interval=1)
    for step in range(1, 127):
        _step(leaf, optimizer, scaler, 2.0**-20)
        amp.expect(f"the scale after step {step}", scaler.get_scale(), 2.0**step)
    amp.exact("the parameter", leaf, torch.tensor([1.0, -2.0, 3.0]) - 126 * 2.0**-21)


@scenario(values=True, dtypes="default")
def test_top_of_the_scale(amp: Amp) -> None:
    """At the largest scale steps are still right, and the scale stays finite (grad_scaler.py, unscale_)."""
    leaf, optimizer, scaler = _made(amp, 2.0**126, growth_interval=1)
    for step in range(4):
        _step(leaf, optimizer, scaler, 2.0**-20)
        amp.expect(f"the scale after step {step}", scaler.get_scale(), 2.0**127)
    amp.exact("the parameter", leaf, torch.tensor([1.0, -2.0, 3.0]) - 4 * 2.0**-21)
    _step(leaf, optimizer, scaler, 4.0)
    amp.expect("the scale after an overflow", scaler.get_scale(), 2.0**126)
    amp.exact("the parameter after an overflow", leaf, torch.tensor([1.0, -2.0, 3.0]) - 4 * 2.0**-21)


@scenario(values=True, dtypes="default")
def test_swings(amp: Amp) -> None:
    """The scale goes up at each interval and down at each overflow, and each step counts once (GradScaler.update)."""
    leaf, optimizer, scaler = _made(amp, 8.0, growth_interval=3, growth_factor=4.0, backoff_factor=0.25)
    scale, tracker, taken = 8.0, 0, 0
    for step in range(40):
        bad = step % 7 == 5 or step in (20, 21)
        _step(leaf, optimizer, scaler, NAN if bad else 2.0**-4)
        scale, tracker = (scale * 0.25, 0) if bad else (scale, tracker + 1)
        if tracker == 3:
            scale, tracker = scale * 4.0, 0
        taken += not bad
        amp.expect(
            f"scale and tracker after step {step}", (scaler.get_scale(), scaler._get_growth_tracker()), (scale, tracker)
        )
    amp.exact("the parameter", leaf, torch.tensor([1.0, -2.0, 3.0]) - taken * 2.0**-5)


def _fitted(amp: Amp, *, scaled: bool, region: bool, scale: float) -> tuple[float, int, float]:
    """The loss of a small network fitted to a sine, how many steps were skipped, and the scale at the end."""
    model = amp.module(
        lambda: torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    ).requires_grad_(True)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    scaler = torch.amp.GradScaler(amp.type, init_scale=scale, growth_interval=20, enabled=scaled)
    x = torch.linspace(-2, 2, 64)[:, None].to(amp.type)
    y, skipped, loss = torch.sin(x), 0, torch.zeros(())
    for _ in range(80):
        optimizer.zero_grad()
        with amp.region(enabled=region):
            loss = torch.nn.functional.mse_loss(model(x), y)
        before = scaler.get_scale()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        skipped += scaler.get_scale() < before
    return loss.item(), skipped, scaler.get_scale()


@scenario(values=True)
def test_recovers(amp: Amp) -> None:
    """Training that overflows at first finds a scale that does not, and fits as float32 does (GradScaler)."""
    want, _, _ = _fitted(amp, scaled=False, region=False, scale=1.0)
    got, skipped, scale = _fitted(amp, scaled=True, region=True, scale=2.0**30)
    amp.expect("whether the loss is within 20 % of float32's", abs(got - want) <= 0.2 * want + 1e-3, True)
    amp.expect("whether it trained at all", want < 0.1, True)
    if amp.dtype == torch.float16:
        amp.expect("whether steps were skipped", skipped > 0, True)
        amp.expect("whether the scale came down", scale < 2.0**30, True)
    else:
        amp.expect("steps skipped in bfloat16, which has float32's range", skipped, 0)


@scenario(values=True, dtypes="default")
def test_infinite_loss_then_finite(amp: Amp) -> None:
    """One bad batch costs one step and half the scale, and leaves no trace in momentum (GradScaler.step; apex#289)."""
    results = []
    for bad in (False, True):
        leaf = torch.nn.Parameter(torch.tensor([1.0, -2.0], device=amp.type))
        optimizer = torch.optim.SGD([leaf], lr=0.5, momentum=0.5)
        scaler = torch.amp.GradScaler(amp.type, init_scale=64.0)
        for slope in (0.5, INF, 0.25, 0.125) if bad else (0.5, 0.25, 0.125):
            _step(leaf, optimizer, scaler, slope)
        results.append(leaf)
        amp.expect(f"the scale, with a bad batch: {bad}", scaler.get_scale(), 32.0 if bad else 64.0)
    amp.exact("the parameter", results[1], amp.device.host(results[0]))
