"""Rule checkpoint: a checkpointed function gives the bits and gradients that it gives without a checkpoint.

Each scenario runs the same function with a checkpoint and without, and compares the two. In the second part a policy
says which results are saved and which are computed again (torch.utils.checkpoint.create_selective_checkpoint_contexts,
CheckpointPolicy). Source: torch/utils/checkpoint.py of PyTorch 2.13.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
import torch
from torch.nn import functional
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from ampcheck.runner.suite import Amp, named, scenario

pytestmark = pytest.mark.rule("checkpoint")

BOTH = named(reentrant=True, saved=False)
Function = Callable[[torch.Tensor], torch.Tensor]
Run = Callable[[], torch.Tensor]


def _leaves(amp: Amp) -> list[torch.Tensor]:
    return [amp.rand(4, 4, requires_grad=True) for _ in range(4)]


def _block(leaves: Sequence[torch.Tensor]) -> Function:
    """Ops of each policy: products, a softmax, a loss-like sum of two dtypes."""
    _, first, second, third = leaves

    def block(x: torch.Tensor) -> torch.Tensor:
        hidden = functional.linear(x, first, second[0])
        return torch.mm(torch.softmax(torch.mm(hidden, second), -1), third) * hidden + x

    return block


def _outcome(leaves: Sequence[torch.Tensor], run: Run) -> list[torch.Tensor | None]:
    for leaf in leaves:
        leaf.grad = None
    out = run()
    out.float().square().sum().backward()
    return [out.detach(), *(leaf.grad for leaf in leaves)]


def _expect_same_bits(amp: Amp, name: str, got: torch.Tensor | None, want: torch.Tensor | None) -> None:
    amp.assert_equal(f"dtype of {name}", *(getattr(tensor, "dtype", None) for tensor in (got, want)))
    same = got is want if got is None or want is None else amp.host(got).equal(amp.host(want))
    amp.assert_equal(f"whether {name} has the bits it has without", same, True)


def _expect_same_outcome(amp: Amp, what: str, leaves: Sequence[torch.Tensor], run: Run, plain: Run) -> None:
    """Note where a result and the gradients of a run are not, to the bit, those of a run without a checkpoint."""
    names = ("the result", *(f"gradient {place}" for place in range(len(leaves))))
    for name, got, want in zip(names, _outcome(leaves, run), _outcome(leaves, plain), strict=True):
        _expect_same_bits(amp, f"{name} {what}", got, want)


@scenario(kept=named(kept=True, dropped=False), reentrant=BOTH, values=True)
def test_same_bits(amp: Amp, kept: bool, reentrant: bool) -> None:
    """Result and gradients are those of the function itself, to the last bit, with casts cached or not (checkpoint).

    Each weight is used once, so that in whatever dtype uses are summed says nothing.
    """
    leaves = _leaves(amp)
    first, second = leaves[1:3]

    def block(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.softmax(torch.mm(x, first), -1), second).sin()

    plain = partial(block, leaves[0])
    checkpointed = partial(checkpoint, block, leaves[0], use_reentrant=reentrant)
    runs = [amp.region(cache_enabled=kept)(run) for run in (checkpointed, plain)]
    _expect_same_outcome(amp, "checkpointed", leaves, *runs)


@scenario(before=named(used=True, fresh=False), inside=named(inside=True, after=False), reentrant=BOTH, values=True)
def test_weights_used_before(amp: Amp, before: bool, inside: bool, reentrant: bool) -> None:
    """Weights that the region has cast already change nothing, wherever backward runs (pytorch#141896)."""
    leaves = _leaves(amp)
    block = _block(leaves)

    def run(checkpointed: bool) -> list[Any]:
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
        return [out.detach(), *(leaf.grad for leaf in leaves)]

    for place, (got, want) in enumerate(zip(run(True), run(False), strict=True)):
        amp.assert_close(f"tensor {place}", got, want, 8 * torch.finfo(amp.dtype).eps)


@scenario(reentrant=BOTH, values=True)
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
    kept = amp.host(out.detach()).float().sqrt()
    want = torch.mm(kept.to(amp.dtype) * 2, amp.host(weight).to(amp.dtype).t()).float()
    amp.assert_equal("dtype of the result", out.dtype, amp.dtype)
    amp.assert_equal("whether some were dropped and some were not", 0 < int((kept == 0).sum()) < kept.numel(), True)
    amp.assert_close("gradient", x.grad, want, 8 * torch.finfo(amp.dtype).eps)


@scenario(reentrant=BOTH, values=True)
def test_random_numbers_anew(amp: Amp, reentrant: bool) -> None:
    """Without preserve_rng_state the second run draws on from where the generator is (preserve_rng_state)."""
    x, weight = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4)
    drawn: list[float] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        drawn.append(float(torch.rand(())))
        return torch.mm(x, weight).square()

    with amp.region():
        out = checkpoint(function, x, use_reentrant=reentrant, preserve_rng_state=False)
    torch.manual_seed(7)
    expected = [float(torch.rand(())) for _ in range(2)]
    torch.manual_seed(7)
    out.float().sum().backward()
    amp.assert_equal("numbers drawn in the second run and after it", [*drawn[1:], float(torch.rand(()))], expected)


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
        amp.assert_equal(f"dtype of derivative {place}", got.dtype, torch.float32)
        amp.assert_close(f"derivative {place}", got, want, 1e-4)


# ---- policies that say what is saved
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


def _with_policy(function: Function, x: torch.Tensor, kept: str) -> Any:
    """Return what a function gives in a checkpoint whose policy keeps some results; see `SAVED`."""
    saved = SAVED[kept]
    policy = saved if isinstance(saved, list) else lambda ctx, op, *args, **kwargs: saved
    contexts = partial(create_selective_checkpoint_contexts, policy)
    return checkpoint(function, x, use_reentrant=False, context_fn=contexts)


def _expect_same_gradients(amp: Amp, leaves: Sequence[torch.Tensor], out: torch.Tensor, plain: torch.Tensor) -> None:
    """Note where the gradients of a result are not, to the bit, those of a result without a checkpoint."""
    got, want = (torch.autograd.grad(result.float().sum(), leaves) for result in (out, plain))
    for place, (one, other) in enumerate(zip(got, want, strict=True)):
        _expect_same_bits(amp, f"gradient {place}", one, other)


@scenario(kept=SAVED, values=True)
def test_policy(amp: Amp, kept: str) -> None:
    """Whatever a policy keeps of the ops and casts of a region, the gradients are the same bits (CheckpointPolicy)."""
    x, first, second = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(3)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.softmax(torch.mm(x, first), -1).float(), second).sin()

    with amp.region():
        plain = function(x)
    with amp.region():
        out = _with_policy(function, x, kept)
    amp.assert_equal("dtype of the result", out.dtype, amp.dtype)
    _expect_same_gradients(amp, leaves, out, plain)


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
        contexts = partial(create_selective_checkpoint_contexts, policy)
        out = checkpoint(lambda x: torch.mm(x, weight).sin(), x, use_reentrant=False, context_fn=contexts)
    if not seen:
        amp.unsupported(f"{amp.name} casts and computes where a dispatch mode sees nothing")
    amp.assert_equal("products", [dtypes for name, dtypes in seen if "mm" in name], [(amp.dtype, amp.dtype)])
    amp.assert_equal("casts", [dtypes for name, dtypes in seen if "copy" in name], [(torch.float32,)] * 2)
    out.float().sum().backward()


@scenario(kept=["products", "casts", "must_recompute"], values=True)
def test_used_before(amp: Amp, kept: str) -> None:
    """A weight that its region has cast before changes no gradient, whatever the policy keeps (pytorch#193338)."""
    if amp.type == torch._C._get_privateuse1_backend_name():
        amp.unsupported("an exception in an unpack hook ends the process (python-backend-hook-exception)")
    x, weight = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(2)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(x, weight).sin()

    with amp.region():
        plain = function(x)
        out = _with_policy(function, x, kept)
    _expect_same_gradients(amp, leaves, out, plain)


@scenario(kept=["must_save", "products", "casts"], values=True)
def test_backward_inside(amp: Amp, kept: str) -> None:
    """A backward pass in the region whose casts are still cached gives the same gradients (checkpoint)."""
    x, first, second = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(3)]

    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.mm(torch.mm(x, first).float(), second)

    with amp.region():
        plain = function(x)
    with amp.region():
        out = _with_policy(function, x, kept)
        _expect_same_gradients(amp, leaves, out, plain)


@scenario(values=True)
def test_two_inputs(amp: Amp) -> None:
    """Casts of a policy belong to their tensors, also where the weight among them had been cast before (checkpoint)."""
    x, weight = leaves = [amp.rand(4, 4, requires_grad=True) for _ in range(2)]
    y = amp.rand(4, 4)

    def function(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return torch.mm(x, weight).sin(), torch.mm(y, y)

    with amp.region():
        low = x.to(amp.dtype)
        plain, out = function(low)[0], _with_policy(function, low, "casts")[0]
    _expect_same_gradients(amp, leaves, out, plain)
