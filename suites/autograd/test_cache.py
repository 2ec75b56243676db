"""Rule cache, with gradients: a cached cast leads every gradient to its weight and changes none.

Where a case names no source, it is `cached_cast` of aten/src/ATen/autocast_mode.cpp. How often a weight is cast,
without gradients: `suites/eager/test_cache.py`.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any
from unittest.mock import patch

import pytest
import torch

from ampcheck.checks.training import copy_of, plain_function
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("cache")


@scenario(values=True)
def test_one_cast_with_gradients(amp: Amp) -> None:
    """Two uses share one cast, so both lead to the same node of the graph (autocast_mode.cpp, cached_cast)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    for enabled in (True, False):
        with amp.region(cache_enabled=enabled):
            one, two = torch.mm(x, weight), torch.mm(x, weight)
        nodes = [out.grad_fn.next_functions[1][0] for out in (one, two) if out.grad_fn]
        amp.assert_equal(f"nodes behind two uses, cache_enabled={enabled}", len(set(nodes)), 1 if enabled else 2)


def _expect_reference_gradient(amp: Amp, what: str, weight: torch.Tensor, reference: torch.Tensor) -> None:
    """Note a gradient that is not that of explicit casts, up to the dtype in which the uses were summed.

    PyTorch's own devices sum in the lower precision (docs/findings); one that sums in float32 is right, too.
    """
    amp.assert_close(what, weight.grad, reference.grad, 2 * torch.finfo(amp.dtype).eps)


@scenario(values=True)
def test_three_forwards_three_backwards(amp: Amp) -> None:
    """Cached casts carry gradients to the leaf, in its dtype, as often as it is used (pytorch#158232)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    reference = copy_of(weight)
    for turn in range(3):
        for with_other_losses in (False, True):
            weight.grad = reference.grad = None
            with amp.region():
                out = torch.mm(x, weight) if not with_other_losses else torch.mm(torch.mm(x, weight), weight)
            out.float().sum().backward()
            low = reference.to(amp.dtype)
            again = torch.mm(x.to(amp.dtype), low)
            (again if not with_other_losses else torch.mm(again, low)).float().sum().backward()
            amp.assert_equal(f"gradient dtype in turn {turn}", weight.grad.dtype, torch.float32)
            _expect_reference_gradient(amp, f"gradient in turn {turn}", weight, reference)


@scenario(values=True)
def test_gradient_once_per_use(amp: Amp) -> None:
    """A leaf used three times through one cached cast gets the gradient of all three uses (autocast_mode.cpp)."""
    weight = amp.rand(4, 4, requires_grad=True)
    xs = [amp.rand(4, 4) for _ in range(3)]
    reference = copy_of(weight)
    with amp.region():
        outs = [torch.mm(x, weight) for x in xs]
    sum(out.float().sum() for out in outs).backward()
    low = reference.to(amp.dtype)
    sum(torch.mm(x.to(amp.dtype), low).float().sum() for x in xs).backward()
    _expect_reference_gradient(amp, "gradient of three uses", weight, reference)


@scenario(values=True)
def test_grad_before_no_grad(amp: Amp) -> None:
    """no_grad holds for a weight cast with a gradient before (pytorch#65766), and no longer (pytorch#112583)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    with amp.region():
        first = torch.mm(x, weight)
        with torch.no_grad():
            amp.assert_equal("whether a result requires grad under no_grad", torch.mm(x, weight).requires_grad, False)
        last = torch.mm(x, weight)
    for what, out in (("before", first), ("after", last)):
        amp.assert_equal(f"whether the result {what} no_grad requires grad", out.requires_grad, True)
    if first.requires_grad and last.requires_grad:
        (first.sum() + last.sum()).backward()
    amp.assert_equal("whether the leaf has a gradient", weight.grad is not None, True)


@scenario(outer=["region", "inference"], values=True)
def test_inference_either_way_round(amp: Amp, outer: str) -> None:
    """Ops in inference mode are autocast and need no grad, and the next forward does again (pytorch#165068)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    inference, region = torch.inference_mode(), amp.region()
    with region if outer == "region" else inference, inference if outer == "region" else region:
        out = torch.mm(x, weight)
        amp.assert_equal("dtype in inference mode", out.dtype, amp.dtype)
        amp.assert_equal("whether it requires grad in inference mode", out.requires_grad, False)
    with amp.region():
        with torch.inference_mode():
            torch.mm(x, weight)
        out = torch.mm(x, weight)
    amp.assert_equal("dtype after inference mode", out.dtype, amp.dtype)
    amp.assert_equal("whether it requires grad after inference mode", out.requires_grad, True)
    if out.requires_grad:
        out.sum().backward()
    amp.assert_equal("dtype of the gradient", getattr(weight.grad, "dtype", None), torch.float32)


@scenario(values=True)
def test_alternating_no_grad(amp: Amp) -> None:
    """Each forward of one region obeys the grad mode it runs in (pytorch#158232)."""
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    results = []
    with amp.region():
        for turn, grad in enumerate((False, True, False, True, True, False)):
            with torch.set_grad_enabled(grad):
                results.append(torch.mm(x, weight))
            amp.assert_equal(f"whether result {turn} requires grad", results[-1].requires_grad, grad)
    for out in results:
        if out.requires_grad:
            out.sum().backward(retain_graph=True)
    amp.assert_equal("whether the leaf has a gradient", weight.grad is not None, True)


@scenario(values=True)
def test_new_values_after_a_step(amp: Amp) -> None:
    """A region after an optimizer step uses the new weights (amp.html: a region wraps the forward pass)."""
    weight = torch.ones(2, 2, device=amp.type, requires_grad=True)
    x = torch.ones(2, 2, device=amp.type)
    optimizer = torch.optim.SGD([weight], lr=1.0)
    with amp.region():
        out = torch.mm(x, weight)
    out.sum().backward()
    optimizer.step()
    with amp.region():
        amp.assert_equal("product after the step", amp.values(torch.mm(x, weight)), [[-2.0, -2.0], [-2.0, -2.0]])


@scenario(values=True)
def test_shared_with_the_backward_pass(amp: Amp) -> None:
    """A backward pass that enters a region itself finds the casts of the forward pass (autocast_mode.cpp).

    As in test_cast_cache_is_global of PyTorch, the end of the forward region is kept from dropping them.
    """
    weight, x = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)

    def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, weight)
        return torch.mm(x, weight)

    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, weight = ctx.saved_tensors
        with amp.region():
            return torch.mm(grad, weight), torch.mm(x, grad)

    product = plain_function(forward, backward)

    def step() -> None:
        with amp.region():
            out = product.apply(x, weight)
        out.sum().backward()

    with patch("torch.clear_autocast_cache", lambda: None):
        amp.assert_equal("casts of the weight", len(amp.copies(step, weight)), 1)
    torch.clear_autocast_cache()


# ---- results
@scenario(values=True)
def test_gradient_of_many_uses(amp: Amp) -> None:
    """The gradient of a float32 weight is the sum over its uses in float32 (amp.html: "maintaining accuracy").

    In the region's dtype a sum of ones stops growing, at 256 in bfloat16 and at 2048 in float16.
    """
    uses = 500 if amp.dtype == torch.bfloat16 else 3000
    weight, x = (torch.ones(1, 1, device=amp.type, requires_grad=grad) for grad in (True, False))
    for kept in (False, True):
        weight.grad = None
        with amp.region(cache_enabled=kept):
            out = torch.stack([torch.mm(x, weight).float() for _ in range(uses)]).sum()
        out.backward()
        amp.assert_equal(f"gradient of {uses} uses, cache_enabled={kept}", amp.values(weight.grad), [[float(uses)]])


def _losses(amp: Amp, outer: AbstractContextManager[object]) -> list[float]:
    """Return the loss of each of five training steps inside of a context."""
    weight, x = (torch.ones(4, 4, device=amp.type, requires_grad=grad) for grad in (True, False))
    optimizer = torch.optim.SGD([weight], lr=0.01)
    found = []
    with outer:
        for _ in range(5):
            with amp.region():
                loss = torch.mm(x, weight).float().square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(float(amp.host(loss.detach())))
    return found


@scenario(outer=["disabled", "elsewhere"], values=True)
def test_training_inside_a_region(amp: Amp, outer: str) -> None:
    """Steps outside of the forward's region train, in a region that casts nothing too (amp_examples.html).

    That one is a disabled one, or one of another device type.
    """
    around = amp.region(enabled=False) if outer == "disabled" else torch.autocast(amp.elsewhere)
    amp.assert_equal("losses of five steps inside a region", _losses(amp, around), _losses(amp, nullcontext()))
