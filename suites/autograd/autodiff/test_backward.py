"""Rule autodiff: backward computes in the dtypes of the forward pass, wherever and in whichever mode it is called.

Source, where a case names no other: https://docs.pytorch.org/docs/2.13/amp.html#torch.autocast, "Backward ops run in
the same type that autocast used for corresponding forward ops." Gradients are compared with those of the same ops with
explicit casts, also of views of a leaf and of results that change in place. The second part is about grad modes,
anomaly detection, threads and second derivatives.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch.autograd.grad_mode import set_multithreading_enabled
from torch.nn import functional as F

from ampcheck.checks.training import assert_same_gradients, copies_of, copy_of
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")

PLACES: dict[str, Callable[[Amp], Any]] = {
    "outside": lambda amp: nullcontext(),
    "same": lambda amp: amp.region(),
    "another": lambda amp: amp.region(amp.other),
    "off": lambda amp: amp.region(enabled=False),
    "unkept": lambda amp: amp.region(cache_enabled=False),
    # Of another device type, in which fake tensors alone could be here.
    "elsewhere": lambda amp: torch.autocast(amp.elsewhere, dtype=amp.dtype),
}

# x and w are 4 by 4. Each op is the same with explicit casts, which `low` makes.
NETS: dict[str, Callable[[Any, Any, Callable[[Any], Any]], Any]] = {
    "product": lambda x, w, low: torch.mm(low(x), low(w)),
    "layer": lambda x, w, low: F.linear(low(x), low(w), low(w[0])),
    "batched": lambda x, w, low: torch.bmm(low(x.expand(2, 4, 4)), low(w.expand(2, 4, 4))),
    "convolution": lambda x, w, low: F.conv2d(low(x.view(1, 1, 4, 4)), low(w.view(4, 1, 2, 2))),
    "loss": lambda x, w, low: F.mse_loss(torch.mm(low(x), low(w)).float(), x),
    "deep": lambda x, w, low: torch.mm(torch.mm(low(x), low(w)).relu(), low(w.t())).float().pow(2),
}
CHANGES: dict[str, Callable[[torch.Tensor], Any]] = {
    "scaled": lambda out: out.mul_(3),
    "added_wide": lambda out: out.add_(torch.ones_like(out, dtype=torch.float32)),
    "row": lambda out: out[0].zero_(),
    "filled": lambda out: out.masked_fill_(out > 0.5, 0.0),
    "copied": lambda out: out[1].copy_(torch.ones_like(out[1], dtype=torch.float32)),
    "chained": lambda out: out.t().mul_(0.5)[0].add_(1).exp_(),
}
"""What is done in place to a low result or to a view of it (amp.html: in-place ops)."""
VIEWS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "transposed": lambda w: w.t(),
    "sliced": lambda w: w[1:, ::2],
    "expanded": lambda w: w[:1].expand(4, 4),
    "chunked": lambda w: w.chunk(2)[1],
    "diagonal": lambda w: torch.diag_embed(w.diagonal()),
    "reshaped": lambda w: w.view(2, 8),
    "detached_part": lambda w: torch.cat([w[:2], w[2:].detach()]),
    "unbound": lambda w: torch.stack(list(w.unbind())),
}
"""Views of a leaf, whose gradient goes back to its places."""


def _viewed(x: Any, w: Any, low: Callable[[Any], Any], view: str) -> Any:
    part = VIEWS[view](w)
    return torch.mm(low(part), low(part.t()))


def _changed(x: Any, w: Any, low: Callable[[Any], Any], change: str) -> Any:
    out = torch.mm(low(x), low(w))
    CHANGES[change](out)
    return out


BY_HAND = {
    **NETS,
    **{f"view_{view}": partial(_viewed, view=view) for view in VIEWS},
    **{f"changed_{change}": partial(_changed, change=change) for change in CHANGES},
}


def _leaves(amp: Amp, count: int = 2) -> list[torch.Tensor]:
    """Matrices with gradients that neither float16 nor bfloat16 holds: of another size, and of more digits."""
    return [(amp.rand(4, 4) + 0.1).requires_grad_() for _ in range(count)]


def _output(net: str, leaves: list[torch.Tensor], low: Callable[[Any], Any] = lambda tensor: tensor) -> torch.Tensor:
    return BY_HAND[net](*leaves, low)


def _weighted_loss(out: torch.Tensor) -> torch.Tensor:
    """Return a float32 loss whose gradient has values that differ: 30 apart, up to 30000, which float16 still holds."""
    many = torch.arange(1, out.numel() + 1, device=out.device, dtype=torch.float32).view(out.shape)
    return (out.float() * (many * 30.0).clamp(max=30000.0)).sum()


@scenario(net=BY_HAND, values=True)
def test_as_by_hand(amp: Amp, net: str) -> None:
    """Values and gradients of a forward in a region are those of the same ops with explicit casts, to the last bit."""
    leaves = _leaves(amp)
    reference = copies_of(*leaves)
    with amp.region(cache_enabled=False):
        out = _output(net, leaves)
    want = _output(net, reference, lambda tensor: tensor.to(amp.dtype))
    amp.assert_identical("result", out, want)
    _weighted_loss(out).backward()
    _weighted_loss(want).backward()
    assert_same_gradients(amp, "xw", leaves, reference)


@scenario(net=NETS, place=PLACES, values=True)
def test_where_it_is_called(amp: Amp, net: str, place: str) -> None:
    """Wherever backward is called, it computes in the dtypes of the forward pass (pytorch#105682, pytorch#132715)."""
    leaves = _leaves(amp)
    beside = copies_of(*leaves)
    with amp.region(cache_enabled=False):
        out, want = _weighted_loss(_output(net, leaves)), _weighted_loss(_output(net, beside))
    want.backward()
    before = amp.state()
    with PLACES[place](amp):
        inside = amp.state()
        out.backward()
        amp.assert_equal("state after backward, where it was called", amp.state(), inside)
    amp.assert_equal("state after all", amp.state(), before)
    assert_same_gradients(amp, "xw", leaves, beside)


@scenario(net=NETS, place=["same", "another", "off"], values=True)
def test_forward_in_no_region(amp: Amp, net: str, place: str) -> None:
    """A forward that ran in float32 has a backward in float32, also where that is called in a region."""
    leaves = _leaves(amp)
    beside = copies_of(*leaves)
    _weighted_loss(_output(net, beside)).backward()
    with amp.region(enabled=False):
        out = _weighted_loss(_output(net, leaves))
    with PLACES[place](amp):
        out.backward()
    assert_same_gradients(amp, "xw", leaves, beside)


WIDE: dict[str, Callable[[torch.Tensor], Any]] = {
    "pow": lambda x: x.pow(3),
    "prod": lambda x: x.prod(1),
    "cumprod": lambda x: x.cumprod(0),
    "softplus": lambda x: F.softplus(x),
    "norm": lambda x: torch.linalg.vector_norm(x, 3),
    "cosine": lambda x: F.cosine_similarity(x, x.t().detach()),
    "inv": lambda x: torch.linalg.inv(x + torch.eye(4, device=x.device)),
    "cholesky": lambda x: torch.linalg.cholesky(x * x.t() + 9 * torch.eye(4, device=x.device)),
    "qr": lambda x: torch.linalg.qr(x + torch.eye(4, device=x.device))[1],
}


@scenario(op=WIDE, values=True)
def test_wide_op(amp: Amp, op: str) -> None:
    """The backward of an op that ran in float32 runs in float32, also in the region of its forward."""
    (x,) = _leaves(amp, 1)
    beside = copy_of(x)
    with amp.region():
        _weighted_loss(WIDE[op](x)).backward()
    with amp.region():
        want = _weighted_loss(WIDE[op](beside))
    want.backward()
    amp.assert_identical(f"gradient of {op}", x.grad, beside.grad)


@scenario(values=True)
def test_from_region_to_region(amp: Amp) -> None:
    """One backward goes through ops in float16, bfloat16 and float32, each in its own dtype."""
    x, v, w = _leaves(amp, 3)
    x2, v2, w2 = copies_of(x, v, w)
    with amp.region():
        out = torch.mm(x, v)
    with amp.region(amp.other):
        out = torch.mm(out.float(), w)
    with amp.region():
        with amp.region(enabled=False):
            out = torch.mm(out.float(), x)
        out = torch.mm(out, v)
    low, other = amp.dtype, amp.other
    want = torch.mm(torch.mm(x2.to(low), v2.to(low)).float().to(other), w2.to(other))
    want = torch.mm(torch.mm(want.float(), x2).to(low), v2.to(low))
    amp.assert_identical("result", out, want)
    (out.float() / 7).sum().backward()
    (want.float() / 7).sum().backward()
    assert_same_gradients(amp, "xvw", (x, v, w), (x2, v2, w2))


@scenario(second=["outside", "same", "off"], values=True)
def test_twice(amp: Amp, second: str) -> None:
    """A second backward through a graph that was retained adds the same gradient again (torch.Tensor.backward)."""
    x, w = _leaves(amp)
    with amp.region():
        out = _weighted_loss(torch.mm(x, w))
        out.backward(retain_graph=True)
    once = None if w.grad is None else w.grad.clone()
    with PLACES[second](amp):
        out.backward()
    amp.assert_identical("gradient after the second time", w.grad, None if once is None else once * 2)
    amp.assert_raises("a third time", RuntimeError, "a second time", lambda: out.backward())


@scenario(place=["outside", "same", "another", "off", "unkept"], values=True)
def test_what_a_hook_sees(amp: Amp, place: str) -> None:
    """Hooks run in the region backward is called in, whatever thread they run in (pytorch#132715)."""
    x, w = _leaves(amp)
    seen: list[Any] = []
    with amp.region():
        out = torch.mm(x, w)
    for tensor in (out, w):
        tensor.register_hook(lambda gradient: seen.append((amp.state(), amp.probe())))
    with PLACES[place](amp):
        want = (amp.state(), amp.probe())
        out.sum().backward()
    amp.assert_equal("state and dtype of a product in two hooks", seen, [want] * 2)


@scenario(values=True)
def test_function_instead_of_method(amp: Amp) -> None:
    """torch.autograd.grad gives backward's gradients, leaves .grad alone and takes any set of leaves (its page)."""
    x, w = _leaves(amp)
    x2, w2 = copies_of(x, w)
    with amp.region():
        out, want = _weighted_loss(torch.mm(x, w)), _weighted_loss(torch.mm(x2, w2))
        found = torch.autograd.grad(out, (w, amp.rand(2, 2, requires_grad=True), x), allow_unused=True)
    want.backward()
    amp.assert_identical("gradient of w", found[0], w2.grad)
    amp.assert_identical("gradient of what is not used", found[1], None)
    amp.assert_identical("gradient of x", found[2], x2.grad)
    amp.assert_equal("whether .grad is set", (x.grad, w.grad), (None, None))


@scenario(values=True)
def test_for_chosen_leaves(amp: Amp) -> None:
    """backward(inputs=) gives a gradient to these leaves alone, casts in between or not (torch.Tensor.backward)."""
    x, w = _leaves(amp)
    with amp.region():
        _weighted_loss(torch.mm(x, w)).backward(inputs=[w])
    amp.assert_equal("whether x has a gradient", x.grad is not None, False)
    amp.assert_equal("dtype of the gradient of w", getattr(w.grad, "dtype", None), torch.float32)


# ---- grad modes, anomaly detection, threads and second derivatives
MODES: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "set_to_off": lambda: torch.set_grad_enabled(False),
    "enable_grad": torch.enable_grad,
    "set_to_on": lambda: torch.set_grad_enabled(True),
}


@scenario(mode=MODES, order=["around", "inside"], values=True)
def test_grad_mode(amp: Amp, mode: str, order: str) -> None:
    """A grad mode decides what requires grad and a region what is cast, either way round (torch.autograd.grad_mode)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    grad, region = MODES[mode](), amp.region()
    with grad if order == "around" else region, region if order == "around" else grad:
        wanted = torch.is_grad_enabled()
        out = torch.mm(x, w)
        amp.assert_equal("state in both", amp.state(), (True, amp.dtype, True))
        amp.assert_equal("dtype and requires_grad of a product", (out.dtype, out.requires_grad), (amp.dtype, wanted))
    amp.assert_equal("grad mode and autocast after both", (torch.is_grad_enabled(), amp.state()[0]), (True, False))
    with amp.region():
        again = torch.mm(x, w)
    amp.assert_equal("does the next product require grad", again.requires_grad, True)


@scenario(order=["around", "inside"], values=True)
def test_anomaly_detection(amp: Amp, order: str) -> None:
    """detect_anomaly changes neither what is cast nor a gradient (torch.autograd.detect_anomaly)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    reference = copy_of(w)
    anomaly, region = torch.autograd.set_detect_anomaly(True), amp.region()
    try:
        with anomaly if order == "around" else region, region if order == "around" else anomaly:
            torch.mm(x, w).float().pow(2).sum().backward()
    finally:
        torch.autograd.set_detect_anomaly(False)
    torch.mm(x.to(amp.dtype), reference.to(amp.dtype)).float().pow(2).sum().backward()
    amp.assert_identical("gradient", w.grad, reference.grad)


@scenario(values=True)
def test_anomaly_names_the_op(amp: Amp) -> None:
    """An anomaly is found in the backward of the op that has it, casts before and after it (detect_anomaly's page)."""
    w = torch.zeros(2, 2, device=amp.type, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True), amp.region():
        loss = (torch.mm(w, w).sqrt() * 0).sum()
        text, fails = "SqrtBackward0' returned nan", partial(amp.assert_warns, "backward", UserWarning)
        call = partial(fails, "Error detected in SqrtBackward0", loss.backward)
        amp.assert_raises("backward of sqrt(0) * 0", RuntimeError, text, call)
        amp.assert_equal("state after the anomaly", amp.state(), (True, amp.dtype, True))


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
    amp.assert_equal("state and depth a hook sees", seen, [called])


@scenario(values=True)
def test_backward_in_turns(amp: Amp) -> None:
    """Two threads that run forward and backward in turns, in regions of two dtypes, each get their own gradients."""
    xs = {dtype: amp.rand(3, 3) for dtype in (amp.dtype, amp.other)}
    ws = {dtype: amp.rand(3, 3, requires_grad=True) for dtype in xs}
    reference = {dtype: copy_of(w) for dtype, w in ws.items()}

    def worker(dtype: torch.dtype) -> Iterator[None]:
        for _ in range(3):
            with amp.region(dtype):
                yield
                out = torch.mm(xs[dtype], ws[dtype]).float().pow(2).sum()
                yield
            yield
            out.backward()

    amp.interleave(*(partial(worker, dtype) for dtype in xs))
    for dtype, leaf in reference.items():
        for _ in range(3):
            torch.mm(xs[dtype].to(dtype), leaf.to(dtype)).float().pow(2).sum().backward()
        amp.assert_identical(f"gradient of three steps in {dtype}", ws[dtype].grad, leaf.grad)


def _penalty(out: torch.Tensor, leaves: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return a gradient penalty, in float32 (amp_examples.html#gradient-penalty)."""
    gradients = torch.autograd.grad(out.float().pow(2).sum(), leaves, create_graph=True)
    return torch.stack([gradient.float().pow(2).sum() for gradient in gradients]).sum()


@scenario(place=["outside", "off", "unkept"], values=True)
def test_double_backward(amp: Amp, place: str) -> None:
    """A gradient made with create_graph has the gradient of explicit casts (amp_examples.html#gradient-penalty)."""
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = copies_of(x, w)
    with amp.region(cache_enabled=False):
        out = torch.mm(torch.mm(x, w).tanh(), w)
    low = amp.dtype
    want = torch.mm(torch.mm(x2.to(low), w2.to(low)).tanh(), w2.to(low))
    with amp.region(enabled=place == "unkept", cache_enabled=False) if place != "outside" else torch.enable_grad():
        penalty = _penalty(out, (x, w))
    reference = _penalty(want, (x2, w2))
    penalty.backward()
    reference.backward()
    amp.assert_equal("whether x has a second derivative", x.grad is not None, True)
    amp.assert_identical("penalty", penalty, reference)
    assert_same_gradients(amp, "xw", (x, w), (x2, w2))
