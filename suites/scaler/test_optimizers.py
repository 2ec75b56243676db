"""Rule optimizers, every one of `torch.optim`: `ampcheck.spec.rules` says what it promises. Sources are PyTorch 2.13's.

The optimizers are those that `torch.optim` names, so a new one has its cases on the day it appears.
"""

import copy
import inspect
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("optimizers")

APART = ("Optimizer", "LBFGS", "SparseAdam")
"""The base class, one that must have a closure, and one for sparse gradients: cases of their own."""
SETTINGS: dict[str, Any] = {
    "lr": 0.05,
    "momentum": 0.75,
    "dampening": 0.5,
    "weight_decay": 0.125,
    "amsgrad": True,
    "centered": True,
}
WAYS: dict[str, dict[str, Any]] = {
    "loop": {"foreach": False},
    "foreach": {"foreach": True},
    "fused": {"fused": True},
    "capturable": {"capturable": True, "foreach": False},
    "maximize": {"maximize": True, "foreach": False},
    "tensor_lr": {"lr": "a tensor", "foreach": False},
}


def _has(name: str, *options: str) -> bool:
    return set(options) <= set(inspect.signature(getattr(torch.optim, name)).parameters)


NAMES = sorted(
    name
    for name, made in vars(torch.optim).items()
    if isinstance(made, type) and issubclass(made, Optimizer) and name not in APART
)
PAIRS = [
    (name, way)
    for name in NAMES
    for way, options in WAYS.items()
    if (way == "loop" or _has(name, *(option for option in options if option != "foreach")))
    and (way != "foreach" or _has(name, "foreach"))
    and (way != "tensor_lr" or name in ("Adam", "AdamW", "SGD"))
]
each_way = pytest.mark.parametrize(("name", "way"), PAIRS, ids=[f"{name}-{way}" for name, way in PAIRS])


def _made(amp: Amp, name: str, way: str) -> tuple[list[torch.nn.Parameter], Any]:
    """Parameters on the device, the same each time, and their optimizer. Muon takes matrices alone."""
    values = (torch.arange(6, dtype=torch.float32).reshape(3, 2) - 2) / 4
    held = [torch.nn.Parameter((values + shift).to(amp.type)) for shift in (0.125, 0.625)]
    options = {option: value for option, value in {**SETTINGS, **WAYS[way]}.items() if _has(name, option)}
    if way == "tensor_lr":
        options["lr"] = torch.tensor(0.05)
    return held, getattr(torch.optim, name)(held, **options)


def _differentiate(held: list[torch.nn.Parameter], step: int, scaler: torch.amp.GradScaler | None) -> None:
    """New gradients of a sum of squares, other ones in each step; of the scaled sum where there is a scaler."""
    total = torch.stack([((one - 0.5 * step) ** 2).sum() for one in held]).sum()
    (total if scaler is None else scaler.scale(total)).backward()


def _kept(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """What the optimizer keeps of each parameter, by the parameter's number and the name of the state."""
    return {
        f"{number} {key}": torch.as_tensor(value).detach().cpu().clone()
        for number, kept in optimizer.state_dict()["state"].items()
        for key, value in kept.items()
        if value is not None
    }


def _alike(
    amp: Amp, when: str, got: tuple[list[torch.nn.Parameter], Any], want: tuple[list[torch.nn.Parameter], Any]
) -> None:
    for n, (one, other) in enumerate(zip(got[0], want[0], strict=True)):
        amp.close(f"parameter {n} {when}", one, amp.device.host(other), 1e-6)
    kept, expected = _kept(got[1]), _kept(want[1])
    amp.expect(f"names of what is kept {when}", sorted(kept), sorted(expected))
    for key in kept.keys() & expected.keys():
        amp.close(f"kept {key} {when}", kept[key], expected[key], 1e-6)


def _runs_here(amp: Amp, name: str, way: str) -> bool:
    """Whether the device has the way; where it has not, PyTorch's refusal is the case."""
    if way == "fused" and amp.type not in _get_fused_kernels_supported_devices():
        amp.raises("a fused optimizer", RuntimeError, "fused", lambda: _made(amp, name, way))
        return False
    if way == "capturable" and amp.type not in _get_capturable_supported_devices():
        held, optimizer = _made(amp, name, way)
        _differentiate(held, 0, None)
        amp.raises("a capturable step", AssertionError, "capturable=True", optimizer.step)
        return False
    return True


@each_way
@scenario(values=True, dtypes="default")
def test_as_without_one(amp: Amp, name: str, way: str) -> None:
    """Scaled steps give the parameters and the state that steps without a scaler give; skipped ones are left out.

    test_torch's test_grad_scaling_autocast is meant to show it, and compares SGD alone (grad_scaler.py, step).
    """
    if not _runs_here(amp, name, way):
        return
    scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0, growth_interval=2)
    got, want = _made(amp, name, way), _made(amp, name, way)
    for step in range(5):
        got[1].zero_grad()
        _differentiate(got[0], step, scaler)
        if step in (0, 3) and got[0][-1].grad is not None:
            got[0][-1].grad.fill_(float("inf") if step else float("nan"))
        scaler.step(got[1])
        scaler.update()
        if step not in (0, 3):
            want[1].zero_grad()
            _differentiate(want[0], step, None)
            want[1].step()
    _alike(amp, "after three steps and two skipped ones", got, want)
    amp.expect("the scale", scaler.get_scale(), 1024.0 * 0.5 * 2 * 0.5)


@each_way
@scenario(values=True, dtypes="default")
def test_skipped(amp: Amp, name: str, way: str) -> None:
    """A skipped step leaves parameters, step counts and every other state as they are (amp.html, GradScaler.step).

    pytorch#95781 and pytorch#94060: fused ones did not, and not after a separate unscale_.
    """
    if not _runs_here(amp, name, way):
        return
    scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0)
    held, optimizer = _made(amp, name, way)
    for step, bad in enumerate((None, float("inf"), None, float("nan"), float("-inf"))):
        optimizer.zero_grad()
        _differentiate(held, step, scaler)
        if bad is not None and held[0].grad is not None:
            held[0].grad[-1, -1].fill_(bad)
        before, kept = copy.deepcopy([one.detach() for one in held]), _kept(optimizer)
        if step == 3:  # both in a step and apart from it
            scaler.unscale_(optimizer)
        out = scaler.step(optimizer)
        scaler.update()
        amp.expect("what step returned", out, None)
        if bad is None:
            changed = [not torch.equal(one, two) for one, two in zip(held, before, strict=True)]
            amp.expect(f"parameters that step {step} changed", changed, [True] * len(held))
            continue
        for n, (one, two) in enumerate(zip(held, before, strict=True)):
            amp.exact(f"parameter {n} after a gradient of {bad}", one, two)
        after = _kept(optimizer)
        amp.expect(f"names of what is kept after a gradient of {bad}", sorted(after), sorted(kept))
        for key in after.keys() & kept.keys():
            amp.exact(f"kept {key} after a gradient of {bad}", after[key], kept[key])


DIFFERENTIABLE = [name for name in NAMES if _has(name, "differentiable")]


@pytest.mark.parametrize("name", DIFFERENTIABLE)
@scenario(values=True, dtypes="default")
def test_differentiable(amp: Amp, name: str) -> None:
    """A step that autograd goes through has the same result under a scaler (torch.optim, differentiable=True)."""
    results = []
    for scaled in (False, True):
        scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0, enabled=scaled)
        start = torch.full((3,), 0.5, device=amp.type, requires_grad=True)
        one = start.clone()
        one.retain_grad()
        optimizer = getattr(torch.optim, name)([one], lr=0.25, differentiable=True)
        scaler.scale(one.square().sum()).backward(inputs=[one])
        scaler.step(optimizer)
        scaler.update()
        results += [one.detach(), torch.autograd.grad(one.sum(), start)[0]]
    amp.exact("the parameter", results[2], amp.device.host(results[0]))
    amp.exact("what autograd finds for its start", results[3], amp.device.host(results[1]))
    amp.expect("whether the step moved it", results[0].equal(torch.full_like(results[0], 0.5)), False)


@scenario(values=True, dtypes="default")
def test_every_one_is_known(amp: Amp) -> None:
    """Every optimizer of torch.optim that can step without a closure has its cases here (torch.optim.__all__)."""
    named = [getattr(torch.optim, name) for name in torch.optim.__all__]
    found = {one.__name__ for one in named if isinstance(one, type) and issubclass(one, Optimizer)}
    amp.expect("optimizers without a case", sorted(found - set(NAMES) - set(APART)), [])
    amp.expect("fewer than there were", len(NAMES) >= 13, True)
