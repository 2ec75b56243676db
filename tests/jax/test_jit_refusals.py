"""What `jit` refuses, and that nothing is left behind: values that Python looks at, escapes, errors, leaks, modes."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest
import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from ampcheck.jax_device import jit
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
        jit(branch)(x())
    for fn, op in (
        (lambda a: a * a.sum().item(), "item"),
        (lambda a: a[a > 1], "index"),
        (lambda a: a.nonzero(), "nonzero"),
        (lambda a: a.cpu(), "_to_copy"),
    ):
        with pytest.raises(ValueNeededError, match=f"aten::(.*){op}"):
            jit(fn)(x())

    class Peeks(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * grad.sum().item()

    linear = torch.nn.Linear(3, 3).to("jax")
    with pytest.raises(ValueNeededError, match=r"grad\.sum\(\)\.item\(\)"):
        jit(lambda a: Peeks.apply(linear(a)).sum().backward())(x())


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
    with pytest.warns(UserWarning, match="compiled .* 3 times.* changed: 1 became 2"):
        run(x(), 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        run(x(), 3)
