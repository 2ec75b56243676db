"""Rule optimizers, by the gradients they get: `ampcheck.spec.rules` says what the rule promises.

Sources are PyTorch 2.13's.
"""

from typing import Any

import pytest
import torch

from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("optimizers")

INF = float("inf")


def _leaf(amp: Amp, *, dtype: torch.dtype = torch.float32, size: int = 3) -> torch.nn.Parameter:
    return torch.nn.Parameter((torch.arange(size) - 1.5).to(dtype).to(amp.type))


def _steps(amp: Amp, leaves: list[torch.nn.Parameter], optimizer: Any, *, scaled: bool, count: int = 2) -> Any:
    """Steps down half the sum of squares of all leaves that want a gradient. Returns the scaler."""
    scaler = torch.amp.GradScaler(amp.type, init_scale=512.0, enabled=scaled)
    for _ in range(count):
        optimizer.zero_grad()
        for leaf in leaves:
            if leaf.requires_grad:
                scaler.scale(leaf.square().sum() / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    return scaler


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float64], ids=["brain", "single", "double"])
@pytest.mark.parametrize("way", ["loop", "foreach", "fused"])
@scenario(values=True, dtypes="default")
def test_dtype(amp: Amp, way: str, dtype: torch.dtype) -> None:
    """Parameters of another dtype than float16 are trained as without a scaler (pytorch#127176; torch.optim)."""
    results = []
    for scaled in (False, True):
        leaf = _leaf(amp, dtype=dtype)
        optimizer = torch.optim.SGD([leaf], lr=0.25, foreach=way == "foreach", fused=way == "fused")
        _steps(amp, [leaf], optimizer, scaled=scaled)
        results.append(leaf)
    amp.exact("the parameter", results[1], amp.device.host(results[0]))
    amp.expect("dtype of its gradient", getattr(results[1].grad, "dtype", None), dtype)


@scenario(values=True, dtypes="default")
def test_half_is_refused(amp: Amp) -> None:
    """float16 gradients are refused, and neither they nor the parameters change (grad_scaler.py; pytorch#74739)."""
    leaf = _leaf(amp, dtype=torch.float16)
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scaler.scale(leaf.float().sum()).backward()
    amp.raises("step", ValueError, "Attempting to unscale FP16 gradients", lambda: scaler.step(optimizer))
    amp.exact("the parameter", leaf, (torch.arange(3) - 1.5).half())
    amp.exact("the gradient", leaf.grad, torch.full((3,), 512.0).half())


@scenario(values=True, dtypes="default")
def test_complex_is_refused(amp: Amp) -> None:
    """Complex gradients are refused in words that name the dtype, and the parameter is kept (pytorch#127176)."""
    leaf = torch.nn.Parameter(torch.ones(2, dtype=torch.complex64, device=amp.type))
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scaler.scale(leaf.abs().sum()).backward()
    amp.raises("step", RuntimeError, "omplex", lambda: scaler.step(optimizer))
    amp.expect("the parameter", amp.values(leaf), [1.0, 1.0])


@pytest.mark.parametrize("way", ["loop", "foreach", "fused"])
@scenario(values=True, dtypes="default")
def test_dtypes_in_one(amp: Amp, way: str) -> None:
    """Parameters of several dtypes and shapes in one optimizer are all stepped, or all skipped (grad_scaler.py)."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64, torch.float32)
    results = []
    for scaled in (False, True):
        leaves = [_leaf(amp, dtype=dtype, size=n + 1) for n, dtype in enumerate(dtypes)]
        optimizer = torch.optim.Adam(leaves, lr=0.25, foreach=way == "foreach", fused=way == "fused")
        scaler = _steps(amp, leaves, optimizer, scaled=scaled)
        results.append([leaf.detach().clone() for leaf in leaves])
    for n, (got, want) in enumerate(zip(results[1], results[0], strict=True)):
        amp.exact(f"parameter {n}", got, amp.device.host(want))
    for bad in leaves:
        for leaf in leaves:
            leaf.grad = torch.full_like(leaf, INF if leaf is bad else 1.0)
        scaler.step(optimizer)
        scaler.update()
        for n, (leaf, kept) in enumerate(zip(leaves, results[1], strict=True)):
            amp.exact(f"parameter {n} after an infinity in one of {bad.dtype}", leaf, amp.device.host(kept))


@pytest.mark.parametrize("to_none", [True, False], ids=["none", "zeros"])
@pytest.mark.parametrize("way", ["loop", "foreach", "fused"])
@scenario(values=True, dtypes="default")
def test_parameters_without_gradient(amp: Amp, way: str, to_none: bool) -> None:
    """Frozen and unused parameters stay, and weigh nothing in the check (grad_scaler.py: no gradient, no check)."""
    used, frozen, unused = _leaf(amp), _leaf(amp).requires_grad_(False), _leaf(amp)
    optimizer = torch.optim.SGD([frozen, used, unused], lr=0.25, foreach=way == "foreach", fused=way == "fused")
    scaler = torch.amp.GradScaler(amp.type, init_scale=512.0)
    for _ in range(2):
        optimizer.zero_grad(set_to_none=to_none)
        scaler.scale(used.square().sum() / 2).backward()
        scaler.step(optimizer)
        scaler.update()
    start = torch.arange(3) - 1.5
    amp.exact("the parameter used", used, start * 0.75**2)
    amp.exact("the frozen one", frozen, start)
    amp.exact("the unused one", unused, start)


@scenario(values=True, dtypes="default")
def test_no_gradient_at_all(amp: Amp) -> None:
    """A step without any gradient says that nothing was checked (grad_scaler.py; accelerate#357)."""
    leaf = _leaf(amp)
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type)
    scaler.scale(torch.ones((), device=amp.type))
    amp.raises("step", AssertionError, "No inf checks were recorded", lambda: scaler.step(optimizer))
    amp.exact("the parameter", leaf, torch.arange(3) - 1.5)


@pytest.mark.parametrize("way", ["SparseAdam", "SGD", "Momentum", "Adagrad"])
@scenario(values=True, dtypes="default")
def test_sparse(amp: Amp, way: str) -> None:
    """Optimizers that take sparse gradients take those of a scaled loss (pytorch#35810; torch.nn.Embedding)."""
    made: dict[str, Any] = {
        "SparseAdam": lambda held: torch.optim.SparseAdam(list(held), lr=0.25),
        "SGD": lambda held: torch.optim.SGD(held, lr=0.25),
        "Momentum": lambda held: torch.optim.SGD(held, lr=0.25, momentum=0.5),
        "Adagrad": lambda held: torch.optim.Adagrad(held, lr=0.25),
    }
    results = []
    index = torch.tensor([0, 2, 2, 3], device=amp.type)
    for scaled in (False, True):
        table = torch.nn.Embedding.from_pretrained(torch.ones(5, 2), freeze=False, sparse=True).to(amp.type)
        optimizer, scaler = made[way](table.parameters()), torch.amp.GradScaler(amp.type, 512.0, enabled=scaled)
        for step in range(3):
            optimizer.zero_grad()
            scaler.scale(table(index).square().sum()).backward()
            if scaled and step == 1 and table.weight.grad is not None:
                table.weight.grad._values()[1] = INF
            if scaled or step != 1:
                with torch.sparse.check_sparse_tensor_invariants(enable=True):  # silent on it, Adagrad's own would warn
                    scaler.step(optimizer)
                scaler.update()
        results.append(table.weight)
    amp.exact("the table", results[1], amp.device.host(results[0]))


@scenario(values=True, dtypes="default")
def test_closure(amp: Amp) -> None:
    """A closure is refused before it is called, by keyword and in first place (amp.html, GradScaler.step).

    "Closure use is not currently supported": LBFGS cannot step without one, so no scaler can step it.
    """
    for make in (torch.optim.LBFGS, torch.optim.SGD):
        leaf = _leaf(amp)
        called: list[int] = []
        optimizer, scaler = make([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)

        def closure(leaf: torch.nn.Parameter = leaf, called: list[int] = called) -> torch.Tensor:
            called.append(1)
            leaf.grad = torch.ones_like(leaf)
            return leaf.sum()

        scaler.scale(leaf.sum()).backward()
        text = "Closure use is not currently supported"
        for what, give in (
            ("by keyword", lambda o=optimizer, s=scaler, c=closure: s.step(o, closure=c)),
            ("in first place", lambda o=optimizer, s=scaler, c=closure: s.step(o, c)),
        ):
            amp.raises(f"a closure given to {make.__name__} {what}", RuntimeError, text, give)
        amp.expect(f"calls of the closure given to {make.__name__}", len(called), 0)


@scenario(values=True, dtypes="default")
def test_returned_value(amp: Amp) -> None:
    """step returns what the optimizer's step returns, and hands on what it is given (amp.html, GradScaler.step)."""

    class Counted(torch.optim.SGD):
        def step(self, closure: Any = None, *, told: int = 0) -> Any:
            super().step(closure)
            return told + 1

    leaf = _leaf(amp)
    optimizer, scaler = Counted([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scaler.scale(leaf.sum()).backward()
    amp.expect("what a step returned", scaler.step(optimizer, told=4), 5)


@scenario(values=True, dtypes="default")
def test_scheduler(amp: Amp) -> None:
    """A learning rate scheduler's rates hold for scaled steps, also after a skipped one (amp_examples.html)."""
    results = []
    for scaled in (False, True):
        leaf = _leaf(amp)
        optimizer = torch.optim.SGD([leaf], lr=1.0)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1, gamma=0.5)
        scaler = torch.amp.GradScaler(amp.type, init_scale=512.0, enabled=scaled)
        for step in range(4):
            leaf.grad = None
            scaler.scale(leaf.square().sum() / 2).backward()
            if step == 2 and leaf.grad is not None:
                leaf.grad[0] = INF
            if scaled or step != 2:
                scaler.step(optimizer)
                scaler.update()
            scheduler.step()
        results.append(leaf)
        amp.expect(f"the rate, scaled={scaled}", optimizer.param_groups[0]["lr"], 0.0625)
    amp.exact("the parameter", results[1], amp.device.host(results[0]))


@scenario(values=True, dtypes="default")
def test_scheduler_after_a_skipped_step(amp: Amp) -> None:
    """Calls in the right order give no warning of a wrong one when the first step is skipped (pytorch#44511)."""
    leaf = _leaf(amp)
    optimizer, scaler = torch.optim.SGD([leaf], lr=0.25), torch.amp.GradScaler(amp.type, init_scale=512.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=1)
    scaler.scale((leaf * INF).sum()).backward()
    scaler.step(optimizer)
    scaler.update()
    amp.quiet("scheduler.step() after scaler.step()", scheduler.step)


@scenario(values=True, dtypes="default")
def test_group_added_later(amp: Amp) -> None:
    """A group that is added between two steps is unscaled and stepped with the others (torch.optim.Optimizer)."""
    one, two = _leaf(amp), _leaf(amp)
    optimizer = torch.optim.SGD([one], lr=0.25)
    _steps(amp, [one], optimizer, scaled=True, count=1)
    optimizer.add_param_group({"params": [two], "lr": 0.5})
    _steps(amp, [one, two], optimizer, scaled=True, count=1)
    amp.exact("the first parameter", one, (torch.arange(3) - 1.5) * 0.75**2)
    amp.exact("the one that was added", two, (torch.arange(3) - 1.5) * 0.5)
