"""Rule eligibility, under torch.vmap: `ampcheck.spec.rules` says what it promises.

A mapped call is out of place, so it is eligible, and it does for each slice what the call does for one (torch.vmap).
"""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("eligibility")

TYPES = ("cpu", "cuda", "xpu", "mps", "mtia")
"""PyTorch's own device types: how vmap takes an op apart is no matter of another one's kernels."""

WIDE: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "mm": (torch.mm, ((3, 3), (3, 3))),
    "linear": (functional.linear, ((3, 3), (3, 3))),
    "linear_bias": (functional.linear, ((3, 3), (3, 3), (3,))),
    "addmm": (torch.addmm, ((3, 3), (3, 3), (3, 3))),
    "baddbmm": (torch.baddbmm, ((2, 3, 3), (2, 3, 3), (2, 3, 3))),
    "conv1d": (functional.conv1d, ((2, 3, 4), (3, 3, 1))),
    "conv1d_bias": (functional.conv1d, ((2, 3, 4), (3, 3, 1), (3,))),
    "prelu": (functional.prelu, ((3, 3), (1,))),
}
"""Calls of float32 tensors, by the shape of each for one slice."""

LOW: dict[str, tuple[Callable[..., torch.Tensor], tuple[tuple[int, ...], ...]]] = {
    "exp": (torch.exp, ((3, 3),)),
    "softmax": (lambda x: torch.softmax(x, -1), ((3, 3),)),
    "sum": (lambda x: torch.sum(x, 0), ((3, 3),)),
    "layer_norm": (lambda x: functional.layer_norm(x, (3,)), ((3, 3),)),
    "group_norm": (lambda x: functional.group_norm(x, 1), ((3, 3),)),
    "mse_loss": (functional.mse_loss, ((3, 3), (3, 3))),
    "cross_entropy": (functional.cross_entropy, ((3, 3), (3, 3))),
    "smooth_l1_loss": (functional.smooth_l1_loss, ((3, 3), (3, 3))),
}
"""Calls of tensors in the region's dtype."""


@pytest.mark.parametrize("op", [*WIDE, *LOW])
@scenario(types=TYPES, dtypes="default")
def test_under_vmap(amp: Amp, op: str) -> None:
    """A mapped call gives the dtype that the call gives (torch.vmap; amp.html#autocast-eligibility: out of place)."""
    call, shapes = {**WIDE, **LOW}[op]
    dtype = torch.float32 if op in WIDE else amp.dtype
    with amp.region():
        wanted = call(*(amp.rand(*shape, dtype=dtype) for shape in shapes)).dtype
        got = torch.vmap(call)(*(amp.rand(2, *shape, dtype=dtype) for shape in shapes)).dtype
    amp.expect(f"dtype of {op} under vmap", got, wanted)


@scenario(types=TYPES, values=True)
def test_attention_under_vmap(amp: Amp) -> None:
    """The same for attention, whose choice of a kernel needs a real device (torch.vmap)."""
    attention = functional.scaled_dot_product_attention
    with amp.region():
        wanted = attention(*(amp.rand(2, 3, 4) for _ in range(3))).dtype
        got = torch.vmap(attention)(*(amp.rand(5, 2, 3, 4) for _ in range(3))).dtype
    amp.expect("dtype of attention under vmap", got, wanted)


@pytest.mark.parametrize("transform", ["grad", "vjp"])
@scenario(values=True)
def test_under_a_derivative(amp: Amp, transform: str) -> None:
    """torch.func's derivatives see autocast ops, and give gradients in the input's dtype (torch.func)."""
    x, weight, bias = amp.rand(3, 3), amp.rand(3, 3), amp.rand(3)
    seen = []

    def call(x: torch.Tensor) -> torch.Tensor:
        out = functional.linear(x, weight, bias)
        seen.append(out.dtype)
        return out.float().sum()

    with amp.region():
        got = torch.func.grad(call)(x) if transform == "grad" else torch.func.vjp(call, x)[1](amp.rand())[0]
    amp.expect(f"dtype of a layer under {transform}", seen, [amp.dtype])
    amp.expect(f"dtype of the derivative by {transform}", got.dtype, torch.float32)


@scenario(values=True)
def test_weight_after_a_transform(amp: Amp) -> None:
    """A weight used under a transform is a usual one afterwards, with its gradient (torch.func)."""
    weight, x = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3)
    with amp.region():
        torch.func.grad(lambda x: torch.mm(x, weight).float().sum())(x)
        torch.vmap(lambda x: torch.mv(weight, x))(x)
        out = torch.mm(x, weight)
    amp.expect("dtype and class of a product", (out.dtype, type(out)), (amp.dtype, torch.Tensor))
    out.float().sum().backward()
    by_hand = weight.detach().clone().requires_grad_()
    torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype)).float().sum().backward()
    amp.expect("gradient of the weight", amp.values(weight.grad), amp.values(by_hand.grad))
