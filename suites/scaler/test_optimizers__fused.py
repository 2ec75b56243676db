"""Rule optimizers, those that unscale in their own kernel: `ampcheck.spec.rules` says what the rule promises.

`GradScaler.step` gives such an optimizer `grad_scale` and `found_inf` (grad_scaler.py). Sources are PyTorch 2.13's.
"""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("optimizers")

INF, NAN = float("inf"), float("nan")
FUSED: dict[str, Callable[..., Any]] = {
    "Adam": lambda held, **more: torch.optim.Adam(held, lr=0.125, **more),
    "AdamW": lambda held, **more: torch.optim.AdamW(held, lr=0.125, **more),
    "SGD": lambda held, **more: torch.optim.SGD(held, lr=0.125, **more),
    "Momentum": lambda held, **more: torch.optim.SGD(held, lr=0.125, momentum=0.5, dampening=0.25, **more),
    "Adagrad": lambda held, **more: torch.optim.Adagrad(held, lr=0.125, **more),
}
each_fused = pytest.mark.parametrize("name", FUSED)


def _leaf(amp: Amp, size: int = 4) -> torch.nn.Parameter:
    return torch.nn.Parameter((torch.arange(size, dtype=torch.float32) - 1.5).to(amp.type))


def _scaler(amp: Amp, scale: float = 256.0) -> torch.amp.GradScaler:
    return torch.amp.GradScaler(amp.type, init_scale=scale, growth_interval=1000)


def _backward(leaf: torch.nn.Parameter, scaler: torch.amp.GradScaler, bad: float | None = None) -> None:
    """The gradient of half the sum of squares, scaled: the parameter itself times the scale."""
    leaf.grad = None
    scaler.scale(leaf.square().sum() / 2).backward()
    if bad is not None and leaf.grad is not None:
        leaf.grad[1] = bad


@each_fused
@scenario(values=True, dtypes="default")
def test_divided_once(amp: Amp, name: str) -> None:
    """Gradients are divided once, in the step or before it, and hold that afterwards (pytorch#94060, pytorch#90752)."""
    for apart in (False, True):
        leaf, scaler = _leaf(amp), _scaler(amp)
        optimizer, start = FUSED[name]([leaf], fused=True), leaf.detach().clone()
        _backward(leaf, scaler)
        if apart:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        amp.exact(f"the gradient, unscale_ called: {apart}", leaf.grad, amp.device.host(start))
        plain = torch.nn.Parameter(start)
        plain.grad = start.clone()
        FUSED[name]([plain], fused=True).step()
        amp.close(f"the parameter, unscale_ called: {apart}", leaf, amp.device.host(plain), 1e-6)


@pytest.mark.parametrize("apart", [False, True], ids=["in_step", "apart"])
@pytest.mark.parametrize("bad", ["inf", "-inf", "nan"], ids=["inf", "minus_inf", "nan"])
@each_fused
@scenario(values=True, dtypes="default")
def test_overflow_in_the_first_step(amp: Amp, name: str, bad: str, apart: bool) -> None:
    """Where the first step is skipped, the second is what a first one is (pytorch#95781; the scale starts too high)."""
    results = []
    for skips in (True, False):
        leaf, scaler = _leaf(amp), _scaler(amp)
        optimizer = FUSED[name]([leaf], fused=True)
        for this in (float(bad), None, None) if skips else (None, None):
            _backward(leaf, scaler, this)
            if apart:
                scaler.unscale_(optimizer)
            scaler.step(optimizer)
            scaler.update()
        results.append(leaf)
    amp.close("the parameter after a skipped step and two others", results[0], amp.device.host(results[1]), 1e-6)


@each_fused
@scenario(values=True, dtypes="default")
def test_preset_grad_scale(amp: Amp, name: str) -> None:
    """A grad_scale that the user set is divided by as well, with a separate unscale_ or without (pytorch#123428)."""
    for apart in (False, True):
        leaf, scaler = _leaf(amp), _scaler(amp)
        optimizer, start = FUSED[name]([leaf], fused=True), leaf.detach().clone()
        _backward(leaf, scaler)
        if apart:
            scaler.unscale_(optimizer)
        optimizer.grad_scale = torch.full((1,), 8.0, device=amp.type)
        scaler.step(optimizer)
        scaler.update()
        amp.exact(f"the gradient, unscale_ called: {apart}", leaf.grad, amp.device.host(start / 8))


@each_fused
@scenario(values=True, dtypes="default")
def test_nothing_stays_behind(amp: Amp, name: str) -> None:
    """After a step, taken or skipped, the optimizer has neither grad_scale nor found_inf (grad_scaler.py, step)."""
    leaf, scaler = _leaf(amp), _scaler(amp)
    optimizer = FUSED[name]([leaf], fused=True)
    for bad in (None, INF):
        _backward(leaf, scaler, bad)
        scaler.step(optimizer)
        scaler.update()
        left = [attribute for attribute in ("grad_scale", "found_inf") if hasattr(optimizer, attribute)]
        amp.expect(f"attributes left after a gradient of {bad}", left, [])


@each_fused
@scenario(values=True, dtypes="default")
def test_step_that_raises(amp: Amp, name: str) -> None:
    """A step that raised can be tried again, and divides by the scale once (grad_scaler.py, step)."""
    leaf, scaler = _leaf(amp), _scaler(amp)
    optimizer, start = FUSED[name]([leaf], fused=True), leaf.detach().clone()
    _backward(leaf, scaler)

    def refuse(*_: object) -> None:
        raise LookupError("not now")

    hook = optimizer.register_step_pre_hook(refuse)
    amp.raises("the first try", LookupError, "not now", lambda: scaler.step(optimizer))
    hook.remove()
    scaler.step(optimizer)
    amp.exact("the gradient after the second try", leaf.grad, amp.device.host(start))


@pytest.mark.parametrize("how", ["loop_to_fused", "fused_to_loop", "deepcopy", "pickle"])
@each_fused
@scenario(values=True, dtypes="default")
def test_moved(amp: Amp, name: str, how: str) -> None:
    """What a checkpoint was saved by need not be what loads it (torch.optim.Optimizer.load_state_dict)."""
    leaf, scaler = _leaf(amp), _scaler(amp)
    optimizer = FUSED[name]([leaf], fused=how != "loop_to_fused")
    _backward(leaf, scaler)
    scaler.step(optimizer)
    scaler.update()
    if how == "deepcopy":
        other, loaded = copy.deepcopy((leaf, optimizer))
    elif how == "pickle":
        other, loaded = pickle.loads(pickle.dumps((leaf, optimizer)))
    else:
        other = torch.nn.Parameter(leaf.detach().clone())
        loaded = FUSED[name]([other], fused=how == "loop_to_fused")
        loaded.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for bad in (INF, None):
        for one, own in ((leaf, optimizer), (other, loaded)):
            _backward(one, scaler, bad)
            scaler.step(own)
        scaler.update()
    amp.close("the parameter of the loaded optimizer", other, amp.device.host(leaf), 1e-6)


@each_fused
@scenario(values=True, dtypes="default")
def test_late_gradient(amp: Amp, name: str) -> None:
    """A parameter whose first gradient comes later than another's is stepped then (torch.optim: None is skipped)."""
    results = []
    for fused in (False, True):
        held, scaler = [_leaf(amp), _leaf(amp)], _scaler(amp)
        optimizer = FUSED[name](held, fused=fused)
        for stage in ((0,), (0, 1), (1,)):
            optimizer.zero_grad()
            for n in stage:
                _backward(held[n], scaler)
            scaler.step(optimizer)
            scaler.update()
        results.append(held)
    for n in (0, 1):
        amp.close(f"parameter {n}", results[1][n], amp.device.host(results[0][n]), 1e-6)


@each_fused
@scenario(values=True, dtypes="default")
def test_gradient_spoiled_after_the_check(amp: Amp, name: str) -> None:
    """What happens to gradients after unscale_ is not looked for, fused or not (pytorch#97415).

    test_torch, test_params_invalidated_with_grads_invalidated_between_unscale_and_step
    """
    for fused in (False, True):
        leaf, scaler = _leaf(amp), _scaler(amp)
        optimizer = FUSED[name]([leaf], fused=fused)
        _backward(leaf, scaler)
        scaler.unscale_(optimizer)
        if leaf.grad is not None:
            leaf.grad.fill_(NAN)
        scaler.step(optimizer)
        scaler.update()
        amp.expect(f"whether the parameter is nan, fused={fused}", bool(leaf.isnan().all().item()), True)
        amp.expect(f"the scale, fused={fused}", scaler.get_scale(), 256.0)


@scenario(values=True, dtypes="default")
def test_groups_of_both_kinds(amp: Amp) -> None:
    """Groups with settings of their own are each stepped by them, from one scale (torch.optim, param groups)."""
    for made in FUSED.values():
        results = []
        for scaled in (False, True):
            held = [_leaf(amp), _leaf(amp, 3), _leaf(amp, 1)]
            scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, enabled=scaled)
            optimizer = made([{"params": held[:1], "lr": 0.5}, {"params": held[1:], "weight_decay": 0.25}], fused=True)
            for _ in range(2):
                for leaf in held:
                    _backward(leaf, scaler)
                scaler.step(optimizer)
                scaler.update()
            results.append(held)
        for n, (got, want) in enumerate(zip(results[1], results[0], strict=True)):
            amp.close(f"parameter {n}", got, amp.device.host(want), 1e-6)


class Own(torch.optim.SGD):
    """An optimizer of one's own that handles the scale itself, as GradScaler.step lets it."""

    _step_supports_amp_scaling = True
    seen: tuple[float, float] | None = None

    def step(self, closure: Any = None) -> Any:
        self.seen = (self.grad_scale.item(), self.found_inf.item())  # type: ignore[attr-defined]
        return "stepped"


class Told(torch.optim.SGD):
    """An optimizer of one's own with the older contract: it is handed the scaler."""

    _step_supports_amp_scaling = True
    given: object = None

    def step(self, closure: Any = None, *, grad_scaler: object = None) -> Any:
        self.given = grad_scaler


@pytest.mark.parametrize("kind", ["own", "told"])
@scenario(values=True, dtypes="default")
def test_optimizer_of_ones_own(amp: Amp, kind: str) -> None:
    """Such an optimizer is called also where a gradient overflowed, and told so (test_grad_scaler_pass_itself)."""
    for bad, found in ((None, 0.0), (INF, 1.0)):
        leaf, scaler = _leaf(amp), _scaler(amp)
        _backward(leaf, scaler, bad)
        if kind == "own":
            own = Own([leaf])
            amp.expect("what step returned", scaler.step(own), "stepped")
            amp.expect("grad_scale and found_inf", own.seen, (256.0, found))
        else:
            told = Told([leaf])
            amp.warns("the older contract", FutureWarning, "passing itself", lambda: scaler.step(told))  # noqa: B023
            amp.expect("whether the scaler was passed", told.given is scaler, True)
