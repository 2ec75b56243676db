"""Rule optimizers: an optimizer stepped by a GradScaler does what it does with gradients that were never scaled.

A skipped step changes nothing. The optimizers are all that `torch.optim` names, so a new one has its cases on the day
it appears. Parts: every optimizer; kinds of gradients; fused optimizers, which unscale in their own kernel and are
given `grad_scale` and `found_inf`. Source: https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.GradScaler.step and
torch/amp/grad_scaler.py.
"""

import copy
import inspect
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim import Optimizer
from torch.optim.optimizer import _get_capturable_supported_devices
from torch.utils._foreach_utils import _get_fused_kernels_supported_devices

from ampcheck.checks.scaling import step_and_update
from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("optimizers")

APART = ("Optimizer", "LBFGS", "SparseAdam")
"""The base class, one that must have a closure, and one for sparse gradients: with their own cases."""
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


def _accepts(name: str, *options: str) -> bool:
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
    if (way == "loop" or _accepts(name, *(option for option in options if option != "foreach")))
    and (way != "foreach" or _accepts(name, "foreach"))
    and (way != "tensor_lr" or name in ("Adam", "AdamW", "SGD"))
]
each_way = pytest.mark.parametrize(("name", "way"), PAIRS, ids=[f"{name}-{way}" for name, way in PAIRS])


def _parameters_and_optimizer(amp: Amp, name: str, way: str) -> tuple[list[torch.nn.Parameter], Any]:
    """Parameters on the device, the same each time, and their optimizer. Muon takes matrices alone."""
    values = (torch.arange(6, dtype=torch.float32).reshape(3, 2) - 2) / 4
    held = [torch.nn.Parameter((values + shift).to(amp.type)) for shift in (0.125, 0.625)]
    options = {option: value for option, value in {**SETTINGS, **WAYS[way]}.items() if _accepts(name, option)}
    if way == "tensor_lr":
        options["lr"] = torch.tensor(0.05)
    return held, getattr(torch.optim, name)(held, **options)


def _differentiate(held: list[torch.nn.Parameter], step: int, scaler: torch.amp.GradScaler | None) -> None:
    """Make new gradients of a sum of squares, other ones in each step; of the scaled sum where there is a scaler."""
    total = torch.stack([((one - 0.5 * step) ** 2).sum() for one in held]).sum()
    (total if scaler is None else scaler.scale(total)).backward()


def _optimizer_state(optimizer: Optimizer) -> dict[str, torch.Tensor]:
    """Return the optimizer's state tensors, by the parameter's number and the state's name."""
    return {
        f"{number} {key}": torch.as_tensor(value).detach().cpu().clone()
        for number, kept in optimizer.state_dict()["state"].items()
        for key, value in kept.items()
        if value is not None
    }


def _expect_same_state(
    amp: Amp, when: str, got: tuple[list[torch.nn.Parameter], Any], want: tuple[list[torch.nn.Parameter], Any]
) -> None:
    for n, (one, other) in enumerate(zip(got[0], want[0], strict=True)):
        amp.assert_close(f"parameter {n} {when}", one, other, 1e-6)
    kept, expected = _optimizer_state(got[1]), _optimizer_state(want[1])
    amp.assert_equal(f"names of what is kept {when}", sorted(kept), sorted(expected))
    for key in kept.keys() & expected.keys():
        amp.assert_close(f"kept {key} {when}", kept[key], expected[key], 1e-6)


def _supports(amp: Amp, name: str, way: str) -> bool:
    """Return whether the device has the implementation; if not, check that PyTorch refuses it."""
    if way == "fused" and amp.type not in _get_fused_kernels_supported_devices():
        amp.assert_raises("a fused optimizer", RuntimeError, "fused", lambda: _parameters_and_optimizer(amp, name, way))
        return False
    if way == "capturable" and amp.type not in _get_capturable_supported_devices():
        held, optimizer = _parameters_and_optimizer(amp, name, way)
        _differentiate(held, 0, None)
        amp.assert_raises("a capturable step", AssertionError, "capturable=True", optimizer.step)
        return False
    return True


@each_way
@scenario(values=True, dtypes="default")
def test_as_without_one(amp: Amp, name: str, way: str) -> None:
    """Scaled steps give the parameters and the state that steps without a scaler give; skipped ones are left out.

    test_torch's test_grad_scaling_autocast is meant to show it, and compares SGD alone (grad_scaler.py, step).
    """
    if not _supports(amp, name, way):
        return
    scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0, growth_interval=2)
    got, want = _parameters_and_optimizer(amp, name, way), _parameters_and_optimizer(amp, name, way)
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
    _expect_same_state(amp, "after three steps and two skipped ones", got, want)
    amp.assert_equal("the scale", scaler.get_scale(), 1024.0 * 0.5 * 2 * 0.5)


@each_way
@scenario(values=True, dtypes="default")
def test_skipped(amp: Amp, name: str, way: str) -> None:
    """A skipped step leaves parameters, step counts and every other state as they are (amp.html, GradScaler.step).

    pytorch#95781 and pytorch#94060: fused ones did not, and not after a separate unscale_.
    """
    if not _supports(amp, name, way):
        return
    scaler = torch.amp.GradScaler(amp.type, init_scale=1024.0)
    held, optimizer = _parameters_and_optimizer(amp, name, way)
    for step, bad in enumerate((None, float("inf"), None, float("nan"), float("-inf"))):
        optimizer.zero_grad()
        _differentiate(held, step, scaler)
        if bad is not None and held[0].grad is not None:
            held[0].grad[-1, -1].fill_(bad)
        before, kept = copy.deepcopy([one.detach() for one in held]), _optimizer_state(optimizer)
        if step == 3:  # both in a step and apart from it
            scaler.unscale_(optimizer)
        out = scaler.step(optimizer)
        scaler.update()
        amp.assert_equal("what step returned", out, None)
        if bad is None:
            changed = [not torch.equal(one, two) for one, two in zip(held, before, strict=True)]
            amp.assert_equal(f"parameters that step {step} changed", changed, [True] * len(held))
            continue
        for n, (one, two) in enumerate(zip(held, before, strict=True)):
            amp.assert_identical(f"parameter {n} after a gradient of {bad}", one, two)
        after = _optimizer_state(optimizer)
        amp.assert_equal(f"names of what is kept after a gradient of {bad}", sorted(after), sorted(kept))
        for key in after.keys() & kept.keys():
            amp.assert_identical(f"kept {key} after a gradient of {bad}", after[key], kept[key])


DIFFERENTIABLE = [name for name in NAMES if _accepts(name, "differentiable")]


@scenario(name=DIFFERENTIABLE, values=True, dtypes="default")
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
        step_and_update(scaler, optimizer)
        results += [one.detach(), torch.autograd.grad(one.sum(), start)[0]]
    amp.assert_identical("the parameter", results[2], results[0])
    amp.assert_identical("what autograd finds for its start", results[3], results[1])
    amp.assert_equal("whether the step moved it", results[0].equal(torch.full_like(results[0], 0.5)), False)


@scenario(values=True, dtypes="default")
def test_every_one_is_known(amp: Amp) -> None:
    """Every optimizer of torch.optim that can step without a closure has its cases here (torch.optim.__all__)."""
    named = [getattr(torch.optim, name) for name in torch.optim.__all__]
    found = {one.__name__ for one in named if isinstance(one, type) and issubclass(one, Optimizer)}
    amp.assert_equal("optimizers without a case", sorted(found - set(NAMES) - set(APART)), [])
    amp.assert_equal("fewer than there were", len(NAMES) >= 13, True)


# ---- kinds of gradients
INF, NAN = float("inf"), float("nan")
IMPLEMENTED = ["loop", "foreach", "fused"]
BAD = named(inf="inf", minus_inf="-inf", nan="nan")
WIDE_DTYPES = named(brain=torch.bfloat16, single=torch.float32, double=torch.float64)


def _parameter(amp: Amp, size: int = 3, dtype: torch.dtype = torch.float32) -> torch.nn.Parameter:
    return torch.nn.Parameter((torch.arange(size) - 1.5).to(dtype).to(amp.type))


def _steps(amp: Amp, leaves: list[torch.nn.Parameter], optimizer: Any, *, scaled: bool, count: int = 2) -> Any:
    """Step down half the sum of squares of all leaves that want a gradient. Returns the scaler."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=512.0, enabled=scaled)
    for _ in range(count):
        optimizer.zero_grad()
        for leaf in leaves:
            if leaf.requires_grad:
                scaler.scale(leaf.square().sum() / 2).backward()
        step_and_update(scaler, optimizer)
    return scaler


@scenario(way=IMPLEMENTED, dtype=WIDE_DTYPES, values=True, dtypes="default")
def test_dtype(amp: Amp, way: str, dtype: torch.dtype) -> None:
    """Parameters of another dtype than float16 are trained as without a scaler (pytorch#127176; torch.optim)."""
    results = []
    for scaled in (False, True):
        leaf = _parameter(amp, dtype=dtype)
        optimizer = torch.optim.SGD([leaf], lr=0.25, foreach=way == "foreach", fused=way == "fused")
        _steps(amp, [leaf], optimizer, scaled=scaled)
        results.append(leaf)
    amp.assert_identical("the parameter", results[1], results[0])
    amp.assert_equal("dtype of its gradient", getattr(results[1].grad, "dtype", None), dtype)


@scenario(values=True, dtypes="default")
def test_complex_is_refused(amp: Amp) -> None:
    """Complex gradients are refused by an error that names the dtype, and the parameter is kept (pytorch#127176)."""
    leaf = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scaler.scale(leaf.abs().sum()).backward()
    amp.assert_raises("step", RuntimeError, "omplex", lambda: scaler.step(optimizer))
    amp.assert_equal("the parameter", amp.values(leaf), [1.0, 1.0])


@scenario(way=["SparseAdam", "SGD", "Momentum", "Adagrad"], values=True, dtypes="default")
def test_sparse(amp: Amp, way: str) -> None:
    """Optimizers that take sparse gradients take those of a scaled loss (pytorch#35810; torch.nn.Embedding)."""
    made: dict[str, Any] = {
        "SparseAdam": lambda held: torch.optim.SparseAdam(list(held), lr=0.25),
        "SGD": lambda held: torch.optim.SGD(held, lr=0.25),
        "Momentum": lambda held: torch.optim.SGD(held, lr=0.25, momentum=0.5),
        "Adagrad": lambda held: torch.optim.Adagrad(held, lr=0.25),
    }
    results = []
    index = torch.tensor([0, 2, 2, 3], device=amp.type)
    for scaled in (False, True):
        table = torch.nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, sparse=True).to(amp.type)
        optimizer, scaler = made[way](table.parameters()), torch.amp.GradScaler(amp.type, 512.0, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(table(index).square().sum()).backward()
            if scaled and step == 1 and table.weight.grad is not None:
                table.weight.grad._values()[1] = INF
            if scaled or step != 1:
                with torch.sparse.check_sparse_tensor_invariants(enable=True):  # silent on it, Adagrad's own would warn
                    scaler.step(optimizer)
                scaler.update()
        results.append(table.weight)
    amp.assert_identical("the table", results[1], results[0])


@scenario(values=True, dtypes="default")
def test_scheduler_after_a_skipped_step(amp: Amp) -> None:
    """Calls in the right order give no warning of a wrong one when the first step is skipped (pytorch#44511)."""
    leaf = _parameter(amp)
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler.scale((leaf * INF).sum()).backward()
    step_and_update(scaler, optimizer)
    amp.assert_no_warning("scheduler.step() after scaler.step()", scheduler.step)


@scenario(values=True, dtypes="default")
def test_group_added_later(amp: Amp) -> None:
    """A group that is added between two steps is unscaled and stepped with the others (torch.optim.Optimizer)."""
    one, two = _parameter(amp), _parameter(amp)
    optimizer = torch.optim.SGD([one], lr=0.25)
    _steps(amp, [one], optimizer, scaled=True, count=1)
    optimizer.add_param_group({"params": [two], "lr": 0.5})
    _steps(amp, [one, two], optimizer, scaled=True, count=1)
    amp.assert_identical("the first parameter", one, (torch.arange(3) - 1.5) * 0.75**2)
    amp.assert_identical("the one that was added", two, (torch.arange(3) - 1.5) * 0.5)


# ---- fused optimizers
FUSED: dict[str, Callable[..., Any]] = {
    "Adam": lambda held, **more: torch.optim.Adam(held, lr=0.125, **more),
    "AdamW": lambda held, **more: torch.optim.AdamW(held, lr=0.125, **more),
    "SGD": lambda held, **more: torch.optim.SGD(held, lr=0.125, **more),
    "Momentum": lambda held, **more: torch.optim.SGD(held, lr=0.125, momentum=0.5, dampening=0.25, **more),
    "Adagrad": lambda held, **more: torch.optim.Adagrad(held, lr=0.125, **more),
}


def _fused(amp: Amp, name: str, **options: Any) -> tuple[torch.nn.Parameter, Any, torch.amp.GradScaler]:
    leaf, options = _parameter(amp, 4), {"fused": True, **options}
    return leaf, FUSED[name]([leaf], **options), torch.amp.GradScaler(amp.type, init_scale=256.0)


def _scaled_backward(leaf: torch.nn.Parameter, scaler: torch.amp.GradScaler, bad: float | None = None) -> None:
    """Compute the gradient of half the sum of squares, scaled: the parameter itself times the scale."""
    leaf.grad = None
    scaler.scale(leaf.square().sum() / 2).backward()
    if bad is not None and leaf.grad is not None:
        leaf.grad[1] = bad


def _iterate(
    leaf: torch.nn.Parameter,
    optimizer: Any,
    scaler: torch.amp.GradScaler,
    bad: float | None = None,
    apart: bool = False,
) -> None:
    """Make an iteration. `apart`: gradients are unscaled before the step."""
    _scaled_backward(leaf, scaler, bad)
    if apart:
        scaler.unscale_(optimizer)
    step_and_update(scaler, optimizer)


@scenario(name=FUSED, values=True, dtypes="default")
def test_divided_once(amp: Amp, name: str) -> None:
    """Gradients are divided once, in the step or before it, and hold that afterwards (pytorch#94060, pytorch#90752)."""
    for apart in (False, True):
        leaf, optimizer, scaler = _fused(amp, name)
        start = leaf.detach().clone()
        _iterate(leaf, optimizer, scaler, apart=apart)
        amp.assert_identical(f"the gradient, unscale_ called: {apart}", leaf.grad, start)
        plain = torch.nn.Parameter(start)
        plain.grad = start.clone()
        FUSED[name]([plain], fused=True).step()
        amp.assert_close(f"the parameter, unscale_ called: {apart}", leaf, plain, 1e-6)


@scenario(name=FUSED, bad=BAD, apart=named(in_step=False, apart=True), values=True, dtypes="default")
def test_overflow_in_the_first_step(amp: Amp, name: str, bad: str, apart: bool) -> None:
    """After a skipped first step, the second one acts as the first (pytorch#95781; the scale starts too high)."""
    results = []
    for skips in (True, False):
        leaf, optimizer, scaler = _fused(amp, name)
        for this in (float(bad), None, None) if skips else (None, None):
            _iterate(leaf, optimizer, scaler, this, apart)
        results.append(leaf)
    amp.assert_close("the parameter after a skipped step and two others", results[0], results[1], 1e-6)


@scenario(name=FUSED, values=True, dtypes="default")
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


@scenario(name=FUSED, values=True, dtypes="default")
def test_nothing_stays_behind(amp: Amp, name: str) -> None:
    """After a step, taken or skipped, the optimizer has neither grad_scale nor found_inf (grad_scaler.py, step)."""
    leaf, optimizer, scaler = _fused(amp, name)
    for bad in (None, INF):
        _iterate(leaf, optimizer, scaler, bad)
        left = [attribute for attribute in ("grad_scale", "found_inf") if hasattr(optimizer, attribute)]
        amp.assert_equal(f"attributes left after a gradient of {bad}", left, [])


@scenario(name=FUSED, values=True, dtypes="default")
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


@scenario(name=FUSED, how=["loop_to_fused", "fused_to_loop", "deepcopy", "pickle"], values=True, dtypes="default")
def test_moved(amp: Amp, name: str, how: str) -> None:
    """A checkpoint of one implementation loads into another (torch.optim.Optimizer.load_state_dict)."""
    leaf, optimizer, scaler = _fused(amp, name, fused=how != "loop_to_fused")
    _iterate(leaf, optimizer, scaler)
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
            _scaled_backward(one, scaler, bad)
            scaler.step(own)
        scaler.update()
    amp.assert_close("the parameter of the loaded optimizer", other, leaf, 1e-6)


@scenario(name=FUSED, values=True, dtypes="default")
def test_late_gradient(amp: Amp, name: str) -> None:
    """A parameter whose first gradient comes later than another's is stepped then (torch.optim: None is skipped)."""
    results = []
    for fused in (False, True):
        held, scaler = [_parameter(amp, 4), _parameter(amp, 4)], torch.amp.GradScaler(amp.type, init_scale=256.0)
        optimizer = FUSED[name](held, fused=fused)
        for stage in ((0,), (0, 1), (1,)):
            optimizer.zero_grad()
            for n in stage:
                _scaled_backward(held[n], scaler)
            step_and_update(scaler, optimizer)
        results.append(held)
    for n in (0, 1):
        amp.assert_close(f"parameter {n}", results[1][n], results[0][n], 1e-6)


@scenario(name=FUSED, values=True, dtypes="default")
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
        leaf, scaler = _parameter(amp, 4), torch.amp.GradScaler(amp.type, init_scale=256.0)
        _scaled_backward(leaf, scaler, bad)
        if kind == "own":
            own = Own([leaf])
            amp.assert_equal("what step returned", scaler.step(own), "stepped")
            amp.assert_equal("grad_scale and found_inf", own.seen, (256.0, found))
        else:
            told = Told([leaf])
            amp.assert_warns("the older contract", FutureWarning, "passing itself", lambda: scaler.step(told))  # noqa: B023
            amp.assert_equal("whether the scaler was passed", told.given is scaler, True)
