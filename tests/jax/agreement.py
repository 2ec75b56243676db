"""The same computation on the CPU and on the jax device, eagerly and in `jit`, for the tests of this folder."""

import io
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from zlib import crc32

import jax
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

NAN, INF = float("nan"), float("inf")


_COMPILED: list[str] = []


def _count(name: str, *_: Any, **__: Any) -> None:
    if name.endswith("backend_compile_duration"):
        _COMPILED.append(name)


jax.monitoring.register_event_duration_secs_listener(_count)


@contextmanager
def compiled() -> Iterator[list[int]]:
    """How many programs JAX compiled inside, in the one element of the list."""
    before, out = len(_COMPILED), [0]
    yield out
    out[0] = len(_COMPILED) - before


def ones(*size: int, **options: Any) -> Tensor:
    return torch.ones(size, device="jax", **options)


def grid() -> Tensor:
    """The numbers from 0 to 5 in two rows."""
    return torch.arange(6.0, device="jax").view(2, 3)


def zeros(*size: int) -> Tensor:
    return torch.zeros(size, device="jax")


def some(values: Iterable[Any], every: int) -> list[Any]:
    """Return parameters of a test, of which each run takes one of `every` and a nightly one all."""
    pairs = [(v if isinstance(v, tuple) else (v,)) for v in values]
    return [
        pytest.param(*p, marks=[pytest.mark.nightly][: crc32(" ".join(map(str, p)).encode()) % every]) for p in pairs
    ]


def library(name: str) -> Any:
    """A package. Skips the test where it cannot be imported."""
    why = f"{name} cannot be imported; `pip install {name.partition('.')[0]}` runs this test"
    return pytest.importorskip(name, reason=why, exc_type=ImportError)


def heard(call: Callable[[], Any]) -> list[str]:
    """The warnings of a call."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        call()
    return [str(w.message) for w in found]


def saved(value: Any, **options: Any) -> io.BytesIO:
    """A file that torch.save wrote, at its beginning."""
    file = io.BytesIO()
    torch.save(value, file, **options)
    file.seek(0)
    return file


def doubling(backward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """A function that doubles a tensor, and whose gradient is what `backward` makes of that of its result."""

    class Doubling(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: Tensor) -> Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, *grads: Tensor) -> Tensor:
            return backward(grads[0])

    return Doubling.apply


def moved(value: Any) -> Any:
    """CPU tensors inside `value` copied to the device, with their `requires_grad`."""
    return tree_map(lambda v: v.detach().to("jax").requires_grad_(v.requires_grad) if torch.is_tensor(v) else v, value)


def tensors(value: Any) -> list[Tensor]:
    """The tensors inside `value`, in order."""
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def gradients(outputs: Any, inputs: Any) -> tuple[Tensor | None, ...]:
    """The gradients of the inputs that ask for one, by some of the outputs."""
    outs, ins = ([t for t in tensors(given) if t.requires_grad] for given in (outputs, inputs))
    seeds = [torch.linspace(0.5, 1.5, t.numel()).reshape(t.shape).to(t.device, t.dtype) for t in outs]
    return torch.autograd.grad(outs, ins, seeds, allow_unused=True) if outs and ins else ()


def same(function: Callable[..., Any], *args: Any, loose: float = 1.0, **kwargs: Any) -> Any:
    """Asserts that results, and gradients where an argument asks for them, are CPU's; returns the device's result.

    `loose` multiplies the tolerances that `torch.testing` has for the dtype.
    """
    expected = function(*args, **kwargs)
    there = moved((args, kwargs))
    found = function(*there[0], **there[1])
    close(found, expected, loose)
    close(gradients(found, there), gradients(expected, (args, kwargs)), loose)
    return found


def close(found: Any, expected: Any, loose: float = 1.0) -> None:
    """Asserts that the tensors inside are equal within the dtype's tolerance, with the same dtypes and shapes."""
    for mine, theirs in zip(tensors(found), tensors(expected), strict=True):
        assert mine.device.type == "jax"
        rtol, atol = (loose * bound for bound in torch.testing._comparison.default_tolerances(theirs))
        options = {"rtol": rtol, "atol": atol, "equal_nan": True, "check_stride": False}
        torch.testing.assert_close(mine.detach().cpu(), theirs.detach(), **options)


def outcome(run: Callable[..., Any], *args: Any) -> Any:
    """What a call returns, or the error it raises."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an out= tensor is resized, of which both warn in words of their own
            return run(*args)
    except (RuntimeError, IndexError, NotImplementedError, OverflowError, ZeroDivisionError) as error:
        return error


def assert_same(device: Any, host: Any) -> None:
    """Asserts that results, tensors by sizes, strides, offset, dtype and values, are the same, or errors of a kind."""
    if isinstance(host, Tensor):
        assert (device.shape, device.dtype, device.stride(), device.storage_offset()) == (
            (host.shape, host.dtype, host.stride(), host.storage_offset())
        )
        torch.testing.assert_close(device.cpu(), host, rtol=0, atol=0, equal_nan=True)
    elif isinstance(host, (list, tuple)):
        for mine, theirs in zip(device, host, strict=True):
            assert_same(mine, theirs)
    elif isinstance(host, Exception) or isinstance(device, Exception):
        assert isinstance(device, type(host)), (device, host)
    else:
        assert device == host


def stepping(
    optimizer: torch.optim.Optimizer, loss: Callable[..., Tensor], amp: torch.dtype | None = None
) -> Callable[..., Tensor]:
    """A step that minimises a function of its arguments, in a region of a dtype where one is given."""

    def step(*given: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=amp or torch.bfloat16, enabled=amp is not None):
            value = loss(*given)
        value.backward()
        optimizer.step()
        return value.detach()

    return step


class Trained(NamedTuple):
    """What a training left behind: losses and scales of each step, and the parameters, on the CPU; the step itself."""

    losses: list[float]
    scales: list[float]
    parameters: list[Tensor]
    step: Any


Make = Callable[[Any], torch.optim.Optimizer]


def train(
    make: Make,
    wrap: Callable[..., Any] = lambda step: step,
    *,
    device: str = "jax",
    dtype: torch.dtype = torch.float32,
    steps: int = 5,
    amp: torch.dtype | None = None,
    clips: bool = False,
    decay: float | None = None,
    inject: Callable[[int, Tensor], Tensor] = lambda step, y: y,
) -> Trained:
    """Train a small model. In float16 a gradient scaler is used, whose first scale overflows.

    `wrap`: what is done to the step. `decay`: of the learning rate. `inject`: changes what is wanted in a step.
    """
    torch.manual_seed(1)
    layers = torch.nn.Linear(4, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3)
    net = torch.nn.Sequential(*layers).to(device, dtype)
    optimizer = make(net.parameters())
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, decay) if decay else None
    scaler = torch.amp.GradScaler(device, init_scale=2.0**20, growth_interval=3, enabled=amp is torch.float16)

    def step(x: Tensor, y: Tensor) -> Tensor:
        optimizer.zero_grad()
        with torch.autocast(device, dtype=amp or torch.bfloat16, enabled=amp is not None):
            loss = F.mse_loss(net(x), y)
        scaler.scale(loss).backward()
        if clips:
            scaler.unscale_(optimizer)
            torch.nn.utils.clip_grad_norm_(net.parameters(), 0.5)
        scaler.step(optimizer)
        scaler.update()
        return loss

    run, losses, scales = wrap(step), [], []
    for i in range(steps):
        torch.manual_seed(0)
        x, y = (torch.randn(8, n).to(device, dtype) for n in (4, 3))
        losses.append(run(x, inject(i, y)).item())
        scales.append(scaler.get_scale())
        if schedule:
            schedule.step()
    return Trained(losses, scales, [p.detach().cpu() for p in net.parameters()], run)
