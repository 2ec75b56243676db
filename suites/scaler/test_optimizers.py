"""Rule optimizers: an optimizer stepped by a GradScaler does what it does with gradients that were never scaled.

A skipped step changes nothing. `STEPPED` is the product of all optimizers that `torch.optim` names, so that a new one
has its cases on the day it appears, of their implementations, of kinds of gradients, of what is done around a step, and
of the scalers. Beside it: what a fused optimizer, which unscales in its own kernel, is given, and what is refused.
Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler.step and torch/amp/grad_scaler.py.
"""

import copy
import inspect
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache, partial
from typing import Any

import pytest
import torch
from torch.nn.functional import embedding
from torch.optim import Optimizer
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ampcheck.checks.training import default_dtype, one_process, step_and_update
from ampcheck.runner.suite import Amp, Product, other_than, scenario, where

pytestmark = pytest.mark.rule("optimizers")

INF, NAN = float("inf"), float("nan")
SETTINGS: dict[str, Any] = {"lr": 0.05, "weight_decay": 0.125, "amsgrad": True, "centered": True}
WAYS: dict[str, dict[str, Any]] = {
    "loop": {},
    "foreach": {"foreach": True},
    "capturable": {"capturable": True},
    "maximize": {"maximize": True},
    "tensor_lr": {"lr": "a tensor"},
    "differentiable": {"differentiable": True},
}
SPARSE = {
    "SparseAdam": ("loop", "maximize"),
    "SGD": ("loop", "foreach", "maximize"),
    "Momentum": ("loop", "foreach", "maximize"),
    "Adagrad": ("loop", "foreach"),
}
"""The optimizers that take sparse gradients, and their ways to."""
OPTIMIZERS: dict[str, Any] = {
    name: made
    for name, made in sorted(vars(torch.optim).items())
    if isinstance(made, type) and issubclass(made, Optimizer) and made is not Optimizer
} | {"Momentum": torch.optim.SGD}
FUSED = {f"Fused{name}": name for name, made in OPTIMIZERS.items() if "fused" in inspect.signature(made).parameters}
"""Optimizers whose own kernel unscales, apart from others: each has every kind of gradients and all that is around."""


@cache
def _accepts(name: str, *options: str) -> bool:
    return set(options) <= set(inspect.signature(OPTIMIZERS[name]).parameters)


def _lacks(cell: Any) -> bool:
    name, way = FUSED.get(cell["optimizer"], cell["optimizer"]), cell["way"]
    if cell["optimizer"] in FUSED and way not in ("loop", "maximize", "tensor_lr"):
        return True
    return not _accepts(name, *WAYS[way]) or (way == "tensor_lr" and name not in ("Adam", "AdamW", "SGD", "Momentum"))


def _refuses_sparse(cell: Any) -> bool:
    name, sparse = cell["optimizer"], cell["gradients"] == "sparse"
    return cell["way"] not in SPARSE.get(name, ()) if sparse else name == "SparseAdam"


STEPPED = Product(
    {
        "optimizer": (*OPTIMIZERS, *FUSED),
        "way": tuple(WAYS),
        "gradients": ("dense", "late", "missing", "sparse", "large", "brain", "double"),
        "around": ("nothing", "divided", "hooks", "closure", "group_added", "loaded", "copied", "default"),
        "scaler": ("plain", "sharded", "own"),
    },
    {
        "the optimizer has no such implementation": _lacks,
        "it takes sparse gradients alone, or none": _refuses_sparse,
        "it steps with a closure, which a scaler refuses": where(optimizer="LBFGS", around=other_than("closure")),
        "autograd copies and loads no step that it goes through": where(
            way="differentiable", around=("loaded", "copied", "group_added")
        ),
    },
)

SKIPPED = {0: NAN, 3: -INF, 4: INF}
"""Which of six steps overflow, and by what."""


class _Training:
    """Parameters on the device, the same each time, with their optimizer. Muon takes matrices alone."""

    def __init__(self, amp: Amp, optimizer: str, way: str, gradients: str, around: str, *, plain: bool = False) -> None:
        self.amp, self.way, self.gradients, self.around = amp, way, gradients, around
        self.fused, self.optimizer = optimizer in FUSED and not plain, FUSED.get(optimizer, optimizer)
        self.options = {} if plain and way in ("foreach", "capturable") else WAYS[way]
        size = (71, 71) if gradients in ("large", "brain") else (3, 2)
        dtype = {"brain": torch.bfloat16, "double": torch.float64}.get(gradients, torch.float32)
        values = torch.linspace(-0.5, 0.75, size[0] * size[1], dtype=dtype).reshape(size)
        self.starts = [torch.nn.Parameter((values + shift).to(amp.type)) for shift in (0.125, 0.625)]
        self.held: list[Any] = self.starts
        if way == "differentiable":  # autograd takes no leaf that is written to
            self.held = [start.clone() for start in self.starts]
            for one in self.held:
                one.retain_grad()
        self.stepped = self.made(self.held[:1] if around == "group_added" else self.held)
        self.seen: list[Any] = []
        if around == "hooks":
            for register in (self.stepped.register_step_pre_hook, self.stepped.register_step_post_hook):
                register(lambda *_: self.seen.append(torch.stack(self.derivatives())))

    def made(self, held: list[Any], *, as_meant: bool = True) -> Any:
        """Return the optimizer; `as_meant`: in the implementation that the case is about."""
        options = {name: value for name, value in SETTINGS.items() if _accepts(self.optimizer, name)}
        if self.gradients == "sparse":  # which take no others
            options = {"lr": 0.05}
        if self.optimizer == "Momentum":
            options |= {"momentum": 0.75, "dampening": 0.5}
        if as_meant:
            options |= self.options
        if _accepts(self.optimizer, "foreach"):
            options.setdefault("foreach", False)
        if self.fused and as_meant:
            options |= {"fused": True, "foreach": None}
        if options["lr"] == "a tensor":
            options["lr"] = torch.tensor(0.05)
        return OPTIMIZERS[self.optimizer](held, **options)

    def changed(self, step: int) -> None:
        """Add a group, or go on with a copy, or with an optimizer that loads what one without options has saved."""
        if self.around == "group_added" and step == 1:
            self.stepped.add_param_group({"params": self.held[1:], "lr": 0.025})
        elif self.around == "copied" and step == 2:
            self.held, self.stepped = copy.deepcopy((self.held, self.stepped))
        elif self.around == "loaded" and step in (0, 2):
            before, kept = self.stepped, self.state()
            self.stepped = self.made(self.held, as_meant=step == 2)
            if step == 2:
                self.stepped.load_state_dict(before.state_dict())
                for name, one in self.state().items():
                    self.amp.assert_equal(f"dtype of the loaded {name}", one.dtype, kept[name].dtype)

    def differentiate(self, step: int, scaler: Any) -> None:
        """Make new gradients of a sum of squares, or of the scaled sum, other ones in each step."""
        losses, leaves = [], self.held
        if self.way == "differentiable":
            leaves = [one.detach().requires_grad_() for one in self.held]
        for number, one in enumerate(leaves):
            one.grad = None
            if number and (self.gradients == "missing" or (self.gradients == "late" and step < 2)):
                continue
            if self.gradients == "sparse":
                losses.append(embedding(torch.tensor([0, 2, 2], device=one.device), one, sparse=True).square().sum())
            else:
                losses.append((one - 0.5 * step).square().sum())
        total = torch.stack(losses).sum()
        (total if scaler is None else scaler.scale(total)).backward()
        for one, leaf in zip(self.held, leaves, strict=True):
            one.grad = leaf.grad

    def gradients_held(self) -> list[torch.Tensor]:
        """Return the gradients that the optimizer has."""
        return [one.grad for group in self.stepped.param_groups for one in group["params"] if one.grad is not None]

    def derivatives(self) -> list[torch.Tensor]:
        """Return copies of them."""
        return [self.amp.host(one).to_dense().clone() for one in self.gradients_held()]

    def overflow(self, step: int) -> None:
        """Make the last element of one of them infinite or nan."""
        held = self.gradients_held()
        gradient = held[step % len(held)]
        (gradient._values() if gradient.is_sparse else gradient)[-1, -1] = SKIPPED[step]

    def state(self) -> dict[str, torch.Tensor]:
        """Return copies of the parameters and of the optimizer's state."""
        held = {f"parameter {number}": one for number, one in enumerate(self.held)}
        for number, kept in self.stepped.state_dict()["state"].items():
            held |= {f"{name} of parameter {number}": value for name, value in kept.items() if value is not None}
        return {name: self.amp.host(torch.as_tensor(one).detach()).to_dense().clone() for name, one in held.items()}


def _scaler(amp: Amp, name: str) -> Any:
    """Return a scaler. `own` is that of the device's module, which is torch.amp's where it has none."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    options = {"init_scale": 1024.0, "growth_interval": 2}
    if name == "sharded":
        return ShardedGradScaler(amp.type, **options)
    own = getattr(getattr(getattr(torch, amp.type, None), "amp", None), "GradScaler", None)
    if name == "plain" or own is None:
        return torch.amp.GradScaler(amp.type, **options)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that it is deprecated, see rule deprecated
        return own(**options)


def _supports(amp: Amp, training: Callable[[], _Training], optimizer: str, way: str) -> bool:
    """Return whether the device has the implementation; if not, check that PyTorch refuses it."""
    if optimizer in FUSED and amp.type not in _get_fused_kernels_supported_devices():
        amp.assert_raises("a fused optimizer", RuntimeError, "fused", training)
        return False
    if way == "capturable" and amp.type not in _get_capturable_supported_devices():
        refused = training()
        refused.differentiate(0, None)
        amp.assert_raises("a capturable step", AssertionError, "capturable=True", refused.stepped.step)
        return False
    return True


@scenario(STEPPED, values=True, dtypes="default")
def test_as_without_one(amp: Amp, optimizer: str, way: str, gradients: str, around: str, scaler: str) -> None:
    """Scaled steps change what those of a plain loop without a scaler change, hooks included; a skipped one nothing.

    test_torch's test_grad_scaling_autocast is meant to show it, and compares SGD alone (grad_scaler.py, step).
    """

    def training(*, plain: bool = False) -> _Training:
        return _Training(amp, optimizer, way, gradients, around, plain=plain)

    if not _supports(amp, training, optimizer, way):
        return
    checked = torch.sparse.check_sparse_tensor_invariants(enable=gradients == "sparse")
    with one_process() if scaler == "sharded" else nullcontext(), checked:
        _compare(amp, training(), training(plain=True), scaler)


def _compare(amp: Amp, got: _Training, want: _Training, kind: str) -> None:
    """Train with a scaler, and without one, in a plain loop, where no gradient overflows."""
    scaler = _scaler(amp, kind)
    default = {"plain": torch.float64, "sharded": torch.bfloat16, "own": torch.float16}[kind]
    far = 4 * torch.finfo(torch.bfloat16).eps if got.gradients == "brain" else 3e-6  # kernels round elsewhere
    for step in range(6):
        for one in (got, want):
            one.changed(step)
            one.seen.clear()
        got.differentiate(step, scaler)
        if step in SKIPPED:
            got.overflow(step)
        before, what = got.state(), f"after step {step}"
        if got.around == "closure":
            call = partial(scaler.step, got.stepped, closure=lambda: 0.0)
            amp.assert_raises(f"a closure in step {step}", RuntimeError, "losure", call)
            if got.optimizer == "LBFGS":
                continue
        if got.around == "divided":
            scaler.unscale_(got.stepped)
        with default_dtype(default if got.around == "default" else torch.float32):
            returned = scaler.step(got.stepped)
            scaler.update()
        unscaled = got.derivatives()
        left = [name for name in ("grad_scale", "found_inf") if hasattr(got.stepped, name)]
        amp.assert_equal(f"attributes left {what}", left, [])
        if step in SKIPPED:
            amp.assert_equal(f"value of the skipped step {step}", returned, None)
            after = got.state()  # in which a fused optimizer, which is called, may have more, as it was made
            for name in before:
                amp.assert_identical(f"{name} {what}, which is skipped", after.get(name), before[name])
        else:
            want.differentiate(step, None)
            # Steps are counted in float64 where that is the default, and in float32 everywhere else.
            wide = got.around == "default" and kind == "plain" and not got.fused
            with default_dtype(torch.float64 if wide else torch.float32):
                want.stepped.step(*([lambda: 0.0] if want.around == "closure" else []))
            after, expected = got.state(), want.state()
            amp.assert_equal(f"names of what is kept {what}", sorted(after), sorted(expected))
            for name in after.keys() & expected.keys():
                amp.assert_close(f"{name} {what}", after[name], expected[name], far)
            for number, (one, other) in enumerate(zip(got.derivatives(), want.derivatives(), strict=True)):
                amp.assert_close(f"gradient {number} {what}", one, other, far)
        if got.way == "differentiable" and step == 1:  # through more steps some have no derivative without one, either
            one, other = (torch.autograd.grad(each.held[0].sum(), each.starts[0])[0] for each in (got, want))
            amp.assert_close("derivative of the first step", one, other, 1e-6)
        amp.assert_equal(f"how often hooks were called in step {step}", len(got.seen), len(want.seen))
        for number, one in enumerate(() if step in SKIPPED else got.seen):
            right = torch.stack(unscaled)
            factor = round(float(one.double().norm() / right.double().norm()), 2)
            amp.assert_equal(f"factor of the gradients in call {number} of a hook in step {step}", factor, 1.0)
            amp.assert_close(
                f"gradients without it in call {number} of a hook in step {step}", one / factor, right, far
            )
    if got.optimizer != "LBFGS":
        amp.assert_equal("scale", scaler.get_scale(), 256.0)


# ---- parameters in the lower precision
SIZES = ("1.0", "1e-3", "1e-5", "1e-6", "0.0")
LOW = Product(
    {"optimizer": (*OPTIMIZERS, *FUSED), "way": ("loop", "foreach", "capturable"), "size": SIZES},
    {
        "the optimizer has no such implementation": _lacks,
        "it takes sparse gradients alone, or takes a closure": where(optimizer=("SparseAdam", "LBFGS")),
    },
    nightly=True,
)


@scenario(LOW, values=True)
def test_low_parameters(amp: Amp, optimizer: str, way: str, size: str) -> None:
    """Steps of parameters in the lower precision are finite, and of no gradient those of float32 (pytorch#147437)."""
    held = []
    for dtype in (amp.dtype, torch.float32):
        training = partial(_Training, amp, optimizer, way, "dense", "nothing")
        if dtype == amp.dtype and not _supports(amp, training, optimizer, way):
            return
        made = training()
        made.held = [torch.nn.Parameter(one.detach().to(amp.dtype).to(dtype)) for one in made.starts]
        made.stepped = made.made(made.held)
        made.stepped.param_groups[0]["weight_decay"] = 0.0
        for step in range(3):
            for one in made.held:
                one.grad = (torch.linspace(-1, 1, 6).reshape(3, 2) * float(size) * (step + 1)).to(amp.dtype).to(one)
            made.stepped.step()
        held.append([amp.host(one.detach()) for one in made.held])
    for number, (low, wide) in enumerate(zip(*held, strict=True)):
        amp.check(bool(low.isfinite().all()), f"parameter {number}", f"is {low.flatten().tolist()}")
        if not float(size):
            amp.assert_close(f"parameter {number}", low.float(), wide, 4 * torch.finfo(amp.dtype).eps)


# ---- single cases
def _parameter(amp: Amp) -> torch.nn.Parameter:
    return torch.nn.Parameter((torch.arange(4) - 1.5).to(amp.type))


@scenario(values=True, dtypes="default")
def test_complex_is_refused(amp: Amp) -> None:
    """Complex gradients are refused by an error that names the dtype, and the parameter is kept (pytorch#127176)."""
    leaf = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scaler.scale(leaf.abs().sum()).backward()
    amp.assert_raises("step", RuntimeError, "omplex", lambda: scaler.step(optimizer))
    amp.assert_equal("the parameter", amp.values(leaf), [1.0, 1.0])


@scenario(values=True, dtypes="default")
def test_scheduler_after_a_skipped_step(amp: Amp) -> None:
    """Calls in the right order give no warning of a wrong one when the first step is skipped (pytorch#44511)."""
    leaf = _parameter(amp)
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler.scale((leaf * INF).sum()).backward()
    step_and_update(scaler, optimizer)
    amp.assert_no_warning("scheduler.step() after scaler.step()", scheduler.step)


# ---- fused optimizers
KERNELS: dict[str, Callable[..., Any]] = {
    "Adam": lambda held, **more: torch.optim.Adam(held, lr=0.125, **more),
    "AdamW": lambda held, **more: torch.optim.AdamW(held, lr=0.125, **more),
    "SGD": lambda held, **more: torch.optim.SGD(held, lr=0.125, **more),
    "Momentum": lambda held, **more: torch.optim.SGD(held, lr=0.125, momentum=0.5, dampening=0.25, **more),
    "Adagrad": lambda held, **more: torch.optim.Adagrad(held, lr=0.125, **more),
}


def _fused(amp: Amp, name: str, **options: Any) -> tuple[torch.nn.Parameter, Any, torch.amp.GradScaler]:
    leaf, options = _parameter(amp), {"fused": True, **options}
    return leaf, KERNELS[name]([leaf], **options), torch.amp.GradScaler(amp.type, init_scale=256.0)


def _scaled_backward(leaf: torch.nn.Parameter, scaler: torch.amp.GradScaler, bad: float | None = None) -> None:
    """Compute the gradient of half the sum of squares, scaled: the parameter itself times the scale."""
    leaf.grad = None
    scaler.scale(leaf.square().sum() / 2).backward()
    if bad is not None and leaf.grad is not None:
        leaf.grad[1] = bad


@scenario(name=KERNELS, values=True, dtypes="default")
def test_preset_grad_scale(amp: Amp, name: str) -> None:
    """A grad_scale that the user set is divided by as well, with a separate unscale_ or without (pytorch#123428)."""
    for apart in (False, True):
        leaf, optimizer, scaler = _fused(amp, name)
        start = leaf.detach().clone()
        _scaled_backward(leaf, scaler)
        if apart:
            scaler.unscale_(optimizer)
        optimizer.grad_scale = torch.full((1,), 8.0, device=amp.type)
        step_and_update(scaler, optimizer)
        amp.assert_identical(f"the gradient, unscale_ called: {apart}", leaf.grad, start / 8)


@scenario(name=KERNELS, values=True, dtypes="default")
def test_step_that_raises(amp: Amp, name: str) -> None:
    """A step that raised can be tried again, and divides by the scale once (grad_scaler.py, step)."""
    leaf, optimizer, scaler = _fused(amp, name)
    start = leaf.detach().clone()
    _scaled_backward(leaf, scaler)
    hook = optimizer.register_step_pre_hook(lambda *_: {}["not now"])
    amp.assert_raises("the first try", LookupError, "not now", lambda: scaler.step(optimizer))
    hook.remove()
    scaler.step(optimizer)
    amp.assert_identical("the gradient after the second try", leaf.grad, start)


@scenario(name=KERNELS, values=True, dtypes="default")
def test_gradient_spoiled_after_the_check(amp: Amp, name: str) -> None:
    """GradScaler does not look for changes of gradients after unscale_, fused or not (pytorch#97415).

    test_torch, test_params_invalidated_with_grads_invalidated_between_unscale_and_step
    """
    for fused in (False, True):
        leaf, optimizer, scaler = _fused(amp, name, fused=fused)
        _scaled_backward(leaf, scaler)
        scaler.unscale_(optimizer)
        if leaf.grad is not None:
            leaf.grad.fill_(NAN)
        step_and_update(scaler, optimizer)
        amp.assert_equal(f"whether the parameter is nan, fused={fused}", bool(leaf.isnan().all().item()), True)
        amp.assert_equal(f"the scale, fused={fused}", scaler.get_scale(), 256.0)


class Own(torch.optim.SGD):
    """A custom optimizer that handles the scale itself, as GradScaler.step lets it."""

    _step_supports_amp_scaling = True
    seen: tuple[float, float] | None = None

    def step(self, closure: Any = None) -> Any:
        self.seen = (self.grad_scale.item(), self.found_inf.item())
        return "stepped"


class Told(torch.optim.SGD):
    """A custom optimizer with the older contract: it is given the scaler."""

    _step_supports_amp_scaling = True
    given: object = None

    def step(self, closure: Any = None, *, grad_scaler: object = None) -> Any:
        self.given = grad_scaler


@scenario(kind=["own", "told"], values=True, dtypes="default")
def test_optimizer_of_ones_own(amp: Amp, kind: str) -> None:
    """An optimizer that handles the scale is called and told of an overflow (test_grad_scaler_pass_itself)."""
    for bad, found in ((None, 0.0), (INF, 1.0)):
        leaf, scaler = _parameter(amp), torch.amp.GradScaler(amp.type, init_scale=256.0)
        _scaled_backward(leaf, scaler, bad)
        if kind == "own":
            own = Own([leaf])
            amp.assert_equal("what step returned", scaler.step(own), "stepped")
            amp.assert_equal("grad_scale and found_inf", own.seen, (256.0, found))
        else:
            told = Told([leaf])
            amp.assert_warns("the older contract", FutureWarning, "passing itself", lambda: scaler.step(told))  # noqa: B023
            amp.assert_equal("whether the scaler was passed", told.given is scaler, True)
