"""Whole training steps by `jit`: optimizers and the gradient scaler."""

from __future__ import annotations

from collections.abc import Callable
from traceback import walk_stack
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ampcheck.jax_device import jit

Make = Callable[[Any], torch.optim.Optimizer]
OPTIMIZERS: dict[str, tuple[Make, int]] = {
    "SGD": (lambda p: torch.optim.SGD(p, lr=0.1), 1),
    "SGD one by one": (lambda p: torch.optim.SGD(p, lr=0.1, foreach=False), 1),
    # The first step has no momentum yet, so it is another program.
    "momentum": (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01), 2),
    "Adam": (lambda p: torch.optim.Adam(p, lr=0.01), 1),
    "AdamW": (lambda p: torch.optim.AdamW(p, lr=0.01), 1),
    "AdamW one by one": (lambda p: torch.optim.AdamW(p, lr=0.01, foreach=False, amsgrad=True), 1),
    "RMSprop": (lambda p: torch.optim.RMSprop(p, lr=0.01), 1),
    "NAdam": (lambda p: torch.optim.NAdam(p, lr=0.01), 1),
}


def model() -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)).to("jax")


def data() -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(8, 4).to("jax"), torch.randn(8, 3).to("jax")


def steps(make: Make, *, jitted: bool, clears_first: bool, decays: bool) -> tuple[list[float], list[torch.Tensor], int]:
    """Five steps: the losses, the parameters at the end, and how many programs were made."""
    net = model()
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.8) if decays else None

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if clears_first:
            optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        if not clears_first:
            optimizer.zero_grad()
        return loss

    run, losses = jit(step) if jitted else step, []
    for _ in range(5):
        losses.append(run(*data()).item())
        if schedule:
            schedule.step()
    return losses, [p.detach().cpu() for p in net.parameters()], getattr(run, "compiles", 0)


def test_step_counts_are_exact() -> None:
    """RAdam's bias corrections, powers of the step count, are Python's; those in float32 move weights."""
    ends = []
    for jitted in (False, True):
        weight = torch.tensor([0.5], device="jax", requires_grad=True)
        optimizer = torch.optim.RAdam([weight], lr=1e-2)

        def step(weight: torch.Tensor = weight, optimizer: torch.optim.Optimizer = optimizer) -> None:
            optimizer.zero_grad()
            weight.square().sum().backward()
            optimizer.step()

        run = jit(step) if jitted else step
        for _ in range(10):
            run()
        ends.append(weight.item())
    assert ends[0] == pytest.approx(ends[1], rel=0, abs=6e-8)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[pytest.mark.nightly] * (n in ("AdamW one by one", "RMSprop", "NAdam", "Adam")))
        for n in OPTIMIZERS
    ],
)
def test_five_steps_are_five_eager_ones(name: str) -> None:
    """Every other one clears its gradients behind the step, under a learning rate that falls."""
    make, programs = OPTIMIZERS[name]
    clears_first = [*OPTIMIZERS].index(name) % 2 == 0
    expected = steps(make, jitted=False, clears_first=clears_first, decays=not clears_first)
    losses, parameters, compiles = steps(make, jitted=True, clears_first=clears_first, decays=not clears_first)
    torch.testing.assert_close(losses, expected[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parameters, expected[1], rtol=1e-4, atol=1e-5)
    assert compiles == programs


def test_a_changed_learning_rate_counts() -> None:
    weight = torch.zeros(3, device="jax", requires_grad=True)
    optimizer = torch.optim.SGD([weight], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    run = jit(step)
    run()
    optimizer.param_groups[0]["lr"] = 0.25
    run()
    assert weight.tolist() == [-1.25] * 3
    assert run.compiles == 1
    optimizer.param_groups[0]["weight_decay"] = 1.0  # part of the program
    run()
    assert weight.tolist() == [-1.25 - 0.25 * (1 - 1.25)] * 3
    assert run.compiles == 2


def test_a_rate_that_python_looks_at() -> None:
    class Looks(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:
            if self.param_groups[0]["lr"] > 0.5:
                super().step(closure)

    weight = torch.zeros(3, device="jax", requires_grad=True)
    optimizer = Looks([weight], lr=1.0)

    def step() -> None:
        optimizer.zero_grad()
        weight.sum().backward()
        optimizer.step()

    run = jit(step)
    run()
    optimizer.param_groups[0]["lr"] = 0.25
    run()
    assert weight.tolist() == [-1.0] * 3
    assert run.compiles == 2


def test_what_an_optimizer_cannot_do() -> None:
    weight = torch.zeros(3, device="jax", requires_grad=True)
    counts = torch.optim.Adagrad([weight])
    schedule = torch.optim.lr_scheduler.ExponentialLR(torch.optim.SGD([weight], lr=1.0), 0.5)

    def step() -> None:
        weight.sum().backward()
        counts.step()

    with pytest.raises(RuntimeError, match=r"a CPU tensor of shape \[\] is written .*capturable=True"):
        jit(step)()

    def scheduled() -> None:
        weight.sum().backward()
        schedule.optimizer.step()
        schedule.step()

    with pytest.raises(RuntimeError, match="lr of an optimizer was changed inside"):
        jit(scheduled)()
    assert schedule.optimizer.param_groups[0]["lr"] == 1.0

    class Hides:
        __slots__ = ("optimizer",)

    hides = Hides()
    hides.optimizer = torch.optim.SGD([weight], lr=1.0)
    with pytest.raises(RuntimeError, match=r"a step of an optimizer \(SGD\) that it does not reach"):
        jit(lambda: (weight.sum().backward(), hides.optimizer.step()))()


def test_state_that_is_loaded() -> None:
    net = model()
    optimizer = torch.optim.Adam(net.parameters(), lr=0.01)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = F.mse_loss(net(x), y)
        loss.backward()
        optimizer.step()
        return loss

    run = jit(step)
    run(*data())
    saved = [{k: v.clone() for k, v in net.state_dict().items()}, optimizer.state_dict()]
    saved[1] = {**saved[1], "state": {i: {k: v.clone() for k, v in s.items()} for i, s in saved[1]["state"].items()}}
    after = [run(*data()).item() for _ in range(3)]
    net.load_state_dict(saved[0])
    optimizer.load_state_dict(saved[1])
    torch.testing.assert_close([run(*data()).item() for _ in range(3)], after, rtol=0, atol=0)


def scaled(make: Make, *, jitted: bool, clips: bool) -> tuple[list[tuple[float, float]], list[torch.Tensor]]:
    """Seven float16 steps, of which the first overflows by its scale and the sixth by its input."""
    net = model()
    optimizer = make(net.parameters())
    scaler = torch.amp.GradScaler("jax", init_scale=2.0**20, growth_interval=3)

    def step(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=torch.float16):
            loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss

    run, seen = jit(step) if jitted else step, []
    for i in range(7):
        x, y = data()
        loss = run(x, y * torch.inf if i == 5 else y)
        seen.append((loss.item(), scaler.get_scale()))
    return seen, [p.detach().cpu() for p in net.parameters()]


@pytest.mark.parametrize(
    ("make", "clips"),
    [
        pytest.param(lambda p: torch.optim.Adam(p, lr=0.01), True, marks=pytest.mark.nightly),
        (lambda p: torch.optim.Adam(p, lr=0.01, fused=True), False),
        (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9), True),
    ],
    ids=["Adam", "fused Adam", "momentum"],
)
def test_the_scaler_decides_on_the_device(make: Make, clips: bool) -> None:
    expected, parameters = scaled(make, jitted=False, clips=clips)
    found, ours = scaled(make, jitted=True, clips=clips)
    scales = [scale for _, scale in expected]
    assert [scale for _, scale in found] == scales
    assert scales[0] == 2.0**19  # the first step overflows
    assert scales[5] < scales[4]
    torch.testing.assert_close(ours, parameters, rtol=1e-3, atol=1e-4)
    assert all(p.isfinite().all() for p in ours)


def test_momentum_that_an_overflow_would_make() -> None:
    with pytest.raises(RuntimeError, match="dampening is not 0"):
        scaled(lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, dampening=0.1), jitted=True, clips=False)


def test_a_step_that_looks_at_the_locals_of_its_callers() -> None:
    """As imports do, the first of them: what frames keep by that is no tensor that outlives the call."""
    model = torch.nn.Linear(3, 3).to("jax")
    optimizer, scaler = torch.optim.AdamW(model.parameters()), torch.amp.GradScaler("jax", init_scale=4.0)

    @jit
    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(a).sum()
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        for frame, _ in walk_stack(None):
            _ = frame.f_locals
        return loss.detach()

    assert torch.isfinite(step(torch.ones(2, 3, device="jax")))


def test_an_argument_that_is_also_reached() -> None:
    class Holder:
        def __init__(self) -> None:
            self.x, self.other = torch.ones(2, device="jax"), torch.zeros(2, device="jax")

        def run(self, x: torch.Tensor) -> torch.Tensor:
            return x + self.x

    holder = Holder()
    run = jit(holder.run)
    assert [run(holder.x).tolist() for _ in range(3)] == [[2, 2]] * 3
    assert run(holder.other).tolist() == [1, 1]  # it shares other storages: another program
    assert run.compiles == 2
