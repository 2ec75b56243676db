"""What `jit` refuses or runs eagerly, and that nothing is left behind: values, escapes, errors, leaks, modes."""

from __future__ import annotations

import random
import re
import warnings
from collections import deque
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.jax_device import jit, to_jax
from ampcheck.jax_device.jit.watch import ValueNeededError


def x() -> torch.Tensor:
    return torch.arange(6.0, device="jax").view(2, 3)


def test_values_that_python_looks_at() -> None:
    def branch(a: torch.Tensor) -> torch.Tensor:
        if a.sum() > 0:
            return a
        return -a

    with pytest.raises(
        ValueNeededError, match=r"aten::is_nonzero needs a value.* at .*jit_refusals\.py:\d+ \(`if a\.sum\(\) > 0:`\)"
    ):
        jit(branch, fullgraph=True)(x())
    for fn, op in (
        (lambda a: a * a.sum().item(), "item"),
        (lambda a: a[a > 1], "index"),
        (lambda a: a.nonzero(), "nonzero"),
        (lambda a: a.cpu(), "_to_copy"),
    ):
        with pytest.raises(ValueNeededError, match=f"aten::(.*){op}"):
            jit(fn, fullgraph=True)(x())

    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.sum().item()

    linear = torch.nn.Linear(3, 3).to("jax")
    with pytest.raises(ValueNeededError, match=r"grad\.sum\(\)\.item\(\)"):
        jit(lambda a: Peeks.apply(linear(a)).sum().backward(), fullgraph=True)(x())


class Meter:
    """What a training loop counts on the host."""

    def __init__(self) -> None:
        self.calls, self.losses = 0, list[Any]()


def trained(wrap: Callable[..., Any]) -> tuple[Any, ...]:
    """Everything that three steps leave behind, each of which asks for values at its end."""
    torch.manual_seed(0)
    random.seed(0)
    np.random.seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.BatchNorm1d(3)).to("jax")
    optimizer = torch.optim.Adam(model.parameters(), lr=0.5, capturable=True)
    scheduler = torch.optim.lr_scheduler.SequentialLR(
        optimizer, [torch.optim.lr_scheduler.StepLR(optimizer, 1), torch.optim.lr_scheduler.StepLR(optimizer, 1)], [2]
    )
    scaler, meter, host, drawn = torch.amp.GradScaler("jax"), Meter(), torch.zeros(2), list[Any]()

    def step(a: torch.Tensor) -> Any:
        meter.calls += 1
        meter.losses.append(meter.calls)
        loss = F.dropout(model(a), 0.5).pow(2).mean()
        scaler.scale(loss).backward()  # adds to what the last step left
        scaler.step(optimizer)
        scaler.update()
        host.add_(1)
        scheduler.step()
        a.add_(1)
        drawn.append((random.random(), np.random.rand(), torch.rand(1).item()))
        meter.new = len(drawn)
        return loss.item()

    given, run = x(), wrap(step)
    found = [run(given) for _ in range(3)]
    return (
        found, [meter.calls, meter.losses, vars(meter), host.tolist(), drawn, given.tolist()],
        [(p.tolist(), p.grad.tolist()) for p in model.parameters()], [b.tolist() for b in model.buffers()],
        [{k: v.tolist() for k, v in state.items()} for state in optimizer.state.values()],
        scheduler.state_dict(), scheduler.get_last_lr(), scaler.state_dict(), torch.jax.get_rng_state().tolist(),
    )  # fmt: skip


def test_a_step_that_needs_a_value_runs_eagerly_as_if_it_had_not_been_traced() -> None:
    expected = trained(lambda step: step)
    with pytest.warns(UserWarning, match="runs trained.<locals>.step eagerly") as told:
        assert trained(jit) == expected
    assert [str(w.filename) for w in told] == [__file__]
    text = str(told[0].message)
    assert re.search(r"aten::item needs a value.* at .*jit_refusals\.py:\d+ \(`return loss\.item\(\)`\)", text)
    assert "fullgraph=True" in text
    with pytest.raises(ValueNeededError, match="aten::item"):
        trained(lambda step: jit(step, fullgraph=True))


def test_only_the_calls_that_need_a_value_run_eagerly() -> None:
    asked = deque[bool]()

    def branch(a: torch.Tensor, look: bool) -> torch.Tensor:
        asked.append(torch.compiler.is_compiling())
        return a * 2 if look and a.sum() > 0 else a * 3

    run = jit(branch)
    assert run(x(), False)[0, 1].item() == 3.0
    with pytest.warns(UserWarning, match="eagerly") as told:
        assert run(x(), True)[0, 1].item() == 2.0
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert run(x(), True)[0, 1].item() == 2.0
        assert run(-x(), True)[0, 1].item() == -3.0  # the same kind, the other branch
        assert run(x(), False)[0, 1].item() == 3.0
        assert run(x()[:1], True)[0, 1].item() == 2.0  # another kind, the same place
    assert len(told) == run.compiles == 1
    assert [*asked] == [True, False, False, False, False]  # what was tried is taken back


def test_a_function_whose_state_grows_is_not_traced_at_each_call() -> None:
    losses, tries = list[float](), np.zeros((), np.int64)  # nothing walks into an array, so nothing takes it back

    def step(a: torch.Tensor) -> None:
        tries[...] += torch.compiler.is_compiling()
        losses.append(a.sum().item())

    run = jit(step)
    with pytest.warns(UserWarning, match="eagerly") as told:
        run(x())
    for _ in range(7):
        run(x())
    assert losses == [15.0] * 8
    assert len(told) == 1
    assert tries == 3


def test_a_value_that_the_function_itself_gives_up() -> None:
    def tries(a: torch.Tensor) -> torch.Tensor:
        try:
            return a * float(a.sum())
        except RuntimeError:
            return a

    with pytest.raises(ValueNeededError, match=r"float\(a\.sum\(\)\)"):
        jit(tries, fullgraph=True)(x())
    with pytest.warns(UserWarning, match="eagerly"):
        assert jit(tries)(x())[0, 1].item() == 15.0


def test_values_of_arrays() -> None:
    for fn in (lambda a: float(to_jax(a.sum())), lambda a: float(np.asarray(to_jax(a)).sum())):
        with pytest.raises(ValueNeededError, match=r"an array of JAX needs a value.*refusals\.py:\d+ \(`for fn in"):
            jit(fn, fullgraph=True)(x())
        with pytest.warns(UserWarning, match="eagerly"):
            assert jit(fn)(x()) == 15.0


def test_an_eager_step_keeps_its_graph_and_its_errors() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")

    def fails(a: torch.Tensor) -> torch.Tensor:
        if a.sum() > 100:
            raise KeyError("planted")
        return linear(a)

    run = jit(fails)
    with pytest.warns(UserWarning, match="eagerly"):
        run(x()).sum().backward()
    assert linear.weight.grad is not None
    with pytest.raises(KeyError, match="planted") as caught:
        run(x() + 100)
    assert caught.value.__context__ is None


def test_what_a_program_cannot_do() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")
    kept: list[Any] = []
    host = torch.zeros(3)
    refused: list[tuple[Callable[[torch.Tensor], Any], type[Exception], str]] = [
        (lambda a: kept.append(a * 2), RuntimeError, r"outlives the call: the result of aten::mul"),
        (linear, RuntimeError, "returns a tensor that requires grad"),
        (lambda a: host.add_(1), RuntimeError, r"a CPU tensor of shape \[3\] is written"),
        (lambda a: setattr(a, "data", a * 2), RuntimeError, "another storage"),
    ]
    for fn, kind, words in refused:
        with pytest.raises(kind, match=words):
            jit(fn)(x())
    assert (host == 0).all()
    with pytest.raises(ValueError, match="part of a graph from outside"):
        jit(lambda a: a * 2)(linear(x()))
    with pytest.raises(ValueError, match="10000 elements on cpu"):
        jit(lambda a: a * 2)(torch.zeros(10000))
    with pytest.raises(TypeError, match="got a ArrayImpl"):
        jit(lambda a: a)(jnp.zeros(3))


def test_an_error_in_the_middle_leaves_no_tracer() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")
    optimizer = torch.optim.Adam(linear.parameters(), lr=0.5)

    def fails(a: torch.Tensor) -> None:
        a.add_(1)
        linear(a).sum().backward()
        optimizer.step()
        raise ValueError("planted")

    before, given = linear.weight.detach().clone(), x()
    with pytest.raises(ValueError, match="planted"):
        jit(fails)(given)
    assert torch.equal(given, x())
    assert torch.equal(before, linear.weight.detach())
    assert linear.weight.grad is None
    assert optimizer.param_groups[0]["lr"] == 0.5
    assert optimizer.state[linear.weight]["step"].item() == 0
    linear(given).sum().backward()
    optimizer.step()
    assert optimizer.state[linear.weight]["step"].item() == 1


@pytest.mark.nightly
def test_nothing_leaks() -> None:
    linear = torch.nn.Linear(3, 3).to("jax")
    optimizer = torch.optim.SGD(linear.parameters(), lr=0.1)

    def step(a: torch.Tensor) -> torch.Tensor:
        optimizer.zero_grad()
        with torch.autocast("jax", dtype=torch.bfloat16):
            loss = F.dropout(linear(a) + torch.zeros(3, device="jax"), 0.5).float().pow(2).mean()
        loss.backward()
        optimizer.step()
        return loss

    with jax.checking_leaks():
        run = jit(step)
        run(x())
        run(x())
        with torch.autocast("jax", dtype=torch.bfloat16), torch.no_grad():  # casts are kept by the region outside
            inside = jit(lambda a: linear(a))
            assert torch.equal(inside(x()), linear(x()))
        kept: list[Any] = []
        with pytest.raises(Exception, match=r"Leaked|outlives"):
            jit(lambda a: kept.append(a * 2))(x())


def test_a_mode_sees_the_ops() -> None:
    seen: list[str] = []

    class Sees(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func.name())
            return func(*args, **(kwargs or {}))

    run, given = jit(lambda a: a * 2), x()
    run(given)
    for _ in range(2):
        with Sees():
            run(given)
    assert seen == ["aten::mul.Tensor"] * 2

    def inside(a: torch.Tensor) -> torch.Tensor:
        with Sees():
            return a + 1

    assert torch.equal(jit(inside)(x()), x() + 1)
    assert seen[2:] == ["aten::add.Tensor"]


def test_many_programs_are_told() -> None:
    run = jit(lambda a, n: a * n, warn_after=3)
    run(x(), 0)
    run(x(), 1)
    with pytest.warns(UserWarning, match="traced .* 3 times.* changed: 1 became 2"):
        run(x(), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x(), 3)
