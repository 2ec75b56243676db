"""Rule checkpoint, where a policy says what is kept: `ampcheck.spec.rules` says what it promises.

Sources are torch.utils.checkpoint.create_selective_checkpoint_contexts and CheckpointPolicy of PyTorch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("checkpoint")

SAVED: dict[str, CheckpointPolicy | list[Any]] = {
    "must_save": CheckpointPolicy.MUST_SAVE,
    "prefer_save": CheckpointPolicy.PREFER_SAVE,
    "must_recompute": CheckpointPolicy.MUST_RECOMPUTE,
    "prefer_recompute": CheckpointPolicy.PREFER_RECOMPUTE,
    "products": [torch.ops.aten.mm.default],
    "casts": [torch.ops.aten._to_copy.default],
    "products_and_casts": [torch.ops.aten.mm.default, torch.ops.aten._to_copy.default],
}
"""A policy for every op, or the ops that are kept."""


def _contexts(kept: CheckpointPolicy | list[Any]) -> Callable[[], Any]:
    policy = kept if isinstance(kept, list) else lambda ctx, op, *args, **kwargs: kept
    return partial(create_selective_checkpoint_contexts, policy)


def _gradients(amp: Amp, loss: torch.Tensor, leaves: Sequence[torch.Tensor]) -> list[tuple[torch.dtype, list[Any]]]:
    return [(gradient.dtype, amp.values(gradient)) for gradient in torch.autograd.grad(loss, leaves)]


def _same(amp: Amp, got: list[tuple[torch.dtype, list[Any]]], want: list[tuple[torch.dtype, list[Any]]]) -> None:
    for place, ((dtype, bits), (wanted, wanted_bits)) in enumerate(zip(got, want, strict=True)):
        amp.expect(f"dtype of gradient {place}", dtype, wanted)
        amp.expect(f"whether gradient {place} has the bits it has without", bits == wanted_bits, True)


@pytest.mark.parametrize("kept", SAVED)
@scenario(values=True)
def test_policy(amp: Amp, kept: str) -> None:
    """Whatever a policy keeps of the ops and casts of a region, the gradients are the same bits (CheckpointPolicy)."""
    x, first, second = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(3)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.softmax(torch.mm(x, first), -1).float(), second).sin()

    with amp.region():
        plain = function(x)
    with amp.region():
        out = checkpoint(function, x, use_reentrant=False, context_fn=_contexts(SAVED[kept]))
    amp.expect("dtype of the result", out.dtype, amp.dtype)
    _same(amp, _gradients(amp, out.float().sum(), leaves), _gradients(amp, plain.float().sum(), leaves))


@scenario(values=True)
def test_what_a_policy_sees(amp: Amp) -> None:
    """A policy is asked about the ops below autocast, so it sees products of the lower precision, and their casts."""
    seen: list[tuple[str, tuple[torch.dtype, ...]]] = []
    x, weight = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4, requires_grad=True)

    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        if op in (torch.ops.aten.mm.default, torch.ops.aten._to_copy.default):
            seen.append((str(op), tuple(arg.dtype for arg in args)))
        return CheckpointPolicy.PREFER_RECOMPUTE

    with amp.region():
        out = checkpoint(
            lambda x: torch.mm(x, weight).sin(),
            x,
            use_reentrant=False,
            context_fn=partial(create_selective_checkpoint_contexts, policy),
        )
    if not seen:
        amp.unsupported(f"{amp.device.name} casts and computes where a dispatch mode sees nothing")
    amp.expect("products", [dtypes for name, dtypes in seen if "mm" in name], [(amp.dtype, amp.dtype)])
    amp.expect("casts", [dtypes for name, dtypes in seen if "copy" in name], [(torch.float32,)] * 2)
    out.float().sum().backward()


@pytest.mark.parametrize("kept", ["products", "casts", "must_recompute"])
@scenario(values=True)
def test_used_before(amp: Amp, kept: str) -> None:
    """A weight that its region has cast before changes no gradient, whatever the policy keeps (pytorch#193338)."""
    if amp.type == torch._C._get_privateuse1_backend_name():
        amp.unsupported("an exception in an unpack hook ends the process (python-backend-hook-exception)")
    x, weight = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(2)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, weight).sin()

    with amp.region():
        plain = function(x)
        out = checkpoint(function, x, use_reentrant=False, context_fn=_contexts(SAVED[kept]))
    _same(amp, _gradients(amp, out.float().sum(), leaves), _gradients(amp, plain.float().sum(), leaves))


@pytest.mark.parametrize("kept", ["must_save", "products", "casts"])
@scenario(values=True)
def test_backward_inside(amp: Amp, kept: str) -> None:
    """A backward pass in the region whose casts are still kept gives the gradients it gives elsewhere (checkpoint)."""
    x, first, second = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(3)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, first).float(), second)

    with amp.region():
        plain = function(x)
    want = _gradients(amp, plain.float().sum(), leaves)
    with amp.region():
        out = checkpoint(function, x, use_reentrant=False, context_fn=_contexts(SAVED[kept]))
        got = _gradients(amp, out.float().sum(), leaves)
    _same(amp, got, want)


@scenario(values=True)
def test_two_inputs(amp: Amp) -> None:
    """Casts of a policy belong to their tensors, also where the weight among them had been cast before (checkpoint)."""
    x, weight = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(2)]
    y = amp.rand(4, 4)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        hidden = torch.mm(x, weight).sin()
        return hidden, torch.mm(y, y)

    with amp.region():
        low = x.to(amp.dtype)
        plain, _ = function(low)
        out, _ = checkpoint(function, low, use_reentrant=False, context_fn=_contexts(SAVED["casts"]))
    _same(amp, _gradients(amp, out.float().sum(), leaves), _gradients(amp, plain.float().sum(), leaves))
