"""Rule failures: an error at run time, which depends on values, leaves autocast's state as it was in compiled graphs.

The promise, its sources, and what is compared: docs/coverage/failures.md.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, nullcontext
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from ampcheck.runner.suite import Amp, Product, other_than, scenario, where

pytestmark = pytest.mark.rule("failures")

_COMPILED = ("dynamo", "aot", "inductor")

IN_THE_GRAPH = Product(
    {
        "compiler": (*_COMPILED, "export", "strict", "decomposed", "packaged", "traced"),
        "error": ("index", "singular", "negative", "asserted"),
        "regions": ("one", "nested", "around", "unkept"),
        "graph": ("full", "broken"),
    },
    {
        "only torch.compile breaks graphs": where(graph="broken", compiler=other_than(*_COMPILED)),
        "a trace drops an assertion, whose result nobody uses": where(error="asserted", compiler="traced"),
        "a package takes ten seconds to make; one error of each kind in one region is tried": where(
            compiler="packaged", regions=other_than("one")
        ),
    },
)
AROUND_THE_GRAPH = Product(
    {
        "compiler": _COMPILED,
        "place": ("hook", "post_hook", "backward", "forward", "recomputed", "generator", "manager"),
        "regions": ("inside", "around", "both"),
        "called": ("outside", "in_a_region"),
    },
)


def _raising(error: str, x: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
    """Do what fails for some values of a matrix or of indices."""
    if error == "index":
        return torch.index_select(x, 0, i)
    if error == "singular":
        return torch.linalg.inv(x.double())
    if error == "negative":
        return torch.linalg.cholesky(x.double())
    torch.ops.aten._assert_async.msg((x >= 0).all(), "a value is negative")
    return x


def _matrices(amp: Amp) -> dict[str, torch.Tensor]:
    return {
        "good": torch.eye(2, device=amp.type),
        "index": torch.eye(2, device=amp.type),
        "singular": torch.zeros(2, 2, device=amp.type),
        "negative": -torch.eye(2, device=amp.type),
        "asserted": -torch.eye(2, device=amp.type),
    }


def _in_regions(amp: Amp, error: str, regions: str, graph: str) -> Callable[..., tuple[torch.Tensor, torch.Tensor]]:
    """Return a function that gives a product, and what fails, in the innermost of some regions."""
    kind, low, other = amp.type, amp.dtype, amp.other

    def body(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = torch.mm(x, x)
        if graph == "broken":
            torch._dynamo.graph_break()
        return y, _raising(error, x, i)

    kept = None if regions != "unkept" else False
    dtype = low if regions != "unkept" else other

    def one(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=dtype, cache_enabled=kept):
            return body(x, i)

    def nested(x: torch.Tensor, i: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        with torch.autocast(kind, dtype=low), torch.autocast(kind, enabled=False), torch.autocast(kind, dtype=other):
            return body(x, i)

    return nested if regions == "nested" else one


def _assert_raises(amp: Amp, what: str, call: Callable[[], object]) -> None:
    """Note a call that raises nothing."""
    found = amp.outcome(call)
    amp.check(isinstance(found, str), what, found if isinstance(found, str) else "raised nothing")


@scenario(IN_THE_GRAPH, types=("cpu",), dtypes="default")
def test_value_that_fails(amp: Amp, compiler: str, error: str, regions: str, graph: str) -> None:
    """A compiled op that raises for a value ends the regions it is in, and no other."""
    matrices = _matrices(amp)
    good, bad = torch.tensor([0, 1], device=amp.type), torch.tensor([0, 9 if error == "index" else 1], device=amp.type)
    options = {"fullgraph": False} if graph == "broken" else {}
    low = amp.dtype if regions in ("one", "around") else amp.other
    with amp.region(cache_enabled=False) if regions == "around" else nullcontext():
        program = amp.compiled(compiler, _in_regions(amp, error, regions, graph), matrices["good"], good, **options)
        before = (*amp.state(), amp.depth())
        for turn in ("first", "second"):
            amp.assert_equal(f"dtype of the product, {turn} turn", program(matrices["good"], good)[0].dtype, low)
            _assert_raises(amp, f"the {turn} call that fails", lambda: program(matrices[error], bad))
            amp.assert_equal(f"state after the {turn} error", (*amp.state(), amp.depth()), before)
            around = amp.dtype if regions == "around" else torch.float32
            amp.assert_equal(f"dtype of a product after the {turn} error", amp.probe(), around)
    amp.assert_equal("state at the end", (*amp.state(), amp.depth()), (False, amp.default, True, 0))


class _Inverse(torch.autograd.Function):
    """Gives what it is given; the backward pass inverts the gradient, or the forward pass the argument."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, forward: bool) -> torch.Tensor:
        if forward:
            torch.linalg.inv(x.double())
        ctx.inverts = not forward
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[torch.Tensor, None]:
        return (torch.linalg.inv(grads[0].double()).to(grads[0].dtype) if ctx.inverts else grads[0]), None


class _Manager:
    """A user-defined context manager that enters and leaves a region."""

    def __init__(self, region: Any) -> None:
        self.region = region

    def __enter__(self) -> None:
        self.region.__enter__()

    def __exit__(self, *error: object) -> None:
        self.region.__exit__(*error)


def _inverse_of(gradient: torch.Tensor) -> torch.Tensor:
    return torch.linalg.inv(gradient.double()).to(gradient.dtype)


def _inverted_in_place(leaf: torch.Tensor) -> None:
    assert leaf.grad is not None
    leaf.grad.copy_(_inverse_of(leaf.grad))


def _placed(amp: Amp, place: str, inside: bool) -> Callable[..., torch.Tensor]:
    """Return a function of a matrix that fails somewhere where what reaches the place is singular."""
    kind, low = amp.type, amp.dtype

    def computed(x: torch.Tensor) -> torch.Tensor:
        # First: a checkpoint stops computing again at the last tensor that is saved.
        y = torch.mm(torch.linalg.inv(x.double()).to(x.dtype) if place == "recomputed" else x, x)
        if place == "hook" and y.requires_grad:
            y.register_hook(_inverse_of)
        if place in ("forward", "backward"):
            y = _Inverse.apply(y, place == "forward")
        return y

    def steps(x: torch.Tensor) -> Iterator[torch.Tensor]:
        with torch.autocast(kind, dtype=low):
            yield torch.mm(x, x)
            torch.linalg.inv(x.double())
            yield torch.mm(x, x)

    def program(x: torch.Tensor) -> torch.Tensor:
        if place == "generator":
            first, second = steps(x)
            return first + second
        if place == "manager":
            with _Manager(torch.autocast(kind, dtype=low)):
                torch.linalg.inv(x.double())
                return torch.mm(x, x)
        if inside:
            with torch.autocast(kind, dtype=low):
                return computed(x)
        return computed(x)

    return program


@scenario(AROUND_THE_GRAPH, types=("cpu",), dtypes="default")
def test_place_that_fails(amp: Amp, compiler: str, place: str, regions: str, called: str) -> None:
    """After an error in a hook, a custom function, a backward pass or a recomputation, the state is as before it."""
    program = _placed(amp, place, regions in ("inside", "both"))
    compiled = amp.compiled(compiler, program, torch.eye(2, device=amp.type), fullgraph=False)

    def step(singular: bool) -> None:
        x = torch.eye(2, device=amp.type).requires_grad_()
        if place == "post_hook":
            x.register_post_accumulate_grad_hook(_inverted_in_place)
        if singular and place in ("forward", "generator", "manager"):
            x.data.zero_()
        with ExitStack() as stack:
            if regions in ("around", "both"):
                stack.enter_context(amp.region())
            y = checkpoint(compiled, x, use_reentrant=False) if place == "recomputed" else compiled(x)
        if place == "recomputed" and singular:
            x.data.zero_()
        with amp.region() if called == "in_a_region" else nullcontext():
            y.backward(torch.zeros_like(y) if singular else torch.ones_like(y) + torch.eye(2, device=amp.type).to(y))

    before = (*amp.state(), amp.depth())
    for turn in ("first", "second"):
        step(False)
        amp.assert_equal(f"state after the {turn} step", (*amp.state(), amp.depth()), before)
        _assert_raises(amp, f"the {turn} step that fails", lambda: step(True))
        amp.assert_equal(f"state after the {turn} error", (*amp.state(), amp.depth()), before)
        amp.assert_equal(f"dtype of a product after the {turn} error", amp.probe(), torch.float32)
