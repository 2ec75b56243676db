"""Kernels and the calls inside of them, in compiled and mapped programs, too."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from register_support import BRAIN, HALF, NAME, WIDE, rand
from torch.library import Library
from torch.overrides import TorchFunctionMode

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


def check_wrong_arguments_fail_as_outside() -> None:
    x = rand(2, 3)
    with register_autocast(NAME), torch.autocast(NAME):
        for call in (lambda: torch.mm(x, x), lambda: torch.cat([]), lambda: torch.mm(x)):  # type: ignore[call-overload]
            with pytest.raises((RuntimeError, TypeError, ValueError)):
                call()
            assert torch.is_autocast_enabled(NAME)


def check_torch_function_sees_a_call_once() -> None:
    class Seen(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Sub(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            seen.append(func)
            return super().__torch_function__(func, types, args, kwargs or {})

    seen: list[Any] = []
    x = rand(2, 2)
    sub = x.as_subclass(Sub)
    with register_autocast(NAME), torch.autocast(NAME):
        with Seen():
            torch.mm(x, x)
            torch.conv1d(x[None], x[None])
        torch.mm(sub, x)
        torch.conv1d(sub[None], x[None])
    assert seen.count(torch.mm) == seen.count(torch.conv1d) == 2
    assert [func for func in seen if "aten" in str(func)] == []


def check_threads_have_their_own_regions() -> None:
    x, found, start = rand(2, 2), {}, threading.Barrier(3)

    def work(name: str, dtype: torch.dtype | None) -> None:
        region = torch.autocast(NAME, dtype=dtype) if dtype else contextlib.nullcontext()
        with region:
            start.wait()
            found[name] = {torch.mm(x, x).dtype for _ in range(200)}

    with register_autocast(NAME):
        jobs = (("half", HALF), ("brain", BRAIN), ("none", None))
        threads = [threading.Thread(target=work, args=job) for job in jobs]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == {"half": {HALF}, "brain": {BRAIN}, "none": {WIDE}}


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


def check_functorch() -> None:
    matrix, batch = rand(4, 4), rand(3, 4)
    with register_autocast(NAME) as handle, torch.autocast(NAME):
        out = torch.vmap(lambda v: torch.mv(matrix, v))(batch)
        assert (out.dtype, out.shape) == (HALF, (3, 4))
        weight = rand(4, 4, grad=True)
        grad = torch.func.grad(lambda v: torch.mv(weight, v).float().sum())(batch[0])
        assert grad.dtype is WIDE
        assert len(handle.cache) == 0, "a cast of a functorch level must not be cached"
