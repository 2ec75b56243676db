"""Rule customfn: custom_fwd and custom_bwd give a torch.autograd.Function its dtype and autocast state.

Without `cast_inputs`, both passes run in the autocast state of the forward call; with it, inputs are cast and both run
with autocast off. Parts: states and dtypes; gradients; torch.vmap, torch.func.grad and forward-mode differentiation
(https://docs.pytorch.org/docs/2.13/notes/extending.func.html). Source, where a case names no other:
https://docs.pytorch.org/docs/2.13/amp.html#torch.amp.custom_fwd, and
https://docs.pytorch.org/docs/2.13/notes/amp_examples.html, "Autocast and Custom Autograd Functions". Containers as
arguments: `suites/autograd/test_eligibility.py`; cache_enabled: `suites/autograd/test_context.py`.
"""

import warnings
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch.autograd.function import once_differentiable

from ampcheck.checks.training import (
    assert_same_gradients,
    backward,
    copies_of,
    copy_of,
    custom_function,
    plain_function,
)
from ampcheck.runner.suite import Amp, scenario

pytestmark = pytest.mark.rule("customfn")

Seen = dict[str, Any]
SPELLINGS: dict[str, Callable[..., Any]] = {
    "call": lambda decorator, name, function, **options: decorator(**options)(function),
    "no_call": lambda decorator, name, function, **options: decorator(function, **options),
    "keyword": lambda decorator, name, function, **options: decorator(**{name: function}, **options),
}
"""Ways to decorate a function, whose parameter has a name."""


def _recording_product(amp: Amp, seen: Seen, spelling: str = "call", **options: Any) -> Any:
    """Return a product whose forward and backward note their state, the dtypes they get and the dtype of a product."""
    decorate = partial(SPELLINGS[spelling], device_type=amp.type)
    forwards = partial(decorate, torch.amp.custom_fwd, "fwd")
    backwards = partial(decorate, torch.amp.custom_bwd, "bwd")

    class Product(torch.autograd.Function):
        @staticmethod
        @partial(forwards, **options)
        def forward(ctx: Any, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
            """Forward's own docstring."""
            seen["forward"] = (amp.state()[:2], x.dtype, w.dtype, amp.probe())
            ctx.save_for_backward(x, w)
            return torch.mm(x, w)

        @staticmethod
        @backwards
        def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
            seen["backward"] = (amp.state()[:2], gradient.dtype, amp.probe())
            x, w = ctx.saved_tensors
            return torch.mm(gradient, w.t()), torch.mm(x.t(), gradient)

    return Product


@scenario(spelling=SPELLINGS, values=True)
def test_region_of_forward(amp: Amp, spelling: str) -> None:
    """Without cast_inputs forward runs in the region it is called in, and backward does wherever that is called."""
    seen: Seen = {}
    product = _recording_product(amp, seen, spelling)
    for place in (amp.region(enabled=False), amp.region(amp.other)):
        x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
        with amp.region():
            out = product.apply(x, w)
        with place:
            before = amp.state()
            out.sum().backward()
            amp.assert_equal("state after backward", amp.state(), before)
        wanted = ((True, amp.dtype), torch.float32, torch.float32, amp.dtype)
        amp.assert_equal("in forward", seen.get("forward"), wanted)
        amp.assert_equal("in backward", seen.get("backward"), ((True, amp.dtype), amp.dtype, amp.dtype))
        for leaf in (x, w):
            amp.assert_equal("dtype of a gradient", getattr(leaf.grad, "dtype", None), torch.float32)


@scenario(to=["wide", "low", "other"], spelling=SPELLINGS, values=True)
def test_cast_inputs(amp: Amp, to: str, spelling: str) -> None:
    """cast_inputs casts what forward gets, and both passes run with autocast off, in a region of any dtype."""
    dtype = {"wide": torch.float32, "low": amp.dtype, "other": amp.other}[to]
    seen: Seen = {}
    product = _recording_product(amp, seen, spelling, cast_inputs=dtype)
    x, w = amp.rand(3, 3, dtype=amp.dtype, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    with amp.region():
        before = amp.state()
        out = product.apply(x, w)
        amp.assert_equal("state after forward", amp.state(), before)
        out.sum().backward()
        amp.assert_equal("state after backward", amp.state(), before)
    off = (False, amp.dtype)
    amp.assert_equal("in forward", seen.get("forward"), (off, dtype, dtype, torch.float32))
    amp.assert_equal("in backward", seen.get("backward"), (off, dtype, torch.float32))
    amp.assert_equal("dtype of the result", out.dtype, dtype)
    amp.assert_equal("dtype of a low leaf's gradient", getattr(x.grad, "dtype", None), amp.dtype)
    amp.assert_equal("dtype of a float32 leaf's gradient", getattr(w.grad, "dtype", None), torch.float32)


@scenario(how=["disabled", "none"], values=True)
def test_cast_inputs_outside(amp: Amp, how: str) -> None:
    """Outside of an enabled region custom_fwd does nothing, and backward runs as forward did, also in a region."""
    seen: Seen = {}
    product = _recording_product(amp, seen, cast_inputs=amp.dtype)
    x, w = amp.rand(3, 3, requires_grad=True), amp.rand(3, 3, requires_grad=True)
    if how == "disabled":
        with amp.region(), amp.region(enabled=False):
            out = product.apply(x, w)
    else:
        out = product.apply(x, w)
    with amp.region():
        out.sum().backward()
    wide = torch.float32
    amp.assert_equal("in forward", (seen["forward"][0][0], *seen["forward"][1:]), (False, wide, wide, wide))
    amp.assert_equal("in backward", (seen["backward"][0][0], *seen["backward"][1:]), (False, wide, wide))


@scenario(place=["inside", "after", "thread"], values=True)
def test_backward_of_no_region(amp: Amp, place: str) -> None:
    """A forward outside of a region has its backward outside of one, wherever and in whichever thread it is called."""
    seen: Seen = {}
    product = _recording_product(amp, seen)
    w = amp.rand(3, 3, requires_grad=True)
    out = product.apply(amp.rand(3, 3), w)

    def backward() -> None:
        with amp.region(enabled=place != "after"):
            out.sum().backward()

    if place == "thread":
        amp.thread(backward)
    else:
        backward()
    amp.assert_equal("in backward", (seen["backward"][0][0], seen["backward"][2]), (False, torch.float32))


@scenario(values=True)
def test_never_cast(amp: Amp) -> None:
    """cast_inputs leaves float64, integer, bool, complex and other devices' tensors, and other values, alone."""
    seen: list[Any] = []
    kinds = (torch.float64, torch.int32, torch.bool, torch.complex64)

    def forward(ctx: Any, x: torch.Tensor, *rest: Any) -> torch.Tensor:
        seen.extend(value.dtype if isinstance(value, torch.Tensor) else value for value in rest)
        return x * 2

    takes = custom_function(amp.type, forward, cast_inputs=amp.dtype)
    given = [torch.ones(2, dtype=kind, device=amp.type) for kind in kinds]
    other = torch.ones(2, device="meta")
    plain = (None, True, 3, 2.5, "text", torch.float64)
    with amp.region():
        out = takes.apply(amp.rand(2), *given, other, *plain)
    amp.assert_equal("dtypes and values in forward", seen, [*kinds, torch.float32, *plain])
    amp.assert_equal("dtype of what was cast", out.dtype, amp.dtype)


@scenario(values=True)
def test_called_with_keywords(amp: Amp) -> None:
    """A decorated forward casts keyword arguments as well as positional ones (autocast_mode.py, custom_fwd)."""

    def plain(ctx: Any, x: torch.Tensor, *, scale: Any = None, parts: Any = ()) -> tuple[Any, ...]:
        return x.dtype, scale, [part.dtype for part in parts]

    forward = torch.amp.custom_fwd(plain, device_type=amp.type, cast_inputs=amp.dtype)
    uncast = torch.amp.custom_fwd(plain, device_type=amp.type)

    x, half = amp.rand(2), amp.rand(2)
    with amp.region():
        amp.assert_equal("a default", forward(SimpleNamespace(), x), (amp.dtype, None, []))
        amp.assert_equal("a list", forward(SimpleNamespace(), x=x, parts=[half, x])[2], [amp.dtype] * 2)
        amp.assert_equal("a tensor", forward(SimpleNamespace(), x, scale=half)[1].dtype, amp.dtype)
        got = uncast(SimpleNamespace(), x, scale=half)[1] is half
        amp.assert_equal("is what is not to be cast the same", got, True)
    amp.assert_equal("a tensor outside", forward(SimpleNamespace(), x, scale=half)[1].dtype, torch.float32)


@scenario(values=True)
def test_names_are_kept(amp: Amp) -> None:
    """Decorated passes keep their names and docstrings (functools.wraps in autocast_mode.py)."""
    product = _recording_product(amp, {})
    found = product.forward.__name__, product.forward.__doc__, product.backward.__name__
    amp.assert_equal("names of both, docstring of forward", found, ("forward", "Forward's own docstring.", "backward"))


@scenario(values=True)
def test_of_another_device_type(amp: Amp) -> None:
    """Decorators of another device type cast nothing here and leave this one's region on (device_type)."""
    seen: list[Any] = []

    def double(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append((x.dtype, amp.state()[:2]))
        return x * 2

    takes = custom_function(amp.elsewhere, double, double, cast_inputs=torch.float32)
    x = amp.rand(2, dtype=amp.dtype, requires_grad=True)
    with amp.region(), torch.autocast(amp.elsewhere, dtype=torch.bfloat16):
        takes.apply(x).sum().backward()
    amp.assert_equal("dtype and state in both passes", seen, [(amp.dtype, (True, amp.dtype))] * 2)


@scenario(values=True)
def test_undecorated(amp: Amp) -> None:
    """A function without the decorators runs forward in its region and backward in that of whoever calls it."""
    seen: list[Any] = []

    def twice(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        seen.append((x.dtype, amp.state(), amp.probe()))
        return x * 2

    for place in (amp.region(enabled=False), amp.region(amp.other)):
        seen.clear()
        x = amp.rand(2, requires_grad=True)
        with amp.region():
            out = plain_function(twice, twice).apply(x)
        with place:
            caller = torch.float32, amp.state(), amp.probe()
            out.sum().backward()
            amp.assert_equal("state after backward", amp.state(), caller[1])
        amp.assert_equal("in forward", seen[0], (torch.float32, (True, amp.dtype, True), amp.dtype))
        amp.assert_equal("in backward", seen[1], caller)


@scenario(cast=["cast", "uncast"], where=["forward", "backward"], values=True)
def test_that_raises(amp: Amp, cast: str, where: str) -> None:
    """An exception in a decorated pass leaves the state of its caller (autocast_mode.py: a with statement)."""

    def double(here: str, ctx: Any, x: torch.Tensor) -> torch.Tensor:
        if here == where:
            raise KeyError(f"in {here}")
        return x * 2

    passes = [partial(double, here) for here in ("forward", "backward")]
    fails = custom_function(amp.type, *passes, cast_inputs=torch.float32 if cast == "cast" else None)
    x = amp.rand(2, requires_grad=True)
    with amp.region(cache_enabled=False):
        before, depth = amp.state(), amp.depth()
        amp.assert_raises("the function", KeyError, f"in {where}", lambda: fails.apply(x).sum().backward())
        amp.assert_equal("state and depth after it", (amp.state(), amp.depth()), (before, depth))
        amp.assert_equal("dtype a product runs in", amp.probe(), amp.dtype)


@scenario(values=True)
def test_one_inside_another(amp: Amp) -> None:
    """A function that is called inside another's forward sees that one's state: off, so it casts nothing."""
    inner_seen: Seen = {}
    inner = _recording_product(amp, inner_seen, cast_inputs=amp.dtype)
    outer = custom_function(amp.type, lambda ctx, x: inner.apply(x, x), cast_inputs=torch.float32)
    with amp.region():
        out = outer.apply(amp.rand(3, 3, dtype=amp.dtype))
    wide = torch.float32
    amp.assert_equal("in the inner forward", inner_seen.get("forward"), ((False, amp.dtype), wide, wide, wide))
    amp.assert_equal("dtype of the result", out.dtype, wide)


# ---- gradients
def _cube(amp: Amp, cast_inputs: torch.dtype | None, once: bool = False) -> Any:
    """x cubed, with a backward of differentiable ops on what forward got."""

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x * x

    cube = custom_function(
        amp.type, forward, lambda ctx, gradient: gradient * 3 * ctx.saved_tensors[0] * ctx.saved_tensors[0], cast_inputs
    )
    if once:
        cube.backward = staticmethod(once_differentiable(cube.backward))
    return cube


@scenario(values=True)
def test_documented_product(amp: Amp) -> None:
    """The documented product of two matrices has the gradients of torch.mm in the same region."""
    a, b = amp.rand(4, 4, requires_grad=True), amp.rand(4, 4, requires_grad=True)
    a2, b2 = copies_of(a, b)
    with amp.region():
        out, want = _recording_product(amp, {}).apply(a, b), torch.mm(a2, b2)
    backward(out, want)
    amp.assert_identical("result", out, want)
    assert_same_gradients(amp, "ab", (a, b), (a2, b2))


@scenario(to=["wide", "low", "same"], values=True)
def test_gradient(amp: Amp, to: str) -> None:
    """The gradient of a cast input is that of an explicit cast, in the dtype of the leaf."""
    dtype = {"wide": torch.float32, "low": amp.dtype, "same": None}[to]
    x = amp.rand(4, dtype=amp.dtype if to == "wide" else torch.float32, requires_grad=True)
    reference = copy_of(x)
    with amp.region():
        out = _cube(amp, dtype).apply(x)
    given = reference if dtype is None else reference.to(dtype)
    want = given * given * given
    out.float().sum().backward()
    want.float().sum().backward()
    amp.assert_identical("result", out, want)
    lowest = torch.float32 if to == "same" else amp.dtype
    amp.assert_close("gradient", x.grad, reference.grad, 8 * torch.finfo(lowest).eps)


@scenario(place=["outside", "same", "another"], values=True)
def test_second_derivative(amp: Amp, place: str) -> None:
    """Without cast_inputs a backward made of differentiable ops has a derivative, wherever it is taken.

    https://docs.pytorch.org/docs/2.13/autograd.html, double backward of a torch.autograd.Function.
    """
    x = torch.full((3,), 2.0, device=amp.type, requires_grad=True)
    with amp.region():
        out = _cube(amp, None).apply(x)
    with amp.region(amp.other if place == "another" else amp.dtype, enabled=place != "outside"):
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x, create_graph=True)
        (third,) = torch.autograd.grad(second.sum(), x)
    found = [(each.dtype, amp.values(each)) for each in (first, second, third)]
    amp.assert_equal("derivatives of 2 cubed", found, [(torch.float32, [value] * 3) for value in (12.0, 12.0, 6.0)])


@scenario(to=["wide", "low"], values=True)
def test_second_derivative_of_a_cast(amp: Amp, to: str) -> None:
    """With cast_inputs it has one too: 36 for x cubed plus its gradient times x, where x is 2, in a region or not."""
    leaf = torch.full((3,), 2.0, device=amp.type, dtype=amp.dtype if to == "wide" else torch.float32)
    for enabled in (False, True):
        x = copy_of(leaf)
        with amp.region(enabled=enabled):
            out = _cube(amp, torch.float32 if to == "wide" else amp.dtype).apply(x)
        (first,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x)
        where = "in a region" if enabled else "outside"
        amp.assert_equal(f"derivative of 3 x cubed {where}", amp.values(second), [36.0] * 3)


@scenario(cast=["cast", "uncast"], values=True)
def test_once_differentiable(amp: Amp, cast: str) -> None:
    """once_differentiable around custom_bwd gives the first derivative and refuses a second (its page)."""
    x = torch.full((3,), 2.0, device=amp.type, requires_grad=True)
    with amp.region():
        out = _cube(amp, torch.float32 if cast == "cast" else None, once=True).apply(x)
    (first,) = torch.autograd.grad(out.pow(2).sum(), x, create_graph=True)
    amp.assert_equal("first derivative of 2 to the sixth", amp.values(first), [192.0] * 3)
    amp.assert_raises("the second", RuntimeError, "once_differentiable", lambda: first.sum().backward())


@scenario(values=True)
def test_several_results(amp: Amp) -> None:
    """Each result gets a gradient of its dtype, zeros if none came (torch.autograd)."""
    seen: list[Any] = []

    def forwards(ctx: Any, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        low, index = torch.mm(x, x), x.argmax()
        ctx.mark_non_differentiable(index)
        return low, x * 2, x * 3, index

    def backwards(ctx: Any, *gradients: torch.Tensor) -> torch.Tensor:
        seen.extend(gradient.dtype for gradient in gradients[:3])
        return gradients[1] * 2 + gradients[2] * 3

    x = torch.ones(2, 2, device=amp.type, requires_grad=True)
    with amp.region():
        low, twice, _, index = custom_function(amp.type, forwards, backwards).apply(x)
        loss = low.float().sum() + twice.sum()
    amp.assert_equal("does an index require grad", index.requires_grad, False)
    loss.backward()
    amp.assert_equal("dtypes of gradients in backward", seen, [amp.dtype, torch.float32, torch.float32])
    amp.assert_equal("gradient", amp.values(x.grad), [[2.0, 2.0], [2.0, 2.0]])


@scenario(to=["wide", "low"], values=True)
def test_in_place(amp: Amp, to: str) -> None:
    """A function that changes its input in place, and says so with mark_dirty, does so in a region (mark_dirty)."""

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(x)
        return x.mul_(2)

    dtype = torch.float32 if to == "wide" else amp.dtype
    doubled = custom_function(amp.type, forward, lambda ctx, gradient: gradient * 2, dtype)
    for enabled in (False, True):
        leaf = torch.ones(2, device=amp.type, requires_grad=True)
        x = leaf * 1
        with amp.region(enabled=enabled), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that the tensor it got was no input, which is what the values show
            out = doubled.apply(x)
        out.float().sum().backward()
        where = "in a region" if enabled else "outside"
        amp.assert_equal(f"the result {where}", amp.values(out), [2.0, 2.0])
        amp.assert_equal(f"a tensor that was doubled {where}", amp.values(x), [2.0, 2.0])
        amp.assert_equal(f"gradient {where}", amp.values(leaf.grad), [2.0, 2.0])


# ---- torch.vmap, torch.func.grad and forward-mode differentiation
@scenario(values=True)
def test_under_vmap(amp: Amp) -> None:
    """A function with its own vmap rule, or a generated one, is mapped in its region (torch.func's notes)."""
    seen: list[Any] = []

    class Own(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return torch.mm(x, x)

        @staticmethod
        def setup_context(ctx: Any, inputs: tuple[Any, ...], output: torch.Tensor) -> None:
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            (x,) = ctx.saved_tensors
            low = x.to(gradient.dtype)
            return gradient @ low.t() + low.t() @ gradient

        @staticmethod
        def vmap(info: Any, dims: tuple[int, ...], x: torch.Tensor) -> tuple[torch.Tensor, int]:
            seen.append(amp.state()[:2])
            return torch.bmm(x, x), 0

    class Generated(Own):
        generate_vmap_rule = True
        vmap = torch.autograd.Function.vmap  # as if it had none

    xs = amp.rand(4, 3, 3)
    with amp.region():
        want = torch.stack([torch.mm(x, x) for x in xs])
        for function in (Own, Generated):
            amp.assert_identical(f"{function.__name__} mapped over four", torch.vmap(function.apply)(xs), want)
        gradient = torch.func.grad(lambda x: Own.apply(x).float().sum())(xs[0])
    amp.assert_equal("state in the vmap rule", seen, [(True, amp.dtype)])
    amp.assert_equal("dtype of a gradient by torch.func.grad", gradient.dtype, torch.float32)


@scenario(values=True)
def test_forward_mode(amp: Amp) -> None:
    """A jvp rule runs in the region forward was called in, and its tangent has the result's dtype (forward_ad)."""
    seen: list[Any] = []

    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return torch.mm(x, x)

    def jvp(ctx: Any, tangent: torch.Tensor) -> torch.Tensor:
        seen.append(amp.state()[:2])
        return torch.mm(tangent, ctx.x) + torch.mm(ctx.x, tangent)

    square = custom_function(amp.type, forward, jvp=staticmethod(jvp))
    x, forward_ad = torch.ones(2, 2, device=amp.type), torch.autograd.forward_ad
    with forward_ad.dual_level(), amp.region(), warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # PyTorch loads its decompositions with torch.jit
        out = forward_ad.unpack_dual(square.apply(forward_ad.make_dual(x, torch.ones_like(x))))
        amp.assert_equal("state in the jvp rule", seen, [(True, amp.dtype)])
        amp.assert_equal("dtype of the tangent", getattr(out.tangent, "dtype", None), amp.dtype)
        amp.assert_equal("tangent", None if out.tangent is None else amp.values(out.tangent), [[4.0, 4.0], [4.0, 4.0]])
