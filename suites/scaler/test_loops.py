"""Rule loops: a training loop with a GradScaler, written as documented, trains as one in float32 does.

Each documented recipe runs three times from the same start: in float32 without a scaler, in float32 with one, which
must give the same parameters, and in a region, which must come close. Source:
https://docs.pytorch.org/docs/2.13/notes/amp_examples.html.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ampcheck.checks.training import default_dtype, iterate, one_process, step_and_update, trained
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("loops")

STEPS, CORRUPTED = 4, 1
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
        """Return the loss of a model, computed in the run's region."""
        with self.region():
            return torch.nn.functional.mse_loss(self.models[model](x), y)

    def corrupt_grad(self, step: int, model: int = 0) -> None:
        """Make the gradients of one step infinite; without a scaler that step of the optimizer is left out."""
        self.skipped = [self.optimizers[model]] if step == CORRUPTED else []
        if self.skipped and self.scaled:
            for one in self.models[model].parameters():
                one.grad = torch.full_like(one, float("inf"))

    def step(self, *optimizers: Any) -> None:
        for optimizer in optimizers:
            if self.scaled or optimizer not in self.skipped:
                self.scaler.step(optimizer)
        self.scaler.update()


def _model() -> torch.nn.Module:
    return torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Tanh(), torch.nn.Linear(6, 2))


def _batch(amp: Amp, step: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.sin(torch.arange(32.0).reshape(8, 4) * (step + 1))
    return x.to(amp.type), torch.stack([x.sum(1), x[:, 0] * x[:, 1]], 1).to(amp.type)


def _one_loss(run: Run, step: int) -> list[torch.Tensor]:
    return [run.loss(*_batch(run.amp, step))]


def _trained_by(
    losses: Callable[[Run, int], Iterable[torch.Tensor]], clip: Callable[[Run], object] = bool, apart: bool = False
) -> Callable[[Run, int], None]:
    """Return the recipe of some losses, a backward pass each. `apart`: gradients are unscaled before `clip`."""

    def recipe(run: Run, step: int) -> None:
        run.optimizers[0].zero_grad()
        for loss in losses(run, step):
            run.scaler.scale(loss).backward()
        run.corrupt_grad(step)
        if apart:
            run.scaler.unscale_(run.optimizers[0])
        clip(run)
        run.step(run.optimizers[0])

    return recipe


def _parameters(run: Run) -> list[torch.nn.Parameter]:
    return list(run.models[0].parameters())


def _penalized(run: Run, step: int) -> list[torch.Tensor]:
    loss = run.loss(*_batch(run.amp, step))
    scaled = torch.autograd.grad(run.scaler.scale(loss), _parameters(run), create_graph=True)
    inverse = 1.0 / run.scaler.get_scale()
    with run.region():
        return [loss + 0.25 * torch.stack([(grad * inverse).square().sum() for grad in scaled]).sum().sqrt()]


def _several(run: Run, step: int) -> None:
    """Two losses of two models; the gradients of the second alone overflow, so the first is stepped all the same."""
    x, y = _batch(run.amp, step)
    for optimizer in run.optimizers:
        optimizer.zero_grad()
    one, two = run.loss(x, y), run.loss(x, y + 1, 1)
    run.scaler.scale(one + 0.5 * two).backward(retain_graph=True)
    run.scaler.scale(0.25 * two - 0.125 * one).backward()
    run.corrupt_grad(step, 1)
    run.scaler.unscale_(run.optimizers[0])
    run.step(*run.optimizers)


def _list_of_losses(run: Run, step: int) -> None:
    x, y = _batch(run.amp, step)
    run.optimizers[0].zero_grad()
    torch.autograd.backward(list(run.scaler.scale([run.loss(x[:4], y[:4]), run.loss(x[4:], y[4:])])))
    run.corrupt_grad(step)
    run.step(run.optimizers[0])


RECIPES: dict[str, Callable[[Run, int], None]] = {
    "typical": _trained_by(_one_loss),
    "clip_norm": _trained_by(_one_loss, lambda run: torch.nn.utils.clip_grad_norm_(_parameters(run), 0.5), True),
    "clip_value": _trained_by(_one_loss, lambda run: torch.nn.utils.clip_grad_value_(_parameters(run), 0.125), True),
    "clip_scaled": _trained_by(
        _one_loss, lambda run: torch.nn.utils.clip_grad_norm_(_parameters(run), 0.5 * run.scaler.get_scale())
    ),
    "accumulation": _trained_by(
        lambda run, step: (run.loss(*_batch(run.amp, 3 * step + part)) / 3 for part in range(3))
    ),
    "penalty": _trained_by(_penalized),
    "several": _several,
    "list_of_losses": _list_of_losses,
}


def _run_recipe(amp: Amp, recipe: str, *, scaled: bool, region: bool) -> tuple[list[torch.Tensor], float]:
    run = Run(amp, scaled=scaled, region=region)
    for step in range(STEPS):
        RECIPES[recipe](run, step)
    return [one.detach() for model in run.models for one in model.parameters()], run.scaler.get_scale()


@scenario(recipe=RECIPES, values=True, dtypes="default")
def test_recipe(amp: Amp, recipe: str) -> None:
    """Scaled gradients train as plain ones do, and a step that overflows is as if it had not been (amp_examples.html).

    test_torch has them as test_grad_scaling_clipping, _clipping_separate_unscale, _penalty, _accumulation, _multiple.
    """
    want, _ = _run_recipe(amp, recipe, scaled=False, region=False)
    for region, tolerance in ((False, 1e-6), (True, 16 * torch.finfo(amp.dtype).eps)):
        got, scale = _run_recipe(amp, recipe, scaled=True, region=region)
        for n, (one, two) in enumerate(zip(got, want, strict=True)):
            amp.assert_close(f"parameter {n}, in a region: {region}", one, two, tolerance)
            amp.assert_equal(f"whether parameter {n} is float32", one.dtype, torch.float32)
        amp.assert_equal(f"the scale, in a region: {region}", scale, 1024.0)


@scenario(recipe=RECIPES, values=True, dtypes="default")
def test_disabled(amp: Amp, recipe: str) -> None:
    """With enabled=False a scaler changes not one bit, in a region or out of one (amp.html#torch.amp.GradScaler)."""
    absent = SimpleNamespace(  # what a loop without a scaler does in each place
        scale=lambda loss: loss,
        unscale_=lambda optimizer: None,
        step=lambda optimizer: optimizer.step(),
        update=lambda: None,
        get_scale=lambda: 1.0,
    )
    for region in (False, True):
        plain = Run(amp, scaled=False, region=region)
        plain.scaler = absent
        for step in range(STEPS):
            RECIPES[recipe](plain, step)
        got, scale = _run_recipe(amp, recipe, scaled=False, region=region)
        want = [one.detach() for model in plain.models for one in model.parameters()]
        for n, (one, two) in enumerate(zip(got, want, strict=True)):
            amp.assert_identical(f"parameter {n}, in a region: {region}", one, two)
        amp.assert_equal("the scale", scale, 1.0)


# ---- compiled, saved and sharded loops
INF, NAN = float("inf"), float("nan")


def _step_function(amp: Amp, model: Any, optimizer: Any, scaler: torch.amp.GradScaler) -> Callable[..., torch.Tensor]:
    """Return a whole step as a function of a batch and a factor, with which a caller makes it overflow."""

    def step(x: torch.Tensor, y: torch.Tensor, factor: float) -> torch.Tensor:
        optimizer.zero_grad()
        with amp.region():
            loss = torch.nn.functional.mse_loss(model(x), y)
        scaler.scale(loss * factor).backward()
        step_and_update(scaler, optimizer)
        return loss.detach()

    return step


def _six_steps(amp: Amp, wrap: Callable[[Any], Any], make: Callable[..., Any] = torch.optim.SGD) -> Any:
    """Six steps, the third of which overflows. Returns the losses, the parameters and the scaler."""
    model = amp.module(_model).requires_grad_(True)
    optimizer = make(model.parameters(), lr=0.125)
    scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, growth_interval=2)
    step = wrap(_step_function(amp, model, optimizer, scaler))
    losses = [step(*_batch(amp, n), INF if n == 2 else 1.0).float().item() for n in range(6)]
    return losses, list(model.parameters()), scaler


def _expect_same_training(amp: Amp, got: Any, want: Any, tolerance: float) -> None:
    for n, (one, two) in enumerate(zip(got[0], want[0], strict=True)):
        amp.assert_equal(f"whether the loss of step {n} is near", abs(one - two) <= tolerance * (1 + abs(two)), True)
    for n, (one, two) in enumerate(zip(got[1], want[1], strict=True)):
        amp.assert_close(f"parameter {n}", one, two, tolerance)
    amp.assert_equal("the scaler's state", got[2].state_dict(), want[2].state_dict())


@scenario(values=True, dtypes="default", types=("cpu", "cuda", "xpu", "mps"))
def test_compiled(amp: Amp) -> None:
    """torch.compile of a whole step trains as the step does eagerly (torch.compile, backend "eager").

    Dynamo runs GradScaler's own methods; none of its values may be kept from one step to the next. A device whose
    kernels are Python is left out: where the graph breaks, Dynamo follows them too. For jax, `jitted` is the case.
    """
    want = _six_steps(amp, lambda step: step)
    torch.compiler.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Dynamo looks at the gradient of tensors that have none, and is told so
        got = _six_steps(amp, lambda step: torch.compile(step, backend="eager"))
    torch.compiler.reset()
    _expect_same_training(amp, got, want, 1e-6)


@scenario(values=True, dtypes="default", types=("jax",))
def test_jitted(amp: Amp) -> None:
    """A step that ampcheck.jax_device.jit makes one program trains as it does op by op, skips included."""
    from ampcheck.jax_device import jit

    want = _six_steps(amp, lambda step: step, torch.optim.AdamW)
    _expect_same_training(amp, _six_steps(amp, jit, torch.optim.AdamW), want, 16 * torch.finfo(amp.dtype).eps)


@scenario(values=True, dtypes="default")
def test_resumed(amp: Amp) -> None:
    """A run that was saved and loaded between two steps goes on bit by bit (GradScaler.state_dict; composer#1376)."""

    def made() -> tuple[Any, Any, torch.amp.GradScaler]:
        model = amp.module(_model).requires_grad_(True)
        scaler = torch.amp.GradScaler(amp.type, init_scale=256.0, growth_interval=2)
        return model, torch.optim.AdamW(model.parameters(), lr=0.125), scaler

    parts = made()
    step = _step_function(amp, *parts)
    for n in range(3):
        step(*_batch(amp, n), INF if n == 1 else 1.0)
    file = io.BytesIO()
    torch.save([part.state_dict() for part in parts], file)
    file.seek(0)
    others = made()
    for part, saved in zip(others, torch.load(file), strict=True):
        part.load_state_dict(saved)
    again = _step_function(amp, *others)
    for n in range(3, 7):
        for one in (step, again):
            one(*_batch(amp, n), INF if n == 5 else 1.0)
        amp.assert_equal(f"the scaler's state after step {n}", others[2].state_dict(), parts[2].state_dict())
    for n, (got, want) in enumerate(zip(others[0].parameters(), parts[0].parameters(), strict=True)):
        amp.assert_identical(f"parameter {n}", got, want)


@contextmanager
def _sharded(amp: Amp) -> Iterator[Any]:
    """Yield FSDP's scaler, in a group of one process."""
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    with one_process():
        yield ShardedGradScaler(amp.type, 64.0, backoff_factor=0.25, growth_factor=4.0, growth_interval=2)


@scenario(given=["one", "list", "tuple", "generator", "none"], values=True, dtypes="default", types=("cpu", "cuda"))
def test_sharded_losses(amp: Amp, given: str) -> None:
    """FSDP's scaler scales losses alone and in containers, and keeps the dtype of each (FSDP returns low ones)."""
    losses = [torch.tensor(0.5, device=amp.type), torch.tensor(0.25, device=amp.type, dtype=amp.dtype)]
    with _sharded(amp) as scaler:
        if given == "none":
            amp.assert_raises("a number", ValueError, "must be a Tensor", lambda: scaler.scale(2.0))
            return
        if given == "one":
            scaled = [scaler.scale(loss) for loss in losses]
        else:
            made: Any = {"list": list, "tuple": tuple, "generator": iter}[given](losses)
            out = scaler.scale(made)
            amp.assert_equal("a container of the same kind", given == "generator" or type(out) is type(made), True)
            scaled = list(out)
    for place, (loss, got) in enumerate(zip(losses, scaled, strict=True)):
        amp.assert_equal(f"dtype of loss {place}", got.dtype, loss.dtype)
        amp.assert_identical(f"loss {place}", got, loss * 64.0)


@scenario(
    grad=["float32", "fp16", "sparse", "sparse_fp16"],
    default=["float32", "float64"],
    values=True,
    dtypes="default",
    types=("cpu", "cuda"),
)
def test_sharded_gradients(amp: Amp, grad: str, default: str) -> None:
    """FSDP's scaler unscales fp16 gradients, too, and adds up what a sparse one has twice (_unscale_grads_)."""
    dtype = torch.float16 if "fp16" in grad else torch.float32
    values = torch.tensor([[64.0, 128.0], [32.0, 0.0]], device=amp.type, dtype=dtype)
    made = torch.sparse_coo_tensor(torch.tensor([[0, 0]], device=amp.type), values, (1, 2), check_invariants=True)
    leaf = torch.nn.Parameter(torch.zeros(1, 2, device=amp.type, dtype=dtype))
    leaf.grad = made if "sparse" in grad else values.sum(0, keepdim=True)
    optimizer = torch.optim.SGD([leaf], lr=1.0)
    with default_dtype(getattr(torch, default)), _sharded(amp) as scaler:
        scaler.scale(torch.zeros((), device=amp.type))
        scaler.unscale_(optimizer)
    got = leaf.grad.to_dense()
    amp.assert_equal("dtype of the gradient", got.dtype, dtype)
    amp.assert_identical("the gradient", got, torch.tensor([[1.5, 2.0]], device=amp.type, dtype=dtype))


# ---- long runs, and both ends of the scale's range
THREE = (1.0, -2.0, 3.0)
"""The values that a parameter starts with."""


@scenario(values=True, dtypes="default")
def test_long_overflow(amp: Amp) -> None:
    """However many steps overflow, the scale halves each time and the parameters stay (GradScaler.update; apex#318)."""
    leaf, optimizer, scaler = trained(amp, THREE, init_scale=65536.0)
    wrong = []
    for step in range(142):
        iterate(leaf, optimizer, scaler, (INF, NAN, -INF)[step % 3])
        if scaler.get_scale() != 2.0 ** (15 - step):
            wrong.append(step)
    amp.assert_equal("steps after which the scale was not halved", wrong, [])
    amp.assert_identical("the parameter", leaf, torch.tensor(THREE))
    iterate(leaf, optimizer, scaler, 2.0)
    last = torch.tensor([0.0, -3.0, 2.0])
    amp.assert_identical("the parameter after a finite step at the smallest normal scale", leaf, last)
    amp.assert_equal("the scale", scaler.get_scale(), 2.0**-126)


@scenario(values=True, dtypes="default")
def test_scale_too_small(amp: Amp) -> None:
    """The step is skipped if the unscaled gradients are not finite, even if the scaled ones were (pytorch#99640).

    GradScaler.step: optimizer.step() is skipped "to avoid corrupting the params". Nothing keeps the scale from 0.
    """
    for scale in (2.0**-140, 2.0**-149, 0.0):
        leaf, optimizer, scaler = trained(amp, THREE, init_scale=scale)
        iterate(leaf, optimizer, scaler, 2.0)
        amp.assert_equal(f"whether the parameter is finite at scale {scale}", bool(leaf.isfinite().all().item()), True)
    leaf, optimizer, scaler = trained(amp, THREE, init_scale=0.5)
    leaf.grad = torch.full_like(leaf, 3e38)
    scaler.scale(torch.ones((), device=amp.type))
    scaler.step(optimizer)
    amp.assert_equal("whether it is where unscaling overflows", bool(leaf.isfinite().all().item()), True)


@scenario(values=True, dtypes="default")
def test_top_of_the_scale(amp: Amp) -> None:
    """At the largest scale steps are still right, and the scale stays finite (grad_scaler.py, unscale_)."""
    leaf, optimizer, scaler = trained(amp, THREE, init_scale=2.0**126, growth_interval=1)
    for step in range(4):
        iterate(leaf, optimizer, scaler, 2.0**-20)
        amp.assert_equal(f"the scale after step {step}", scaler.get_scale(), 2.0**127)
    amp.assert_identical("the parameter", leaf, torch.tensor(THREE) - 4 * 2.0**-21)
    iterate(leaf, optimizer, scaler, 4.0)
    amp.assert_equal("the scale after an overflow", scaler.get_scale(), 2.0**126)
    amp.assert_identical("the parameter after an overflow", leaf, torch.tensor(THREE) - 4 * 2.0**-21)


def _fit_sine(amp: Amp, *, scaled: bool, region: bool, scale: float) -> tuple[float, int, float]:
    """Return the loss of a small network fitted to a sine, how many steps were skipped, and the scale at the end."""
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
        step_and_update(scaler, optimizer)
        skipped += scaler.get_scale() < before
    return loss.item(), skipped, scaler.get_scale()


@scenario(values=True)
def test_recovers(amp: Amp) -> None:
    """Training that overflows at first finds a scale that does not, and fits as float32 does (GradScaler)."""
    want, _, _ = _fit_sine(amp, scaled=False, region=False, scale=1.0)
    got, skipped, scale = _fit_sine(amp, scaled=True, region=True, scale=2.0**30)
    amp.assert_equal("whether the loss is within 20 % of float32's", abs(got - want) <= 0.2 * want + 1e-3, True)
    amp.assert_equal("whether it trained at all", want < 0.1, True)
    if amp.dtype == torch.float16:
        amp.assert_equal("whether steps were skipped", skipped > 0, True)
        amp.assert_equal("whether the scale came down", scale < 2.0**30, True)
    else:
        amp.assert_equal("steps skipped in bfloat16, which has float32's range", skipped, 0)
