"""Rule customfn: gradients through a torch.autograd.Function with custom_fwd and custom_bwd, and what else it may say.

`ampcheck.spec.rules` says what the rule promises; https://docs.pytorch.org/docs/2.13/notes/amp_examples.html
("Autocast and Custom Autograd Functions") where no case names a source.
"""

import warnings
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("customfn")


def _twin(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone().requires_grad_()


def _cube(amp: Amp, cast_inputs: torch.dtype | None, once: bool = False) -> Any:
    """x cubed, with a backward of differentiable ops on what forward got."""

    class Cube(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=cast_inputs)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return x * x * x

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            x: torch.Tensor = ctx.saved_tensors[0]
            return gradient * 3 * x * x

    if once:
        Cube.backward = staticmethod(once_differentiable(Cube.backward))  # type: ignore[method-assign]
    return Cube


@scenario(values=True)
def test_documented_product(amp: Amp) -> None:
    """The documented product of two matrices has the gradients of torch.mm in the same region."""

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type)
        def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(a, b)
            return a.mm(b)

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            a, b = ctx.saved_tensors
            return gradient.mm(b.t()), a.t().mm(gradient)

    a, b = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4, requires_grad=True)
    a2, b2 = _twin(a), _twin(b)
    with amp.region():
        out, want = Product.apply(a, b), torch.mm(a2, b2)
    for result in (out, want):
        result.float().pow(2).sum().backward()
    amp.exact("result", out, want)
    amp.exact("gradient of a", a.grad, a2.grad)
    amp.exact("gradient of b", b.grad, b2.grad)


@pytest.mark.parametrize("to", ["wide", "low", "same"])
@scenario(values=True)
def test_gradient(amp: Amp, to: str) -> None:
    """The gradient of what was cast is that of casts by hand, in the dtype of the leaf."""
    dtype = {"wide": torch.float32, "low": amp.dtype, "same": None}[to]
    x = amp.rand(4, dtype=amp.dtype if to == "wide" else torch.float32, requires_grad=True)
    by_hand = _twin(x)
    with amp.region():
        out = _cube(amp, dtype).apply(x)
    given = by_hand if dtype is None else by_hand.to(dtype)
    want = given * given * given
    out.float().sum().backward()
    want.float().sum().backward()
    amp.exact("result", out, want)
    if x.grad is None or by_hand.grad is None:
        raise RuntimeError("the scenario computed no gradient")
    lowest = torch.float32 if to == "same" else amp.dtype
    amp.close("gradient", x.grad, amp.device.host(by_hand.grad), 8 * torch.finfo(lowest).eps)


@pytest.mark.parametrize("place", ["outside", "same", "another"])
@scenario(values=True)
def test_second_derivative(amp: Amp, place: str) -> None:
    """Without cast_inputs a backward made of differentiable ops has a derivative, wherever it is taken.

    https://docs.pytorch.org/docs/2.13/autograd.html, double backward of a torch.autograd.Function.
    """
    x = torch.full((3,), 2.0, device=amp.type, requires_grad=True)
    with amp.region():
        out = _cube(amp, None).apply(x)
    with amp.region(amp.other if place == "another" else amp.dtype, enabled=place != "outside"):
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
    found = [(each.dtype, amp.values(each)) for each in (first, second, third)]
    amp.expect("derivatives of 2 cubed", found, [(torch.float32, [value] * 3) for value in (12.0, 12.0, 6.0)])


@pytest.mark.parametrize("to", ["wide", "low"])
@scenario(values=True)
def test_second_derivative_of_a_cast(amp: Amp, to: str) -> None:
    """With cast_inputs it has one too: 36 for x cubed plus its gradient times x, where x is 2, in a region or not."""
    leaf = torch.full((3,), 2.0, device=amp.type, dtype=amp.dtype if to == "wide" else torch.float32)
    found = []
    for enabled in (False, True):
        x = _twin(leaf)
        with amp.region(enabled=enabled):
            out = _cube(amp, torch.float32 if to == "wide" else amp.dtype).apply(x)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x)
        found.append(amp.values(second))
    amp.expect("derivative of 3 x cubed outside", found[0], [36.0] * 3)
    amp.expect("derivative of 3 x cubed in a region", found[1], [36.0] * 3)


@pytest.mark.parametrize("cast", ["cast", "uncast"])
@scenario(values=True)
def test_once_differentiable(amp: Amp, cast: str) -> None:
    """once_differentiable around custom_bwd gives the first derivative and refuses a second (its page)."""
    x = torch.full((3,), 2.0, device=amp.type, requires_grad=True)
    with amp.region():
        out = _cube(amp, torch.float32 if cast == "cast" else None, once=True).apply(x)
    (first,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
    amp.expect("first derivative of 2 to the sixth", amp.values(first), [192.0] * 3)
    amp.raises("the second", RuntimeError, "once_differentiable", lambda: first.sum().backward())


@scenario(values=True)
def test_several_results(amp: Amp) -> None:
    """Results of several dtypes each get a gradient of their own dtype, zeros where none came (torch.autograd)."""
    seen: list[Any] = []

    class Three(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type)
        def forward(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
            low, index = torch.mm(x, x), x.argmax()
            ctx.mark_non_differentiable(index)
            return low, x * 2, x * 3, index

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
            seen.extend(gradient.dtype for gradient in gradients[:3])
            return gradients[1] * 2 + gradients[2] * 3

    x = torch.ones(2, 2, device=amp.type, requires_grad=True)
    with amp.region():
        low, twice, _, index = Three.apply(x)
        loss = low.float().sum() + twice.sum()
    amp.expect("does an index require grad", index.requires_grad, False)
    loss.backward()
    amp.expect("dtypes of gradients in backward", seen, [amp.dtype, torch.float32, torch.float32])
    amp.expect("gradient", None if x.grad is None else amp.values(x.grad), [[2.0, 2.0], [2.0, 2.0]])


@scenario(values=True)
def test_not_materialized(amp: Amp) -> None:
    """set_materialize_grads(False) and needs_input_grad work under the decorators (torch.autograd.function)."""
    seen: list[Any] = []

    class Two(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32)
        def forward(ctx: Any, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            ctx.set_materialize_grads(False)
            return x * 2, y * 3

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, one: Any, two: Any) -> tuple[Any, None]:
            seen.append((one is None, two is None, ctx.needs_input_grad))
            return one * 2, None

    x, y = torch.ones(2, device=amp.type, dtype=amp.dtype, requires_grad=True), amp.rand(2)
    with amp.region():
        one, _ = Two.apply(x, y)
    one.sum().backward()
    amp.expect("which gradients are None, and which are needed", seen, [(False, True, (True, False))])
    amp.expect("gradient", None if x.grad is None else amp.values(x.grad), [2.0, 2.0])


@pytest.mark.parametrize("to", ["wide", "low"])
@scenario(values=True)
def test_in_place(amp: Amp, to: str) -> None:
    """A function that changes its input in place, and says so with mark_dirty, does so in a region (mark_dirty)."""

    class Doubled(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=torch.float32 if to == "wide" else amp.dtype)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.mark_dirty(x)
            return x.mul_(2)

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            return gradient * 2

    for enabled in (False, True):
        leaf = torch.ones(2, device=amp.type, requires_grad=True)
        x = leaf * 1
        with amp.region(enabled=enabled), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the tensor it got was no input, which is what the values show
            out = Doubled.apply(x)
        out.float().sum().backward()
        where = "in a region" if enabled else "outside"
        amp.expect(f"the result {where}", amp.values(out), [2.0, 2.0])
        amp.expect(f"a tensor that was doubled {where}", amp.values(x), [2.0, 2.0])
        amp.expect(f"gradient {where}", None if leaf.grad is None else amp.values(leaf.grad), [2.0, 2.0])


@scenario(values=True)
def test_backward_in_backward(amp: Amp) -> None:
    """A backward that runs another backward, as checkpointing does, puts the outer state back after it."""
    seen: list[Any] = []

    class Again(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type)
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(x)
            return torch.mm(x, x)

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor | None:
            x: torch.Tensor = ctx.saved_tensors[0].detach().requires_grad_()
            before = amp.state()
            with torch.enable_grad(), amp.region(amp.other):
                inner = torch.mm(x, x)
            inner.backward(gradient.to(inner.dtype))
            seen.append((inner.dtype, amp.state() == before, before[:2]))
            return x.grad

    x = amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(x)
    with amp.region():
        out = Again.apply(x)
    out.float().sum().backward()
    other = by_hand.to(amp.other)
    torch.mm(other, other).backward(torch.ones(3, 3, device=amp.type, dtype=amp.other))
    amp.expect("dtype inside, state after it, state before it", seen, [(amp.other, True, (True, amp.dtype))])
    if x.grad is None or by_hand.grad is None:
        raise RuntimeError("the scenario computed no gradient")
    amp.close("gradient", x.grad, amp.device.host(by_hand.grad), 4 * torch.finfo(amp.dtype).eps)
