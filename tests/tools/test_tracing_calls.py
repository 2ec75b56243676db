"""Ways to call an op: transforms, custom ops and functions, checkpoints, TorchScript."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from ampcheck.tools.trace import trace
from tests.tools.trace_programs import Mlp, Program, region


@torch.library.custom_op("ampcheck_trace::product", mutates_args=())
def product(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return torch.mm(a, b)


torch.library.register_autocast("ampcheck_trace::product", "cpu", torch.bfloat16)


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(a, b)
        return torch.mm(a, b)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        a, b = ctx.saved_tensors
        return torch.mm(grad.float(), b.t()), torch.mm(a.t(), grad.float())


def _transforms(kind: str) -> Program:
    x, weight = torch.randn(3, 3), torch.nn.Parameter(torch.randn(3, 3))
    if kind == "vmap":
        return lambda: torch.vmap(lambda row: F.linear(row, weight))(x)
    if kind == "grad":
        return lambda: torch.func.grad(lambda p: torch.mm(x, p).sum())(weight.detach())
    if kind == "compile":
        return torch.compile(lambda: torch.mm(x, weight).relu(), backend="eager")
    if kind == "custom_op":
        return lambda: product(x, weight)
    if kind == "operators":
        return lambda: (x @ weight).__rmatmul__(weight)
    return lambda: torch.ops.aten.mm(x, weight)


@pytest.mark.parametrize(
    ("kind", "name", "policy", "count"),
    [
        ("vmap", "linear", "downcast", 2),
        ("grad", "mm", "downcast", 2),
        ("compile", "mm", "downcast", 2),
        ("custom_op", "ampcheck_trace::product", "unknown", 2),
        ("operators", "matmul", "downcast", 2),
        ("packet", "mm", "downcast", 2),
    ],
)
def test_ways_to_call_an_op(kind: str, name: str, policy: str, count: int) -> None:
    run = _transforms(kind)
    with region():
        expected = run()
    with trace() as t, region():
        got = run()
    assert torch.equal(got, expected)
    assert (t.ops[0].name, t.ops[0].policy) == (name, policy)
    assert [cast.origin for cast in t.ops[0].casts] == ["autocast"] * count


def test_the_backward_of_a_custom_function_is_traced_by_its_own_lines() -> None:
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    with trace() as t:
        with region():
            y = _Product.apply(a, b)
        y.backward(torch.ones(3, 3, dtype=torch.bfloat16))
    rows = [op for op in t.ops if op.name == "mm"]
    assert [op.phase for op in rows] == ["forward", "backward", "backward"]
    assert len({op.location for op in rows}) == 2


def test_the_recomputation_of_a_checkpoint_is_traced() -> None:
    model, x = Mlp(), torch.randn(2, 8)
    with trace() as t:
        with region():
            loss = checkpoint(model, x, use_reentrant=False).sum()
        loss.backward()
    linear = [op for op in t.ops if op.name == "linear"]
    assert [op.phase for op in linear] == ["forward", "forward", "backward", "backward"]
    assert all(str(op.region) == "cpu bf16" and op.autocasts for op in linear)
    # The recomputation stops before the last kernel, which nothing needs again.
    assert [op.dtype for op in linear] == ["bf16", "bf16", "bf16", ""]
    assert not any(op.error for op in t.ops)


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_ops_of_torchscript_are_rows_of_their_own() -> None:
    scripted = torch.jit.script(_scripted)
    x = torch.randn(3, 3)
    for _ in range(3):
        scripted(x)
    with trace() as t, region():
        scripted(x)
    row = next(op for op in t.ops if op.name == "mm")
    assert (row.policy, row.dtype, [cast.origin for cast in row.casts]) == ("downcast", "bf16", ["autocast"])


def _scripted(x: torch.Tensor) -> torch.Tensor:
    return torch.mm(x, x).relu()
