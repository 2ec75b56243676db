"""Rule transforms: under one transform, or two, an op casts what it casts without one.

The promise: a transform computes derivatives of the function it is given, or maps it
(https://docs.pytorch.org/docs/2.13/func.api.html, torch.utils.checkpoint), so in a region each op follows its policy
(https://docs.pytorch.org/docs/2.13/amp.html#autocast-op-reference), no op gains a cast, and the result is that of the
same function with explicit casts, transformed outside of any region: dtypes, number of casts and values. Derivatives
with respect to a tensor have its dtype, a tangent has that of the result.
"""

from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch.func import functional_call
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from ampcheck.runner.suite import Amp, Product, scenario, where

pytestmark = pytest.mark.rule("transforms")

Function = Callable[[torch.Tensor], torch.Tensor]


# ---- transforms: each makes a function of a tensor of another one
def _total(f: Function) -> Function:
    """Return the sum of the results, in float64, which no policy casts."""
    return lambda x: f(x).double().sum()


class _Held(torch.nn.Module):
    def __init__(self, f: Function, x: torch.Tensor) -> None:
        super().__init__()
        self.f = f
        self.x = torch.nn.Parameter(torch.zeros_like(x))

    def forward(self) -> torch.Tensor:
        return self.f(self.x)


TRANSFORMS: dict[str, Callable[[Function], Function]] = {
    "plain": lambda f: f,
    "grad": lambda f: torch.func.grad(_total(f)),
    "vjp": lambda f: lambda x: (lambda out, pull: pull(torch.ones_like(out))[0])(*torch.func.vjp(f, x)),
    "jvp": lambda f: lambda x: torch.func.jvp(f, (x,), (torch.ones_like(x),))[1],
    "jacrev": lambda f: torch.func.jacrev(f),
    "jacfwd": lambda f: torch.func.jacfwd(f),
    "hessian": lambda f: torch.func.hessian(_total(f)),
    "vmap": lambda f: lambda x: torch.vmap(f)(x.expand(2, *x.shape) * 1),
    "functional_call": lambda f: lambda x: functional_call(_Held(f, x), {"x": x}, ()),
    "recomputed": lambda f: lambda x: checkpoint(f, x, use_reentrant=False),
}
"""Each transform of a function; `recomputed` is torch.utils.checkpoint."""
BACKWARD = ("grad", "vjp", "jacrev", "hessian")

# ---- ops
OPS: dict[str, tuple[str, Callable[..., torch.Tensor], tuple[str, ...], tuple[tuple[int, ...], ...]]] = {
    "product": ("mm", torch.mm, ("wide", "wide"), ((2, 2),)),
    "product_of_low": ("mm", torch.mm, ("low", "wide"), ((2, 2),)),
    "biased": ("linear", functional.linear, ("wide", "wide", "wide"), ((2, 2), (2,))),
    "convolution": ("conv1d", functional.conv1d, ("wide", "wide"), ((2, 2, 1),)),
    "exponential": ("exp", torch.exp, ("low",), ()),
    "padded": ("reflection_pad1d", lambda x: functional.pad(x, (1, 1), mode="reflect"), ("low",), ()),
    "angle": ("atan2", torch.atan2, ("low", "wide"), ((2, 2),)),
    "softmax": ("softmax.int", lambda x, **more: torch.softmax(x, -1, **more), ("low",), ()),
    "sine": ("sin", torch.sin, ("low",), ()),
    "scaled": ("mul.Tensor", torch.mul, ("low", "wide"), ((2, 2),)),
}
"""An overload of each policy, and two without one: the call, the dtype of each tensor it is given ("low" is the
region's), and the shapes of those after the first."""


class _Called:
    """A call of an op as a function of its first argument; `seen` are the dtypes of its results."""

    def __init__(self, amp: Amp, op: str) -> None:
        self.amp, self.op = amp, op
        self.further = [amp.rand(*shape) for shape in OPS[op][3]]
        self.seen: set[torch.dtype] = set()

    def given(self, x: torch.Tensor) -> list[torch.Tensor]:
        low = self.amp.dtype
        dtypes = [low if dtype == "low" else torch.float32 for dtype in OPS[self.op][2]]
        return [t.to(dtype) for t, dtype in zip([x, *self.further], dtypes, strict=True)]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        out = OPS[self.op][1](*self.given(x))
        self.seen.add(out.dtype)
        return out

    def in_region(self, x: torch.Tensor) -> torch.Tensor:
        with self.amp.region(cache_enabled=False):
            return self(x)

    def with_casts(self, x: torch.Tensor) -> torch.Tensor:
        given = self.given(x)
        casting = self.amp.casting(OPS[self.op][0], [t.dtype for t in given])
        cast = [t.to(dtype) for t, dtype in zip(given, casting.dtypes, strict=True)]
        return OPS[self.op][1](*cast, **({"dtype": casting.dtype} if casting.dtype else {}))


PRODUCTS = ("product", "product_of_low", "biased", "convolution", "scaled")
"""Ops whose derivatives are products. Those of the others have ops with policies of their own, which a region around a
transform casts (docs/findings/backward-in-a-region.md), so there their casts are not counted."""
PLACES = ("around", "between", "inside")

COMPOSED = Product(
    {"outer": tuple(TRANSFORMS), "inner": tuple(TRANSFORMS), "op": tuple(OPS), "place": PLACES},
    {
        "torch.func refuses the hooks of checkpoint": lambda cell: (
            "recomputed" in (cell["inner"], cell["outer"]) and {cell["inner"], cell["outer"]} & {*BACKWARD} != set()
        ),
        "an op without a transform is a case of other rules": lambda cell: cell["outer"] == cell["inner"] == "plain",
        "one transform is written as the outer one": where(outer="plain"),
        "with one transform, between is inside": where(inner="plain", place="between"),
    },
)


@scenario(COMPOSED, types=("cpu",), values=True, dtypes="default")
def test_composed(amp: Amp, outer: str, inner: str, op: str, place: str) -> None:
    """The result is that of explicit casts, and as many are made (torch.func; amp.html#autocast-op-reference)."""
    called = _Called(amp, op)
    first, second = TRANSFORMS[inner], TRANSFORMS[outer]
    x = amp.rand(2, 2)
    if outer == "recomputed":
        x.requires_grad_()
    region = amp.region(cache_enabled=False)
    function = {
        "around": lambda: region(second(first(called))),
        "between": lambda: second(region(first(called))),
        "inside": lambda: second(first(called.in_region)),
    }[place]()
    reference = second(first(called.with_casts))
    before = amp.state(), amp.depth()
    results: list[torch.Tensor] = []

    def run(f: Function) -> None:
        out = f(x)
        if outer == "recomputed" and out.requires_grad:
            out = torch.autograd.grad(out.double().sum(), x)[0]
        results.append(out)

    wanted = len(amp.copies(partial(run, reference)))
    plain = called.with_casts(x).dtype
    try:
        casts = len(amp.copies(partial(run, function)))
    except RuntimeError as error:
        amp.assert_equal("what it raises", str(error).splitlines()[0], None)
        return
    want, got = results
    amp.assert_equal("state and depth afterwards", (amp.state(), amp.depth()), before)
    amp.assert_equal("dtypes of the op's results", called.seen, {plain})
    amp.assert_equal("dtype of the result", got.dtype, want.dtype)
    if place == "inside" or op in PRODUCTS:
        amp.assert_equal("how many casts are made", casts, wanted)
    if got.dtype == want.dtype:
        amp.assert_close("the result", got, want, 8 * torch.finfo(amp.dtype).eps)
