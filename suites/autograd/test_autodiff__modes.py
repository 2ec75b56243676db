"""Rule autodiff: grad modes, anomaly detection, threads and second derivatives. `ampcheck.spec.rules` says what it
promises; amp.html#torch.autocast where no case names a source.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.autograd.grad_mode import set_multithreading_enabled

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")


def _twin(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone().requires_grad_()


MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "set_to_off": lambda: torch.set_grad_enabled(False),
    "enable_grad": torch.enable_grad,
    "set_to_on": lambda: torch.set_grad_enabled(True),
}


@pytest.mark.parametrize("order", ["around", "inside"])
@pytest.mark.parametrize("mode", list(MODES))
@scenario(values=True)
def test_grad_mode(amp: Amp, mode: str, order: str) -> None:
    """A grad mode decides what requires grad and a region what is cast, either way round (torch.autograd.grad_mode)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    grad, region = MODES[mode](), amp.region()
    with grad if order == "around" else region, region if order == "around" else grad:
        wanted = torch.is_grad_enabled()
        out = torch.mm(x, w)
        amp.expect("state in both", amp.state(), (True, amp.dtype, True))
        amp.expect("dtype and requires_grad of a product", (out.dtype, out.requires_grad), (amp.dtype, wanted))
    amp.expect("grad mode and autocast after both", (torch.is_grad_enabled(), amp.state()[0]), (True, False))
    with amp.region():
        again = torch.mm(x, w)
    amp.expect("does the next product require grad", again.requires_grad, True)


@scenario(values=True)
def test_mode_around_a_decorated_forward(amp: Amp) -> None:
    """A forward decorated by no_grad inside one decorated by a region gives a low result without a graph."""

    @amp.region()
    def outer(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return inner(x, w), torch.mm(x, w)

    @torch.no_grad()
    def inner(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, w)

    first, second = outer(amp.rand(3, 3), amp.rand(3, 3, requires_grad=True))
    amp.expect("dtypes", (first.dtype, second.dtype), (amp.dtype, amp.dtype))
    amp.expect("requires_grad", (first.requires_grad, second.requires_grad), (False, True))


@scenario(values=True)
def test_leaf_of_inference_mode(amp: Amp) -> None:
    """A tensor made in inference mode can be an input of a region that records gradients (torch.inference_mode).

    Autograd may not save it, and what it saves of a product is the cast, which is an ordinary tensor.
    """
    w = amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(w)
    with torch.inference_mode():
        x = amp.rand(3, 3)
    with amp.region():
        out = torch.mm(x, w)
    want = torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype))
    for result in (out, want):
        result.float().pow(2).sum().backward()
    amp.exact("gradient", w.grad, by_hand.grad)


@pytest.mark.parametrize("order", ["around", "inside"])
@scenario(values=True)
def test_anomaly_detection(amp: Amp, order: str) -> None:
    """detect_anomaly changes neither what is cast nor a gradient (torch.autograd.detect_anomaly)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(w)
    anomaly, region = torch.autograd.set_detect_anomaly(True), amp.region()
    try:
        with anomaly if order == "around" else region, region if order == "around" else anomaly:
            loss = torch.mm(x, w).float().pow(2).sum()
            loss.backward()
    finally:
        torch.autograd.set_detect_anomaly(False)
    torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype)).float().pow(2).sum().backward()
    amp.exact("gradient", w.grad, by_hand.grad)


@scenario(values=True)
def test_anomaly_names_the_op(amp: Amp) -> None:
    """An anomaly is found in the backward of the op that has it, casts before and after it (detect_anomaly's page)."""
    w = torch.zeros(2, 2, device=amp.type, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True), amp.region():
        loss = (torch.mm(w, w).sqrt() * 0).sum()
        amp.raises(
            "backward of sqrt(0) * 0",
            RuntimeError,
            "SqrtBackward0' returned nan",
            lambda: amp.warns("backward", UserWarning, "Error detected in SqrtBackward0", loss.backward),
        )
        amp.expect("state after the anomaly", amp.state(), (True, amp.dtype, True))


@scenario(values=True)
def test_backward_in_the_calling_thread(amp: Amp) -> None:
    """set_multithreading_enabled(False) runs backward, and its hooks, in the state of its caller (its page)."""
    w = amp.rand(3, 3, requires_grad=True)
    seen: list[Any] = []
    w.register_hook(lambda gradient: seen.append((amp.state(), amp.depth())))
    with amp.region():
        out = torch.mm(w, w)
    with set_multithreading_enabled(False), amp.region(amp.other, cache_enabled=False):
        called = amp.state(), amp.depth()
        out.sum().backward()
    amp.expect("state and depth a hook sees", seen, [called])


@scenario(values=True)
def test_backward_in_turns(amp: Amp) -> None:
    """Two threads that run forward and backward in turns, in regions of two dtypes, each get their own gradients."""
    xs = {dtype: amp.rand(3, 3) for dtype in (amp.dtype, amp.other)}
    ws = {dtype: amp.rand(3, 3, requires_grad=True) for dtype in xs}
    by_hand = {dtype: _twin(w) for dtype, w in ws.items()}

    def worker(dtype: torch.dtype) -> Callable[[], Iterator[None]]:
        def steps() -> Iterator[None]:
            for _ in range(3):
                with amp.region(dtype):
                    yield
                    out = torch.mm(xs[dtype], ws[dtype]).float().pow(2).sum()
                    yield
                yield
                out.backward()

        return steps

    amp.interleave(*(worker(dtype) for dtype in xs))
    for dtype, leaf in by_hand.items():
        for _ in range(3):
            torch.mm(xs[dtype].to(dtype), leaf.to(dtype)).float().pow(2).sum().backward()
        amp.exact(f"gradient of three steps in {dtype}", ws[dtype].grad, leaf.grad)


def _penalty(out: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """A gradient penalty, in float32 (amp_examples.html#gradient-penalty)."""
    gradients = torch.autograd.grad(out.float().pow(2).sum(), leaves, create_graph=True)
    return torch.stack([gradient.float().pow(2).sum() for gradient in gradients]).sum()


@pytest.mark.parametrize("place", ["outside", "off", "unkept"])
@scenario(values=True)
def test_double_backward(amp: Amp, place: str) -> None:
    """A gradient made with create_graph has the gradient of casts by hand (amp_examples.html#gradient-penalty)."""
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = _twin(x), _twin(w)
    with amp.region(cache_enabled=False):
        out = torch.mm(torch.mm(x, w).tanh(), w)
    low = amp.dtype
    want = torch.mm(torch.mm(x2.to(low), w2.to(low)).tanh(), w2.to(low))
    with amp.region(enabled=place == "unkept", cache_enabled=False) if place != "outside" else torch.enable_grad():
        penalty = _penalty(out, (x, w))
    by_hand = _penalty(want, (x2, w2))
    penalty.backward()
    by_hand.backward()
    amp.expect("whether x has a second derivative", x.grad is not None, True)
    amp.exact("penalty", penalty, by_hand)
    amp.exact("gradient of x", x.grad, x2.grad)
    amp.exact("gradient of w", w.grad, w2.grad)


@scenario(values=True)
def test_second_derivative_of_a_leaf(amp: Amp) -> None:
    """Each derivative of a float32 leaf is float32, to the third, and as with casts by hand (torch.autograd.grad)."""
    w = amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(w)
    with amp.region(cache_enabled=False):
        got: Any = torch.mm(w, w).float().pow(3).sum()
    want: Any = torch.mm(by_hand.to(amp.dtype), by_hand.to(amp.dtype)).float().pow(3).sum()
    for order in ("first", "second", "third"):
        (got,), (want,) = (
            torch.autograd.grad(value.sum(), leaf, create_graph=True) for value, leaf in ((got, w), (want, by_hand))
        )
        amp.exact(f"{order} derivative", got, want)


@scenario(values=True)
def test_penalty_in_a_region(amp: Amp) -> None:
    """The documented recipe computes the penalty's norm in a region, from float32 gradients (amp_examples.html)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(w)
    with amp.region():
        loss = torch.mm(x, w).float().pow(2).sum()
    (gradient,) = torch.autograd.grad(loss, w, create_graph=True)
    with amp.region():
        (loss + gradient.pow(2).sum().sqrt()).backward()
    loss = torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype)).float().pow(2).sum()
    (wanted,) = torch.autograd.grad(loss, by_hand, create_graph=True)
    (loss + wanted.pow(2).sum().sqrt()).backward()
    amp.exact("gradient", gradient, wanted)
    amp.exact("gradient with the penalty", w.grad, by_hand.grad)


@scenario(values=True)
def test_batched_gradients(amp: Amp) -> None:
    """is_grads_batched gives each row what a call of its own gives (torch.autograd.grad; pytorch#184890)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        out = torch.nn.functional.layer_norm(torch.mm(x, w), (3,))
    rows = torch.eye(9, device=amp.type, dtype=out.dtype).view(9, 3, 3)
    (batched,) = torch.autograd.grad(out, w, rows, is_grads_batched=True, retain_graph=True)
    single = torch.stack([torch.autograd.grad(out, w, row, retain_graph=True)[0] for row in rows])
    amp.close("gradients of nine rows", batched, amp.device.host(single), 2 * torch.finfo(amp.dtype).eps)
