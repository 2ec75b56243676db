"""Kernels and the calls inside of them, in compiled and mapped programs, too."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, NAME, WIDE, rand
from torch.library import Library

from ampcheck.register import register_autocast


@contextlib.contextmanager
def spied(overload: str, spy: Callable[..., Any]) -> Iterator[None]:
    """A kernel of the device in place of its fallback."""
    library = Library("aten", "IMPL")
    library.impl(overload, spy, "PrivateUse1")
    try:
        yield
    finally:
        library._destroy()


def check_only_this_key_is_excluded_inside() -> None:
    seen = []

    def mm(a: Any, b: Any) -> Any:
        seen.append((torch.is_autocast_enabled(NAME), torch.is_autocast_enabled("cpu"), a.dtype))
        return a

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast("cpu"), torch.autocast(NAME):
        torch.mm(x, x)
        assert torch.is_autocast_enabled(NAME)
        torch.matmul(x, x)
    assert seen == [(False, True, HALF)] * 2


def check_an_op_inside_an_op_is_not_autocast() -> None:
    def mm(a: Any, b: Any) -> Any:
        return torch.exp(a)  # which has policy upcast

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast(NAME):
        assert torch.mm(x, x).dtype is HALF
        assert torch.exp(torch.mm(x, x)).dtype is WIDE


def check_exception_inside_leaves_autocast_on() -> None:
    def mm(a: Any, b: Any) -> Any:
        raise ZeroDivisionError("inside")

    x = rand(2, 2)
    with register_autocast(NAME), spied("mm", mm), torch.autocast(NAME):
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                torch.mm(x, x)
            assert torch.is_autocast_enabled(NAME)


def check_compiled_equals_eager() -> None:
    layer, x = torch.nn.Linear(4, 4).to(NAME), rand(2, 4)

    def forward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(NAME, dtype=BRAIN):
            y = layer(layer(x))
            return y, torch.cat([y, x]), torch.softmax(y, 0), torch.norm(y), torch.atan2(y, x)

    with register_autocast(NAME):
        eager = forward(x)
        compiled = torch.compile(forward, backend="aot_eager", fullgraph=True)(x)
        assert [t.dtype for t in compiled] == [t.dtype for t in eager] == [BRAIN, WIDE, WIDE, WIDE, WIDE]
        for one, other in zip(eager, compiled, strict=True):
            assert torch.equal(one.cpu(), other.cpu())
        gradients = []
        for outs in (eager, compiled):
            layer.weight.grad = None
            sum(t.float().sum() for t in outs).backward()  # type: ignore[union-attr]
            assert layer.weight.grad is not None
            gradients.append(layer.weight.grad.cpu())
        assert torch.allclose(*gradients, rtol=0.02, atol=0.02)
