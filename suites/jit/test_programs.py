"""Rule programs, compiled: networks, random numbers and other sizes do compiled what they do in eager mode.

Source: https://docs.pytorch.org/docs/2.13/amp.html; cases name the upstream issue they come from.
"""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario
from ampcheck.spec.case import DYNAMO

pytestmark = pytest.mark.rule("programs")


def _losses_of_training(amp: Amp, step: Any, net: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    """Return the losses of some steps of training in a region, gradients taken outside of it."""
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    losses = []
    for _ in range(4):
        with amp.region():
            loss = step(x, y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(amp.host(loss.detach())))
    return losses


@scenario(compiler=DYNAMO, values=True)
def test_training(amp: Amp, compiler: str) -> None:
    """A compiled network trains in a region as in eager mode, its weights and gradients in float32."""
    found, nn = [], torch.nn
    x, y = amp.rand(8, 4), amp.rand(8, 3)
    for how in ("eager", compiler):
        made = amp.module(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3)))
        net = made.requires_grad_(True)

        def step(x: torch.Tensor, y: torch.Tensor, net: torch.nn.Module = net) -> torch.Tensor:
            return torch.nn.functional.mse_loss(net(x), y)

        taken = step if how == "eager" else amp.compiled(compiler, step, x, y)
        found.append(_losses_of_training(amp, taken, net, x, y))
        got = {str(p.grad.dtype) for p in net.parameters()}
        amp.assert_equal(f"dtypes of the gradients, {how}", got, {"torch.float32"})
    amp.assert_close("losses step by step", torch.tensor(found[1]), torch.tensor(found[0]), 0.02)
    amp.assert_equal("whether the loss falls", found[1][-1] < found[1][0], True)


@scenario(compiler=["dynamo", "aot", "inductor"], values=True)
def test_random_numbers(amp: Amp, compiler: str) -> None:
    """A compiled function draws the random numbers in a region that eager mode draws after the same seed."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> torch.Tensor:
        with torch.autocast(kind, dtype=low):
            return torch.dropout(torch.mm(x, x), 0.5, True) + torch.rand_like(x)

    x = amp.rand(8, 8)
    compiled = amp.compiled(compiler, program, x)
    for _ in range(2):
        amp.seed()
        want = program(x)
        amp.seed()
        amp.assert_close("its numbers", compiled(x), want, 0.02)


@scenario(compiler=["dynamo", "aot", "inductor"])
def test_any_size(amp: Amp, compiler: str) -> None:
    """A function compiled for any size casts alike for each (pytorch#194329: wrong values with dynamic=True)."""
    kind, low = amp.type, amp.dtype

    def program(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            y = torch.mm(x, x.t())
            return y, y.float().sum()

    compiled = amp.compiled(compiler, program, amp.rand(3, 2), dynamic=True)
    for size in (3, 5, 9):
        x = amp.rand(size, 2)
        y, total = compiled(x)
        amp.assert_equal(f"dtypes for size {size}", (y.dtype, total.dtype), (low, torch.float32))
        amp.assert_equal(f"shape for size {size}", tuple(y.shape), (size, size))
        if amp.has_values:
            amp.assert_close(f"sum for size {size}", total, program(x)[1], 0.02)


@scenario(compiler=DYNAMO)
def test_compiled_generator(amp: Amp, compiler: str) -> None:
    """A generator that a compiled function runs to its end keeps its region while it is suspended, as in eager mode."""
    kind, low = amp.type, amp.dtype

    def products(x: torch.Tensor) -> Iterator[torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            yield torch.mm(x, x)
            yield torch.mm(x, x)

    def program(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        out = []
        for y in products(x):
            out += [y, torch.mm(x, x)]
        return (*out, torch.mm(x, x))

    x, compiled = amp.compiled_with_matrix(compiler, program, fullgraph=False)
    want = [y.dtype for y in program(x)]
    amp.assert_equal("dtypes, as in eager mode", [y.dtype for y in compiled(x)], want)
    amp.assert_equal("state after it", amp.state(), (False, amp.default, True))


@scenario(compiler=DYNAMO, values=True)
def test_custom_fwd_and_bwd(amp: Amp, compiler: str) -> None:
    """A compiled custom function casts as custom_fwd and custom_bwd say (test_amp_custom_fwd_bwd; pytorch#143755).

    The backward pass is called outside of every region, and runs in that of the forward pass all the same.
    """
    kind = amp.type

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=kind)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return torch.mm(a, b)

        @staticmethod
        @torch.amp.custom_bwd(device_type=kind)
        def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            return torch.mm(grads[0], b.t()), torch.mm(a.t(), grads[0])

    def program(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return Product.apply(a, b)

    a, b = amp.rand(3, 3), amp.rand(3, 3)
    leaves, low = [x.clone().requires_grad_() for x in (a, b)], [x.to(amp.dtype).requires_grad_() for x in (a, b)]
    compiled = amp.compiled(compiler, program, *leaves)
    with amp.region():
        out = compiled(*leaves)
    amp.assert_equal("dtype", out.dtype, amp.dtype)
    out.sum().backward()
    torch.mm(*low).sum().backward()
    for name, leaf, cast in zip("ab", leaves, low, strict=True):
        amp.assert_equal(f"dtype of the gradient of {name}", leaf.grad.dtype, torch.float32)
        amp.assert_close(f"gradient of {name}", leaf.grad, amp.host(cast.grad).float(), 0.02)


_WIDENED = {
    "layer_norm": "torch.layer_norm(y, [2]) * b",
    "log_softmax": "torch.log_softmax(y, 1) + b",
    "product": "torch.mm(y, y) + b",
    "added_product": "torch.addmm(y, y, y) + b",
}
"""What follows a region: an op in the lower precision, and behind it one where it meets float32."""


@scenario(compiler=["script", "aot", "inductor"], behind=_WIDENED, types=("cpu", "cuda"), values=True)
def test_gradient_where_dtypes_meet(amp: Amp, compiler: str, behind: str) -> None:
    """Autograd casts a gradient to the dtype of the result that it is of (torch/csrc/autograd/engine.cpp)."""
    program = amp.program(
        f"""
        def program(a: torch.Tensor, b: torch.Tensor):
            with torch.autocast(TYPE, dtype=DTYPE):
                y = torch.mm(a, b)
            return {_WIDENED[behind]}
        """
    )

    def gradients(call: Any) -> list[torch.Tensor]:
        leaves = [x.clone().requires_grad_() for x in (a, b)]
        return list(torch.autograd.grad(call(*leaves).sum(), leaves))

    a, b = amp.rand(2, 2), amp.rand(2, 2)
    want = gradients(program)
    compiled = amp.compiled(compiler, program, a, b)
    for call in ("first", "second", "third"):  # TorchScript optimizes what it has seen
        try:
            found = gradients(compiled)
        except RuntimeError as error:
            amp.assert_equal(f"what the {call} call raises", str(error).splitlines()[-1], None)
            continue
        for name, got, wanted in zip("ab", found, want, strict=True):
            amp.assert_close(f"gradient of {name}, {call} call", got, wanted, 0.05)
