"""Rule autodiff: what leaves get, and what may happen to them between forward and backward.

`ampcheck.spec.rules` says what the rule promises; amp.html#torch.autocast where no case names a source.
"""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("autodiff")


def _twin(leaf: torch.Tensor) -> torch.Tensor:
    return leaf.detach().clone().requires_grad_()


LEAVES: dict[str, Callable[[Amp], torch.dtype]] = {
    "wide": lambda amp: torch.float32,
    "low": lambda amp: amp.dtype,
    "other": lambda amp: amp.other,
    "double": lambda amp: torch.float64,
}


@pytest.mark.parametrize("leaf", list(LEAVES))
@scenario(values=True)
def test_dtype_of_the_leaf(amp: Amp, leaf: str) -> None:
    """A gradient has the dtype of its leaf, whatever dtype the op ran in (notes/autograd.html, torch.Tensor.grad)."""
    dtype = LEAVES[leaf](amp)
    w, x = amp.rand(3, 3, dtype=dtype, requires_grad=True), amp.rand(3, 3, dtype=dtype)
    by_hand = _twin(w)
    runs_in = dtype if dtype == torch.float64 else amp.dtype
    with amp.region():
        out = torch.mm(x, w)
        loss = out.float().pow(2).sum()
    loss.backward()
    torch.mm(x.to(runs_in), by_hand.to(runs_in)).float().pow(2).sum().backward()
    amp.expect("dtype of the product", out.dtype, runs_in)
    amp.exact("gradient", w.grad, by_hand.grad)


@scenario(values=True)
def test_low_leaf_in_float32_op(amp: Amp) -> None:
    """A low leaf that an op on float32's list uses gets its gradient through the cast up, in its own dtype."""
    w = amp.rand(4, dtype=amp.dtype, requires_grad=True)
    target = amp.rand(4, dtype=amp.dtype)
    by_hand = _twin(w)
    with amp.region():
        loss = F.mse_loss(w, target)
    loss.backward()
    want = F.mse_loss(by_hand.float(), target.float())
    want.backward()
    amp.exact("loss", loss, want)
    amp.exact("gradient", w.grad, by_hand.grad)


@pytest.mark.parametrize("regions", ["each", "one"])
@scenario(values=True)
def test_micro_batches(amp: Amp, regions: str) -> None:
    """Gradients of micro-batches are added up in float32 (amp_examples.html#gradient-accumulation).

    Whether each forward has a region, or one is around the loop, backward included.
    """
    w, xs = amp.rand(4, 4, requires_grad=True), [amp.rand(2, 4) for _ in range(6)]
    by_hand = _twin(w)
    with amp.region(enabled=regions == "one", cache_enabled=regions != "one"):
        for x in xs:
            with amp.region():
                loss = torch.mm(x, w).float().square().mean() / len(xs)
            loss.backward()
    for x in xs:
        (torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype)).float().square().mean() / len(xs)).backward()
    amp.exact("gradient of six micro-batches", w.grad, by_hand.grad)


@scenario(values=True)
def test_many_small_steps(amp: Amp) -> None:
    """A thousand backward passes of a gradient of 1 make 1000, which no lower precision counts to (amp_examples.html).

    Each has a region of its own; that uses inside of one are summed in its dtype is rule cache's to say.
    """
    w, x = torch.ones(1, 1, device=amp.type, requires_grad=True), torch.ones(1, 1, device=amp.type)
    steps = 3000
    with amp.region():
        out = torch.mm(x, w)
    for _ in range(steps):
        out.backward(retain_graph=True)
    amp.expect("sum of the gradients", None if w.grad is None else amp.values(w.grad), [[float(steps)]])


@pytest.mark.parametrize("change", ["in_place", "data", "optimizer", "loaded"])
@scenario(values=True)
def test_changed_after_forward(amp: Amp, change: str) -> None:
    """Backward uses the cast that forward used, so a weight that changed meanwhile changes no gradient.

    With casts by hand the same holds, as autograd saves what the op got.
    """
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = _twin(x), _twin(w)
    layer = torch.nn.ParameterList([torch.nn.Parameter(w)])
    weight = layer[0]
    with amp.region():
        out = torch.mm(x, weight)
    want = torch.mm(x2.to(amp.dtype), w2.to(amp.dtype))
    changes: dict[str, Callable[[], Any]] = {
        "in_place": lambda: weight.detach().mul_(100),
        "data": lambda: setattr(weight, "data", weight.data * 100),
        "optimizer": lambda: (weight.sum() * 100).backward() or torch.optim.SGD([weight], lr=1.0).step(),
        "loaded": lambda: layer.load_state_dict({"0": weight.detach() * 100}),
    }
    changes[change]()
    weight.grad = None
    out.float().pow(2).sum().backward()
    want.float().pow(2).sum().backward()
    amp.exact("gradient of the input", x.grad, x2.grad)
    amp.exact("gradient of the weight", weight.grad, w2.grad)


@scenario(values=True)
def test_changed_where_it_is_saved_itself(amp: Amp) -> None:
    """An op that needs no cast saves the weight itself, and backward refuses one that was changed (autograd.html)."""
    w = amp.rand(3, 3, requires_grad=True)
    with amp.region():
        out = w.pow(2)
    with torch.no_grad():
        w.mul_(2)
    amp.raises("backward", RuntimeError, "modified by an inplace operation", lambda: out.sum().backward())


CHANGED: dict[str, Callable[[torch.Tensor], Any]] = {
    "scaled": lambda out: out.mul_(3),
    "added_wide": lambda out: out.add_(torch.ones_like(out, dtype=torch.float32)),
    "row": lambda out: out[0].zero_(),
    "filled": lambda out: out.masked_fill_(out > 0.5, 0.0),
    "copied": lambda out: out[1].copy_(torch.ones_like(out[1], dtype=torch.float32)),
    "chained": lambda out: out.t().mul_(2)[0].add_(1).exp_(),
}


@pytest.mark.parametrize("change", list(CHANGED))
@scenario(values=True)
def test_result_changed_in_place(amp: Amp, change: str) -> None:
    """An in-place op on a low result, or on a view of it, keeps its dtype and its gradient (amp.html: in-place ops)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    by_hand = _twin(w)
    with amp.region():
        out = torch.mm(x, w)
        CHANGED[change](out)
        loss = out.float().pow(2).sum()
    want = torch.mm(x.to(amp.dtype), by_hand.to(amp.dtype))
    CHANGED[change](want)
    want.float().pow(2).sum().backward()
    loss.backward()
    amp.exact("result", out, want)
    amp.exact("gradient", w.grad, by_hand.grad)


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


@pytest.mark.parametrize("view", list(VIEWS))
@scenario(values=True)
def test_view_of_a_leaf(amp: Amp, view: str) -> None:
    """The gradient of a view goes back to the places of its leaf, from the view's own cast."""
    w = amp.rand(4, 4, requires_grad=True)
    by_hand = _twin(w)
    with amp.region(cache_enabled=False):
        seen = VIEWS[view](w)
        out = torch.mm(seen, seen.t())
    part = VIEWS[view](by_hand)
    want = torch.mm(part.to(amp.dtype), part.t().to(amp.dtype))
    out.float().pow(2).sum().backward()
    want.float().pow(2).sum().backward()
    amp.exact("gradient", w.grad, by_hand.grad)


@scenario(values=True)
def test_sparse_gradient(amp: Amp) -> None:
    """A sparse embedding's gradient stays sparse and float32, with the values of casts by hand (nn.Embedding)."""
    table, w = amp.rand(5, 3, requires_grad=True), amp.rand(3, 3)
    by_hand, index = _twin(table), torch.tensor([0, 3, 3], device=amp.type)
    with amp.region():
        out = torch.mm(F.embedding(index, table, sparse=True), w)
    want = torch.mm(F.embedding(index, by_hand, sparse=True).to(amp.dtype), w.to(amp.dtype))
    for result in (out, want):
        result.float().pow(2).sum().backward()
    if table.grad is None or by_hand.grad is None:
        raise RuntimeError("the scenario computed no gradient")
    amp.expect("layout of the gradient", table.grad.layout, torch.sparse_coo)
    amp.exact("gradient", table.grad.to_dense(), by_hand.grad.to_dense())


@scenario(values=True)
def test_complex_in_between(amp: Amp) -> None:
    """A complex op in a region is not cast, and its gradient reaches float32 leaves (amp.html#autocast-eligibility)."""
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    x2, w2 = _twin(x), _twin(w)
    with amp.region():
        product = torch.mm(x, w).float()
        loss = (torch.complex(product, x) * torch.complex(w, product)).abs().sum()
    by_hand = torch.mm(x2.to(amp.dtype), w2.to(amp.dtype)).float()
    want = (torch.complex(by_hand, x2) * torch.complex(w2, by_hand)).abs().sum()
    loss.backward()
    want.backward()
    amp.exact("gradient of x", x.grad, x2.grad)
    amp.exact("gradient of w", w.grad, w2.grad)


@scenario(values=True)
def test_complex_leaf(amp: Amp) -> None:
    """A complex leaf keeps its dtype in products, and so does its gradient (amp.html#autocast-eligibility)."""
    w = torch.complex(amp.rand(3, 3), amp.rand(3, 3)).requires_grad_()
    x = amp.rand(3, 3)
    by_hand = _twin(w)
    with amp.region():
        out = torch.mm(x.to(w.dtype), w)
        loss = out.abs().sum()
    loss.backward()
    torch.mm(x.to(w.dtype), by_hand).abs().sum().backward()
    amp.expect("dtype of the product", out.dtype, torch.complex64)
    for part, of in (("real", torch.real), ("imaginary", torch.imag)):
        got, want = (None if leaf.grad is None else of(leaf.grad).clone() for leaf in (w, by_hand))
        amp.exact(f"{part} part of the gradient", got, want)


@scenario(values=True)
def test_frozen_and_thawed(amp: Amp) -> None:
    """requires_grad_() decides from the next op on whether a weight gets a gradient, in one region (its page)."""
    x, w = amp.rand(3, 3), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        torch.mm(x, w)
        w.requires_grad_(False)
        amp.expect("does a result require grad, frozen", torch.mm(x, w).requires_grad, False)
        w.requires_grad_()
        out = torch.mm(x, w)
    amp.expect("does a result require grad, thawed", out.requires_grad, True)
    out.sum().backward()
    amp.expect("dtype of the gradient", getattr(w.grad, "dtype", None), torch.float32)


CONSTRUCTED: dict[str, Callable[..., torch.Tensor]] = {
    "ones": lambda **options: torch.ones(3, 3, **options),
    "zeros": lambda **options: torch.zeros(3, 3, **options),
    "full": lambda **options: torch.full((3, 3), 0.3, **options),
    "eye": lambda **options: torch.eye(3, **options),
    "tensor": lambda **options: torch.tensor([[0.1, 0.2, 0.3]] * 3, **options),
    "rand": lambda **options: torch.rand(3, 3, **options),
    "randn": lambda **options: torch.randn(3, 3, **options),
    "empty": lambda **options: torch.empty(3, 3, **options),
}


@pytest.mark.parametrize("kind", list(CONSTRUCTED))
@scenario(values=True)
def test_constructed_in_a_region(amp: Amp, kind: str) -> None:
    """A leaf that a region makes with requires_grad=True is float32 and gets a float32 gradient (pytorch/xla#8983)."""
    x = amp.rand(3, 3)
    by_hand = torch.ones(3, 3, dtype=amp.dtype, requires_grad=True)
    with amp.region():
        w = CONSTRUCTED[kind](device=amp.type, requires_grad=True)
        out = torch.mm(x, w)
    amp.expect("dtype of the leaf and of the product", (w.dtype, out.dtype), (torch.float32, amp.dtype))
    amp.expect("whether it requires grad and is a leaf", (w.requires_grad, w.is_leaf), (True, True))
    torch.mm(amp.device.host(x).to(amp.dtype), by_hand).float().sum().backward()
    out.float().sum().backward()
    if by_hand.grad is not None and w.grad is not None:
        amp.close("gradient", w.grad, by_hand.grad.float(), torch.finfo(amp.dtype).eps)
    amp.expect("whether there is a gradient", w.grad is not None, True)
