"""Rule derivatives: a compiled function has the gradients of the eager program that PyTorch documents for it.

The promise, its sources, and what is compared: docs/coverage/derivatives.md.
"""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from ampcheck.checks.training import plain_function
from ampcheck.runner.suite import Amp, Product, other_than, scenario, where

pytestmark = pytest.mark.rule("derivatives")

PROGRAMS = Product(
    {
        "compiler": ("dynamo", "aot", "inductor"),
        "body": ("chain", "normed", "joined", "loss"),
        "regions": ("none", "one", "nested", "disabled", "reentered"),
        "around": ("out", "low", "other"),
        "setting": ("same_as_forward", "off", "listed"),
        "engine": ("autograd", "compiled"),
    },
    {"the backend `eager` makes no backward graph": where(compiler="dynamo", setting=other_than("same_as_forward"))},
)


BODIES: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "chain": lambda x, w: torch.mm(torch.mm(x, w), x),
    "normed": lambda x, w: torch.mm(torch.nn.functional.layer_norm(x, [3]), w),
    "joined": lambda x, w: torch.cat([torch.mm(x, w), x]),
    "loss": lambda x, w: torch.nn.functional.mse_loss(torch.mm(x, w), torch.zeros(3, 3, device=x.device)),
}
"""Functions of a matrix and a weight."""


def _program(amp: Amp, body: str, regions: str) -> Callable[..., tuple[torch.Tensor, ...]]:
    """Return a function with regions: results of each."""
    kind, low, other, call = amp.type, amp.dtype, amp.other, BODIES[body]
    on, dtype = regions == "one", low if regions == "one" else None

    def none(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return (call(x, w),)

    def single(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, dtype=dtype, enabled=on):
            return (call(x, w),)

    def nested(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with torch.autocast(kind, dtype=low):
            with torch.autocast(kind, enabled=False):
                first = call(x, w)
            with torch.autocast(kind, dtype=other):
                return first, call(x, w)

    def reentered(x: torch.Tensor, w: torch.Tensor) -> tuple[torch.Tensor, ...]:
        region = torch.autocast(kind, dtype=low)
        with region:
            first = call(x, w)
        with region:
            return first, call(x, w)

    return {"none": none, "nested": nested, "reentered": reentered}.get(regions, single)


_PRODUCTS = ("mm", "addmm", "bmm")


class _Step:
    """A forward pass in a region, and a backward pass in another one, of fresh leaves with fixed values."""

    def __init__(self, amp: Amp, call: Callable[..., tuple[torch.Tensor, ...]], around: torch.dtype | None) -> None:
        self.amp = amp
        ramp = torch.arange(1.0, 10.0).reshape(3, 3) / 7
        self.leaves = [x.to(amp.type).requires_grad_() for x in (ramp, ramp.t() - 0.5)]
        with amp.region(around) if around else nullcontext():
            self.results = call(*self.leaves)

    def backward(self, region: torch.dtype | None = None) -> None:
        with self.amp.region(region) if region else nullcontext():
            torch.autograd.backward(self.results, [torch.ones_like(y) for y in self.results])

    def observed(self, region: torch.dtype | None = None) -> tuple[list[str], int]:
        """Return the dtypes of each product of the backward pass, and the number of its casts."""
        seen = self.amp.observe(lambda: self.backward(region))
        if seen.error is not None:
            raise seen.error
        products = [call for call in seen.kernels if call.overload in _PRODUCTS]
        return sorted(" ".join(leaf.got for leaf in call.leaves) for call in products), len(seen.casts)


def _assert_same_step(amp: Amp, got: _Step, want: _Step) -> None:
    dtypes = [y.dtype for y in want.results]
    amp.assert_equal("dtypes of the results", [y.dtype for y in got.results], dtypes)
    for name, one, two in zip("xw", got.leaves, want.leaves, strict=True):
        if one.grad is None:
            amp.check(False, f"gradient of {name}", "there is none")
        else:
            amp.assert_close(f"gradient of {name}", one.grad, two.grad, 0.02)


@scenario(PROGRAMS, types=("cpu",), dtypes="default")
def test_gradients_of_regions(
    amp: Amp, compiler: str, body: str, regions: str, around: str, setting: str, engine: str
) -> None:
    """The gradients of a compiled function with regions equal those of the eager program that the setting documents."""
    outer = {"low": amp.dtype, "other": amp.other}.get(around)
    listed = [{"device_type": amp.type, "dtype": amp.other}]
    placed = {"same_as_forward": outer, "off": None, "listed": amp.other}[setting] if compiler != "dynamo" else None
    # AOTAutograd keeps no casts for later uses (disable_autocast_cache of torch/fx/experimental/proxy_tensor.py).
    torch.set_autocast_cache_enabled(compiler == "dynamo")
    program = _program(amp, body, regions)
    want = _Step(amp, program, outer)
    products, casts = want.observed(placed)
    value = listed if setting == "listed" else setting
    with torch._functorch.config.patch(backward_pass_autocast=value):
        compiled = amp.compiled(compiler, program, *want.leaves)
        first = _Step(amp, compiled, outer)
        if engine == "compiled":
            with torch._dynamo.config.patch(compiled_autograd=True):
                amp.compiled(compiler, first.backward, fullgraph=False)()
        else:
            first.backward()
        _assert_same_step(amp, first, want)
        if engine == "autograd" and compiler != "inductor":
            found, more = _Step(amp, compiled, outer).observed()
            amp.assert_equal("dtypes of the products of the backward pass", found, products)
            amp.check(more <= casts, "casts of the backward pass", f"got {more}; expected at most {casts}")
    torch.set_autocast_cache_enabled(True)
    amp.assert_equal("state afterwards", (*amp.state(), amp.depth()), (False, amp.default, True, 0))


@scenario(compiler=("dynamo", "aot"), derivative=("backward", "vjp", "jvp"), types=("cpu",), dtypes="default")
def test_rules_of_a_function(amp: Amp, compiler: str, derivative: str) -> None:
    """A compiled function has the rules that the user gave it, also where it adds in place to what it noted."""
    notes: list[torch.Tensor] = []

    def product(x: torch.Tensor) -> torch.Tensor:
        y = torch.mm(x, x)
        notes.extend([y] if derivative == "backward" else [])
        y += 1
        notes.clear()
        return y

    rules = {"setup_context": lambda ctx, inputs, output: None, "jvp": lambda ctx, *tangents: tangents[0] * 5}
    first, more = (lambda ctx, x: product(x), {}) if derivative == "backward" else (product, rules)
    function = plain_function(first, lambda ctx, *grads: grads[0] * 3, **{k: staticmethod(f) for k, f in more.items()})

    def derived(x: torch.Tensor) -> Any:
        if derivative == "vjp":
            return torch.func.vjp(function.apply, x)[1](torch.ones_like(x, dtype=amp.dtype))[0]
        return torch.func.jvp(function.apply, (x,), (x,))[1] if derivative == "jvp" else function.apply(x)

    def result(program: Callable[..., Any]) -> torch.Tensor:
        x = torch.eye(3, device=amp.type).requires_grad_(derivative == "backward")
        with amp.region():
            out = program(x)
        return torch.autograd.grad(out.sum(), x)[0] if derivative == "backward" else out.float()

    compiled = amp.compiled(compiler, derived, torch.ones(3, 3, device=amp.type), fullgraph=False)
    amp.assert_close("what it gives", result(compiled), result(derived), 0.02)
