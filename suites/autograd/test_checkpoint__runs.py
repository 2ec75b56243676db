"""Rule checkpoint, how often and how far a function runs: `ampcheck.spec.rules` says what it promises."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointError, checkpoint, set_checkpoint_early_stop

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("checkpoint")

both = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved"])


def _unless_it_ends_the_process(amp: Amp) -> None:
    """Raise Unsupported where an exception in a hook of the backward pass cannot be tried."""
    if amp.type == torch._C._get_privateuse1_backend_name():
        amp.unsupported("an exception in an unpack hook ends the process (python-backend-hook-exception)")


@pytest.mark.parametrize("stop", [True, False], ids=["early", "whole"])
@scenario(values=True)
def test_where_it_stops(amp: Amp, stop: bool) -> None:
    """Recomputation stops once it has what is needed, or goes on; neither leaves a region open (early_stop)."""
    steps: list[object] = []
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        with amp.region():
            steps.append("first")
            out = torch.sin(torch.mm(x, weight))
            with amp.region(amp.other):
                steps.append(amp.state())
                return out + 1

    with set_checkpoint_early_stop(stop):
        out = checkpoint(function, x, use_reentrant=False)
    before = amp.state(), amp.depth()
    out.float().sum().backward()
    once = ["first", (True, amp.other, True)]
    amp.expect("steps", steps, once + (["first"] if stop else once))
    amp.expect("state and depth afterwards", (amp.state(), amp.depth()), before)


@both
@pytest.mark.parametrize("where", ["first", "again"])
@scenario(values=True)
def test_a_failure(amp: Amp, where: str, reentrant: bool) -> None:
    """What the function raises, then or when it runs again, comes out, and the state is as before (checkpoint)."""
    if where == "again" and not reentrant:
        _unless_it_ends_the_process(amp)
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    runs: list[object] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(amp.state())
        with amp.region(amp.other, cache_enabled=False):
            if len(runs) == (1 if where == "first" else 2):
                raise KeyError("on purpose")
            return torch.sin(torch.mm(x, weight))

    def both_passes() -> None:
        with amp.region():
            out = checkpoint(function, x, use_reentrant=reentrant)
        out.float().sum().backward()

    before = amp.state(), amp.depth()
    amp.raises("a function that fails", KeyError, "on purpose", both_passes)
    amp.expect("state and depth afterwards", (amp.state(), amp.depth()), before)
    both_passes()
    amp.expect("states it ran in", set(runs), {(True, amp.dtype, True)})


@pytest.mark.parametrize("check", ["default", "none"])
@scenario(values=True)
def test_other_dtype_when_run_again(amp: Amp, check: str) -> None:
    """A function that saves another dtype the second time is refused, unless told not to look (determinism_check)."""
    if check == "default":
        _unless_it_ends_the_process(amp)
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3)
    runs: list[int] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        runs.append(1)
        with amp.region(enabled=len(runs) == 1):
            return torch.sin(torch.mm(x, weight)).float()

    def backward() -> None:
        checkpoint(function, x, use_reentrant=False, determinism_check=check).sum().backward()

    if check == "default":
        amp.raises("a backward pass after another forward", CheckpointError, "different metadata", backward)
    else:
        amp.raises("products of two dtypes", RuntimeError, "dtype", backward)
    amp.expect("how often it ran", len(runs), 2)


@scenario(values=True)
def test_around_by_request(amp: Amp) -> None:
    """A region that context_fn gives for the forward and one for the recomputation are inside the replayed one."""
    seen: list[object] = []
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)

    def function(x: torch.Tensor) -> torch.Tensor:
        out = torch.mm(x, weight)
        seen.append((amp.state(), amp.depth() > 0, out.dtype))
        return torch.sin(out)

    with amp.region(amp.other):
        regions = amp.region(cache_enabled=False), amp.region(cache_enabled=False)
        out = checkpoint(function, x, use_reentrant=False, context_fn=lambda: regions)
    out.float().sum().backward()
    amp.expect("states and dtypes", seen, [((True, amp.dtype, False), True, amp.dtype)] * 2)


@both
@scenario(values=True)
def test_memory(amp: Amp, reentrant: bool) -> None:
    """What the function computed on the way, in whatever precision, is freed after the forward (checkpoint)."""
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    made: list[weakref.ref[torch.Tensor]] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        hidden = torch.mm(x, weight)
        wide = torch.softmax(hidden, -1)
        made.extend((weakref.ref(hidden), weakref.ref(wide)))
        return torch.mm(torch.sin(hidden), weight).sum() + wide.exp().sum()

    with amp.region():
        plain = function(x)
        amp.expect("whether the first is kept without a checkpoint", made[0]() is not None, True)
        made.clear()
        out = checkpoint(function, x, use_reentrant=reentrant)
        amp.expect("tensors kept by the checkpoint", [ref() is not None for ref in made], [False, False])
    (plain + out).backward()
    amp.expect("tensors kept afterwards", [ref() is not None for ref in made], [False] * 4)


@scenario(values=True)
def test_saved_tensors(amp: Amp) -> None:
    """What a node of the graph has saved comes back from the recomputation in the lower precision it was saved in."""
    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        want: Any = torch.mm(x, weight).grad_fn
        out: Any = checkpoint(lambda x: torch.mm(x, weight), x, use_reentrant=False).grad_fn
    for name in ("_saved_self", "_saved_mat2"):
        got, wanted = getattr(out, name), getattr(want, name)
        amp.expect(f"dtype of {name}", got.dtype, amp.dtype)
        amp.expect(f"values of {name}", amp.values(got), amp.values(wanted))


@both
@scenario(values=True)
def test_functions_of_their_own(amp: Amp, reentrant: bool) -> None:
    """custom_fwd casts, and custom_bwd runs, the same in a recomputation as in a forward pass (amp.html#custom_fwd)."""
    seen: list[object] = []

    class Product(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=amp.type, cast_inputs=amp.other)  # type: ignore[untyped-decorator]
        def forward(ctx: Any, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
            seen.append(("forward", amp.state()[:2], x.dtype, weight.dtype))
            ctx.save_for_backward(x, weight)
            return torch.mm(x, weight)

        @staticmethod
        @torch.amp.custom_bwd(device_type=amp.type)  # type: ignore[untyped-decorator]
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            x, weight = ctx.saved_tensors
            seen.append(("backward", amp.state()[:2], x.dtype, weight.dtype))
            return torch.mm(grad, weight.t()), torch.mm(x.t(), grad)

    x, weight = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        out = checkpoint(lambda x: torch.sin(Product.apply(x, weight)), x, use_reentrant=reentrant)
    amp.expect("dtype of the result", out.dtype, amp.other)
    out.float().sum().backward()
    forward = ("forward", (False, amp.dtype), amp.other, amp.other)
    amp.expect("what ran", seen, [forward, forward, ("backward", *forward[1:])])
    amp.expect("dtype of the gradient", getattr(x.grad, "dtype", None), torch.float32)
