"""Rule lossscale, the documentation's examples with numbers known beforehand; `ampcheck.spec.rules` has the promise."""

from math import inf, nan

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("lossscale")


@pytest.mark.parametrize("bad", ["here", "there", "nowhere"])
@scenario(values=True, dtypes="default")
def test_two_places(amp: Amp, bad: str) -> None:
    """Weights on the device and on the host in one optimizer: an overflow in either skips all (unscale_)."""
    here = torch.nn.Parameter(torch.ones(2, device=amp.type))
    there = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([here, there], lr=1.0)
    scaler = torch.amp.GradScaler(amp.type, init_scale=4.0)
    losses = [
        (here * (inf if bad == "here" else 0.5)).sum(),
        (there * (nan if bad == "there" else 0.25)).sum(),
    ]
    for loss in scaler.scale(losses):
        loss.backward()
    scaler.step(optimizer)
    scaler.update()
    want = ([0.5, 0.5], [0.75, 0.75]) if bad == "nowhere" else ([1.0, 1.0], [1.0, 1.0])
    amp.expect("weights after the step", (amp.values(here), amp.values(there)), want)
    amp.expect("scale after it", scaler.get_scale(), 4.0 if bad == "nowhere" else 2.0)


@scenario(values=True, dtypes="default")
def test_clipped(amp: Amp) -> None:
    """Gradients clipped between unscale_ and step are what the step uses (amp_examples.html, gradient clipping)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=1.0)
    scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0)
    scaler.scale((weight * torch.tensor([3.0, 4.0], device=amp.type)).sum()).backward()
    scaler.unscale_(optimizer)
    norm = torch.nn.utils.clip_grad_norm_([weight], 2.5)
    amp.expect("norm of the gradients", round(float(norm), 4), 5.0)
    scaler.step(optimizer)
    amp.close("weight after the step", weight, torch.tensor([-0.5, 0.0]))


@scenario(values=True, dtypes="default")
def test_accumulated(amp: Amp) -> None:
    """Gradients of several backward passes at one scale add up to one step (amp_examples.html, accumulation)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=0.25)
    scaler = torch.amp.GradScaler(amp.type, init_scale=8.0, growth_interval=2)
    for _ in range(3):
        scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    amp.expect("weight after three passes and a step", amp.values(weight), [0.25, 1.25])
    amp.expect("tracker after them", scaler.state_dict()["_growth_tracker"], 1)
    optimizer.zero_grad()
    scaler.scale((weight * inf).sum()).backward()
    scaler.scale(weight.sum()).backward()
    scaler.step(optimizer)
    amp.expect("weight where one pass of two overflowed", amp.values(weight), [0.25, 1.25])


@scenario(values=True, dtypes="default")
def test_penalty(amp: Amp) -> None:
    """A penalty on gradients unscaled by hand is in the gradients of the step (amp_examples.html, gradient penalty)."""
    weight = torch.nn.Parameter(torch.tensor([1.0, 2.0], device=amp.type))
    optimizer = torch.optim.SGD([weight], lr=0.125)
    scaler = torch.amp.GradScaler(amp.type, init_scale=256.0)
    loss = (weight**2).sum()
    scaled = torch.autograd.grad(scaler.scale(loss), [weight], create_graph=True)
    penalty = sum((grad / scaler.get_scale()).square().sum() for grad in scaled)
    scaler.scale(loss + penalty).backward()
    scaler.step(optimizer)
    amp.expect("weight after the step", amp.values(weight), [-0.25, -0.5])  # 2 w + 8 w, an eighth of it
