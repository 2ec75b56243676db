"""Rule checkpoint, what comes out: `ampcheck.spec.rules` says what it promises.

Each scenario runs the same function with a checkpoint and without, and holds one against the other.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("checkpoint")

both = pytest.mark.parametrize("reentrant", [True, False], ids=["reentrant", "saved"])
Function = Callable[[torch.Tensor], torch.Tensor]


def _leaves(amp: Amp) -> list[torch.Tensor]:
    """An input and three weights."""
    return [amp.rand(4, 4, requires_grad=True) for _ in range(4)]


def _block(leaves: Sequence[torch.Tensor]) -> Function:
    """Ops of each policy: products, a softmax, a loss-like sum of two dtypes."""
    _, first, second, third = leaves

    def block(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, first, second[0])
        attention = torch.softmax(torch.mm(hidden, second), -1)
        return torch.mm(attention, third) * hidden + x

    return block


def _outcome(amp: Amp, leaves: Sequence[torch.Tensor], run: Callable[[], torch.Tensor]) -> list[tuple[Any, Any]]:
    """Dtype and values of a result and of every leaf's gradient."""
    for leaf in leaves:
        leaf.grad = None
    out = run()
    out.float().square().sum().backward()
    found = [out.detach(), *(leaf.grad for leaf in leaves)]
    return [(None, None) if tensor is None else (tensor.dtype, amp.values(tensor.float())) for tensor in found]


def _alike(amp: Amp, what: str, got: list[tuple[Any, Any]], want: list[tuple[Any, Any]]) -> None:
    names = ("the result", *(f"gradient {place}" for place in range(len(want) - 1)))
    for name, (dtype, bits), (wanted, wanted_bits) in zip(names, got, want, strict=True):
        amp.expect(f"dtype of {name} {what}", dtype, wanted)
        amp.expect(f"whether {name} {what} has the bits it has without", bits == wanted_bits, True)


@both
@pytest.mark.parametrize("kept", [True, False], ids=["kept", "dropped"])
@scenario(values=True)
def test_same_bits(amp: Amp, kept: bool, reentrant: bool) -> None:
    """Result and gradients are those of the function itself, to the last bit, with casts kept or not (checkpoint).

    Each weight is used once, so that in whatever dtype uses are summed says nothing.
    """
    leaves = _leaves(amp)
    first, second = leaves[1:3]

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.softmax(torch.mm(x, first), -1), second).sin()

    def run(checkpointed: bool) -> torch.Tensor:
        with amp.region(cache_enabled=kept):
            return checkpoint(block, leaves[0], use_reentrant=reentrant) if checkpointed else block(leaves[0])

    _alike(amp, "checkpointed", _outcome(amp, leaves, lambda: run(True)), _outcome(amp, leaves, lambda: run(False)))


@both
@pytest.mark.parametrize("inside", [True, False], ids=["inside", "after"])
@pytest.mark.parametrize("before", [True, False], ids=["used", "fresh"])
@scenario(values=True)
def test_weights_used_before(amp: Amp, before: bool, inside: bool, reentrant: bool) -> None:
    """Weights that the region has cast already change nothing, wherever backward runs (pytorch#141896)."""
    leaves = _leaves(amp)
    block = _block(leaves)

    def run(checkpointed: bool) -> list[tuple[Any, Any]]:
        for leaf in leaves:
            leaf.grad = None
        with amp.region():
            if before:
                with torch.no_grad():
                    block(leaves[0])
                block(leaves[0])
            out = checkpoint(block, leaves[0], use_reentrant=reentrant) if checkpointed else block(leaves[0])
            if inside:
                out.float().square().sum().backward()
        if not inside:
            out.float().square().sum().backward()
        found = [out.detach(), *(leaf.grad for leaf in leaves)]
        return [(None, None) if tensor is None else (tensor.dtype, amp.device.host(tensor).float()) for tensor in found]

    got, want = run(True), run(False)
    for place, ((dtype, tensor), (wanted, wanted_tensor)) in enumerate(zip(got, want, strict=True)):
        amp.expect(f"dtype of tensor {place}", dtype, wanted)
        if tensor is not None and wanted_tensor is not None:
            amp.close(f"tensor {place}", tensor.to(amp.type), wanted_tensor, 8 * torch.finfo(amp.dtype).eps)


@both
@scenario(values=True)
def test_sequence_bits(amp: Amp, reentrant: bool) -> None:
    """A sequence in segments gives what the sequence gives (checkpoint_sequential)."""
    leaves = _leaves(amp)

    def layer(weight: torch.Tensor, after: Function, x: torch.Tensor) -> torch.Tensor:
        return after(torch.mm(x, weight))

    pairs = zip(leaves[1:], (torch.sin, torch.exp, torch.tanh), strict=True)
    functions = [functools.partial(layer, *pair) for pair in pairs]

    def plain(x: torch.Tensor) -> torch.Tensor:
        for function in functions:
            x = function(x)
        return x

    def run(segments: int) -> torch.Tensor:
        with amp.region():
            if not segments:
                return plain(leaves[0])
            out: torch.Tensor = checkpoint_sequential(functions, segments, leaves[0], use_reentrant=reentrant)
            return out

    want = _outcome(amp, leaves, lambda: run(0))
    for segments in (1, 2, 3):
        _alike(amp, f"in {segments} segments", _outcome(amp, leaves, functools.partial(run, segments)), want)


@both
@scenario(values=True)
def test_dropout(amp: Amp, reentrant: bool) -> None:
    """Dropout drops the same elements again, in the lower precision it drew them in (preserve_rng_state)."""
    x, weight = amp.rand(8, 8, requires_grad=True), amp.rand(8, 8)

    def function(x: torch.Tensor) -> torch.Tensor:
        dropped = functional.dropout(torch.mm(x, weight), 0.5)
        return dropped * dropped.detach()

    with amp.region():
        out = checkpoint(function, x, use_reentrant=reentrant)
    torch.rand(3)
    amp.rand(2, 2)
    out.float().sum().backward()
    # d/dx of sum(d * stop(d)) with d = drop(x @ w) is (2 * mask * d) @ w', and 2 * mask * d is 2 * d.
    kept = amp.device.host(out.detach()).float().sqrt()
    want = torch.mm(kept.to(amp.dtype) * 2, amp.device.host(weight).to(amp.dtype).t()).float()
    amp.expect("dtype of the result", out.dtype, amp.dtype)
    amp.expect("whether some were dropped and some were not", 0 < int((kept == 0).sum()) < kept.numel(), True)
    amp.expect("whether there is a gradient", x.grad is not None, True)
    if x.grad is not None:
        amp.close("gradient", x.grad, want, 8 * torch.finfo(amp.dtype).eps)


@scenario(values=True)
def test_double_backward(amp: Amp) -> None:
    """create_graph=True through a checkpoint gives the second derivative of the function (use_reentrant=False)."""
    leaves = _leaves(amp)
    block = _block(leaves)

    def second(checkpointed: bool) -> list[torch.Tensor]:
        with amp.region(cache_enabled=False):
            out = checkpoint(block, leaves[0], use_reentrant=False) if checkpointed else block(leaves[0])
        first = torch.autograd.grad(out.float().square().sum(), leaves[:3], create_graph=True)
        total = torch.stack([gradient.square().sum() for gradient in first]).sum()
        return [*first, *torch.autograd.grad(total, leaves)]

    for place, (got, want) in enumerate(zip(second(True), second(False), strict=True)):
        amp.expect(f"dtype of derivative {place}", got.dtype, torch.float32)
        amp.close(f"derivative {place}", got, amp.device.host(want.detach()), 1e-4)


@both
@scenario(values=True)
def test_no_grad_inside(amp: Amp, reentrant: bool) -> None:
    """A function that runs a part of itself without gradients first has the bits it has unchecked (pytorch#141896)."""
    leaves = _leaves(amp)
    first, second = leaves[1:3]

    def block(x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            scale = torch.mm(x, first).float().abs().max()
        hidden = torch.mm(x, first) / scale
        with torch.no_grad():
            torch.mm(hidden, second)
        return torch.mm(hidden, second).sin()

    def run(checkpointed: bool) -> torch.Tensor:
        with amp.region():
            return checkpoint(block, leaves[0], use_reentrant=reentrant) if checkpointed else block(leaves[0])

    _alike(amp, "checkpointed", _outcome(amp, leaves, lambda: run(True)), _outcome(amp, leaves, lambda: run(False)))
