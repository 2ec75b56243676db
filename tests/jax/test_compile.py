"""`torch.compile(backend="jax")`: values and gradients equal to eager ones, whatever the graph has in it."""

from __future__ import annotations

import contextlib
import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from ampcheck.jax_device import jit
from tests.cli_support import environment

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # PyTorch's own, while Dynamo is imported
    import ampcheck.jax_device.compile  # noqa: F401  # registers the backend

# Dynamo's own slips, which say nothing of the device.
pytestmark = [
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf"),
    pytest.mark.filterwarnings("ignore:.*Function'> should not be instantiated"),
]


def data(rows: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(rows, 4).to("jax"), torch.randn(rows, 3).to("jax")


def layers(*between: torch.nn.Module) -> torch.nn.Module:
    torch.manual_seed(1)
    return torch.nn.Sequential(torch.nn.Linear(4, 16), *between, torch.nn.Linear(16, 3)).to("jax")


def one(call: Callable[..., Any], module: torch.nn.Module, amp: Any, rows: int) -> dict[str, torch.Tensor]:
    """Loss, gradients and buffers of one step."""
    x, y = data(rows)
    with torch.autocast("jax", dtype=amp) if amp else contextlib.nullcontext():
        loss = F.mse_loss(call(x), y)
    loss.backward()
    grads = {name: p.grad.cpu() for name, p in module.named_parameters()}
    return {"loss": loss.detach().cpu(), **grads, **{name: b.cpu() for name, b in module.named_buffers()}}


def same(module: torch.nn.Module, amp: Any = None, rows: int = 8, **bounds: float) -> Any:
    """Compares a module with its compiled self over two steps; returns the compiled one."""
    torch._dynamo.reset()
    twin = copy.deepcopy(module)
    compiled = torch.compile(module, backend="jax")
    for _ in range(2):
        torch.testing.assert_close(one(compiled, module, amp, rows), one(twin, twin, amp, rows), **bounds)
    return compiled


LOW = {"rtol": 2e-2, "atol": 5e-3}  # two roundings to bfloat16, which XLA may leave out inside of one program


def test_the_entry_point_is_enough() -> None:
    """Nothing but the name is needed in a new process: torch loads the backend, and registers it itself."""
    code = (
        "import torch, ampcheck.jax_device\n"
        "print(torch.compile(torch.sin, backend='jax')(torch.zeros(2, device='jax')).tolist())"
    )
    line = [sys.executable, "-c", code]
    done = subprocess.run(line, env=environment(), capture_output=True, text=True, check=False)
    assert done.stdout == "[0.0, 0.0]\n", done.stderr


def test_forward_and_backward() -> None:
    same(layers(torch.nn.Tanh()), rtol=1e-5, atol=1e-6)


def test_autocast_outside_and_inside() -> None:
    same(layers(torch.nn.Tanh()), torch.bfloat16, **LOW)

    class Inside(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = layers()

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            with torch.autocast("jax", dtype=torch.bfloat16):
                hidden = self.first(x)
            assert hidden.dtype is torch.bfloat16
            return self.second(hidden.float())

    same(Inside().to("jax"), **LOW)


def test_buffers_are_written() -> None:
    module = layers(torch.nn.BatchNorm1d(16), torch.nn.ReLU())
    same(module, rtol=1e-5, atol=1e-6)
    assert module[1].num_batches_tracked.item() == 2
    assert (module[1].running_mean != 0).all()


def test_random_masks_are_the_same_in_backward() -> None:
    torch._dynamo.reset()
    drop = torch.compile(torch.nn.Dropout(0.5), backend="jax")
    ones = torch.ones(200, device="jax", requires_grad=True)
    first = drop(ones)
    first.sum().backward()
    assert torch.equal(first.detach(), ones.grad)
    assert 0 < (first != 0).sum().item() < 200
    assert not torch.equal(first, drop(ones))


def test_other_shapes() -> None:
    module = layers(torch.nn.Tanh())
    compiled = same(module, rtol=1e-5, atol=1e-6)
    module.zero_grad()
    twin = copy.deepcopy(module)
    for rows in (2, 5, 7):
        torch.testing.assert_close(one(compiled, module, None, rows), one(twin, twin, None, rows), rtol=1e-5, atol=1e-6)


def test_a_graph_break() -> None:
    class Branches(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            hidden = self.linear(x)
            hidden = hidden * 2 if hidden.sum() > 0 else hidden * 3
            return hidden.tanh()

    torch.manual_seed(1)
    same(Branches().to("jax"), rtol=1e-5, atol=1e-6)


def test_inputs_that_are_written() -> None:
    torch._dynamo.reset()
    x = torch.zeros(3, device="jax")
    doubled = torch.compile(lambda a: a.add_(1) * 2, backend="jax")
    assert doubled(x).tolist() == [2.0] * 3
    assert doubled(x).tolist() == [4.0] * 3
    assert x.tolist() == [2.0] * 3


def test_a_wrong_gradient_is_seen() -> None:
    class Wrong(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, a: torch.Tensor) -> torch.Tensor:
            return a * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * (3 if torch.compiler.is_compiling() else 2)

    class Module(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return Wrong.apply(self.linear(x))

    with pytest.raises(AssertionError, match="not close"):
        same(Module().to("jax"), rtol=1e-5, atol=1e-6)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # Inductor's imports
@pytest.mark.parametrize("fullgraph", [False, True])
def test_a_compiled_function_inside_of_a_jitted_one_is_part_of_its_program(fullgraph: bool) -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.GELU(), torch.nn.Linear(4, 2)).to("jax")
    compiled = torch.compile(model, fullgraph=fullgraph)
    x = torch.randn(5, 3, device="jax")
    expected = compiled(x)

    @jit
    def step(x: torch.Tensor) -> torch.Tensor:
        model.zero_grad()
        out = compiled(x)
        out.square().sum().backward()
        return out.detach()

    torch.testing.assert_close(step(x), expected)
    assert step.compiles == 1
    found = [p.grad.clone() for p in model.parameters() if p.grad is not None]
    model.zero_grad()
    compiled(x).square().sum().backward()  # compiled again, outside
    torch.testing.assert_close(found, [p.grad for p in model.parameters()])


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_condition_inside_of_a_jitted_function_has_a_program_for_each_outcome() -> None:
    def branch(x: torch.Tensor) -> torch.Tensor:
        return torch.cond(x.sum() > 0, lambda x: x + 1, lambda x: x - 1, (x,))

    run = jit(branch)
    with pytest.warns(UserWarning, match="a program of .*branch for each outcome of .*torch.cond"):
        run(torch.ones(2, device="jax"))
    for sign in (1, -1, 1):
        x = torch.full((2,), float(sign), device="jax")
        assert torch.equal(run(x), x + sign)
    assert run.compiles == 2
